"""Sessions: shells with state that lasts between commands. No process runs between two commands: each command has a
separate shell, which restores the state from the sandbox's disk and saves it at its end (`session.bash`).

/var/lib/skerry/sessions/NAME/session.json    the session's user; owned by root, so that no user can change it
/var/lib/skerry/sessions/NAME/state/          the shell's files; owned by the session's user
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import errno
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from skerry.engine.processes import session_shell
from skerry.engine.processes.run import Run
from skerry.engine.processes.service import ProcessService
from skerry.engine.processes.session_lock import SessionState
from skerry.engine.sandboxes.lifecycle import Lifecycle
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.tasks import Tasks
from skerry.errors import Conflict, FileError, FileNotFound, InvalidRequest, NotFound, QuotaExceeded, SkerryError
from skerry.keeper import Keeper
from skerry.types import NAME, Caller, ProcessInfo, RunRequest, RunResult, SessionInfo, SessionRequest

log = logging.getLogger("skerry.engine")
ROOT: Final = "/var/lib/skerry/sessions"
MAX_SESSIONS: Final = 64
DEFAULT_SESSION: Final = "default"
_MAX_META: Final = 4 << 10
_BASH: Final = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash")
_SUPERUSER: Final = "0"
_EXIT_TIMEOUT_S: Final = 10.0
_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class _Meta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    user: str
    created_at: float
    timeout: float | None = None


class SessionService:
    """`engine.sessions`."""

    def __init__(self, lifecycle: Lifecycle, processes: ProcessService, tasks: Tasks) -> None:
        self._lifecycle, self._processes, self._tasks = lifecycle, processes, tasks

    async def open(self, caller: Caller, ref: str, request: SessionRequest) -> SessionInfo:
        """Return the session of that name; create it if it does not exist. An existing session is returned
        unchanged."""
        session_shell.check_names(request.env)
        async with self._lifecycle.use(caller, ref) as (sandbox, keeper), sandbox.sessions.making:
            with contextlib.suppress(NotFound):
                return _same_user(await _info(sandbox, keeper, request.name), request)
            await _make(sandbox, keeper, request)
            return await _info(sandbox, keeper, request.name)

    async def get(self, caller: Caller, ref: str, name: str) -> SessionInfo:
        async with self._lifecycle.use(caller, ref) as (sandbox, keeper):
            return await _info(sandbox, keeper, name)

    async def list(self, caller: Caller, ref: str) -> builtins.list[SessionInfo]:
        async with self._lifecycle.use(caller, ref) as (sandbox, keeper):
            found = []
            for name in await _names(keeper):
                with contextlib.suppress(NotFound):
                    found.append(await _info(sandbox, keeper, name))
            return found

    async def remove(self, caller: Caller, ref: str, name: str) -> None:
        """Forget its state. Processes that its commands started continue."""
        async with self._lifecycle.use(caller, ref) as (sandbox, keeper), sandbox.sessions.making:
            await _check_exists(keeper, name)
            with sandbox.sessions.hold(name) as held:
                if held.busy:
                    raise Conflict(f"a command of session {name!r} is running", hint="wait for its end, or kill it")
                async with held.turn:
                    held.keeper = None
                    await keeper.files.remove(_home(name), recursive=True, user=_SUPERUSER)

    async def forget(self, sandbox: Sandbox, keeper: Keeper, name: str) -> None:
        """Remove it, if there is one, once its command has ended."""
        with sandbox.sessions.hold(name) as held:
            try:
                async with asyncio.timeout(_EXIT_TIMEOUT_S):
                    await held.turn.acquire()
            except TimeoutError:
                raise Conflict(f"a command of session {name!r} does not end") from None
            try:
                held.keeper = None
                with contextlib.suppress(FileNotFound):
                    await keeper.files.remove(_home(name), recursive=True, user=_SUPERUSER)
            finally:
                held.turn.release()

    async def run(self, caller: Caller, ref: str, request: RunRequest) -> Run:
        """Run a command in its turn. If cancelled while waiting, it leaves the queue."""
        return await self.start(caller, ref, request, record=request)

    async def start(
        self, caller: Caller, ref: str, request: RunRequest, show: str | None = None, record: RunRequest | None = None
    ) -> Run:
        """Run a command in its turn. `show`: the command that lists show instead. `record`: as for a process."""
        name = request.session or ""
        if request.pty is not None:
            raise InvalidRequest("pty: a command of a session has no terminal", hint="leave out the one or the other")
        async with self._lifecycle.use(caller, ref) as (sandbox, keeper):
            with contextlib.ExitStack() as stack:
                held = stack.enter_context(sandbox.sessions.hold(name))
                await held.take_turn()
                stack.callback(held.turn.release)
                await _prepare_files(keeper, name, held)
                if request.user not in (None, held.user):
                    raise InvalidRequest(f"user: session {name!r} is {held.user}'s", hint="leave user= out")
                mark = secrets.token_hex(8)
                inner = await _shell_request(sandbox, keeper, held, request, mark)
                shown = request.cmd if isinstance(request.cmd, str) else " ".join(request.cmd or ())
                run = await self._processes.start(caller, ref, inner, show=(show or shown)[:4096], record=record)
                run.at_end(partial(self._end, keeper, run, stack.pop_all().close))
                run.then(_add_session_notes(keeper, name, held, mark))
                return run

    async def in_default(self, caller: Caller, ref: str, request: RunRequest) -> RunRequest:
        """Return the request with the default session, which is created if missing, in a sandbox whose commands run
        there (`Options(default_session=True)`). Commands of another user, of the image, and with a terminal do not."""
        plain = request.session is None and request.pty is None and request.user is None and request.cmd is not None
        if not plain:
            return request
        async with self._lifecycle.use(caller, ref) as (sandbox, keeper):
            if not sandbox.record.spec.options.default_session:
                return request
            with sandbox.sessions.hold(DEFAULT_SESSION) as held:
                if held.keeper is not keeper:
                    await self.open(caller, ref, SessionRequest(name=DEFAULT_SESSION))
        return replace(request, session=DEFAULT_SESSION)

    async def spawn(self, caller: Caller, ref: str, request: RunRequest) -> ProcessInfo:
        """Start a background command with the directory, variables and functions that the session has now. It does not
        wait for the session's commands, and changes nothing of the session."""
        name = request.session or ""
        async with self._lifecycle.use(caller, ref) as (sandbox, keeper):
            with sandbox.sessions.hold(name) as held:
                await _prepare_files(keeper, name, held)
                if request.user not in (None, held.user):
                    raise InvalidRequest(f"user: session {name!r} is {held.user}'s", hint="leave user= out")
                if isinstance(request.cmd, str) and session_shell.is_long(request.cmd):
                    raise InvalidRequest("cmd: too long for a session", hint="put it into a file")
                inner = await _shell_request(sandbox, keeper, held, request, mark="")
                shown = request.cmd if isinstance(request.cmd, str) else " ".join(request.cmd or ())
                return await self._processes.spawn(caller, ref, inner, show=shown[:4096], record=request)

    def _end(self, keeper: Keeper, run: Run, release: Callable[[], None]) -> None:
        """A command that is cut off is killed; the next one must not begin while it still may save its state."""
        if run.ended:
            release()
        else:
            self._tasks.spawn(_release_after_exit(keeper, run.id, release))


