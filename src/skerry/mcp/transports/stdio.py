"""MCP for one client on stdin and stdout: `skerry mcp`."""

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

from skerry.mcp.call import McpAccess, McpCaller
from skerry.mcp.server import build_server
from skerry.mcp.text import is_visible

MAX_LINE = 64 << 20  # bytes of one message
log = logging.getLogger(__name__)

Inbound = MemoryObjectReceiveStream[SessionMessage | Exception]
Outbound = MemoryObjectSendStream[SessionMessage]


async def serve(caller: McpCaller, access: McpAccess) -> None:
    """Serve until stdin ends, then delete the sandboxes of the connection."""

    async def connect(_: Context[Any, Any]) -> tuple[McpCaller, McpAccess]:
        return caller, access

    server = build_server(connect)._lowlevel_server
    try:
        async with _streams() as (inbound, outbound):
            await server.run(inbound, outbound, server.create_initialization_options())
    finally:
        await _finish(caller.aclose())


async def _finish(work: Coroutine[Any, Any, None]) -> None:
    """Finish the clean-up despite cancellation: clients that close our stdin often send a signal soon after."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    task.result()


def _streams() -> Any:
    """Return the streams of stdin and stdout.

    The library's streams read in a thread, which cannot be woken when a signal ends the program. They are used only for
    files that the loop cannot wait on, for a terminal, which other programs share, and for one socket as both ends: the
    loop takes incoming data on the writing end for a hang-up."""
    ends = [os.fstat(descriptor) for descriptor in (0, 1)]
    apart = all(stat.S_ISFIFO(end.st_mode) or stat.S_ISSOCK(end.st_mode) for end in ends)
    return _piped() if apart and not os.path.samestat(*ends) else stdio_server()


@contextlib.asynccontextmanager
async def _piped() -> AsyncIterator[tuple[Inbound, Outbound]]:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=MAX_LINE, loop=loop)
    # Output of libraries must not mix with the messages: from here on, their stdout is stderr.
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
                await answer.send(SessionMessage(_invalid(line)))
            else:
                await put.send(message)


def _invalid(line: bytes) -> JSONRPCError:
    """Answer an invalid message with an error, so that the client does not wait: models send half an emoji, for
    example."""
    try:
        given = json.loads(line)["id"]
    except (ValueError, TypeError, LookupError, RecursionError):
        given = None
    known = given if type(given) is int or (isinstance(given, str) and is_visible(given)) else None
    error = ErrorData(code=PARSE_ERROR, message="invalid message: not JSON in UTF-8, or not according to the protocol")
    return JSONRPCError(jsonrpc="2.0", id=known, error=error)


async def _line(lines: asyncio.StreamReader) -> bytes:
    """Return the next line; empty at the end of input or after a line that is too long."""
    try:
        return await lines.readline()
    except (ValueError, OSError) as error:
        log.warning("failed to read stdin: %s", error)
        return b""


async def _write(writer: asyncio.StreamWriter, take: MemoryObjectReceiveStream[SessionMessage]) -> None:
    async with take:
        async for message in take:
            writer.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            try:
                await writer.drain()
            except ConnectionError:  # the client has disconnected; stdin ends too
                return
