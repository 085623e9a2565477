"""The host's parts that sandboxes are built with: runtimes, storage, layers, secrets. Found once, at start-up."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from skerry.config import Settings, instance_of, run_dir
from skerry.engine.network.cassettes import CassetteStore
from skerry.engine.network.secrets import SecretStore
from skerry.engine.sandboxes.record import SandboxRecord, SandboxSpec
from skerry.engine.volumes.buckets import BucketMounter
from skerry.errors import HostUnsupported, NotFound, SandboxUnavailable, SkerryError
from skerry.keeper import Keeper, binary, build_id
from skerry.runtimes import BindMount, ContainerConfig, Runtime, pick_runtime
from skerry.storage import Driver, LayerStore, pick_driver
from skerry.types import VolumeMount, parse_size


class Host:
    def __init__(self, settings: Settings, driver: Driver) -> None:
        self.settings = settings
        self.driver = driver
        self.layers = LayerStore(settings.state_dir / "layers", driver)
        self.instance = instance_of(settings.state_dir)
        self.run_dir = run_dir(settings.state_dir)
        self.secrets = SecretStore(
            settings.state_dir / "secrets", (*settings["max.network"], *settings["network.deny"])
        )
        self.cassettes = CassetteStore(settings.state_dir / "cassettes")
        self.buckets = BucketMounter(settings["buckets"], self.secrets)
        self._runtimes: dict[str | None, Runtime] = {}

    @classmethod
    async def open(cls, settings: Settings) -> Host:
        """Choose and prepare the storage driver. Runtimes are chosen when the first sandbox needs them."""
        driver = await asyncio.to_thread(
            pick_driver,
            settings.state_dir,
            settings["storage.driver"],
            pool_size=parse_size(settings["storage.pool_size"]),
            min_free=parse_size(settings["storage.min_free_space"]),
            preallocate=parse_size(settings["storage.preallocate"]),
        )
        await asyncio.to_thread(driver.prepare)
        return cls(settings, driver)

    async def release(self) -> None:
        """Let go of the storage. It stays busy while sandboxes run; the next server adopts it."""
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self.driver.close)

    def close(self) -> None:
        for runtime in self._runtimes.values():
            runtime.close()

    def runtime(self, name: str | None) -> Runtime:
        """Return the runtime of that name, or the operator's choice."""
        name = name or self.settings["runtime"]
        if name not in self._runtimes:
            self._runtimes[name] = pick_runtime(self.run_dir, name)
        return self._runtimes[name]

    def cleanup_runtime(self, record: SandboxRecord) -> Runtime:
        """Return a runtime that can remove the sandbox: its own or, if that was uninstalled, the default one."""
        try:
            return self.runtime(record.spec.options.runtime)
        except SkerryError:
            return self.runtime(None)

    def container_config(self, record: SandboxRecord, runtime: Runtime, uid_base: int) -> ContainerConfig:
        return ContainerConfig(
            id=record.id, run_dir=self.run_dir, cgroup_root=runtime.cgroup_root,
            layers=tuple(map(self.layers.check, record.spec.layers)), upper_dir=self.driver.path(record.upper),
            uid_base=uid_base, limits=record.spec.limits, hostname=record.hostname, keeper=binary(),
            waive_guarantees=frozenset(record.spec.options.waive_guarantees),
            mounts=self.mounts(record.spec), read_only_root=record.spec.options.read_only_root,
        )  # fmt: skip

    def mounts(self, spec: SandboxSpec) -> tuple[BindMount, ...]:
        """Return the volumes of a sandbox that are directories of this host; `buckets` mounts the others."""
        return tuple(self._mount(one) for one in spec.volumes if one.bucket is None)

    def _mount(self, mount: VolumeMount) -> BindMount:
        if mount.volume is not None:
            try:
                files = self.driver.path(mount.volume) / "upper"
            except NotFound as error:
                raise SandboxUnavailable(f"the files of volume {mount.name} are missing") from error
            return BindMount(files, mount.path, mount.read_only)
        form = self.settings["mounts"].get(mount.name)
        if form is None:
            raise SandboxUnavailable(f"the operator no longer lists the directory @{mount.name}")
        return BindMount(Path(form.path), mount.path, mount.read_only or form.read_only, listed=True)

    def keeper(self, runtime: Runtime, sandbox_id: str, *, started_here: bool = True) -> Keeper:
        """Return the client of a sandbox's keeper. A sandbox that another server started may have an older keeper."""
        kept = parse_size(self.settings["output.max_per_process"])
        return Keeper(lambda: runtime.connect(sandbox_id), build_id() if started_here else None, kept=kept)

    def journal(self, spec: SandboxSpec) -> tuple[int, int]:
        """Return how much output is kept of a process and of a sandbox: never more than half of the sandbox's disk."""
        most = spec.limits.disk_bytes // 2
        process, sandbox_id = (parse_size(self.settings[f"output.max_per_{name}"]) for name in ("process", "sandbox"))
        return min(process, sandbox_id, most), min(sandbox_id, most)

    def check_disk_limit(self, record: SandboxRecord) -> None:
        """Raise HostUnsupported if the storage driver cannot enforce the disk limit and the caller did not waive it."""
        if not self.driver.enforces_limit and "disk_limit" not in record.spec.options.waive_guarantees:
            raise HostUnsupported(
                f"this host's storage driver ({self.driver.name}) can't hold a sandbox to its disk limit",
                hint="`skerry doctor` lists the missing parts; --waive-guarantee disk_limit starts without it",
            )
