"""Sessions: shells whose state lasts between commands. There is no process between two of them: each command runs in a
shell of its own, which restores the state from the sandbox's disk and saves it at its end (`session.bash`).

/var/lib/skerry/sessions/NAME/session.json    whose it is; root's, so that no user can make it another's
/var/lib/skerry/sessions/NAME/state/          the shell's own files; the user's
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from skerry.engine import shell
from skerry.engine.live import Live
from skerry.engine.processes import Processes, Use
from skerry.engine.runs import Run
from skerry.engine.turns import Shell
from skerry.errors import Conflict, FileFailure, FileMissing, InvalidRequest, NotFound, QuotaExceeded, SkerryError
from skerry.keeper import Keeper
from skerry.types import NAME, Caller, RunRequest, RunResult, SessionInfo, SessionRequest

log = logging.getLogger("skerry.engine")
ROOT: Final = "/var/lib/skerry/sessions"
MOST: Final = 64
_META_MOST: Final = 4 << 10
_BASH: Final = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash")
_SUPERUSER: Final = "0"
_GONE_WITHIN: Final = 10.0


class _Meta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    user: str
    created_at: float


class Sessions:
    """`use` gives a running sandbox for one call, `spawn` does work beside."""

    def __init__(self, use: Use, processes: Processes, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._use = use
        self._processes = processes
        self._spawn = spawn

    async def open(self, caller: Caller, ref: str, request: SessionRequest) -> SessionInfo:
        """The session of that name, made if there is none. One that exists is given as it is."""
        shell.check_names(request.env)
        async with self._use(caller, ref) as (live, keeper), live.sessions.making:
            with contextlib.suppress(NotFound):
                return _same_user(await _info(live, keeper, request.name), request)
            await _make(live, keeper, request)
            return await _info(live, keeper, request.name)

    async def get(self, caller: Caller, ref: str, name: str) -> SessionInfo:
        async with self._use(caller, ref) as (live, keeper):
            return await _info(live, keeper, name)

    async def list(self, caller: Caller, ref: str) -> builtins.list[SessionInfo]:
        async with self._use(caller, ref) as (live, keeper):
            found = []
            for name in await _names(keeper):
                with contextlib.suppress(NotFound):
                    found.append(await _info(live, keeper, name))
            return found

    async def remove(self, caller: Caller, ref: str, name: str) -> None:
        """Forget its state. What its commands started lives on."""
        async with self._use(caller, ref) as (live, keeper), live.sessions.making:
            await _must_be_there(keeper, name)
            with live.sessions.hold(name) as held:
                if held.busy:
                    raise Conflict(f"a command of session {name!r} is running", hint="wait for its end, or kill it")
                async with held.turn:
                    held.keeper = None
                    await keeper.files.remove(_home(name), recursive=True, user=_SUPERUSER)

    async def forget(self, live: Live, keeper: Keeper, name: str) -> None:
        """Remove it, if there is one, once its command has ended."""
        with live.sessions.hold(name) as held:
            try:
                async with asyncio.timeout(_GONE_WITHIN):
                    await held.turn.acquire()
            except TimeoutError:
                raise Conflict(f"a command of session {name!r} does not end") from None
            try:
                held.keeper = None
                with contextlib.suppress(FileMissing):
                    await keeper.files.remove(_home(name), recursive=True, user=_SUPERUSER)
            finally:
                held.turn.release()

    async def run(self, caller: Caller, ref: str, request: RunRequest, show: str | None = None) -> Run:
        """A command in its turn. Cancelled while it waits for that, it is out of the queue. `show`: as what it is
        listed."""
        name = request.session or ""
        if request.pty is not None:
            raise InvalidRequest("pty: a command of a session has no terminal", hint="leave out the one or the other")
        async with self._use(caller, ref) as (live, keeper):
            with contextlib.ExitStack() as stack:
                held = stack.enter_context(live.sessions.hold(name))
                await held.take_turn()
                stack.callback(held.turn.release)
                await _make_ready(keeper, name, held)
                if request.user not in (None, held.user):
                    raise InvalidRequest(f"user: session {name!r} is {held.user}'s", hint="leave user= out")
                mark = secrets.token_hex(8)
                inner = await _inner(live, keeper, held, request, mark)
                shown = request.cmd if isinstance(request.cmd, str) else " ".join(request.cmd or ())
                run = await self._processes.run(caller, ref, inner, show=(show or shown)[:4096])
                run.at_end(partial(self._end, keeper, run, stack.pop_all().close))
                run.then(_telling(keeper, name, held, mark))
                return run

    def _end(self, keeper: Keeper, run: Run, release: Callable[[], None]) -> None:
        """A command that is cut off is killed; the next one must not begin while it still may save its state."""
        if run.ended:
            release()
        else:
            self._spawn(_release_when_gone(keeper, run.id, release))


def state_of(name: str) -> str:
    """Where its shell's own files are."""
    return f"{_home(name)}/state"


async def _make(live: Live, keeper: Keeper, request: SessionRequest) -> None:
    """`session.json` comes last: without it there is no session, and what is left of one half-made goes first."""
    spec, home = live.row.spec, _home(request.name)
    await _bash(keeper)
    if request.cwd is not None and (await keeper.files.stat(request.cwd)).type not in ("directory", "link"):
        raise InvalidRequest(f"cwd: {request.cwd[:200]!r} is not a directory")
    if len(await _names(keeper)) >= MOST:
        raise QuotaExceeded(f"the sandbox has {MOST} sessions already", hint="close some")
    user, cwd = request.user or spec.user, request.cwd or spec.cwd
    with contextlib.suppress(FileMissing):
        await keeper.files.remove(home, recursive=True, user=_SUPERUSER)
    await keeper.files.mkdir(home, parents=True, mode=0o755, user=_SUPERUSER)
    await keeper.files.mkdir(f"{home}/state", mode=0o700, user=_SUPERUSER)
    await keeper.files.chown(f"{home}/state", user, user=_SUPERUSER)
    for name, content in (("0", shell.first_state(cwd, request.env)), ("1", b""), ("last", shell.encode_last(cwd))):
        await keeper.files.write(f"{home}/state/{name}", content, mode=0o600, user=user)
    meta = msgspec.json.encode(_Meta(user, time.time()))
    await keeper.files.write(f"{home}/session.json", meta, mode=0o644, user=_SUPERUSER)


