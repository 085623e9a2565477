"""A Python executor for smolagents: `CodeAgent(tools=[], model=model, executor=SkerryExecutor(sandbox))`."""

from __future__ import annotations

from typing import Any

from smolagents.local_python_executor import CodeOutput
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.utils import AgentError

from skerry import CodeResult, Sandbox


class SkerryExecutor(RemotePythonExecutor):
    """Runs the code of an agent in a sandbox; variables stay between steps. The caller deletes the sandbox.

    `additional_imports` and the packages of tools are installed with pip inside, unless the image has them: that needs
    `network=Network(presets=["pip"])`. `timeout`:
    seconds of a step."""

    def __init__(
        self,
        sandbox: Sandbox,
        additional_imports: list[str] | None = None,
        *,
        timeout: float = 300,
        logger: AgentLogger | None = None,
    ) -> None:
        super().__init__(additional_imports or [], logger or AgentLogger(level=LogLevel.ERROR))
        self.sandbox = sandbox
        self._timeout = timeout
        self.installed_packages = self.install_packages(self.additional_imports)

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        """Install the missing packages with pip inside; `final_answer` needs pillow and numpy."""
        wanted = [name for name in additional_imports if not self._is_installed(name)]
        if wanted:
            self.sandbox.run(["python3", "-m", "pip", "install", "-q", *wanted], timeout=600, check=True)
        return additional_imports

    def _is_installed(self, package: str) -> bool:
        return self.sandbox.run(["python3", "-m", "pip", "show", "-q", package], timeout=60).ok

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        result = self.sandbox.code.run(code, timeout=self._timeout)
        error = result.error
        if error is not None and error.name == self.FINAL_ANSWER_EXCEPTION:
            answer = self._deserialize_final_answer(error.message, self.allow_pickle)
            return CodeOutput(output=answer, logs=result.stdout, is_final_answer=True)
        if not result.ok:
            raise AgentError(_failure(result, self._timeout), self.logger)
        return CodeOutput(output=_value(result), logs=result.stdout, is_final_answer=False)


def _failure(result: CodeResult, timeout: float) -> str:
    reason = f"the code was interrupted after {timeout:g} s" if result.timed_out else result.stderr
    if result.error is not None:
        reason = result.error.traceback or f"{result.error.name}: {result.error.message}"
    return f"{result.stdout}\nExecuting code yielded an error:\n{reason}"


def _value(result: CodeResult) -> Any:
    """Return the value of the last expression: a picture, or its text."""
    main = next((value for value in reversed(result.results) if value.main), None)
    if main is None:
        return None
    if (picture := main.png or main.jpeg) is not None:
        from io import BytesIO

        from PIL import Image

        return Image.open(BytesIO(picture))
    return main.text
