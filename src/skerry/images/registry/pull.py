"""A pull: manifest → configuration → layers, several at a time → image. Stored layers are not fetched again.

Nothing is visible before the last step, which is one rename. A pull that ends earlier leaves partial layers, with which
the next one continues, and unreferenced layers, which are collected.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Final

from skerry.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    QuotaExceeded,
    RegistryError,
    SkerryError,
)
from skerry.images.archive.tar import Damaged
from skerry.images.archive.unpack import UnpackLimits, unpack
from skerry.images.progress import BuildStage
from skerry.images.registry.blobs import Blobs
from skerry.images.registry.client import MAX_SMALL, Registry
from skerry.images.registry.host_config import endpoints
from skerry.images.registry.manifests import (
    Config,
    Descriptor,
    ImageManifest,
    Index,
    choose,
    decode_config,
    decode_manifest,
    parse_platform,
    suits,
)
from skerry.storage import tree
from skerry.storage.images import Image, ImageStore, check_image_name, image_digest
from skerry.types import OWN_IMAGES, Progress, PullRequest, parse_reference, readable_size

_AT_ONCE: Final = 4
_NOTICES: Final = 10


class _Stopped(SkerryError):
    """Another layer of the same pull failed."""


class Pull:
    """One pull, in the thread that calls `run` and a few more.

    `report` receives progress. `pinned` receives every layer that will be used: until the end of the pull, none of them
    may be collected. `passed` receives the name of each step.
    """

    def __init__(
        self,
        images: ImageStore,
        blobs: Blobs,
        request: PullRequest,
        *,
        report: Callable[[Progress], None],
        pinned: Callable[[str], None],
        passed: Callable[[str], None],
        stall_s: float,
        limits: UnpackLimits,
    ) -> None:
        self._images, self._layers, self._blobs, self._request = images, images.layers, blobs, request
        self._report, self._pinned, self._passed, self._bounds = report, pinned, passed, limits
        self._platform = parse_platform(request.platform)
        self._reference = parse_reference(request.reference)
        self._name = request.name or request.reference.removeprefix("docker://")
        self._ends = threading.Event()
        self._why: SkerryError = _Stopped("another layer failed")
        self._registries = [
            Registry(
                self._reference, request.credentials, endpoint=endpoint, insecure=request.insecure, stall_s=stall_s,
                pause=self._wait,
            )
            for endpoint in endpoints(self._reference)
        ]  # fmt: skip
        self._registry = self._registries[-1]  # or a mirror that has the manifest

    def run(self) -> Image:
        self._check_name()
        try:
            stage = BuildStage(self._report_progress, "manifest", f"asking {self._reference.registry}", total=1)
            source, manifest = self._manifest()
            config = self._config(manifest)
            stage.finish("done")
            self._passed("pull.manifest")
            layers = self._all_layers(manifest, config)
            return self._keep(source, config, layers, manifest.kit)
        finally:
            for registry in self._registries:
                registry.close()

    def stop(self, why: SkerryError) -> None:
        """Call from any thread: end the pull at its next step, even if it waits for a registry."""
        self._why = why
        self._ends.set()
        for registry in self._registries:
            registry.hang_up()

    def _check_name(self) -> None:
        check_image_name(self._name)
        if self._name in OWN_IMAGES:
            raise InvalidRequest(
                f"image: {self._name!r} is the name of an image of Skerry's own", hint="give another with --name"
            )
        try:
            there = self._images.get(self._name)
        except NotFound:
            return
        if there.name == self._name and there.source is None:
            raise Conflict(
                f"image {self._name!r} already exists and was not pulled", hint="give another name with --name"
            )

    # -- manifest and configuration -----------------------------------------------------------------------------------

    def _manifest(self) -> tuple[str, ImageManifest]:
        """Return the origin and the manifest; the digest in the origin is that of the index, if there is one."""
        kind, first, data = self._first_manifest()
        found = decode_manifest(data, kind)
        for _ in range(2):
            if isinstance(found, ImageManifest):
                break
            chosen = choose(found, self._platform)
            kind, _, data = self._registry.manifest(chosen.digest)
            found = decode_manifest(data, kind)
        if isinstance(found, Index):
            raise Damaged("the image is an index of indexes")
        where = f"{self._reference.registry}/{self._reference.repository}"
        tag = f":{self._reference.tag}" if self._reference.tag else ""
        return f"{where}{tag}@{first}", found

    def _first_manifest(self) -> tuple[str, str, bytes]:
        """Return the manifest from the first place that has it, and use that place from now on."""
        for mirror in self._registries[:-1]:
            try:
                found = mirror.manifest(self._reference.which)
            except (NotFound, PermissionDenied, RegistryError) as error:
                self._report_progress(Progress(stage="notice", message=f"mirror not used: {error.message}"))
                continue
            self._registry = mirror
            return found
        return self._registry.manifest(self._reference.which)

    def _config(self, manifest: ImageManifest) -> Config:
        if manifest.config.size > MAX_SMALL:
            raise Damaged(f"the image's configuration is {manifest.config.size} bytes long")
        config = decode_config(self._registry.small_blob(manifest.config.digest), manifest)
        if config.architecture and not suits(config.platform, self._platform):
            raise InvalidRequest(
                f"the image is for {config.platform}, not for {self._platform}",
                hint=f"pull it anyway with --platform {config.platform}" if config.os == "linux" else None,
            )
        return config

    # -- layers --------------------------------------------------------------------------------------------------------

    def _all_layers(self, manifest: ImageManifest, config: Config) -> tuple[str, ...]:
        """Return the layers top first, as sandboxes stack them; of a repeated layer only the upper one counts."""
        self._check_room(manifest)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="pull") as pool:
            works = [
                pool.submit(self._layer, blob, diff_id)
                for blob, diff_id in zip(manifest.layers, config.rootfs.diff_ids, strict=True)
            ]
            done, _ = wait(works, return_when=FIRST_EXCEPTION)
            if any(work.exception() for work in done):
                self._ends.set()
                pool.shutdown(cancel_futures=True)
        errors = [work.exception() for work in works if not work.cancelled()]
        for error in sorted((error for error in errors if error), key=lambda error: isinstance(error, _Stopped)):
            raise error
        found = [layer for work in reversed(works) if (layer := work.result()) is not None]
        return tuple(dict.fromkeys(found))

    def _check_room(self, manifest: ImageManifest) -> None:
        blobs = {blob.digest: blob.size for blob in manifest.layers}
        needed = sum(size for digest, size in blobs.items() if self._blobs.known(digest, self._layers) is None)
        disk = os.statvfs(self._images.root)
        free = disk.f_bavail * disk.f_frsize
        if free - needed < self._bounds.min_free:
            raise QuotaExceeded(
                f"{self._name} is a download of {readable_size(needed, up=True)},"
                f" and the host's disk has {readable_size(free)} free",
                hint="`skerry image prune` removes unused images",
            )

    def _layer(self, blob: Descriptor, diff_id: str) -> str | None:
        """Fetch, verify and unpack one layer, and store it; None: it is empty."""
        stage = BuildStage(self._report_progress, blob.digest[7:19], "waiting", blob.size)
        with self._blobs.held(blob.digest, self._check):
            with self._layers.held():
                known = self._blobs.known(blob.digest, self._layers)
                if known is not None and known[0] is not None:
                    self._pinned(known[0])
            if known is not None:
                stage.finish("already here")
                return known[0]
            self._blobs.fetch(self._registry, blob, self._checked(stage, "downloading"))
            self._passed("pull.blob")
            layer = self._unpacked(blob, diff_id)
            self._passed("pull.layer")
            return layer

    def _unpacked(self, blob: Descriptor, diff_id: str) -> str | None:
        target = self._blobs.scratch()
        stage = BuildStage(self._report_progress, blob.digest[7:19], "unpacking", blob.size)
        with self._blobs.unpacking, self._blobs.part(blob.digest).open("rb") as file:
            try:
                done = unpack(file.fileno(), target, limits=self._bounds, progress=self._checked(stage, "unpacking"))
            except Damaged:
                self._blobs.part(blob.digest).unlink(missing_ok=True)
                raise
        try:
            if done.digest != diff_id:
                raise Damaged(f"the layer {blob.digest[:19]}… unpacks to {done.digest}, not to {diff_id[:80]}")
            tree.forget_keeper(target)
            self._passed("pull.tree")
            layer = None
            if done.entries:
                layer = self._layers.add_directory(target, progress=lambda _: self._check(), pinned=self._pinned)
            self._blobs.note(blob.digest, layer)
        finally:
            tree.remove(target)
        for notice in done.notices[:_NOTICES]:
            self._report_progress(Progress(stage="notice", message=notice))
        stage.finish("done")
        return layer

    # -- the image ----------------------------------------------------------------------------------------------------

    def _keep(self, source: str, config: Config, layers: tuple[str, ...], kit: str | None) -> Image:
        if not layers:
            raise Damaged("the image contains no files")
        image = Image(
            name=self._name,
            digest=image_digest(layers, config.env, config.user, config.cwd, config.entrypoint, config.cmd),
            layers=layers,
            size=sum(self._layers.size(layer) for layer in layers),
            created_at=time.time(),
            user=config.user,
            cwd=config.cwd,
            env=config.env,
            entrypoint=config.entrypoint,
            cmd=config.cmd,
            source=source,
            platform=str(config.platform) if config.architecture else str(self._platform),
            kit=kit,
        )
        with self._layers.held():
            self._images.put(image)
        self._passed("pull.image")
        return image

    def _report_progress(self, progress: Progress) -> None:
        self._check()
        self._report(progress)

    def _checked(self, stage: BuildStage, message: str) -> Callable[[int], None]:
        def came(done: int) -> None:
            self._check()
            stage.at(done, message)

        return came

    def _check(self) -> None:
        if self._ends.is_set():
            raise self._why

    def _wait(self, seconds: float) -> None:
        self._ends.wait(seconds)
        self._check()
