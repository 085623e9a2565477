"""The parts of the async client that differ from the sync one; `backend_sync` has the same names."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

import httpcore2
import httpx2

from skerry.client.host.content import PIECE, Source, pieces, size_of
from skerry.client.transport.address import Address
from skerry.client.transport.connection import listen_on, reset_on_close, transport_options
from skerry.errors import SkerryError
from skerry.types import Approval, ApprovalRequest, HttpRequest, HttpResponse

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
AnySource = Source | AsyncIterable[bytes] | AsyncIterable[str]
Lock = asyncio.Lock
Callback = Callable[[A], Awaitable[None] | None]
Said = bool | Approval | None
Answerer = Callable[[ApprovalRequest], Awaitable[Said] | Said]
Handled = HttpRequest | HttpResponse | None
RequestHandler = Callable[[HttpRequest], Awaitable[Handled] | Handled]
ResponseHandler = Callable[[HttpRequest, HttpResponse], Awaitable[HttpResponse | None] | HttpResponse | None]


def open_transport(address: Address) -> httpx2.AsyncHTTPTransport:
    return httpx2.AsyncHTTPTransport(**transport_options(address))


async def chunks(source: AnySource) -> AsyncIterator[bytes]:
    """Yield the bytes of a file object or iterable in pieces; read it in a thread if it may block."""
    if isinstance(source, AsyncIterable):
        async for given in source:
            yield given.encode() if isinstance(given, str) else given
        return
    iterator = pieces(source)
    read = asyncio.to_thread if size_of(source) is not None else _read_in_thread  # a regular file never blocks for long
    while (piece := await read(lambda: next(iterator, None))) is not None:
        yield piece


async def _read_in_thread(read: Callable[[], bytes | None]) -> bytes | None:
    """Run a read that may never return in a daemon thread: the loop would wait for its own pool when it ends."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[bytes | None] = loop.create_future()

    def settle(value: bytes | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)

    def work() -> None:
        value, error = None, None
        try:
            value = read()
        except Exception as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the caller with it
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, name="skerry-stdin", daemon=True).start()
    return await future


async def try_acquire(lock: Lock) -> bool:
    """Acquire the lock if it is free."""
    return not lock.locked() and await lock.acquire()


async def deliver(callback: Callback[A], value: A) -> None:
    answer = callback(value)
    if inspect.isawaitable(answer):
        await answer


async def call_answerer(answerer: Answerer, question: ApprovalRequest) -> Said:
    said = answerer(question)
    return await said if inspect.isawaitable(said) else said


async def call_handler(timeout_s: float, handler: Callable[..., Any], *messages: HttpRequest | HttpResponse) -> object:
    """Cancel an async handler after its timeout: the request has failed, and others wait for the handler."""
    async with asyncio.timeout(timeout_s):
        found = handler(*messages)
        return await found if inspect.isawaitable(found) else found


def abort(response: httpx2.Response) -> None:
    """Cancel the task that reads the response."""


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return await asyncio.to_thread(function, *args, **kwargs)


async def in_thread_shielded(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in a thread; a cancellation waits until it is done, because it must not go on in the
    background."""
    task = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


class UpgradedStream:
    """The bytes of an upgraded connection, for one reader and one writer at a time."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream

    @property
    def readable(self) -> bool:
        """Whether data, or the end, has arrived."""
        return bool(self._stream.get_extra_info("is_readable"))

    async def read(self, size: int, timeout: float | None = None) -> bytes:
        return await self._stream.read(size, timeout)

    async def write(self, data: bytes, timeout: float | None = None) -> None:
        await self._stream.write(data, timeout)

    def abort(self) -> None:
        """Close the connection; pending reads and writes fail."""


class BackgroundTask:
    """Work in parallel with a stream: a task here, a thread in the sync client."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    async def start(self, work: Callable[..., Any], *args: object) -> None:
        self._task = asyncio.ensure_future(work(*args))

    async def end(self) -> None:
        """Stop the work. The worker keeps its errors."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


class LocalConnection:
    """A connection of a local program. After a reset it neither accepts nor returns data."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        return await self._reader.read(PIECE)

    async def write(self, data: bytes) -> None:
        if self._writer.is_closing():  # uvloop would log an error
            raise ConnectionResetError
        self._writer.write(data)
        await self._writer.drain()

    def end(self) -> None:
        """Close the write side."""
        if not self._writer.is_closing():
            self._writer.write_eof()

    def reset(self) -> None:
        with contextlib.suppress(OSError):
            reset_on_close(self._writer.get_extra_info("socket"))
        self._writer.transport.abort()

    def close(self) -> None:
        self._writer.close()


class PortListener:
    """Serves each connection in its own task."""

    def __init__(self, serve: Callable[[LocalConnection], Awaitable[None]]) -> None:
        self._serve = serve
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server
        self.address: tuple[str, int]

    @classmethod
    async def open(cls, host: str, port: int, serve: Callable[[LocalConnection], Awaitable[None]]) -> PortListener:
        listener = cls(serve)
        listening = listen_on(host, port)
        listener._server = await asyncio.start_server(listener._accept, sock=listening, limit=PIECE)
        listener.address = listening.getsockname()[:2]
        return listener

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._one(LocalConnection(reader, writer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _one(self, stream: LocalConnection) -> None:
        with contextlib.suppress(OSError, SkerryError):
            await self._serve(stream)

    async def aclose(self) -> None:
        self._server.close()
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def run_both(
    first: Callable[[], Awaitable[None]], second: Callable[[], Awaitable[None]], broken: Callable[[], None]
) -> None:
    """Run both to their ends; if one fails, call `broken` and end the other."""
    tasks = [asyncio.ensure_future(work()) for work in (first, second)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
    except BaseException:
        broken()
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
