"""Build Skerry's own images: `base-slim`, the host's own Debian or Ubuntu release with the tools that agents use most,
and the layers on top of it.

Steps of `base-slim`: package lists → downloads → mmdebstrap → Node.js and final files → digest → store. Of a layer:
package lists → downloads → installation in an overlay → programs and files → digest → store. Downloads stay in the
cache, so an interrupted build continues from there. Trees are built in a directory that the next build sweeps.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from skerry.errors import Conflict, HostUnsupported, NotFound
from skerry.images import child
from skerry.images.base import finish, layer, node
from skerry.images.base.apt import PATH, Apt
from skerry.images.base.downloads import Pinned, download_wheels, npm_command, wheels_for
from skerry.images.base.recipe import BOOTSTRAP, DPKG_OPTIONS, Download, Recipe, chain, recipe_digest
from skerry.images.base.sources import host_release, host_sources
from skerry.images.progress import BuildStage
from skerry.storage import tree
from skerry.storage.images import Image, ImageStore, image_digest
from skerry.storage.layers import LayerStore
from skerry.types import Progress

_TOOLS = {"mmdebstrap": "mmdebstrap", "apt-get": "apt", "setpriv": "util-linux", "unshare": "util-linux"}
_STEP = re.compile(r"(?:Unpacking|Setting up) (\S+)")
_PREFIX = "build-"
_LOCK_INTERVAL_S = 0.25


def build_image(
    name: str,
    images: ImageStore,
    layers: LayerStore,
    cache_dir: Path,
    progress: Callable[[Progress], None],
    *,
    rebuild: bool = False,
) -> Image:
    """Build one of Skerry's own images and store it, replacing an older one. Images below it that are missing or
    outdated are built before; with `rebuild`, all of them. Takes seconds to a few minutes.

    An exception raised by `progress` cancels the build; its processes have ended when this function returns.
    """
    _check_tools()
    tree.private_directory(cache_dir)
    with _only_one_build(cache_dir, progress):
        _sweep(cache_dir)
        apt = Apt(cache_dir / "apt", host_sources(host_release().codename))
        build, missing = _Build(images, layers, cache_dir, apt, progress), list[Recipe]()
        *lower, recipe = chain(name)
        while lower and not rebuild and current(images, lower[-1].name) is None:
            missing.append(lower.pop())
        for below in lower if rebuild else reversed(missing):
            build.make(below)
        return build.make(recipe)


def current(images: ImageStore, name: str) -> Image | None:
    """Return the image, unless it is missing, damaged, or made by another version of Skerry."""
    try:
        image = images.get(name)
    except NotFound:
        return None
    whole = all(images.layers.has(layer) and not images.layers.damaged(layer) for layer in image.layers)
    return image if whole and image.recipe == recipe_digest(name) else None


def _check_tools() -> None:
    missing = sorted({package for tool, package in _TOOLS.items() if shutil.which(tool, path=PATH) is None})
    if missing:
        raise HostUnsupported(
            f"the base image cannot be built: {', '.join(missing)} missing on this host",
            hint=f"apt-get install {' '.join(missing)}",
        )


@contextmanager
def _only_one_build(cache_dir: Path, progress: Callable[[Progress], None]) -> Iterator[None]:
    fd = os.open(cache_dir / "build.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                progress(Progress(stage="wait", message="waiting for another build to end", done=0, total=0))
                time.sleep(_LOCK_INTERVAL_S)
        yield
    finally:
        os.close(fd)


def _sweep(cache_dir: Path) -> None:
    for name in os.listdir(cache_dir):
        if name.startswith(_PREFIX):
            tree.remove(cache_dir / name)


@dataclass(frozen=True)
class _Build:
    """One build, under the lock."""

    images: ImageStore
    layers: LayerStore
    cache: Path
    apt: Apt
    progress: Callable[[Progress], None]

    def make(self, recipe: Recipe) -> Image:
        work = tree.private_directory(self.cache / f"{_PREFIX}{secrets.token_hex(6)}")
        try:
            if recipe.below is None:
                return self._slim(recipe, work)
            return self._layer(recipe, self.images.get(recipe.below), work)
        finally:
            tree.remove(work)

    def _slim(self, recipe: Recipe, work: Path) -> Image:
        packages = self._update(recipe)
        files = self.apt.needed(packages)
        self._download(files, self.apt.download(packages))
        (wheel,) = self._fetch((node.NODE,), [])
        self._bootstrap(packages, len(files), work)
        stage = BuildStage(self.progress, "finish", "adding Node.js and the user")
        node.unpack(wheel, work / "root/usr/local")
        finish.finish(work / "root", self.apt.sources.read_text(), self.apt.keys, self.apt.newest_release())
        stage.finish()
        return self._store(recipe, None, work / "root")

    def _layer(self, recipe: Recipe, image: Image, work: Path) -> Image:
        below = [self.layers.check(layer) for layer in image.layers]
        installed = layer.dpkg_status(below)
        packages = self._update(recipe)
        files = self.apt.needed(packages, installed)
        self._download(files, self.apt.download(packages, installed))
        npm = npm_command(below[0])
        programs, scripts = self._fetch(recipe.programs, npm), self._fetch(recipe.npm, npm)
        wheels = tree.private_directory(self.cache / f"wheels-{recipe.name}")
        self._fetch_wheels(recipe, layer.python_version(below), wheels)
        output = layer.install(recipe, packages, self.apt, wheels, below, work)
        self._show("install", f"installing {recipe.title}", 2 * len(files), output)
        stage = BuildStage(self.progress, "finish", f"adding {recipe.title}")
        layer.complete(recipe, programs, scripts, work / "upper", self.apt.newest_release())
        stage.finish()
        made = self._store(recipe, image, work / "upper")
        tree.remove(wheels)
        return made

    def _update(self, recipe: Recipe) -> tuple[str, ...]:
        """Fetch the package lists; return the packages to install."""
        stage = BuildStage(self.progress, "lists", "reading the package lists")
        for _ in self.apt.update() if recipe.packages else ():
            stage.at(0)
        return recipe.packages + (self.apt.available(recipe.extras) if recipe.extras else ())

    def _download(self, files: dict[str, int], output: Iterator[child.OutputLine]) -> None:
        if not files:
            return
        stage = BuildStage(
            self.progress, "packages", "downloading packages", sum(files.values()), self.apt.present(files)
        )
        for _ in output:
            stage.at(self.apt.present(files))
        stage.finish()

    def _fetch(self, items: tuple[Download, ...], npm: list[str]) -> list[Path]:
        """Return the pinned files, downloaded if the cache lacks them."""
        found = []
        for item in items:
            pinned = Pinned(self.cache / item.name, item)
            if pinned.present() is None:
                stage = BuildStage(self.progress, item.name, f"downloading {item.name} {item.version}")
                for done, total in pinned.download(npm):
                    stage.total = total
                    stage.at(done)
                stage.finish()
            path = pinned.present()
            if path is None:
                raise Conflict(f"the download of {item.name} vanished from the cache during the build")
            found.append(path)
        return found

    def _fetch_wheels(self, recipe: Recipe, python: str, home: Path) -> None:
        if not recipe.python:
            return
        stage = BuildStage(self.progress, "wheels", "downloading Python packages")
        request = [*wheels_for(python), *recipe.python]
        for done, _ in download_wheels(home, request, "downloading Python packages"):
            stage.at(done)
        stage.finish()

    def _bootstrap(self, packages: tuple[str, ...], count: int, work: Path) -> None:
        """Unpack and configure from the downloaded lists and archives: hard links, nothing is fetched again."""
        hook = 'cp -a "$LISTS/." "$1/var/lib/apt/lists/" && cp -al "$ARCHIVES/." "$1/var/cache/apt/archives/"'
        argv = ["mmdebstrap", *BOOTSTRAP, *(f"--dpkgopt={option}" for option in DPKG_OPTIONS), f"--setup-hook={hook}"]
        argv += [f"--include={','.join(packages)}", host_release().codename, str(work / "root"), str(self.apt.sources)]
        environment = {name: value for name, value in self.apt.environment().items() if name != "APT_CONFIG"}
        environment |= {
            "SOURCE_DATE_EPOCH": str(self.apt.newest_release()),
            "TMPDIR": str(work),
            "LISTS": str(self.apt.lists),
            "ARCHIVES": str(self.apt.archives),
        }
        self._show("install", "installing packages", 2 * count, child.lines(argv, environment, "mmdebstrap"))

    def _show(self, name: str, message: str, total: int, output: Iterator[child.OutputLine]) -> None:
        """Show an installation: each package is unpacked and set up."""
        stage = BuildStage(self.progress, name, message, total=total)
        seen: set[str] = set()
        for line in output:
            if line.text and (match := _STEP.match(line.text)):
                seen.add(match[0])
                stage.at(min(len(seen), stage.total), f"installing {match[1]}")
        stage.finish()

    def _store(self, recipe: Recipe, below: Image | None, root: Path) -> Image:
        stage = BuildStage(self.progress, "store", "checking and storing", total=tree.disk_use(root))
        with self.layers.held():
            digest = self.layers.add_directory(root, progress=stage.add)
            stage.finish()
            stack = (*(below.layers if below else ()), digest)
            env = (below.env if below else finish.ENV) | dict(recipe.env)
            image = Image(
                name=recipe.name,
                digest=image_digest(stack, env, finish.USER, finish.WORKSPACE),
                layers=stack,
                size=sum(map(self.layers.size, stack)),
                created_at=time.time(),
                user=finish.USER,
                cwd=finish.WORKSPACE,
                env=env,
                recipe=recipe_digest(recipe.name),
            )
            self.images.put(image)
        return image
