"""Ctrl-C: end the program while it loads, interrupt its work afterwards, and pass it on to a command that runs."""

from __future__ import annotations

import queue
import signal
import socket
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from skerry.cli import output
from skerry.errors import SkerryError

if TYPE_CHECKING:
    from skerry.client._sync.code import CodeRun
    from skerry.client._sync.processes import Run

KILL_WITHIN_S = 2.0
_WAKE = signal.SIGURG  # ignored by default
_PAUSES_S = (0.02, 0.2)
CLEANING_UP = "cleaning up; press Ctrl-C again to exit at once"


def interrupts_work() -> None:
    """From here on, let Ctrl-C raise KeyboardInterrupt; leave an ignored SIGINT alone. Until here the program had
    nothing to clean up, and `skerry.cli.main` has set a handler that ends it at once."""
    _wake_after_signals()
    if callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _unraisable


def _wake_after_signals() -> None:
    """Make sure that handlers run soon. Python runs them in the main thread, between two instructions: a signal that
    arrives after the last of them and before a system call that waits would be handled after the call. A thread
    interrupts such a call with another signal."""
    if signal.getsignal(_WAKE) is _woken or threading.current_thread() is not threading.main_thread():
        return
    signal.signal(_WAKE, _woken)
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    signal.set_wakeup_fd(sender.detach(), warn_on_full_buffer=False)
    threading.Thread(target=_wake, args=(receiver, threading.get_ident()), name="skerry-wake", daemon=True).start()


def _wake(receiver: socket.socket, main: int) -> None:
    while numbers := receiver.recv(1):
        if numbers[0] != _WAKE:
            for pause in _PAUSES_S:
                time.sleep(pause)
                signal.pthread_kill(main, _WAKE)


def _woken(_: int, __: FrameType | None) -> None:
    """Do nothing: the system call was interrupted, so that the other handlers ran."""


def ignore_interrupts() -> None:
    """Ignore Ctrl-C: the work is done and its exit code is known. The interpreter shuts down, and at the end of that it
    would reset a handler of ours to the default, which changes the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _interrupt(_: int, __: FrameType | None) -> None:
    """Interrupt at the first Ctrl-C. The second only prints a message, so that it does not cut the clean-up short."""
    signal.signal(signal.SIGINT, _insist)
    raise KeyboardInterrupt


def _insist(_: int, __: FrameType | None) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output.info(CLEANING_UP)


def _unraisable(failure: sys.UnraisableHookArgs, /) -> None:
    """Print no traceback for an interrupt that arrived in a finaliser or a weakref callback, such as those of imports.
    Python drops it there: the next Ctrl-C interrupts."""
    if isinstance(failure.exc_value, KeyboardInterrupt):
        signal.signal(signal.SIGINT, _interrupt)
    else:
        sys.__unraisablehook__(failure)


class ForwardedInterrupts:
    """From the start of a command on, Ctrl-C sends SIGINT to it, a second one within 2 s kills it with its process
    tree, and a third one interrupts this program. Before the start, Ctrl-C interrupts this program."""

    def __init__(self) -> None:
        self._before = signal.getsignal(signal.SIGINT)
        # `put` may be called in a signal handler; starting a thread or using the connections there could deadlock.
        self._signals: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._pressed_at: float | None = None
        self._last_chance = False  # the command was killed or has ended: the next Ctrl-C is for this program

    def __enter__(self) -> ForwardedInterrupts:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        if signal.getsignal(signal.SIGINT) == self._press:
            signal.signal(signal.SIGINT, self._before)
        self._signals.put(None)

    def started(self, run: Run | CodeRun) -> None:
        """Forward interrupts to this command or code from now on."""
        if callable(self._before):
            threading.Thread(target=self._forward, args=(run,), name="skerry-signals", daemon=True).start()
            signal.signal(signal.SIGINT, self._press)

    @property
    def pressed(self) -> bool:
        """Whether an interrupt was forwarded."""
        return self._pressed_at is not None

    def _press(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._last_chance and callable(self._before):
            signal.signal(signal.SIGINT, self._before)
            self._before(number, frame)
        elif self._pressed_at is not None and now - self._pressed_at <= KILL_WITHIN_S:
            self._last_chance = True
            self._signals.put("KILL")
        else:
            self._signals.put("INT")
        self._pressed_at = now

    def _forward(self, run: Run | CodeRun) -> None:
        while (name := self._signals.get()) is not None:
            try:
                run.signal(name)
            except SkerryError:  # the command has ended, or the server is gone, which the main thread reports
                self._last_chance = True
                output.info(CLEANING_UP)
