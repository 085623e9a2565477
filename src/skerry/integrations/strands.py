"""A sandbox for Strands agents: `Agent(sandbox=SkerryStrandsSandbox(sandbox))`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from strands.sandbox import ExecutionResult, FileInfo, PosixShellSandbox, StreamChunk
from strands.sandbox.errors import SandboxPathNotFoundError, SandboxTimeoutError
from strands.types.tools import AgentTool
from strands.vended_tools.file_editor import make_file_editor
from strands.vended_tools.shell import make_shell

from skerry import FileNotFound, Sandbox
from skerry.errors import FileNotDirectory
from skerry.integrations.lifetime import attached
from skerry.integrations.output import FullOutput, absolute, exit_code


class SkerryStrandsSandbox(PosixShellSandbox):
    """Runs the commands, code and files of an agent in a sandbox, which the caller creates and deletes. An agent gets
    the tools `sandbox_shell` and `sandbox_file_editor`."""

    def __init__(self, sandbox: Sandbox, *, workdir: str = "/workspace") -> None:
        self.sandbox = sandbox
        self._workdir = workdir

    async def execute_streaming(
        self,
        command: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> AsyncGenerator[StreamChunk | ExecutionResult, None]:
        output = FullOutput()
        async with attached(self.sandbox) as sandbox:
            process = await sandbox.spawn(
                command, cwd=absolute(cwd, self._workdir), env=env or {}, timeout=timeout, stdin=False
            )
            try:
                async for piece in process.follow():
                    output.add(piece)
                    yield StreamChunk(piece.text, "stderr" if piece.stream == "stderr" else "stdout")
                result = await process.wait()
            finally:
                await process.kill()
        if result.timed_out:
            raise SandboxTimeoutError(timeout, output.stdout, output.stderr)
        yield ExecutionResult(exit_code=exit_code(result), stdout=output.stdout, stderr=output.stderr)

    async def read_file(self, path: str, **kwargs: Any) -> bytes:
        async with attached(self.sandbox) as sandbox:
            return await sandbox.files.read_bytes(absolute(path, self._workdir))

    async def write_file(self, path: str, content: bytes, **kwargs: Any) -> None:
        async with attached(self.sandbox) as sandbox:
            await sandbox.files.write(absolute(path, self._workdir), content)

    async def remove_file(self, path: str, **kwargs: Any) -> None:
        async with attached(self.sandbox) as sandbox:
            await sandbox.files.remove(absolute(path, self._workdir))

    async def list_files(self, path: str, **kwargs: Any) -> list[FileInfo]:
        try:
            async with attached(self.sandbox) as sandbox:
                entries = await sandbox.files.list(absolute(path, self._workdir))
        except (FileNotFound, FileNotDirectory) as error:
            raise SandboxPathNotFoundError(path) from error
        return [
            FileInfo(
                name=entry.name,
                is_dir=None if entry.type == "link" else entry.type == "directory",
                size=entry.size if entry.type == "file" else None,
            )
            for entry in entries
        ]

    def get_tools(self) -> list[AgentTool]:
        return [
            make_shell(sandbox=self, name="sandbox_shell"),
            make_file_editor(sandbox=self, name="sandbox_file_editor"),
        ]
