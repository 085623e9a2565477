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
    finally:
        if not task.done():  # interrupted while it waited
            task.cancel()
            kernel.loop.run_until_complete(asyncio.wait([task]))
        elif not task.cancelled():
            task.exception()  # or it would be told a second time


def go_on_until_called(kernel: Any, channel: int) -> None:
    """Between runs."""
    loop = kernel.loop
    called = False

    def call() -> None:
        nonlocal called
        called = True
        loop.stop()

    while not called and not loop.is_closed():
        try:
            loop.add_reader(channel, call)
            loop.run_forever()
            loop.remove_reader(channel)
        except BaseException:
            pass  # a task's own `SystemExit`; the loop has told it
