"""A sandbox for AG2: `SandboxShellTool(SingletonFactory(SkerryAg2Sandbox()))`."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Unpack

from ag2.tools.sandbox.base import ExecResult, SandboxBase

from skerry import AsyncSandbox
from skerry.client.create_options import CreateOptions
from skerry.integrations.lifetime import delete
from skerry.integrations.output import FullOutput, exit_code


class SkerryAg2Sandbox(SandboxBase):
    """A sandbox from `async with`, or the first command, to `aclose()`.

    `timeout`: seconds of a command, unless the tool gives another; the other arguments are those of
    `skerry.AsyncSandbox`."""

    def __init__(self, *, timeout: float = 60, max_output: int = 100_000, **creation: Unpack[CreateOptions]) -> None:
        self._timeout = timeout
        self._max_output = max_output
        self._creation = creation
        self._sandbox: AsyncSandbox | None = None

    @property
    def workdir(self) -> PurePosixPath:
        return PurePosixPath("/workspace")

    @property
    def host_workdir(self) -> Path | None:
        return None

    async def _opened(self) -> AsyncSandbox:
        if self._sandbox is None:
            sandbox = self._sandbox = AsyncSandbox(**self._creation)
            try:
                await sandbox.start()
                await sandbox.files.mkdir(str(self.workdir))
            except BaseException:
                self._sandbox = None
                raise
        return self._sandbox

    async def __aenter__(self) -> SkerryAg2Sandbox:
        await self._opened()
        return self

    async def aclose(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await delete(sandbox)

    async def exec(
        self, argv: list[str], *, env: dict[str, str] | None = None, timeout: float | None = None
    ) -> ExecResult:
        sandbox, output = await self._opened(), FullOutput()
        result = await sandbox.run(
            argv, env=env or {}, cwd=str(self.workdir), timeout=timeout or self._timeout, on_output=output.add
        )
        return ExecResult(output=output.text.strip()[: self._max_output], exit_code=exit_code(result))

    async def put_file(self, path: PurePosixPath, content: bytes) -> None:
        if path.is_absolute():
            raise ValueError(f"{path} is absolute")
        await (await self._opened()).files.write(str(self.workdir / path), content)
