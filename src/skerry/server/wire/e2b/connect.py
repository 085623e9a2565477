"""Connect: unary calls and server streams over HTTP, in JSON or protobuf."""

from __future__ import annotations

import asyncio
import contextlib
import re
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final

from skerry.codecs.json_bounds import JsonCounter
from skerry.errors import InvalidRequest, SandboxUnavailable, SkerryError
from skerry.server.http.call import MAX_VALUES, Call, Headers
from skerry.server.http.responses import BodyTooLarge, LastPiece, StreamResponse, WrongMediaType
from skerry.server.wire.e2b.errors import RpcError, connect_body
from skerry.server.wire.e2b.messages import COMPRESSED, END, EnvelopeReader, Message, decode, encode, envelope

MAX_MESSAGE: Final = 16 << 20
PIECE: Final = 1 << 20
_UNARY: Final = {"application/json": "json", "application/proto": "proto"}
_STREAM: Final = {"application/connect+json": "json", "application/connect+proto": "proto"}
_DEADLINE: Final = re.compile(r"[0-9]{1,10}")
_PING: Final = re.compile(r"[0-9]{1,5}")
PING_S: Final = 90.0


def _form(call: Call[Any, Any], known: dict[str, str]) -> str:
    kind = _content_type(call.headers)
    if (version := call.headers.get(b"connect-protocol-version")) not in (None, "1"):
        raise InvalidRequest(f"connect-protocol-version: {version!r} is not supported", hint="it is 1")
    if kind not in known:
        raise WrongMediaType(f"the content type is {kind[:80] or 'missing'}", hint=f"one of {', '.join(known)}")
    return known[kind]


def stream_type(headers: Headers) -> str | None:
    """Return the content type of a stream of messages; None: a unary call."""
    kind = _content_type(headers)
    return kind if kind in _STREAM else None


def _content_type(headers: Headers) -> str:
    return (headers.get(b"content-type") or "").partition(";")[0].strip().lower()


def last_message(error: SkerryError | None = None) -> bytes:
    """Return the end of a stream."""
    return envelope(b"{}" if error is None else b'{"error":' + connect_body(error) + b"}", END)


def deadline(call: Call[Any, Any]) -> float | None:
    """Return the seconds that the caller grants the call; None: no limit."""
    given = call.headers.get(b"connect-timeout-ms")
    if given is None:
        return None
    if not _DEADLINE.fullmatch(given):
        raise InvalidRequest(f"connect-timeout-ms: {given[:20]!r} is not a number of at most ten digits")
    return int(given) / 1000 or None


async def unary(call: Call[Any, Any], kind: str) -> Message:
    """Return the message of a unary call."""
    form, encoding = _form(call, _UNARY), call.headers.get(b"content-encoding") or "identity"
    body = bytearray()
    async for chunk in call.chunks():
        body += chunk
        if len(body) > MAX_MESSAGE:
            raise BodyTooLarge(f"the message is larger than {MAX_MESSAGE >> 20} MiB")
    return _decoded(kind, _plain(bytes(body), encoding), form)


def _decoded(kind: str, data: bytes, form: str) -> Message:
    """Decode a message. Count the values of JSON first: a message of 16 MiB can hold millions of empty objects."""
    if form == "json":
        counter = JsonCounter()
        counter.feed(data)
        if counter.values > MAX_VALUES:
            raise BodyTooLarge(f"the message has more than {MAX_VALUES:,} values")
    return decode(kind, data, form)


def answer(call: Call[Any, Any], kind: str, value: Message) -> StreamResponse:
    """Return the response of a unary call, in the encoding of its request."""
    form = _form(call, _UNARY)
    data = encode(kind, value, form)

    async def whole() -> AsyncGenerator[bytes, None]:
        yield LastPiece(data)

    return StreamResponse(f"application/{form}", whole(), length=len(data))


async def opening(call: Call[Any, Any], kind: str) -> Message:
    """Return the only message of a call that the server answers with a stream."""
    async with contextlib.aclosing(messages(call, kind)) as found:
        first = await anext(found, None)
        if first is None or await anext(found, None) is not None:
            raise InvalidRequest("the call has to have exactly one message")
    return first


