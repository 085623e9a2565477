"""An environment for Google's Agent Development Kit: `EnvironmentToolset(environment=SkerryEnvironment())`."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from google.adk.environment import BaseEnvironment
from google.adk.environment._base_environment import ExecutionResult

from skerry import AsyncSandbox, InvalidRequest
from skerry.client.create_options import CreateOptions
from skerry.integrations.lifetime import delete
from skerry.integrations.output import FullOutput, exit_code


class SkerryEnvironment(BaseEnvironment):
    """A sandbox from `initialize()` to `close()`. The keyword arguments are those of `skerry.AsyncSandbox`."""

    def __init__(self, **creation: Unpack[CreateOptions]) -> None:
        self._creation = creation
        self._sandbox: AsyncSandbox | None = None
        self._workdir = Path("/workspace")

    @property
    def sandbox(self) -> AsyncSandbox:
        if self._sandbox is None:
            raise InvalidRequest("the environment is not initialized", hint="call initialize() first")
        return self._sandbox

    @property
    def working_dir(self) -> Path:
        return self._workdir

    async def initialize(self) -> None:
        if self._sandbox is None:
            self._sandbox = await AsyncSandbox(**self._creation).start()
            self._workdir = Path((await self._sandbox.run(["pwd", "-P"], check=True)).stdout.rstrip("\n"))
        self.is_initialized = True

    async def close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        self.is_initialized = False
        if sandbox is not None:
            await delete(sandbox)

    async def execute(self, command: str, *, timeout: float | None = None) -> ExecutionResult:
        output = FullOutput()
        result = await self.sandbox.run(command, timeout=timeout, on_output=output.add)
        return ExecutionResult(
            exit_code=exit_code(result), stdout=output.stdout, stderr=output.stderr, timed_out=result.timed_out
        )

    async def read_file(self, path: Path) -> bytes:
        return await self.sandbox.files.read_bytes(path)

    async def write_file(self, path: Path, content: str | bytes) -> None:
        await self.sandbox.files.write(path, content)
