"""A pull: manifest → configuration → layers, several at a time → image. What is in the store already is not fetched.

Nothing shows before the last step, which is one rename. A pull that ends anywhere before leaves parts of layers, which
the next one goes on with, and layers that no image names, which are collected.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Final

from skerry.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded, SkerryError
from skerry.images.blobs import Blobs
from skerry.images.manifests import (
    Config,
    Descriptor,
    Index,
    Manifest,
    choose,
    decode_config,
    decode_manifest,
    parse_platform,
    suits,
)
from skerry.images.progress import Stage
from skerry.images.registry import SMALL_MOST, Registry
from skerry.images.tar import Damaged
from skerry.images.unpack import Bounds, unpack
from skerry.storage import tree
from skerry.storage.images import Image, ImageStore, check_image_name, image_digest
from skerry.types import Progress, PullRequest, format_size, parse_reference

_AT_ONCE: Final = 4
_NOTICES: Final = 10
_OURS: Final = ("base",)


class _Stopped(SkerryError):
    """Another layer of the same pull failed."""


class Pull:
    """One pull, in the thread that calls `run` and a few of its own.

    `tell` hears how it gets on. `pinned` hears of every layer that is
    going to be used: until the pull's end, none of them may be collected. `passed` hears of each step by name."""

    def __init__(
        self,
        images: ImageStore,
        blobs: Blobs,
        request: PullRequest,
        *,
        tell: Callable[[Progress], None],
        pinned: Callable[[str], None],
        passed: Callable[[str], None],
        stall_s: float,
        bounds: Bounds,
    ) -> None:
        self._images, self._layers, self._blobs, self._request = images, images.layers, blobs, request
        self._tell, self._pinned, self._passed, self._bounds = tell, pinned, passed, bounds
        self._platform = parse_platform(request.platform)
        self._reference = parse_reference(request.reference)
        self._name = request.name or request.reference.removeprefix("docker://")
        self._ends = threading.Event()
        self._why: SkerryError = _Stopped("another layer failed")
        self._registry = Registry(
            self._reference, request.credentials, insecure=request.insecure, stall_s=stall_s, pause=self._wait
        )

    def run(self) -> Image:
        self._check_name()
        try:
            stage = Stage(self._told, "manifest", f"asking {self._reference.registry}", total=1)
            source, manifest = self._manifest()
            config = self._config(manifest)
            stage.finish("done")
            self._passed("pull.manifest")
            layers = self._all_layers(manifest, config)
            return self._keep(source, config, layers)
        finally:
            self._registry.close()

    def stop(self, why: SkerryError) -> None:
        """From any thread: it ends at its next step, also if a registry keeps it waiting."""
        self._why = why
        self._ends.set()
        self._registry.hang_up()

    def _check_name(self) -> None:
        check_image_name(self._name)
        if self._name in _OURS:
            raise InvalidRequest(f"image: {self._name!r} is the name of Skerry's own", hint="give another with --name")
        try:
            there = self._images.get(self._name)
        except NotFound:
            return
        if there.name == self._name and there.source is None:
            raise Conflict(
                f"there is an image {self._name!r} that was not pulled", hint="give another name with --name"
            )

    # -- what it is ---------------------------------------------------------------------------------------------------

    def _manifest(self) -> tuple[str, Manifest]:
        """With where it came from; the digest there is of what the name stands for: the index, if there is one."""
        kind, first, data = self._registry.manifest(self._reference.which)
        found = decode_manifest(data, kind)
        for _ in range(2):
            if isinstance(found, Manifest):
                break
            chosen = choose(found, self._platform)
            kind, _, data = self._registry.manifest(chosen.digest)
            found = decode_manifest(data, kind)
        if isinstance(found, Index):
            raise Damaged("the image is an index of indexes")
        where = f"{self._reference.registry}/{self._reference.repository}"
        tag = f":{self._reference.tag}" if self._reference.tag else ""
        return f"{where}{tag}@{first}", found

    def _config(self, manifest: Manifest) -> Config:
        if manifest.config.size > SMALL_MOST:
            raise Damaged(f"the image's configuration is {manifest.config.size} bytes long")
        config = decode_config(self._registry.small_blob(manifest.config.digest), manifest)
        if config.architecture and not suits(config.platform, self._platform):
            raise InvalidRequest(
                f"the image is for {config.platform}, not for {self._platform}",
                hint=f"pull it all the same with --platform {config.platform}" if config.os == "linux" else None,
            )
        return config

    # -- its layers ---------------------------------------------------------------------------------------------------

    def _all_layers(self, manifest: Manifest, config: Config) -> tuple[str, ...]:
        """Top first, as sandboxes stack them; of one that is there twice, only the upper shows."""
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

    def _check_room(self, manifest: Manifest) -> None:
        blobs = {blob.digest: blob.size for blob in manifest.layers}
        needed = sum(size for digest, size in blobs.items() if self._blobs.known(digest, self._layers) is None)
        disk = os.statvfs(self._images.root)
        free = disk.f_bavail * disk.f_frsize
        if free - needed < self._bounds.reserve:
            raise QuotaExceeded(
                f"{self._name} is a download of {format_size(needed >> 20 << 20)},"
                f" and the host's disk has {format_size(free >> 20 << 20)} free",
                hint="`skerry image prune` frees what nothing uses",
            )

    def _layer(self, blob: Descriptor, diff_id: str) -> str | None:
        """Fetches, verifies and unpacks one layer, and puts it into the store; None: it holds nothing."""
        stage = Stage(self._told, blob.digest[7:19], "waiting", blob.size)
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
        stage = Stage(self._told, blob.digest[7:19], "unpacking", blob.size)
        with self._blobs.unpacking, self._blobs.part(blob.digest).open("rb") as file:
            try:
                done = unpack(file.fileno(), target, bounds=self._bounds, progress=self._checked(stage, "unpacking"))
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
            self._told(Progress(stage="notice", message=notice))
        stage.finish("done")
        return layer

    # -- the image ----------------------------------------------------------------------------------------------------

    def _keep(self, source: str, config: Config, layers: tuple[str, ...]) -> Image:
        if not layers:
            raise Damaged("the image holds no files")
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
        )
        with self._layers.held():
            self._images.put(image)
        self._passed("pull.image")
        return image

    def _told(self, progress: Progress) -> None:
        self._check()
        self._tell(progress)

    def _checked(self, stage: Stage, message: str) -> Callable[[int], None]:
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
