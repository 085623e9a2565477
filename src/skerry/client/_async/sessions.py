"""Sessions: shells that keep their directory, variables, functions and options between commands."""

from __future__ import annotations

import builtins
import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from skerry.client._async.code import AsyncCodeResult, AsyncContext
from skerry.client._async.files import AsyncFiles
from skerry.client._async.processes import AsyncProcess, AsyncRun, prepare_stdin, start_process
from skerry.client.create_options import Command, run_request, spawn_request
from skerry.client.results.command import Output, check_result
from skerry.client.transport import backend_async as backend
from skerry.client.transport.requests import sandboxes
from skerry.errors import Conflict, NotFound
from skerry.types import LanguageInfo, Pty, Result, SessionInfo, SessionList, find_language

if TYPE_CHECKING:
    from skerry.client._async.sandbox import AsyncSandbox
    from skerry.client.transport.requests.code import Input

DEFAULT_TIMEOUT = 300.0
OF_SESSION = msgspec.UNSET  # the session's own timeout; None is no timeout
MAX_NAME = 63


class AsyncSession:
    """One session of a sandbox: `sandbox.session("build")`. Its commands are sequential.

        await session.run("cd src && export MODE=test")
        await session.run("pwd; echo $MODE")

    Background processes continue; the shell's job table and open files are not kept. A command that is killed or times
    out leaves the session in its previous state, and its result's `hint` reports that. `files` starts at the session's
    directory; `code` runs code in contexts of the session.
    """

    def __init__(self, sandbox: AsyncSandbox, info: SessionInfo) -> None:
        self._sandbox = sandbox
        self._info = info
        self.files = AsyncFiles(sandbox, self)
        self.code = AsyncSessionCode(sandbox, self)

    def __repr__(self) -> str:
        return f"<AsyncSession {self.name} in {self.cwd}>"

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def user(self) -> str:
        return self._info.user

    @property
    def cwd(self) -> str:
        """The last known working directory; `.info()` requests it again."""
        return self._info.cwd

    @property
    def timeout(self) -> float:
        """The timeout of its commands in seconds, for those without another one."""
        return self._info.timeout if self._info.timeout is not None else DEFAULT_TIMEOUT

    async def info(self) -> SessionInfo:
        """Request the current information from the server."""
        request = sandboxes.session(self._sandbox.id, self.name)
        self._info = await self._sandbox.client.request_json(request, SessionInfo)
        return self._info

    async def run(
        self,
        cmd: Command,
        *,
        env: Mapping[str, str | None] = {},
        cwd: str | None = None,
        stdin: backend.AnySource | None = None,
        timeout: float | msgspec.UnsetType | None = OF_SESSION,
        check: bool = False,
        on_output: backend.Callback[Output] | None = None,
        on_start: backend.Callback[AsyncRun] | None = None,
    ) -> Result:
        """Run a command in it, like `sandbox.run`, after other commands of this session.

        `env` and `cwd` apply to this command only: the session keeps them only if the command changes them. `timeout`:
        by default the session's; None is no timeout.
        """
        payload = run_request(cmd, env, cwd, None, _limit(self, timeout))
        request, source = prepare_stdin(msgspec.structs.replace(payload, session=self.name), stdin)
        result = await AsyncRun(self._sandbox, request, source, on_output, on_start).result()
        if result.cwd is not None:
            self._info = msgspec.structs.replace(self._info, cwd=result.cwd)
        return check_result(result, request.cmd) if check else result

    async def spawn(
        self,
        cmd: Command,
        *,
        env: Mapping[str, str | None] = {},
        cwd: str | None = None,
        pty: bool | Pty | None = None,
        timeout: float | None = None,
        stdin: bool | str | bytes = True,
        journal: str | int | None = None,
        id: str | None = None,  # noqa: A002 -- the public name
        auto_remove: bool = False,
        on_output: backend.Callback[Output] | None = None,
        on_exit: backend.Callback[Result] | None = None,
    ) -> AsyncProcess:
        """Start a background command with the session's directory, variables and functions, like `sandbox.spawn`. It
        does not wait for the session's commands, and changes nothing of the session."""
        given = run_request(cmd, env, cwd, None, timeout)
        request = spawn_request(given, pty, stdin, journal, id, auto_remove)
        return await start_process(
            self._sandbox, msgspec.structs.replace(request, session=self.name), on_output, on_exit
        )

    async def environment(self) -> dict[str, str]:
        """Return its exported variables."""
        shown = check_result(await self.run(["env", "-0"]), ["env", "-0"]).stdout
        pairs = (entry.partition("=") for entry in shown.split("\0") if entry)
        return {name: value for name, _, value in pairs}

    async def close(self) -> None:
        """Discard its state and its contexts. Background processes of its commands continue."""
        await self.code.delete_contexts()
        await self._sandbox.client.request(sandboxes.close_session(self._sandbox.id, self.name))


