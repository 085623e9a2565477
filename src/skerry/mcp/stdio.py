"""One client on stdin and stdout: `skerry mcp`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import stat
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.mcpserver import Context
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp.types import PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

from skerry.mcp.build import make
from skerry.mcp.callers import Caller
from skerry.mcp.text import is_seen

LINE_MOST = 64 << 20  # bytes of one message
log = logging.getLogger(__name__)

Inbound = MemoryObjectReceiveStream[SessionMessage | Exception]
Outbound = MemoryObjectSendStream[SessionMessage]


async def serve(caller: Caller) -> None:
    """Answer until stdin ends; what goes with the connection is gone when this returns."""

    async def connect(_: Context[Any, Any]) -> Caller:
        return caller

    server = make(connect)._lowlevel_server
    try:
        async with _streams() as (inbound, outbound):
            await server.run(inbound, outbound, server.create_initialization_options())
    finally:
        await _to_the_end(caller.aclose())


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Clients that have closed our stdin send a signal soon after: what goes with them is to be gone by then."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    task.result()


def _streams() -> Any:
    """The library's own streams read in a thread, which nothing can wake when a signal ends the program: they are for
    what the loop can't wait on, for a terminal, which others use too, and for one socket that is both: the loop takes
    what comes in at its writing end for a hang-up."""
    ends = [os.fstat(descriptor) for descriptor in (0, 1)]
    apart = all(stat.S_ISFIFO(end.st_mode) or stat.S_ISSOCK(end.st_mode) for end in ends)
    return _piped() if apart and not os.path.samestat(*ends) else stdio_server()


@contextlib.asynccontextmanager
async def _piped() -> AsyncIterator[tuple[Inbound, Outbound]]:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=LINE_MOST, loop=loop)
    # What a library prints must not get between the messages: their stdout is another from here on.
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    reading, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines, loop=loop), os.fdopen(os.dup(0), "rb", buffering=0)
    )
    writing, protocol = await loop.connect_write_pipe(lambda: asyncio.streams.FlowControlMixin(loop=loop), out)
    writer = asyncio.StreamWriter(writing, protocol, None, loop)
    put, inbound = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outbound, take = anyio.create_memory_object_stream[SessionMessage](0)
    async with anyio.create_task_group() as group:
        group.start_soon(_read, lines, put, outbound.clone())
        group.start_soon(_write, writer, take)
        try:
            yield inbound, outbound
        finally:
            reading.close()
            group.cancel_scope.cancel()
    writing.close()


async def _read(
    lines: asyncio.StreamReader, put: MemoryObjectSendStream[SessionMessage | Exception], answer: Outbound
) -> None:
    async with put, answer:
        while line := await _line(lines):
            try:
                message = SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
            except ValueError:
                await answer.send(SessionMessage(_unread(line)))
            else:
                await put.send(message)


def _unread(line: bytes) -> JSONRPCError:
    """The answer to what is no message: whoever waits for one, after half an emoji of a model's, is not to wait on."""
    try:
        asked = json.loads(line)["id"]
    except (ValueError, TypeError, LookupError, RecursionError):
        asked = None
    known = asked if type(asked) is int or (isinstance(asked, str) and is_seen(asked)) else None
    error = ErrorData(code=PARSE_ERROR, message="this is no message: not JSON in UTF-8, or not as the protocol has it")
    return JSONRPCError(jsonrpc="2.0", id=known, error=error)


async def _line(lines: asyncio.StreamReader) -> bytes:
    """The next message; nothing at the end, or where one is too long to be one."""
    try:
        return await lines.readline()
    except (ValueError, OSError) as error:
        log.warning("stdin can't be read further: %s", error)
        return b""


async def _write(writer: asyncio.StreamWriter, take: MemoryObjectReceiveStream[SessionMessage]) -> None:
    async with take:
        async for message in take:
            writer.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            try:
                await writer.drain()
            except ConnectionError:  # whoever asked is gone, and stdin tells it too
                return
