"""The parts of the sync client that differ from the async one; `backend_async` has the same names."""

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

import httpcore2
import httpx2

from skerry.client.host.content import PIECE, Source, pieces
from skerry.client.transport.address import Address
from skerry.client.transport.connection import listen_on, reset_on_close, transport_options
from skerry.errors import SkerryError
from skerry.types import Approval, ApprovalRequest, HttpRequest, HttpResponse

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
AnySource = Source
Lock = threading.Lock
Callback = Callable[[A], None]
Said = bool | Approval | None
Answerer = Callable[[ApprovalRequest], Said]
Handled = HttpRequest | HttpResponse | None
RequestHandler = Callable[[HttpRequest], Handled]
ResponseHandler = Callable[[HttpRequest, HttpResponse], HttpResponse | None]
READ = 64 << 10


def open_transport(address: Address) -> httpx2.HTTPTransport:
    return httpx2.HTTPTransport(**transport_options(address))


def chunks(source: AnySource) -> Iterator[bytes]:
    """Yield the bytes of a file object or iterable in pieces."""
    return pieces(source)


def try_acquire(lock: threading.Lock) -> bool:
    """Acquire the lock if it is free."""
    return lock.acquire(blocking=False)


def deliver(callback: Callback[A], value: A) -> None:
    callback(value)


def call_answerer(answerer: Answerer, question: ApprovalRequest) -> Said:
    return answerer(question)


def call_handler(timeout_s: float, handler: Callable[..., Any], *messages: HttpRequest | HttpResponse) -> object:
    """Nothing can cancel a function: the server fails the request after the timeout."""
    return handler(*messages)


def abort(response: httpx2.Response) -> None:
    """Wake a thread that reads the response: closing alone would not."""
    stream = response.extensions.get("network_stream")
    connection = stream.get_extra_info("socket") if stream is not None else None
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return function(*args, **kwargs)


def in_thread_shielded(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return function(*args, **kwargs)


class UpgradedStream:
    """The bytes of an upgraded connection, for one reader and one writer at a time, each in its own thread: httpcore2's
    stream sets the socket's timeout for each call, which would affect the other thread's call."""

    def __init__(self, stream: httpcore2.NetworkStream) -> None:
        self._socket: socket.socket = stream.get_extra_info("socket")
        self._turn = threading.Lock()  # a TLS connection allows one call at a time; none of them blocks
        try:
            self._first = [stream.read(READ, 0.001)]  # it may hold bytes that arrived right after the response head
        except httpcore2.ReadTimeout:
            self._first = []
        self._socket.setblocking(False)

    @property
    def readable(self) -> bool:
        """Whether data, or the end, has arrived."""
        return bool(self._first) or _pending(self._socket) or self._wait(select.POLLIN, 0.0)

    def read(self, size: int, timeout: float | None = None) -> bytes:
        if self._first:
            return self._first.pop()
        return self._patiently(partial(self._socket.recv, size), select.POLLIN, timeout)

    def write(self, data: bytes, timeout: float | None = None) -> None:
        view = memoryview(data)
        while view:
            view = view[self._patiently(partial(self._socket.send, view[:READ]), select.POLLOUT, timeout) :]

    def abort(self) -> None:
        """Wake a thread that waits: closing alone would not."""
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


class BackgroundTask:
    """Work in parallel with a stream: a thread here, a task in the async client."""

    def start(self, work: Callable[..., Any], *args: object) -> None:
        # A daemon, and not joined: it may be blocked in a read of the caller's source, which nothing else can end.
        threading.Thread(target=work, args=args, name="skerry-stdin", daemon=True).start()

    def end(self) -> None:
        """Stop the work. The worker keeps its errors."""


class LocalConnection:
    """A connection of a local program. After a reset it neither accepts nor returns data."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def read(self) -> bytes:
        return self._socket.recv(PIECE)

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def end(self) -> None:
        """Close the write side."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        with contextlib.suppress(OSError):
            reset_on_close(self._socket)
            self._socket.shutdown(socket.SHUT_RD)  # wakes a thread that waits; the reset follows

    def close(self) -> None:
        self._socket.close()


class PortListener:
    """Serves each connection in its own thread."""

    def __init__(self, listening: socket.socket, serve: Callable[[LocalConnection], None]) -> None:
        self._listening = listening
        self._serve = serve
        self._open: set[LocalConnection] = set()
        self.address: tuple[str, int] = listening.getsockname()[:2]
        self._thread = threading.Thread(target=self._accept, name="skerry-forward", daemon=True)

    @classmethod
    def open(cls, host: str, port: int, serve: Callable[[LocalConnection], None]) -> PortListener:
        listener = cls(listen_on(host, port), serve)
        listener._thread.start()
        return listener

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            stream = LocalConnection(connection)
            self._open.add(stream)
            threading.Thread(target=self._one, args=(stream,), name="skerry-forward", daemon=True).start()

    def _one(self, stream: LocalConnection) -> None:
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


def run_both(first: Callable[[], None], second: Callable[[], None], broken: Callable[[], None]) -> None:
    """Run both to their ends; if one fails, call `broken`, and then the other fails too."""
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