async def _release_when_gone(keeper: Keeper, process: str, release: Callable[[], None]) -> None:
    try:
        async with asyncio.timeout(_GONE_WITHIN):
            with contextlib.suppress(SkerryError):
                known = await keeper.process(process)
                stream = await keeper.output(process, known.offset, follow=True)
                async with contextlib.aclosing(stream):
                    async for _ in stream:
                        pass
    except TimeoutError:
        log.warning("a killed command of a session still runs", extra={"process_id": process})
    finally:
        release()


async def _make_ready(keeper: Keeper, name: str, held: Shell) -> None:
    """Once for each start of the sandbox: our part of its files is written anew."""
    if held.keeper is not keeper:
        meta = await _meta(keeper, name)
        held.user, held.bash = meta.user, await _bash(keeper)
        await _put(keeper, f"{_home(name)}/state/shell", shell.script(), meta.user)
        held.keeper = keeper


async def _inner(live: Live, keeper: Keeper, held: Shell, request: RunRequest, mark: str) -> RunRequest:
    """The command that the keeper gets for the one that was asked for."""
    place, spec, cmd = f"{_home(request.session or '')}/state", live.row.spec, request.cmd or ""
    if isinstance(cmd, str) and shell.is_long(cmd):
        await _put(keeper, f"{place}/command", cmd.encode(), held.user)
        cmd = f". {place}/command"
    env = shell.environment(place, mark, spec.cwd, request.cwd, request.env, spec.environment)
    return replace(request, cmd=shell.argv(held.bash, cmd), env=env, cwd=request.cwd or "/", user=held.user)


async def _put(keeper: Keeper, path: str, content: bytes, user: str) -> None:
    """With the user's rights, who owns the directory and may have put anything there."""
    try:
        await keeper.files.write(path, content, mode=0o600, user=user)
    except FileFailure:
        await keeper.files.remove(path, recursive=True, user=user)
        await keeper.files.write(path, content, mode=0o600, user=user)


def _telling(keeper: Keeper, name: str, held: Shell, mark: str) -> Callable[[RunResult], Awaitable[RunResult]]:
    async def told(result: RunResult) -> RunResult:
        left = await _last(keeper, name, held.user)
        if left is None or left.run != mark:
            held.keeper = None  # its files may have been cleared away
        note = shell.hint(mark, result.timed_out or result.signal is not None, left)
        hint = "; ".join(text for text in (result.hint, note) if text)
        return replace(result, hint=hint or None, cwd=left.cwd if left is not None else None)

    return told


def _same_user(info: SessionInfo, request: SessionRequest) -> SessionInfo:
    if request.user not in (None, info.user):
        raise Conflict(f"session {info.name!r} is {info.user}'s", hint="another name makes another session")
    return info


async def _info(live: Live, keeper: Keeper, name: str) -> SessionInfo:
    meta = await _meta(keeper, name)
    left = await _last(keeper, name, meta.user)
    busy, waiting = live.sessions.look(name)
    return SessionInfo(
        name=name, user=meta.user, created_at=meta.created_at, busy=busy, waiting=waiting,
        cwd=left.cwd if left is not None else live.row.spec.cwd,
    )  # fmt: skip


async def _names(keeper: Keeper) -> list[str]:
    """Root inside can make any number of them; no more than there may be are looked at."""
    try:
        entries = (await keeper.files.list(ROOT, user=_SUPERUSER)).entries
    except FileMissing:
        return []
    return [entry.name for entry in entries if entry.type == "directory" and NAME.fullmatch(entry.name)][:MOST]


async def _must_be_there(keeper: Keeper, name: str) -> None:
    try:
        await keeper.files.stat(_home(name), user=_SUPERUSER)
    except FileMissing:
        raise NotFound(f"there is no session {name!r}", details={"session": name}) from None


async def _meta(keeper: Keeper, name: str) -> _Meta:
    """Root inside can write this; then it decides about its own sandbox only."""
    try:
        content = await keeper.files.read(f"{_home(name)}/session.json", user=_SUPERUSER)
        return msgspec.json.decode(await content.read(_META_MOST), type=_Meta)
    except FileMissing:
        raise NotFound(f"there is no session {name!r}", details={"session": name}) from None
    except (FileFailure, InvalidRequest, msgspec.DecodeError) as error:
        raise NotFound(f"session {name!r} is damaged: {error}", hint="close it and make it again") from None


async def _last(keeper: Keeper, name: str, user: str) -> shell.Left | None:
    try:
        content = await keeper.files.read(f"{_home(name)}/state/last", user=user)
        return shell.decode_last(await content.read(shell.LAST_MOST))
    except (FileFailure, InvalidRequest):
        return None


async def _bash(keeper: Keeper) -> str:
    for path in _BASH:
        with contextlib.suppress(FileFailure):
            await keeper.files.stat(path, user=_SUPERUSER)
            return path
    raise InvalidRequest("sessions need bash, and this image has none", hint="run() and spawn() work without")


def _home(name: str) -> str:
    if not NAME.fullmatch(name):
        raise NotFound(f"there is no session {name[:80]!r}")
    return f"{ROOT}/{name}"
