"""Top-level `await`: the part of the Python kernel that is compiled when the first run awaits something."""

from __future__ import annotations

import _signal
import asyncio

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def wait_for(kernel: Any, coroutine: Any) -> Any:
    """Run a coroutine on one loop for all runs: tasks of earlier runs continue. An interrupt finds this name on the
    stack and cancels; it also writes to the loop's own socket, since a signal just before the loop sleeps would not
    wake it."""
    if kernel.loop is None or kernel.loop.is_closed():
        kernel.loop = asyncio.new_event_loop()
    asyncio.set_event_loop(kernel.loop)
    task = kernel.task = kernel.loop.create_task(coroutine)
    if kernel.pending:
        task.cancel()
    wakes = getattr(kernel.loop, "_csock", None)
    before = _signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False) if wakes is not None else None
    try:
        return kernel.loop.run_until_complete(task)
    except asyncio.CancelledError as cancelled:
        if not kernel.pending:
            raise
        raise KeyboardInterrupt().with_traceback(where(cancelled)) from None
    finally:
        if before is not None:
            _signal.set_wakeup_fd(before, warn_on_full_buffer=False)
        kernel.task, kernel.pending = None, False
        if task.done() and not task.cancelled():
            task.exception()  # else asyncio would report it again


def where(cancelled: Any) -> Any:
    """It waited. Before Python 3.11 the first of the chain has it."""
    while isinstance(cancelled.__context__, asyncio.CancelledError):
        cancelled = cancelled.__context__
    return cancelled.__traceback__


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
            pass  # a task's own `SystemExit`, which the loop has reported
    if not loop.is_closed():
        loop.remove_reader(channel)
