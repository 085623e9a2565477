"""Top-level `await`: the part of the Python kernel that is compiled when the first run awaits something."""

from __future__ import annotations

import asyncio

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def wait_for(kernel: Any, coroutine: Any) -> Any:
    """One loop for all runs: what they left on it goes on."""
    if kernel.loop is None or kernel.loop.is_closed():
        kernel.loop = asyncio.new_event_loop()
    asyncio.set_event_loop(kernel.loop)
    task = kernel.loop.create_task(coroutine)
    try:
        return kernel.loop.run_until_complete(task)
    except KeyboardInterrupt as interrupt:
        if not task.done():
            raise interrupt.with_traceback(cancel(kernel.loop, task)) from None
        raise
    finally:
        if task.done() and not task.cancelled():
            task.exception()  # or it would be told a second time


def cancel(loop: Any, task: Any) -> Any:
    """An interrupt while the code waits finds only the loop at work: the traceback of where the code waited."""
    task.cancel()
    loop.run_until_complete(asyncio.wait([task]))
    failure: Any = None
    try:
        task.result()
    except BaseException as found:
        failure = found
    while isinstance(getattr(failure, "__context__", None), asyncio.CancelledError):
        failure = failure.__context__  # before Python 3.11 the first one has it
    return failure.__traceback__ if failure is not None else None


def go_on_until_called(kernel: Any, channel: int) -> None:
    """Between runs."""
    loop = kernel.loop
    called = False

    def call() -> None:
        nonlocal called
        called = True
        loop.stop()

    while not called and not loop.is_closed() and not loop.is_running():  # by a thread of the code's own
        try:
            loop.add_reader(channel, call)
            loop.run_forever()
        except BaseException:
            pass  # a task's own `SystemExit`; the loop has told it
    if not loop.is_closed():
        loop.remove_reader(channel)
