"""What the async client does otherwise than the sync one; `backend_sync` has the same names."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

import httpcore
import httpx

from skerry.client.address import Address
from skerry.client.connection import break_off, listen_on, transport_options
from skerry.client.content import PIECE, Source, pieces, size_of
from skerry.errors import SkerryError
from skerry.types import Question, Reply

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
AnySource = Source | AsyncIterable[bytes] | AsyncIterable[str]
Lock = asyncio.Lock
Callback = Callable[[A], Awaitable[None] | None]
Said = bool | Reply | None
Answerer = Callable[[Question], Awaitable[Said] | Said]


def open_transport(address: Address) -> httpx.AsyncHTTPTransport:
    return httpx.AsyncHTTPTransport(**transport_options(address))


async def chunks(source: AnySource) -> AsyncIterator[bytes]:
    """The bytes of a file object or iterable, piece by piece; one that blocks is read in a thread."""
    if isinstance(source, AsyncIterable):
        async for given in source:
            yield given.encode() if isinstance(given, str) else given
        return
    iterator = pieces(source)
    read = asyncio.to_thread if size_of(source) is not None else _patiently  # a regular file never keeps one waiting
    while (piece := await read(lambda: next(iterator, None))) is not None:
        yield piece


async def _patiently(read: Callable[[], bytes | None]) -> bytes | None:
    """A read that may never return, in a daemon thread: the loop's own pool would be waited for when the loop ends."""
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
        with contextlib.suppress(RuntimeError):  # the loop is gone, and with it whoever asked
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, name="skerry-stdin", daemon=True).start()
    return await future


async def take_at_once(lock: Lock) -> bool:
    """Acquire it if nobody has it."""
    return not lock.locked() and await lock.acquire()


async def deliver(callback: Callback[A], value: A) -> None:
    answer = callback(value)
    if inspect.isawaitable(answer):
        await answer


async def consult(answerer: Answerer, question: Question) -> Said:
    said = answerer(question)
    return await said if inspect.isawaitable(said) else said


def cut(response: httpx.Response) -> None:
    """Whoever reads it is a task, and is cancelled."""


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return await asyncio.to_thread(function, *args, **kwargs)


async def to_the_end(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The same for what must not go on behind the caller's back: a cancellation waits until it is done."""
    task = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


class Wire:
    """The bytes of an upgraded connection, one reader and one writer at a time."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream

    @property
    def readable(self) -> bool:
        """Something has come already, if only the end."""
        return bool(self._stream.get_extra_info("is_readable"))

    async def read(self, size: int, timeout: float | None = None) -> bytes:
        return await self._stream.read(size, timeout)

    async def write(self, data: bytes, timeout: float | None = None) -> None:
        await self._stream.write(data, timeout)

    def cut(self) -> None:
        """Closing wakes whoever waits."""


class Aside:
    """Work beside a stream that is being read: a task here, a thread in the sync client."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    async def start(self, work: Callable[..., Any], *args: object) -> None:
        self._task = asyncio.ensure_future(work(*args))

    async def end(self) -> None:
        """Leave it. What it met is the worker's to keep."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


class Stream:
    """A connection of a local program. One that is reset takes no more, and gives no more."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        return await self._reader.read(PIECE)

    async def write(self, data: bytes) -> None:
        if self._writer.is_closing():  # uvloop would call it a mistake of ours
            raise ConnectionResetError
        self._writer.write(data)
        await self._writer.drain()

    def end(self) -> None:
        """Nothing more will be written."""
        if not self._writer.is_closing():
            self._writer.write_eof()

    def reset(self) -> None:
        with contextlib.suppress(OSError):
            break_off(self._writer.get_extra_info("socket"))
        self._writer.transport.abort()

    def close(self) -> None:
        self._writer.close()


class Listener:
    """Each connection is served by a task of its own."""

    def __init__(self, serve: Callable[[Stream], Awaitable[None]]) -> None:
        self._serve = serve
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server
        self.address: tuple[str, int]

    @classmethod
    async def open(cls, host: str, port: int, serve: Callable[[Stream], Awaitable[None]]) -> Listener:
        listener = cls(serve)
        listening = listen_on(host, port)
        listener._server = await asyncio.start_server(listener._accept, sock=listening, limit=PIECE)
        listener.address = listening.getsockname()[:2]
        return listener

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._one(Stream(reader, writer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _one(self, stream: Stream) -> None:
        with contextlib.suppress(OSError, SkerryError):
            await self._serve(stream)

    async def aclose(self) -> None:
        self._server.close()
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def both(
    first: Callable[[], Awaitable[None]], second: Callable[[], Awaitable[None]], broken: Callable[[], None]
) -> None:
    """Both to their ends; `broken` is called if one of them fails, and then the other is ended too."""
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
