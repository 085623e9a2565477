"""The sandbox provider `skerry` of Inspect AI: `Task(sandbox="skerry")`, found through the package's entry point.

Its configuration is an image's name, `sandbox=("skerry", "python-tools")`, or a `SkerryConfig`.
"""

from __future__ import annotations

import shlex
from typing import Any

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel

from skerry import AsyncSandbox, InvalidRequest, Lifecycle, Limits, Network, NotFound, SandboxUnavailable
from skerry.client.create_options import CreateTerms
from skerry.integrations.lifetime import delete
from skerry.integrations.output import FullOutput, absolute, exit_code

LABEL = "inspect"  # on each sandbox of an evaluation, with the task's name


class SkerryConfig(BaseModel, frozen=True, extra="forbid"):
    """How the sandbox of a sample is created. `allow` and `presets`: network access, as in `skerry.Network`."""

    image: str = "base"
    cpus: float | None = None
    memory: str | None = None
    disk: str | None = None
    allow: tuple[str, ...] = ()
    presets: tuple[str, ...] = ()
    env: dict[str, str] = {}
    server: str | None = None


@sandboxenv(name="skerry")
class SkerrySandboxEnvironment(SandboxEnvironment):
    """One sandbox of a sample."""

    def __init__(self, sandbox: AsyncSandbox, workdir: str) -> None:
        super().__init__()
        self.sandbox = sandbox
        self._workdir = workdir

    @classmethod
    async def sample_init(
        cls, task_name: str, config: BaseModel | str | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        wanted = _config(config)
        terms: CreateTerms = {
            "env": wanted.env,
            "labels": {LABEL: task_name[:1024]},
            "limits": Limits(cpus=wanted.cpus, memory=wanted.memory, disk=wanted.disk),
            "lifecycle": Lifecycle(idle_timeout="never"),
            "server": wanted.server,
        }
        if wanted.allow or wanted.presets:
            terms["network"] = Network(allow=wanted.allow, presets=wanted.presets)
        sandbox = AsyncSandbox(wanted.image, **terms)
        await sandbox.start()
        try:
            workdir = (await sandbox.run(["pwd", "-P"], check=True)).stdout.rstrip("\n")
        except BaseException:
            await delete(sandbox)
            raise
        return {"default": cls(sandbox, workdir)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: BaseModel | str | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for environment in environments.values():
            await delete(environment.as_type(cls).sandbox)

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:  # noqa: A002 -- the framework's name
        for sandbox in await AsyncSandbox.list():
            if LABEL in sandbox.labels and id in (None, sandbox.id):
                await delete(sandbox)

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return SkerryConfig(**config)

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,  # noqa: A002 -- the framework's name
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        output = FullOutput(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE)
        try:
            result = await self.sandbox.run(
                cmd,
                env=env or {},
                cwd=absolute(cwd, self._workdir),
                user=user,
                stdin=input,
                timeout=timeout,
                on_output=output.add,
            )
        except InvalidRequest as error:
            if user is not None and error.message.startswith("user "):
                raise SandboxUserUnsupportedError(error.message) from error
            raise
        except (SandboxUnavailable, NotFound) as error:
            raise SandboxUnavailableError(str(error)) from error
        if result.timed_out:
            raise TimeoutError(f"the command was ended after {timeout} s")
        if output.exceeded:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, output.text)
        code = exit_code(result)
        if code == 126 and output.stderr.rstrip().endswith("permission denied"):
            raise PermissionError(output.stderr.rstrip())
        return ExecResult(code == 0, code, output.stdout, output.stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        await self.sandbox.files.write(absolute(file, self._workdir), contents)

    async def read_file(self, file: str, text: bool = True) -> Any:
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        data = await self.sandbox.files.read_bytes(absolute(file, self._workdir), length=limit + 1)
        if len(data) > limit:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return data.decode() if text else data

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        chosen = ["--user", user] if user is not None else []
        return SandboxConnection(type="skerry", command=shlex.join(["skerry", "shell", *chosen, self.sandbox.id]))


def _config(config: BaseModel | str | None) -> SkerryConfig:
    if config is None:
        return SkerryConfig()
    if isinstance(config, str):
        return SkerryConfig(image=config)
    return SkerryConfig.model_validate(config.model_dump())
