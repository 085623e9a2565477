"""An environment for Harbor, the harness of terminal-bench: `-e skerry.integrations.harbor:SkerryHarborEnvironment`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.environments.definition import require_agent_environment_definition, should_use_prebuilt_docker_image
from harbor.models.task.config import NetworkMode, NetworkPolicy
from harbor.models.trial.config import ResourceMode

from skerry import AsyncImage, AsyncSandbox, Lifecycle, Limits, Network, NotFound, Output
from skerry.client.create_options import AnyImage
from skerry.integrations.lifetime import delete as delete_sandbox
from skerry.integrations.output import FullOutput, exit_code


class SkerryHarborEnvironment(BaseEnvironment):
    """The sandbox of a trial, from the task's Dockerfile or its image. `server`: the address of the Skerry server
    (`--ek server=…`)."""

    def __init__(self, *args: Any, server: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._server = server
        self._sandbox: AsyncSandbox | None = None
        self._shell = ["bash", "-c"]

    @staticmethod
    def type() -> str:
        return "skerry"

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True)

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            network_allowlist_ipv4_addresses=True,
            network_allowlist_ipv6_addresses=True,
            network_allowlist_ipv4_cidrs=True,
            network_allowlist_ipv6_cidrs=True,
            dynamic_network_policy=True,
        )

    def _validate_definition(self) -> None:
        require_agent_environment_definition(self.environment_dir, docker_image=self.task_env_config.docker_image)
        if not self.task_env_config.docker_image and not self._dockerfile.is_file():
            raise FileNotFoundError(f"{self._dockerfile} not found: tasks of Docker Compose are not supported")

    @property
    def _dockerfile(self) -> Path:
        return Path(self.environment_dir) / "Dockerfile"

    @property
    def sandbox(self) -> AsyncSandbox:
        if self._sandbox is None:
            raise RuntimeError("the environment has not been started")
        return self._sandbox

    async def start(self, force_build: bool) -> None:
        memory, disk = self._resource_limit_value("memory", auto_mode=ResourceMode.LIMIT), self._effective_storage_mb
        sandbox = AsyncSandbox(
            await self._image(force_build),
            env=self._startup_env(),
            labels={"harbor": self.session_id[:1024]},
            limits=Limits(
                cpus=self._resource_limit_value("cpu", auto_mode=ResourceMode.LIMIT),
                memory=f"{memory}M" if memory else None,
                disk=f"{disk}M" if disk else None,
            ),
            network=policy(self.network_policy),
            lifecycle=Lifecycle(idle_timeout="never"),
            server=self._server,
        )
        await sandbox.start()
        self._sandbox = sandbox
        if not (await sandbox.run(["bash", "-c", ":"])).ok:
            self._shell = ["sh", "-c"]
        await self.ensure_dirs(self._mount_targets(writable_only=True))
        await self._upload_environment_dir_after_start()

    async def _image(self, force_build: bool) -> AnyImage:
        """Return the task's image, pulled or built. A build reaches the public network, as one of Docker does."""
        name = self.task_env_config.docker_image
        if should_use_prebuilt_docker_image(self.environment_dir, docker_image=name, force_build=force_build):
            return await self._pulled(str(name))
        image = AsyncImage.dockerfile(str(self._dockerfile), context=str(self.environment_dir))
        return await image.build(
            network=Network.open(),
            timeout=self.task_env_config.build_timeout_sec,
            cache=not force_build,
            server=self._server,
        )

    async def _pulled(self, name: str) -> str:
        known = [image.name for image in await AsyncImage.list(server=self._server)]
        if name not in known:
            await AsyncImage.pull(name, server=self._server)
        return name

    async def stop(self, delete: bool) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is None:
            return
        if delete:
            await delete_sandbox(sandbox)
            return
        try:
            await sandbox.stop()
        except NotFound:
            self.logger.debug("the sandbox was deleted before")
        finally:
            await sandbox.aclose()

    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        await self.sandbox.network.set(policy(network_policy))

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        output, emit, chosen = FullOutput(), self._output_callback(), self._resolve_user(user)

        async def receive(piece: Output) -> None:
            output.add(piece)
            if emit is not None:
                await emit(piece.text, piece.stream)

        result = await self.sandbox.run(
            [*self._shell, command],
            cwd=cwd or self.task_env_config.workdir,
            env=self._merge_env(env) or {},
            user=str(chosen) if chosen is not None else None,
            timeout=timeout_sec,
            on_output=receive,
        )
        if result.timed_out:
            raise TimeoutError(f"the command was ended after {timeout_sec} s")
        return ExecResult(stdout=output.stdout, stderr=output.stderr, return_code=exit_code(result))

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        await self.sandbox.files.upload(source_path, target_path, user="root")

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self.sandbox.files.upload(source_dir, target_dir, user="root")

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        await self.sandbox.files.download(source_path, target_path, user="root")

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        await self.sandbox.files.download(source_dir, target_dir, user="root")


def policy(wanted: NetworkPolicy) -> Network:
    """Return a network policy of Harbor as one of Skerry."""
    if wanted.network_mode == NetworkMode.PUBLIC:
        return Network.open()
    return Network(allow=tuple(wanted.allowed_hosts))