async def messages(call: Call[Any, Any], kind: str) -> AsyncGenerator[Message, None]:
    """Yield the messages of a stream as they arrive."""
    form, encoding = _form(call, _STREAM), call.headers.get(b"connect-content-encoding") or "identity"
    reader = EnvelopeReader(MAX_MESSAGE)
    async for chunk in call.chunks():
        for flags, data in reader.feed(chunk):
            if flags & ~(COMPRESSED | END):
                raise InvalidRequest(f"an envelope has unknown flags: {flags}")
            if flags & END:
                return
            yield _decoded(kind, _plain(data, encoding if flags & COMPRESSED else "identity"), form)
    if not reader.is_complete:
        raise InvalidRequest("the stream ends inside a message")


def stream(
    call: Call[Any, Any],
    kind: str,
    events: AsyncGenerator[Message, None],
    keepalive: Message,
    close: Callable[[], Awaitable[None]],
) -> StreamResponse:
    """Return a stream of messages, with `keepalive` messages while there are no others."""
    form = _form(call, _STREAM)
    given = call.headers.get(b"keepalive-ping-interval") or ""
    ping_s = float(given) if _PING.fullmatch(given) and int(given) else PING_S
    return StreamResponse(
        f"application/connect+{form}", _enveloped(events, kind, form, envelope(encode(kind, keepalive, form)), ping_s),
        close=close, endless=True,
    )  # fmt: skip


async def _enveloped(
    events: AsyncGenerator[Message, None], kind: str, form: str, keepalive: bytes, ping_s: float
) -> AsyncGenerator[bytes, None]:
    """Errors are reported at the end of the stream: its status line has been sent."""
    coming: asyncio.Future[Message] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(events))
            await asyncio.wait((coming,), timeout=ping_s)
            if not coming.done():
                yield keepalive
                continue
            try:
                event = coming.result()
            except StopAsyncIteration:
                break
            coming = None
            yield envelope(encode(kind, event, form))
        yield LastPiece(last_message())
    except SkerryError as error:
        if isinstance(error, SandboxUnavailable):
            error.message = f"The sandbox was killed or reached its end of life: {error.message}"
        yield LastPiece(last_message(error))
    finally:
        if coming is not None and not coming.done():
            coming.cancel()
            await asyncio.wait((coming,))
        await events.aclose()


def _plain(data: bytes, encoding: str) -> bytes:
    if encoding == "identity" or not data:
        return data
    if encoding != "gzip":
        raise RpcError("unimplemented", f"unknown compression {encoding[:40]!r}: supported are gzip, identity")
    unpack = zlib.decompressobj(31)
    plain = b"".join(_inflated(unpack, data, MAX_MESSAGE))
    if not unpack.eof:
        raise InvalidRequest("the compressed message is cut off")
    return plain


async def gunzip(chunks: AsyncIterator[bytes], limit: int | None = None) -> AsyncIterator[bytes]:
    """Decompress a body as it arrives."""
    unpack = zlib.decompressobj(31)
    async for chunk in chunks:
        if chunk and unpack.eof:
            raise InvalidRequest("the compressed body goes on after its end")
        for piece in _inflated(unpack, chunk, limit):
            yield piece
    if not unpack.eof:
        raise InvalidRequest("the compressed body is cut off")


def _inflated(unpack: Any, data: bytes, limit: int | None) -> Iterator[bytes]:
    """Decompress piece by piece, at the reader's speed: a few bytes may become gigabytes."""
    size = 0
    try:
        while True:
            piece = unpack.decompress(data, PIECE)
            size += len(piece)
            if limit is not None and size > limit:
                raise BodyTooLarge(f"the decompressed message is larger than {limit >> 20} MiB")
            if piece:
                yield piece
            if unpack.unused_data:  # zlib would keep all of it in memory
                raise InvalidRequest("the compressed body goes on after its end")
            data = unpack.unconsumed_tail
            if not data and len(piece) < PIECE:
                return
    except zlib.error as error:
        raise InvalidRequest("the body is not valid gzip") from error
