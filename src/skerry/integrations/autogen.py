"""A code executor for AutoGen: `CodeExecutorAgent("executor", code_executor=SkerryCodeExecutor())`."""

from __future__ import annotations

import asyncio
from typing import Unpack

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult

from skerry import AsyncSandbox, InvalidRequest, ToolchainMissing
from skerry.client.create_options import CreateOptions
from skerry.integrations.lifetime import delete
from skerry.integrations.output import exit_code


class SkerryCodeExecutor(CodeExecutor):
    """Runs code blocks in a sandbox from `start()` to `stop()`; the variables of a language stay between blocks.

    `timeout`: seconds of a block; the other arguments are those of `skerry.AsyncSandbox`."""

    def __init__(self, *, timeout: float = 60, **creation: Unpack[CreateOptions]) -> None:
        self._timeout = timeout
        self._creation = creation
        self._sandbox: AsyncSandbox | None = None

    @property
    def sandbox(self) -> AsyncSandbox:
        if self._sandbox is None:
            raise InvalidRequest("the executor has not been started", hint="`async with` it, or call start() first")
        return self._sandbox

    async def start(self) -> None:
        if self._sandbox is None:
            self._sandbox = await AsyncSandbox(**self._creation).start()

    async def stop(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await delete(sandbox)

    async def restart(self) -> None:
        """Discard the variables of all languages; files stay."""
        for context in await self.sandbox.code.contexts():
            await context.restart()

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> CodeResult:
        output: list[str] = []
        for block in code_blocks:
            running = asyncio.ensure_future(self._run(block))
            cancellation_token.link_future(running)
            code, text = await running
            output.append(text)
            if code != 0:
                return CodeResult(exit_code=code, output="".join(output))
        return CodeResult(exit_code=0, output="".join(output))

    async def _run(self, block: CodeBlock) -> tuple[int, str]:
        try:
            result = await self.sandbox.code.run(block.code, block.language or "python", timeout=self._timeout)
        except (InvalidRequest, ToolchainMissing) as error:  # an unknown language, or one that the image lacks
            return 127, f"{error}\n"
        parts = [result.stdout, result.stderr, *(f"{value.text}\n" for value in result.results if value.text)]
        if result.error is not None:
            parts.append(result.error.traceback or f"{result.error.name}: {result.error.message}")
        if result.timed_out:
            raise TimeoutError(f"the code was interrupted after {self._timeout:g} s")
        return exit_code(result) if not result.ok else 0, "".join(parts)