def state_of(name: str) -> str:
    """Where its shell's own files are."""
    return f"{_home(name)}/state"


async def _make(sandbox: Sandbox, keeper: Keeper, request: SessionRequest) -> None:
    """Create the files. `session.json` comes last: without it the session does not exist, and remains of a half-created
    one are removed first."""
    spec, home = sandbox.record.spec, _home(request.name)
    await _bash(keeper)
    user, cwd = request.user or spec.user, spec.directory(request.cwd)
    if request.cwd is not None and (await keeper.files.stat(cwd)).type not in ("directory", "link"):
        raise InvalidRequest(f"cwd: {cwd[:200]!r} is not a directory")
    if len(await _names(keeper)) >= MAX_SESSIONS:
        raise QuotaExceeded(f"the sandbox already has {MAX_SESSIONS} sessions", hint="close some")
    with contextlib.suppress(FileNotFound):
        await keeper.files.remove(home, recursive=True, user=_SUPERUSER)
    await keeper.files.mkdir(home, parents=True, mode=0o755, user=_SUPERUSER)
    await keeper.files.mkdir(f"{home}/state", mode=0o700, user=_SUPERUSER)
    await keeper.files.chown(f"{home}/state", user, user=_SUPERUSER)
    for name, content in (
        ("0", session_shell.first_state(cwd, request.env)),
        ("1", b""),
        ("last", session_shell.encode_last(cwd)),
    ):
        await keeper.files.write(f"{home}/state/{name}", content, mode=0o600, user=user)
    meta = msgspec.json.encode(_Meta(user, time.time(), request.timeout))
    await keeper.files.write(f"{home}/session.json", meta, mode=0o644, user=_SUPERUSER)


async def _release_after_exit(keeper: Keeper, process: str, release: Callable[[], None]) -> None:
    try:
        async with asyncio.timeout(_EXIT_TIMEOUT_S):
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


async def _prepare_files(keeper: Keeper, name: str, held: SessionState) -> None:
    """Write the server's part of the session's files again, once per start of the sandbox. On a full disk, the existing
    file is used, so that the session's commands still run; they find the last state that was saved."""
    if held.keeper is not keeper:
        meta, path = await _meta(keeper, name), f"{_home(name)}/state/shell"
        held.user, held.bash = meta.user, await _bash(keeper)
        try:
            await _write_as_user(keeper, path, session_shell.script(), meta.user)
            held.full = False
        except FileError as error:
            held.full = error.errno in _DISK_FULL
            if not held.full or not await _has_script(keeper, path, meta.user):
                raise
        held.keeper = keeper