class AsyncSessionCode:
    """`session.code`: code in contexts of this session, one for each language. A context starts at its first use in the
    session's directory, with the session's variables and user; from then on it keeps its own."""

    def __init__(self, sandbox: AsyncSandbox, session: AsyncSession) -> None:
        self._sandbox = sandbox
        self._session = session
        self._languages: builtins.list[LanguageInfo] = []

    async def run(
        self,
        code: str,
        language: str = "python",
        *,
        stdin: Input | None = None,
        timeout: float | msgspec.UnsetType | None = OF_SESSION,
        check: bool = False,
        on_output: backend.Callback[Output] | None = None,
        env: Mapping[str, str | None] = {},
    ) -> AsyncCodeResult:
        """Run code, like `sandbox.code.run`. Code of a language without contexts runs in the session's directory with
        its variables. `timeout`: by default the session's."""
        session, limit = self._session, _limit(self._session, timeout)
        if not (await self._language(language)).contexts:
            given = {**_portable(await session.environment()), **env}
            return await self._sandbox.code.run(
                code, language, stdin=stdin, timeout=limit, check=check, on_output=on_output,
                cwd=session.cwd, env=given, user=session.user,
            )  # fmt: skip
        context = await self.context(language)
        return await self._sandbox.code.run(
            code, language, context=context, stdin=stdin, timeout=limit, check=check, on_output=on_output, env=env
        )

    async def context(self, language: str = "python") -> AsyncContext:
        """Return the session's context for a language; it is created if missing."""
        kind, code, session = await self._language(language), self._sandbox.code, self._session
        name = _context_name(session.name, kind.name)
        try:
            return await code.get(name)
        except NotFound:
            given = _portable(await session.environment())
        try:
            return await code.context(language, name, cwd=session.cwd, env=given, user=session.user)
        except Conflict:  # created concurrently
            return await code.get(name)

    async def delete_contexts(self) -> None:
        """Delete the session's contexts and end their running code."""
        for context in await self._sandbox.code.contexts():
            if context.name == _context_name(self._session.name, context.language):
                await context.delete()

    async def _language(self, language: str) -> LanguageInfo:
        if not self._languages:
            self._languages = await self._sandbox.client.languages()
        return find_language(self._languages, language)[0]


def _limit(session: AsyncSession, timeout: float | msgspec.UnsetType | None) -> float | None:
    return session.timeout if isinstance(timeout, msgspec.UnsetType) else timeout


def _context_name(session: str, language: str) -> str:
    name = f"session.{session}.{language}".replace("+", "p").replace("#", "s")
    return name if len(name) <= MAX_NAME else f"session.{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def _portable(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that each shell sets for itself."""
    return {name: value for name, value in env.items() if name not in ("_", "PWD", "OLDPWD", "SHLVL")}


class AsyncSessions:
    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def list(self) -> builtins.list[AsyncSession]:
        """Return all sessions, sorted by name."""
        sandbox = self._sandbox
        answer = await sandbox.client.request_json(sandboxes.sessions(sandbox.id), SessionList)
        return [AsyncSession(sandbox, info) for info in answer.sessions]

    async def get(self, name: str) -> AsyncSession:
        """Return an existing session; `sandbox.session` also creates one."""
        sandbox = self._sandbox
        return AsyncSession(
            sandbox, await sandbox.client.request_json(sandboxes.session(sandbox.id, name), SessionInfo)
        )
