"""What the sync client does otherwise than the async one; `backend_async` has the same names."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ParamSpec, TypeVar

import httpcore
import httpx

from skerry.client.address import Address
from skerry.client.connection import transport_options
from skerry.client.content import Source, pieces
from skerry.types import Question, Reply

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
AnySource = Source
Lock = threading.Lock
Callback = Callable[[A], None]
Said = bool | Reply | None
Answerer = Callable[[Question], Said]
READ = 64 << 10


def open_transport(address: Address) -> httpx.HTTPTransport:
    return httpx.HTTPTransport(**transport_options(address))


def chunks(source: AnySource) -> Iterator[bytes]:
    """The bytes of a file object or iterable, piece by piece."""
    return pieces(source)


def take_at_once(lock: threading.Lock) -> bool:
    """Acquire it if nobody has it."""
    return lock.acquire(blocking=False)


def deliver(callback: Callback[A], value: A) -> None:
    callback(value)


def consult(answerer: Answerer, question: Question) -> Said:
    return answerer(question)


def cut(response: httpx.Response) -> None:
    """Wakes whoever reads it in another thread: closing alone would not."""
    stream = response.extensions.get("network_stream")
    connection = stream.get_extra_info("socket") if stream is not None else None
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return function(*args, **kwargs)


class Wire:
    """The bytes of an upgraded connection, one reader and one writer at a time, each in a thread of its own: httpcore's
    stream sets the socket's time-out for each call, which the other thread's call would then have."""

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._socket: socket.socket = stream.get_extra_info("socket")
        self._turn = threading.Lock()  # a TLS connection takes one call at a time; none of them waits
        try:
            self._first = [stream.read(READ, 0.001)]  # it may hold what came right behind the answer's head
        except httpcore.ReadTimeout:
            self._first = []
        self._socket.setblocking(False)

    @property
    def readable(self) -> bool:
        """Something has come already, if only the end."""
        return bool(self._first) or _pending(self._socket) or self._wait(select.POLLIN, 0.0)

    def read(self, size: int, timeout: float | None = None) -> bytes:
        if self._first:
            return self._first.pop()
        return self._patiently(partial(self._socket.recv, size), select.POLLIN, timeout)

    def write(self, data: bytes, timeout: float | None = None) -> None:
        view = memoryview(data)
        while view:
            view = view[self._patiently(partial(self._socket.send, view[:READ]), select.POLLOUT, timeout) :]

    def cut(self) -> None:
        """Wakes whoever waits in another thread: closing alone would not."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _patiently(self, call: Callable[[], T], event: int, timeout: float | None) -> T:
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                with self._turn:
                    return call()
            except BlockingIOError:
                pass
            except ssl.SSLWantReadError:
                event = select.POLLIN
            except ssl.SSLWantWriteError:
                event = select.POLLOUT
            left = None if until is None else until - time.monotonic()
            if not self._wait(event, left):
                raise TimeoutError

    def _wait(self, event: int, timeout: float | None) -> bool:
        poll = select.poll()
        poll.register(self._socket, event)
        return bool(poll.poll(None if timeout is None else max(0, timeout * 1000)))


def _pending(connection: socket.socket) -> bool:
    return isinstance(connection, ssl.SSLSocket) and connection.pending() > 0


class Aside:
    """Work beside a stream that is being read: a thread here, a task in the async client."""

    def start(self, work: Callable[..., Any], *args: object) -> None:
        # A daemon, and not joined: it may stand in a read of the caller's own source, which nobody else can end.
        threading.Thread(target=work, args=args, name="skerry-stdin", daemon=True).start()

    def end(self) -> None:
        """Leave it. What it met is the worker's to keep."""
