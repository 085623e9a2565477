"""A sandbox provider for agno: `SkerrySessions().create("session-1")`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from agno.sandbox.base import ExecResult, Sandbox, SandboxError, SandboxHandle

from skerry import AsyncSandbox, Conflict, Lifecycle, NotFound, SandboxInfo, SkerryError
from skerry.client.create_options import CreateTerms
from skerry.integrations.lifetime import attached
from skerry.integrations.output import FullOutput, exit_code

_LABEL = "agno."


class SkerrySessions(Sandbox):
    """One sandbox for each session and generation, found again by its name. It is kept until `destroy()`.

    The keyword arguments are those of `skerry.AsyncSandbox`. By default a sandbox does not end when it is idle, and
    only `resume()` continues a paused one, as agno expects."""

    def __init__(self, image: str = "base", **creation: Unpack[CreateTerms]) -> None:
        self._image = image
        self._creation = creation
        self._creation.setdefault("lifecycle", Lifecycle(idle_timeout="never", auto_resume=False))

    async def acreate(
        self,
        session_id: str,
        *,
        agent_id: str | None = None,
        generation: int = 1,
        env: Mapping[str, str] | None = None,
    ) -> SandboxHandle:
        found = await self.afind(session_id, agent_id=agent_id, generation=generation, env=env)
        if found is not None:
            if found.state != "running":
                raise SandboxError(f"sandbox {found.name} is {found.state}; resume it, or use another generation")
            return found
        identity = _identity(session_id, agent_id, generation)
        terms: CreateTerms = {
            **self._creation,
            "env": {**self._creation.get("env", {}), **(env or {})},
            "labels": {**self._creation.get("labels", {}), **identity, f"{_LABEL}config": self._digest(env)},
        }
        sandbox = AsyncSandbox(self._image, name=_name(identity), **terms)
        try:
            await sandbox.start()
            return _handle(sandbox.cached_info)
        except Conflict as error:  # created concurrently
            raise SandboxError(f"sandbox {_name(identity)} already exists") from error
        except SkerryError as error:
            raise SandboxError(str(error)) from error
        finally:
            await sandbox.aclose()

    async def afind(
        self,
        session_id: str,
        *,
        agent_id: str | None = None,
        generation: int = 1,
        env: Mapping[str, str] | None = None,
        for_create: bool = False,
    ) -> SandboxHandle | None:
        found = await self.aget(_name(_identity(session_id, agent_id, generation)))
        if found is not None and found.config_digest != self._digest(env):
            raise SandboxError(f"sandbox {found.name} was created with other options")
        return found

    async def aget(self, provider_ref: str) -> SandboxHandle | None:
        try:
            async with attached(provider_ref, self._server) as sandbox:
                return _handle(sandbox.cached_info)
        except NotFound:
            return None

    async def aexec(
        self,
        handle: SandboxHandle,
        argv: Sequence[str],
        *,
        timeout: float = 60,
        max_output_bytes: int = 1_048_576,
        stdin: bytes = b"",
    ) -> ExecResult:
        output = FullOutput(max_output_bytes)
        try:
            async with attached(handle.provider_ref, self._server) as sandbox:
                result = await sandbox.run(list(argv), timeout=timeout, stdin=stdin, on_output=output.add)
        except SkerryError as error:
            raise SandboxError(str(error)) from error
        return ExecResult(exit_code(result), output.stdout, output.stderr, result.timed_out, output.exceeded)

    async def astop(self, handle: SandboxHandle) -> None:
        await self._act(handle, "stop")

    async def apause(self, handle: SandboxHandle) -> None:
        await self._act(handle, "pause")

    async def aresume(self, handle: SandboxHandle) -> SandboxHandle:
        return await self._act(handle, "resume")

    async def _act(self, handle: SandboxHandle, verb: str) -> SandboxHandle:
        try:
            async with attached(handle.provider_ref, self._server) as sandbox:
                await getattr(sandbox, verb)()
                return _handle(sandbox.cached_info)
        except SkerryError as error:
            raise SandboxError(str(error)) from error

    async def adestroy(self, handle: SandboxHandle) -> None:
        try:
            async with attached(handle.provider_ref, self._server) as sandbox:
                await sandbox.delete(force=True)
        except NotFound:
            return

    @property
    def _server(self) -> Any:
        return self._creation.get("server")

    def _digest(self, env: Mapping[str, str] | None) -> str:
        """Return a checksum of the options of a new sandbox, so that a changed program does not use an old one."""
        shown = {name: repr(value) for name, value in self._creation.items() if name != "server"}
        data = json.dumps([self._image, shown, dict(env or {})], sort_keys=True)
        return hashlib.sha256(data.encode()).hexdigest()


def _identity(session_id: str, agent_id: str | None, generation: int) -> dict[str, str]:
    return {f"{_LABEL}session": session_id, f"{_LABEL}agent": agent_id or "", f"{_LABEL}generation": str(generation)}


def _name(identity: Mapping[str, str]) -> str:
    return f"agno-{hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]}"


def _handle(info: SandboxInfo) -> SandboxHandle:
    labels = info.labels
    try:
        return SandboxHandle(
            provider_ref=info.id,
            name=info.name or info.id,
            agent_id=labels[f"{_LABEL}agent"] or None,
            session_id=labels[f"{_LABEL}session"],
            generation=int(labels[f"{_LABEL}generation"]),
            state=info.state,
            config_digest=labels[f"{_LABEL}config"],
        )
    except (KeyError, ValueError) as error:
        raise SandboxError(f"sandbox {info.id} does not belong to a session") from error
