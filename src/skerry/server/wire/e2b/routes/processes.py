"""process.Process: commands and terminals. A command is a background process of the sandbox, so it outlives the stream
that started it; a stream reads its output."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from typing import Any

from skerry.engine.processes.output import OutputRange
from skerry.errors import Conflict, InvalidRequest, NotFound, SandboxUnavailable
from skerry.keeper import JournalGap
from skerry.server.http.call import Call, Empty
from skerry.server.http.responses import StreamResponse
from skerry.server.wire.e2b import connect
from skerry.server.wire.e2b.errors import RpcError
from skerry.server.wire.e2b.messages import Message
from skerry.server.wire.e2b.users import UserTable, absolute
from skerry.types import ProcessInfo, Pty, RunRequest, RunResult

_SIGNALS = {"SIGNAL_SIGKILL": "KILL", "SIGNAL_SIGTERM": "TERM"}
_NAMES = {"KILL": "killed", "TERM": "terminated", "INT": "interrupt", "HUP": "hangup", "SEGV": "segmentation fault",
          "ABRT": "aborted", "QUIT": "quit", "PIPE": "broken pipe"}  # fmt: skip
_KEEPALIVE: Message = {"event": {"keepalive": {}}}


def _pty(pty: Message) -> Pty:
    size = pty.get("size") or {}
    return Pty(cols=size.get("cols") or 80, rows=size.get("rows") or 24)


def _tagged(tag: str) -> str:
    return "e2b-" + hashlib.sha256(tag.encode()).hexdigest()[:32]


async def _follow(call: Call[Empty, Empty], info: ProcessInfo, since: int) -> StreamResponse:
    """Stream the output. The process waits for its first reader, as with envd."""
    view = OutputRange(since, follow=True, pace=True)
    reader = await call.engine.processes.output(call.caller, call.ref, info.id, view)

    async def events() -> AsyncGenerator[Message, None]:
        yield {"event": {"start": {"pid": info.pid}}}
        async for piece in reader:
            if isinstance(piece, JournalGap):
                raise RpcError("data_loss", f"{piece.missing} bytes of the output are lost: the reader was too slow")
            yield {"event": {"data": {"pty" if info.pty else piece[0]: piece[1]}}}
        result = reader.result
        if result is None:
            raise SandboxUnavailable("the process's end is not known")
        if result.timed_out:
            raise RpcError("deadline_exceeded", "the command was ended by its timeout")
        call.outcome |= {"exit_code": result.exit_code}
        yield {"event": {"end": _end(result)}}

    return connect.stream(call, "EventResponse", events(), _KEEPALIVE, reader.aclose)


def _end(result: RunResult) -> Message:
    if result.signal is not None:
        status = f"signal: {_NAMES.get(result.signal, result.signal.lower())}"
        return {"exitCode": -1, "exited": False, "status": status, "error": status}
    status = f"exit status {result.exit_code}"
    return {"exitCode": result.exit_code, "exited": True, "status": status, "error": status if result.exit_code else ""}


def _config(info: ProcessInfo) -> Message:
    words = ["/bin/bash", "-l", "-c", info.cmd] if isinstance(info.cmd, str) else info.cmd
    return {"cmd": words[0] if words else "", "args": words[1:]}


async def _selected(call: Call[Any, Any], message: Message) -> ProcessInfo:
    """Return the running process that a message selects."""
    selector = message.get("process") or {}
    found = await call.engine.processes.list(call.caller, call.ref)
    for info in found:
        by_tag = selector.get("tag") and info.id == _tagged(selector["tag"])
        if info.state == "running" and (by_tag or ("pid" in selector and info.pid == selector["pid"])):
            return info
    raise NotFound(f"process with {_shown(selector)} not found")


def _shown(selector: Message) -> str:
    return f"tag {selector['tag'][:80]!r}" if selector.get("tag") else f"pid {selector.get('pid', 0)}"


def _input(info: ProcessInfo, message: Message) -> bytes:
    given = message.get("input") or {}
    if (wanted := "pty" if info.pty else "stdin") not in given:
        raise RpcError("failed_precondition", f"the process takes its input as {wanted}")
    data: bytes = given[wanted]
    return data


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _send(call: Call[Any, Any], info: ProcessInfo, data: AsyncIterator[bytes]) -> None:
    send = partial(call.engine.processes.send_stdin, call.caller, call.ref, info.id)
    try:
        await send(data, False)
    except Conflict as error:
        raise RpcError("failed_precondition", error.message) from error


async def _nothing() -> None:
    await asyncio.sleep(0)


class ProcessRoutes:
    """Handlers of the service `process.Process`."""

    def __init__(self, users: UserTable) -> None:
        self._users = users

    async def start(self, call: Call[Empty, Empty]) -> StreamResponse:
        message, limit_s = await connect.opening(call, "StartRequest"), connect.deadline(call)
        config = message.get("process") or {}
        if not config.get("cmd"):
            raise InvalidRequest("process.cmd: it is empty")
        user, pty = await self._users.user(call), message.get("pty")
        cmd = [config["cmd"], *config.get("args", ())]
        request = RunRequest(
            id=_tagged(message["tag"]) if message.get("tag") else None, cmd=cmd, env=config.get("envs", {}),
            cwd=absolute(config.get("cwd") or user.home, user), user=user.name, timeout=limit_s,
            stdin_stream=pty is None and message.get("stdin", True), pty=_pty(pty) if pty is not None else None,
        )  # fmt: skip
        call.log["command"] = cmd[0][:100]
        call.outcome |= {"cmd": call.masked(" ".join(cmd))[:200]}
        info = await call.engine.processes.spawn(call.caller, call.ref, request)
        call.log["process_id"] = info.id
        call.outcome |= {"id": info.id}
        return await _follow(call, info, 0)

    async def attach(self, call: Call[Empty, Empty]) -> StreamResponse:
        """Stream the output from now on, as envd does."""
        message = await connect.opening(call, "ConnectRequest")
        info = await _selected(call, message)
        return await _follow(call, info, info.offset)

    async def list_(self, call: Call[Empty, Empty]) -> StreamResponse:
        await connect.unary(call, "ListRequest")
        found = await call.engine.processes.list(call.caller, call.ref)
        shown = [{"config": _config(info), "pid": info.pid} for info in found if info.state == "running"]
        return connect.answer(call, "ListResponse", {"processes": shown})

    async def update(self, call: Call[Empty, Empty]) -> StreamResponse:
        message = await connect.unary(call, "UpdateRequest")
        info = await _selected(call, message)
        if (pty := message.get("pty")) is not None:
            await call.engine.processes.resize(call.caller, call.ref, info.id, _pty(pty))
        return connect.answer(call, "Empty", {})

    async def send_input(self, call: Call[Empty, Empty]) -> StreamResponse:
        message = await connect.unary(call, "SendInputRequest")
        info = await _selected(call, message)
        await _send(call, info, _once(_input(info, message)))
        return connect.answer(call, "Empty", {})

    async def stream_input(self, call: Call[Empty, Empty]) -> StreamResponse:
        """Write the parts of a stream in their order. The first message selects the process."""
        found = connect.messages(call, "StreamInputRequest")
        first = await anext(found, None)
        if first is None or "start" not in first:
            raise InvalidRequest("the first message has to select a process")
        info = await _selected(call, first["start"])

        async def parts() -> AsyncIterator[bytes]:
            async for message in found:
                if "data" in message:
                    yield _input(info, message["data"])

        try:
            await _send(call, info, parts())
        finally:
            await found.aclose()

        async def done() -> AsyncGenerator[Message, None]:
            yield {}

        return connect.stream(call, "Empty", done(), {}, _nothing)

    async def signal(self, call: Call[Empty, Empty]) -> StreamResponse:
        message = await connect.unary(call, "SendSignalRequest")
        name = _SIGNALS.get(message.get("signal", ""))
        if name is None:
            raise RpcError("unimplemented", "invalid signal: only SIGNAL_SIGTERM and SIGNAL_SIGKILL")
        info = await _selected(call, message)
        await call.engine.processes.signal(call.caller, call.ref, info.id, name)
        return connect.answer(call, "Empty", {})

    async def close_stdin(self, call: Call[Empty, Empty]) -> StreamResponse:
        message = await connect.unary(call, "CloseStdinRequest")
        info = await _selected(call, message)
        if info.pty:
            raise RpcError("failed_precondition", "a terminal has no end of input: send Ctrl-D (4)")
        await call.engine.processes.send_stdin(call.caller, call.ref, info.id, None, True)
        return connect.answer(call, "Empty", {})