async def _has_script(keeper: Keeper, path: str, user: str) -> bool:
    try:
        content = await keeper.files.read(path, user=user)
        return await content.read(len(session_shell.script())) == session_shell.script()
    except (FileError, InvalidRequest):
        return False


async def _shell_request(
    sandbox: Sandbox, keeper: Keeper, held: SessionState, request: RunRequest, mark: str
) -> RunRequest:
    """Return the keeper's command for the requested command. Without a `mark` it does not save the session."""
    place, spec, cmd = f"{_home(request.session or '')}/state", sandbox.record.spec, request.cmd or ""
    if isinstance(cmd, str) and session_shell.is_long(cmd):
        await _write_as_user(keeper, f"{place}/command", cmd.encode(), held.user)
        cmd = f". {place}/command"
    cwd = None if request.cwd is None else spec.directory(request.cwd)
    env = session_shell.environment(place, mark, spec.cwd, cwd, request.env, spec.environment)
    return replace(request, cmd=session_shell.argv(held.bash, cmd), env=env, cwd=cwd or "/", user=held.user)


async def _write_as_user(keeper: Keeper, path: str, content: bytes, user: str) -> None:
    """Write with the rights of the user, the owner of the directory, where any file may be in the way."""
    try:
        await keeper.files.write(path, content, mode=0o600, user=user)
    except FileError as error:
        if error.errno in _DISK_FULL:
            raise  # the old file is still complete
        with contextlib.suppress(FileNotFound):
            await keeper.files.remove(path, recursive=True, user=user)
        await keeper.files.write(path, content, mode=0o600, user=user)


def _add_session_notes(
    keeper: Keeper, name: str, held: SessionState, mark: str
) -> Callable[[RunResult], Awaitable[RunResult]]:
    async def with_notes(result: RunResult) -> RunResult:
        left = await _last(keeper, name, held.user)
        if left is None or left.run != mark:
            held.keeper = None  # its files may have been cleared away, or the disk is full
            with contextlib.suppress(SkerryError):
                await _prepare_files(keeper, name, held)
        note = session_shell.hint(mark, result.timed_out or result.signal is not None, left, held.full)
        hint = "; ".join(text for text in (result.hint, note) if text)
        return replace(result, hint=hint or None, cwd=left.cwd if left is not None else None)

    return with_notes


def _same_user(info: SessionInfo, request: SessionRequest) -> SessionInfo:
    if request.user not in (None, info.user):
        raise Conflict(f"session {info.name!r} is {info.user}'s", hint="another name makes another session")
    return info


async def _info(sandbox: Sandbox, keeper: Keeper, name: str) -> SessionInfo:
    meta = await _meta(keeper, name)
    left = await _last(keeper, name, meta.user)
    busy, waiting = sandbox.sessions.look(name)
    return SessionInfo(
        name=name, user=meta.user, created_at=meta.created_at, busy=busy, waiting=waiting, timeout=meta.timeout,
        cwd=left.cwd if left is not None else sandbox.record.spec.cwd,
    )  # fmt: skip


async def _names(keeper: Keeper) -> list[str]:
    """List sessions. Root inside can create any number of directories; only as many as permitted are read."""
    try:
        entries = (await keeper.files.list(ROOT, user=_SUPERUSER)).entries
    except FileNotFound:
        return []
    return [entry.name for entry in entries if entry.type == "directory" and NAME.fullmatch(entry.name)][:MAX_SESSIONS]


async def _check_exists(keeper: Keeper, name: str) -> None:
    try:
        await keeper.files.stat(_home(name), user=_SUPERUSER)
    except FileNotFound:
        raise NotFound(f"session {name!r} not found", details={"session": name}) from None


async def _meta(keeper: Keeper, name: str) -> _Meta:
    """Root inside can write this; then it decides about its own sandbox only."""
    try:
        content = await keeper.files.read(f"{_home(name)}/session.json", user=_SUPERUSER)
        return msgspec.json.decode(await content.read(_MAX_META), type=_Meta)
    except FileNotFound:
        raise NotFound(f"session {name!r} not found", details={"session": name}) from None
    except (FileError, InvalidRequest, msgspec.DecodeError) as error:
        raise NotFound(f"session {name!r} is damaged: {error}", hint="close it and make it again") from None


async def _last(keeper: Keeper, name: str, user: str) -> session_shell.Left | None:
    try:
        content = await keeper.files.read(f"{_home(name)}/state/last", user=user)
        return session_shell.decode_last(await content.read(session_shell.MAX_LAST))
    except (FileError, InvalidRequest):
        return None


async def _bash(keeper: Keeper) -> str:
    for path in _BASH:
        with contextlib.suppress(FileError):
            await keeper.files.stat(path, user=_SUPERUSER)
            return path
    raise InvalidRequest("sessions need bash, and this image has none", hint="run() and spawn() work without")


def _home(name: str) -> str:
    if not NAME.fullmatch(name):
        raise NotFound(f"session {name[:80]!r} not found")
    return f"{ROOT}/{name}"
