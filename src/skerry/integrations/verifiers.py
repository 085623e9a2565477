"""A runtime for verifiers: `await agent.run(task, runtime=SkerryRuntime(SkerryRuntimeConfig()))`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import ClassVar, Literal

from pydantic import Field
from verifiers.v1.configs.runtime import NetworkPolicyConfig, parse_network_rule
from verifiers.v1.errors import SandboxError
from verifiers.v1.runtimes.base import BaseRuntimeInfo, ProgramResult, Runtime, RuntimeProcess, register

from skerry import (
    AsyncProcess,
    AsyncSandbox,
    InvalidRequest,
    Lifecycle,
    Limits,
    Network,
    NotFound,
    Sandbox,
    SkerryError,
)
from skerry.integrations.lifetime import delete
from skerry.integrations.output import FullOutput, exit_code


class SkerryRuntimeConfig(NetworkPolicyConfig):
    """How the sandbox of a rollout is created. `allow` and `block` apply from the start of the agent on; before that,
    the setup reaches the public network, if the operator of the server permits it."""

    type: Literal["skerry"] = "skerry"
    image: str = "base"
    workdir: str | None = None
    cpu: float | None = None
    memory: str | None = None
    disk: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    server: str | None = None


class SkerryRuntimeInfo(SkerryRuntimeConfig, BaseRuntimeInfo):
    """The configuration with the ID of the sandbox."""


class SkerryProcess(RuntimeProcess):
    """A process with separate readers of its two streams."""

    def __init__(self, process: AsyncProcess) -> None:
        self._process = process
        self._queues: dict[str, asyncio.Queue[bytes | None]] = {"stdout": asyncio.Queue(), "stderr": asyncio.Queue()}
        self._pump = asyncio.ensure_future(self._read())
        self.stdout = self._pieces("stdout")
        self.stderr = self._pieces("stderr")

    async def _read(self) -> None:
        try:
            async for piece in self._process.follow():
                self._queues[piece.stream if piece.stream == "stderr" else "stdout"].put_nowait(piece.data)
        finally:
            for queue in self._queues.values():
                queue.put_nowait(None)

    async def _pieces(self, stream: str) -> AsyncIterator[bytes]:
        while (data := await self._queues[stream].get()) is not None:
            yield data

    async def write(self, data: bytes) -> None:
        await self._process.stdin.write(data)

    async def wait(self) -> int:
        return exit_code(await self._process.wait())

    async def poll(self) -> int | None:
        info = await self._process.info()
        return None if info.state == "running" else exit_code(await self._process.wait())

    async def terminate(self) -> None:
        if (await self._process.info()).state == "running":
            await self._process.signal("TERM")

    async def kill(self) -> None:
        await self._process.kill()


class SkerryRuntime(Runtime):
    """One sandbox, from `start()` to `stop()`."""

    is_local = False  # a program inside reaches no address of this machine
    supports_user: ClassVar[bool] = True

    def __init__(self, config: SkerryRuntimeConfig, name: str | None = None) -> None:
        super().__init__(name)
        self.config = config
        self.info = SkerryRuntimeInfo(**config.model_dump())
        self._sandbox: AsyncSandbox | None = None
        self._forwards = AsyncExitStack()
        register(self)

    @property
    def sandbox(self) -> AsyncSandbox:
        if self._sandbox is None:
            raise SandboxError("the runtime has not been started")
        return self._sandbox

    async def start(self) -> None:
        config = self.config
        rules(config, [])  # a wrong rule is reported before anything is created
        sandbox = AsyncSandbox(
            config.image,
            env=config.env,
            labels={"verifiers": self.name},
            limits=Limits(cpus=config.cpu, memory=config.memory, disk=config.disk),
            network=Network.open(),
            lifecycle=Lifecycle(idle_timeout="never"),
            server=config.server,
        )
        try:
            await sandbox.start()
        except SkerryError as error:
            raise SandboxError(str(error)) from error
        self._sandbox, self.info.id = sandbox, sandbox.id

    async def teardown(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await self._forwards.aclose()
            await delete(sandbox)

    def cleanup(self) -> None:
        if self._sandbox is not None:
            try:
                Sandbox.get(self._sandbox.id, server=self.config.server).delete(force=True, purge=True)
            except NotFound:
                return

    async def run(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        output = FullOutput()
        try:
            result = await self.sandbox.run(
                argv,
                env=self.process_env(env),
                cwd=self.config.workdir,
                user=self.user,
                timeout=None,
                on_output=output.add,
            )
        except SkerryError as error:
            raise SandboxError(str(error)) from error
        return ProgramResult(exit_code=exit_code(result), stdout=output.stdout, stderr=output.stderr)

    async def open_process(self, argv: list[str], env: dict[str, str]) -> RuntimeProcess:
        return SkerryProcess(await self._spawn(argv, env))

    async def run_background(self, argv: list[str], env: dict[str, str], log: str) -> None:
        await self._spawn(["sh", "-c", 'exec "$@" >"$0" 2>&1', log, *argv], env)

    async def _spawn(self, argv: list[str], env: dict[str, str]) -> AsyncProcess:
        try:
            return await self.sandbox.spawn(argv, env=self.process_env(env), cwd=self.config.workdir, user=self.user)
        except SkerryError as error:
            raise SandboxError(str(error)) from error

    async def _read(self, path: str, max_bytes: int | None = None) -> bytes:
        try:
            return await self.sandbox.files.read_bytes(self._path(path), length=max_bytes, user=self.user)
        except SkerryError as error:
            raise SandboxError(f"read {path!r}: {error}") from error

    async def write(self, path: str, data: bytes) -> None:
        try:
            await self.sandbox.files.write(self._path(path), data, user=self.user)
        except SkerryError as error:
            raise SandboxError(f"write {path!r}: {error}") from error

    def _path(self, path: str) -> str:
        return path if self.config.workdir is None or path.startswith("/") else f"{self.config.workdir}/{path}"

    async def prepare_execution(self, routes: list[str] | None) -> None:
        if self.network_restricted:
            await self.sandbox.network.set(Network.open() if routes is None else rules(self.config, routes))

    async def expose(self, port: int) -> str:
        """Forward the port to the loopback interface of this machine, until the runtime is stopped."""
        forward = await self._forwards.enter_async_context(self.sandbox.forward(port))
        return f"http://127.0.0.1:{forward.port}"


def rules(config: SkerryRuntimeConfig, routes: list[str]) -> Network:
    """Return the policy for the agent: its destinations and the framework's `routes`."""
    if "*" in config.allow:
        blocked = [_host(rule) for rule in config.block]
        return Network.open(deny=[*blocked, *(f"*.{rule}" for rule in blocked if not rule.startswith("*."))])
    return Network(allow=[_host(rule) for rule in [*config.allow, *routes]])


def _host(rule: str) -> str:
    parsed, host, port = parse_network_rule(rule)
    if not host or (parsed.path not in ("", "/") and parsed.scheme == ""):
        raise InvalidRequest(f"{rule!r} is not a host", hint="like example.com, *.example.com or example.com:8443")
    return f"{host}:{port}" if port else host
