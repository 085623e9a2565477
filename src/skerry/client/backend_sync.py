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
from skerry.client.connection import break_off, listen_on, transport_options
from skerry.client.content import PIECE, Source, pieces
from skerry.errors import SkerryError
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


def to_the_end(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
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


class Stream:
    """A connection of a local program. One that is reset takes no more, and gives no more."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def read(self) -> bytes:
        return self._socket.recv(PIECE)

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def end(self) -> None:
        """Nothing more will be written."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        with contextlib.suppress(OSError):
            break_off(self._socket)
            self._socket.shutdown(socket.SHUT_RD)  # wakes whoever waits in another thread; what is left is the reset

    def close(self) -> None:
        self._socket.close()


class Listener:
    """Each connection is served by a thread of its own."""

    def __init__(self, listening: socket.socket, serve: Callable[[Stream], None]) -> None:
        self._listening = listening
        self._serve = serve
        self._open: set[Stream] = set()
        self.address: tuple[str, int] = listening.getsockname()[:2]
        self._thread = threading.Thread(target=self._accept, name="skerry-forward", daemon=True)

    @classmethod
    def open(cls, host: str, port: int, serve: Callable[[Stream], None]) -> Listener:
        listener = cls(listen_on(host, port), serve)
        listener._thread.start()
        return listener

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            stream = Stream(connection)
            self._open.add(stream)
            threading.Thread(target=self._one, args=(stream,), name="skerry-forward", daemon=True).start()

    def _one(self, stream: Stream) -> None:
        try:
            with contextlib.suppress(OSError, SkerryError):
                self._serve(stream)
        finally:
            stream.close()
            self._open.discard(stream)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # closing alone would not wake its thread
        self._listening.close()
        for stream in list(self._open):
            stream.reset()
        self._thread.join()


def both(first: Callable[[], None], second: Callable[[], None], broken: Callable[[], None]) -> None:
    """Both to their ends; `broken` is called if one of them fails, and then the other fails too."""
    failed: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)
            broken()

    beside = threading.Thread(target=run, args=(first,), name="skerry-forward", daemon=True)
    beside.start()
    run(second)
    beside.join()
    if failed:
        raise failed[0]
