"""Sessions: shells whose directory, variables, functions and options last from one command to the next."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from skerry.client import backend_async as backend
from skerry.client import requests
from skerry.client._async.running import AsyncRunning, prepare
from skerry.client.description import Words, run_request
from skerry.client.outcome import Output, checked
from skerry.client.responses import SessionList
from skerry.types import Result, SessionInfo

if TYPE_CHECKING:
    from skerry.client._async.sandbox import AsyncSandbox


class AsyncSession:
    """One session of a sandbox: `sandbox.session("build")`. Its commands run one after another.

        await session.run("cd src && export MODE=test")
        await session.run("pwd; echo $MODE")

    Background processes live on; the shell's job table and open files do not last. A command that is killed or runs out
    of time leaves the session as it was before, and its result's `hint` says so.
    """

    def __init__(self, sandbox: AsyncSandbox, info: SessionInfo) -> None:
        self._sandbox = sandbox
        self._info = info

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
        """Where it stands, as last seen; `.info()` looks again."""
        return self._info.cwd

    async def info(self) -> SessionInfo:
        """All that the server says of it, fresh."""
        request = requests.session(self._sandbox.id, self.name)
        self._info = await self._sandbox.client.value(request, SessionInfo)
        return self._info

    async def run(
        self,
        cmd: Words,
        *,
        env: Mapping[str, str | None] = {},
        cwd: str | None = None,
        stdin: backend.AnySource | None = None,
        timeout: float | None = 300,
        check: bool = False,
        on_output: backend.Callback[Output] | None = None,
    ) -> Result:
        """Run a command in it, as `sandbox.run` does; if another command of this session runs, after that one.

        `env` and `cwd` are this command's alone: the session has them afterwards only if the command changed them.
        """
        wish = run_request(cmd, env, cwd, None, timeout)
        request, source = prepare(msgspec.structs.replace(wish, session=self.name), stdin)
        result = await AsyncRunning(self._sandbox, request, source, on_output).result()
        if result.cwd is not None:
            self._info = msgspec.structs.replace(self._info, cwd=result.cwd)
        return checked(result, request.cmd) if check else result

    async def close(self) -> None:
        """Forget its state. What its commands left running lives on."""
        await self._sandbox.client.done(requests.close_session(self._sandbox.id, self.name))


class AsyncSessions:
    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def list(self) -> builtins.list[AsyncSession]:
        """Those that are there, by name."""
        sandbox = self._sandbox
        answer = await sandbox.client.value(requests.sessions(sandbox.id), SessionList)
        return [AsyncSession(sandbox, info) for info in answer.sessions]

    async def get(self, name: str) -> AsyncSession:
        """One that is there; `sandbox.session` also makes it."""
        sandbox = self._sandbox
        return AsyncSession(sandbox, await sandbox.client.value(requests.session(sandbox.id, name), SessionInfo))
