"""Work in a child process that is killed at a chosen moment."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType


def steps_of(work: Callable[[Callable[[str], None]], object]) -> list[str]:
    named: list[str] = []
    work(named.append)
    return named


def killed_at(number: int, work: Callable[[Callable[[str], None]], object]) -> None:
    """In a child, which is killed before its step of that number."""
    pid = os.fork()
    if pid == 0:
        numbers = iter(range(number + 1))

        def step(_: str) -> None:
            if next(numbers) == number:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            work(step)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), f"it was not killed at step {number}"


def killed_at_call(number: int, work: Callable[[], object]) -> bool:
    """In a child, which is killed before its call of the kernel of that number; return whether it came so far."""
    pid = os.fork()
    if pid == 0:
        numbers = iter(range(1, number + 1))

        def look(_: FrameType, event: str, called: object) -> None:
            kernel = getattr(called, "__module__", None) == "posix" or getattr(called, "__name__", "") == "renameat2"
            if event == "c_call" and kernel and next(numbers, 0) == number:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.setprofile(look)
            work()
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)
