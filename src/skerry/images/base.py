"""The image `base`: the host's own Debian or Ubuntu release, small, with what an agent reaches for first.

A build is: package lists → downloads → mmdebstrap → Node.js and the last touches → digest → store. What was downloaded
stays in the cache, so a build that was cut goes on from there. The tree grows in a directory that the next one sweeps.
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
from pathlib import Path

from skerry.errors import Conflict, HostUnsupported
from skerry.images import child, finish, node
from skerry.images.apt import PATH, Apt
from skerry.images.progress import Stage
from skerry.images.recipe import BOOTSTRAP, DPKG_OPTIONS, EXTRAS, PACKAGES, recipe_digest
from skerry.images.sources import host_release, host_sources
from skerry.storage import tree
from skerry.storage.images import Image, ImageStore, image_digest
from skerry.storage.layers import LayerStore
from skerry.types import Progress

NAME = "base"
_TOOLS = {"mmdebstrap": "mmdebstrap", "apt-get": "apt", "setpriv": "util-linux", "unshare": "util-linux"}
_STEP = re.compile(r"(?:Unpacking|Setting up) (\S+)")
_PREFIX = "build-"


def build_base(images: ImageStore, layers: LayerStore, cache_dir: Path, progress: Callable[[Progress], None]) -> Image:
    """Builds the image and puts it into the store, in place of an older one. Takes from half a minute to a few minutes.

    An exception raised by `progress` cancels the build; its processes are gone when it comes out of here.
    """
    _check_tools()
    tree.private_directory(cache_dir)
    with _only_one_build(cache_dir):
        _sweep(cache_dir)
        release = host_release()
        apt = Apt(cache_dir / "apt", host_sources(release.codename))
        wheel = node.NodeWheel(cache_dir / "node")
        packages, files = _resolve(apt, progress)
        _download(apt, wheel, packages, files, progress)
        work = tree.private_directory(cache_dir / f"{_PREFIX}{secrets.token_hex(6)}")
        try:
            _bootstrap(apt, release.codename, packages, len(files), work, progress)
            _complete(apt, wheel, work / "root", progress)
            return _store(images, layers, work / "root", progress)
        finally:
            tree.remove(work)


def _check_tools() -> None:
    missing = sorted({package for tool, package in _TOOLS.items() if shutil.which(tool, path=PATH) is None})
    if missing:
        raise HostUnsupported(
            f"the base image can't be built: {', '.join(missing)} missing on this host",
            hint=f"apt-get install {' '.join(missing)}",
        )


@contextmanager
def _only_one_build(cache_dir: Path) -> Iterator[None]:
    fd = os.open(cache_dir / "build.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise Conflict("the base image is being built already", hint="wait for that build to end") from None
    finally:
        os.close(fd)


def _sweep(cache_dir: Path) -> None:
    for name in os.listdir(cache_dir):
        if name.startswith(_PREFIX):
            tree.remove(cache_dir / name)


def _resolve(apt: Apt, progress: Callable[[Progress], None]) -> tuple[tuple[str, ...], dict[str, int]]:
    stage = Stage(progress, "lists", "reading the package lists")
    for _ in apt.update():
        stage.at(0)
    packages = PACKAGES + apt.available(EXTRAS)
    return packages, apt.needed(packages)


def _download(
    apt: Apt,
    wheel: node.NodeWheel,
    packages: tuple[str, ...],
    files: dict[str, int],
    progress: Callable[[Progress], None],
) -> None:
    stage = Stage(progress, "packages", "downloading packages", sum(files.values()), apt.present(files))
    for _ in apt.download(packages):
        stage.at(apt.present(files))
    stage.finish()
    if wheel.present() is None:
        stage = Stage(progress, "node", f"downloading Node.js {node.VERSION}")
        for done, total in wheel.download():
            stage.total = total
            stage.at(done)
        stage.finish()


def _bootstrap(
    apt: Apt, codename: str, packages: tuple[str, ...], count: int, work: Path, progress: Callable[[Progress], None]
) -> None:
    """Unpacks and configures, from the lists and archives that are here: hard links, nothing is fetched again."""
    hook = 'cp -a "$SKERRY_LISTS/." "$1/var/lib/apt/lists/" && cp -al "$SKERRY_ARCHIVES/." "$1/var/cache/apt/archives/"'
    argv = ["mmdebstrap", *BOOTSTRAP, *(f"--dpkgopt={option}" for option in DPKG_OPTIONS)]
    argv += [f"--setup-hook={hook}", f"--include={','.join(packages)}", codename, str(work / "root"), str(apt.sources)]
    environment = {name: value for name, value in apt.environment().items() if name != "APT_CONFIG"}
    environment |= {
        "SOURCE_DATE_EPOCH": str(apt.newest_release()),
        "TMPDIR": str(work),
        "SKERRY_LISTS": str(apt.lists),
        "SKERRY_ARCHIVES": str(apt.archives),
    }
    stage = Stage(progress, "install", "installing packages", total=2 * count)
    seen: set[str] = set()
    for line in child.lines(argv, environment, "mmdebstrap"):
        if line.text and (match := _STEP.match(line.text)):
            seen.add(match[0])
            stage.at(min(len(seen), stage.total), f"installing {match[1]}")
    stage.finish()


def _complete(apt: Apt, wheel: node.NodeWheel, root: Path, progress: Callable[[Progress], None]) -> None:
    stage = Stage(progress, "finish", "adding Node.js and the user")
    archive = wheel.present()
    if archive is None:
        raise Conflict("the Node.js download vanished from the cache during the build")
    node.unpack(archive, root / "usr/local")
    finish.finish(root, apt.sources.read_text(), apt.keys, apt.newest_release())
    stage.finish()


def _store(images: ImageStore, layers: LayerStore, root: Path, progress: Callable[[Progress], None]) -> Image:
    stage = Stage(progress, "store", "checking and storing", total=tree.disk_use(root))
    with layers.held():
        digest = layers.add_directory(root, progress=stage.add)
        stage.finish()
        image = Image(
            name=NAME,
            digest=image_digest((digest,), finish.ENV, finish.USER, finish.WORKSPACE),
            layers=(digest,),
            size=layers.size(digest),
            created_at=time.time(),
            user=finish.USER,
            cwd=finish.WORKSPACE,
            env=finish.ENV,
            recipe=recipe_digest(),
        )
        images.put(image)
    return image
