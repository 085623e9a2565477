"""A workspace for Pydantic AI: `SkerryWorkspace()` creates a sandbox, `SkerryWorkspace(ref=…)` attaches to one."""

from __future__ import annotations

import asyncio
import math
import posixpath
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Unpack

from pydantic_ai.workspaces import (
    CommandResult,
    FileEntry,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)

from skerry import AsyncSandbox, FileInfo, NotFound, SandboxUnavailable
from skerry.client.create_options import CreateOptions
from skerry.errors import FileError, file_error
from skerry.integrations.output import MAX_OUTPUT, FullOutput, exit_code

PROVIDER = "skerry"
ELOOP = 40


class SkerryWorkspace:
    """A sandbox as the workspace of agent runs: commands and files. It outlives each run; `delete()` removes it.

    The keyword arguments are those of `skerry.AsyncSandbox`, for a new sandbox."""

    def __init__(self, *, ref: WorkspaceRef | None = None, **creation: Unpack[CreateOptions]) -> None:
        if ref is not None and ref.provider != PROVIDER:
            raise ValueError(f"ref: {ref.provider!r} is not {PROVIDER!r}")
        self._ref = ref
        self._creation = creation
        self._opening = asyncio.Lock()
        self._opened: AsyncSandbox | None = None
        self._workdir: str | None = None

    @property
    def ref(self) -> WorkspaceRef | None:
        return self._ref

    async def sandbox(self) -> AsyncSandbox:
        """Return the sandbox; create it or attach to it at the first call."""
        async with self._opening:
            if self._opened is None:
                async with _unavailable():
                    self._opened = await self._open()
                self._ref = WorkspaceRef(provider=PROVIDER, id=self._opened.id)
            return self._opened

    async def _open(self) -> AsyncSandbox:
        if self._ref is not None:
            return await AsyncSandbox.get(self._ref.id, server=self._creation.get("server"))
        return await AsyncSandbox(**self._creation).start()

    async def delete(self) -> None:
        """Delete the sandbox with its files."""
        sandbox = await self.sandbox()
        async with _unavailable():
            await sandbox.delete(force=True, purge=True)

    async def aclose(self) -> None:
        """Close the connections; the sandbox keeps running."""
        if self._opened is not None:
            await self._opened.aclose()

    async def working_dir(self) -> str:
        if self._workdir is None:
            sandbox = await self.sandbox()
            async with _unavailable():
                self._workdir = (await sandbox.run(["pwd", "-P"], check=True)).stdout.removesuffix("\n")
        return self._workdir

    async def run(
        self,
        command: str | Sequence[str],
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        if shell is not isinstance(command, str):
            raise TypeError("a string needs shell=True, and a sequence of arguments shell=False")
        if timeout is not None and (not isinstance(timeout, int | float) or not 0 < timeout < math.inf):
            raise ValueError("timeout must be a positive finite number or None")
        sandbox, output = await self.sandbox(), FullOutput()
        async with _unavailable():
            result = await sandbox.run(command, env=env or {}, timeout=timeout, on_output=output.add)
        if result.timed_out:
            raise WorkspaceTimeoutError(
                f"the command was ended after {timeout} s", stdout=output.stdout, stderr=output.stderr
            )
        if output.exceeded:
            raise WorkspaceOutputLimitError(
                f"more than {MAX_OUTPUT} bytes of output", limit=MAX_OUTPUT, stdout=output.stdout, stderr=output.stderr
            )
        if result.signal is not None:  # also the end of a command in a deleted sandbox
            async with _unavailable():
                await sandbox.info()
        return CommandResult(exit_code=exit_code(result), stdout=output.stdout, stderr=output.stderr)

    async def read_bytes(self, path: str) -> bytes:
        sandbox = await self.sandbox()
        async with _unavailable():
            return await sandbox.files.read_bytes(path)

    async def write_bytes(self, path: str, data: bytes) -> None:
        sandbox = await self.sandbox()
        async with _unavailable():
            await sandbox.files.write(path, data)

    async def stat(self, path: str) -> FileEntry:
        sandbox = await self.sandbox()
        async with _unavailable():
            return _entry(path, await sandbox.files.stat(path, follow=True))

    async def list_dir(self, path: str) -> list[FileEntry]:
        sandbox = await self.sandbox()
        async with _unavailable():
            return [await self._listed(sandbox, info) for info in await sandbox.files.list(path)]

    async def _listed(self, sandbox: AsyncSandbox, info: FileInfo) -> FileEntry:
        """Return an entry with the type of its target; a link that leads nowhere is no directory."""
        if info.type == "link":
            try:
                return _entry(info.path, await sandbox.files.stat(info.path, follow=True))
            except FileError:
                pass
        return _entry(info.path, info)

    async def make_dir(self, path: str) -> None:
        sandbox = await self.sandbox()
        async with _unavailable():
            await sandbox.files.mkdir(path)

    async def remove(self, path: str) -> None:
        parent, name = posixpath.split(posixpath.normpath(path))
        target = posixpath.join(await self.realpath(parent), name)
        if f"{await self.working_dir()}/".startswith(f"{target.rstrip('/')}/"):
            raise ValueError(f"{path} is the working directory or above it")
        sandbox = await self.sandbox()
        async with _unavailable():
            await sandbox.files.remove(target, recursive=True)

    async def exists(self, path: str) -> bool:
        sandbox = await self.sandbox()
        async with _unavailable():
            return await sandbox.files.exists(path)

    async def realpath(self, path: str) -> str:
        sandbox = await self.sandbox()
        async with _unavailable():
            result = await sandbox.run(["realpath", "-mz", "--", path])
        if not result.ok:
            raise file_error(ELOOP, path, result.stderr.strip() or f"{path} cannot be resolved")
        return result.stdout.removesuffix("\0")


def _entry(path: str, info: FileInfo) -> FileEntry:
    size = info.size if info.type == "file" else None
    return FileEntry(name=posixpath.basename(path), path=path, is_dir=info.type == "directory", size=size)


@asynccontextmanager
async def _unavailable() -> AsyncIterator[None]:
    """Report a sandbox that is gone in the framework's words."""
    try:
        yield
    except (NotFound, SandboxUnavailable) as error:
        raise WorkspaceUnavailableError(str(error)) from error
