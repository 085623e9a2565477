"""One layer on top of an image: packages of the distribution, programs, and files, installed in a private overlay.

The commands run in namespaces of their own, without a network: everything was downloaded before. The packages come from
the host's archive, with its signatures, and their scripts run as root, as those of the distribution on the host do.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from skerry.errors import SkerryError
from skerry.images import child
from skerry.images.base import finish
from skerry.images.base.apt import PATH, Apt
from skerry.images.base.recipe import Recipe

_LARGEST = 256 << 20

# The layers are named by relative links, because their paths may contain the characters : and , of the option string.
# policy-rc.d keeps packages from starting services.
_INSTALL = r"""
options="lowerdir=$LOWER,upperdir=upper,workdir=overlay,metacopy=off,index=off,redirect_dir=off"
mount -t overlay overlay -o "$options" root
mount -t proc proc root/proc
for place in dev run tmp var/tmp; do mount -t tmpfs -o mode=1777 tmpfs "root/$place"; done
for device in null zero full random urandom tty; do
    : > "root/dev/$device"
    mount --bind "/dev/$device" "root/dev/$device"
done
mkdir root/dev/shm
ln -s /proc/self/fd root/dev/fd
mount --bind "$LISTS" root/var/lib/apt/lists
mount --bind "$ARCHIVES" root/var/cache/apt/archives
mount --bind "$SOURCES" root/etc/apt/sources.list.d/base.sources
if [ -n "$PACKAGES" ]; then
    printf '#!/bin/sh\nexit 101\n' > root/usr/sbin/policy-rc.d
    chmod 755 root/usr/sbin/policy-rc.d
    set -f  # an excluded pattern is one word
    chroot root apt-get --yes --no-download -o APT::Install-Recommends=false -o APT::Sandbox::User=root \
        -o Acquire::Languages=none -o Dpkg::Use-Pty=0 -o DPkg::Options::=--force-unsafe-io \
        $EXCLUDES install $PACKAGES
    rm root/usr/sbin/policy-rc.d
fi
if [ -n "$PYTHON" ]; then
    mkdir root/tmp/wheels
    mount --bind "$WHEELS" root/tmp/wheels
    chroot root python3 -m pip install --no-index --find-links /tmp/wheels --no-cache-dir --no-input $PYTHON
fi
[ -z "$SCRIPT" ] || chroot root sh -euc "$SCRIPT"
"""


def install(
    recipe: Recipe, packages: tuple[str, ...], apt: Apt, wheels: Path, below: list[Path], work: Path
) -> Iterator[child.OutputLine]:
    """Install into `work`/upper, on top of the trees `below` (the lowest first); yield the output."""
    for name in ("upper", "overlay", "root"):
        (work / name).mkdir(mode=0o755)
        (work / name).chmod(0o755)
    names = [f"below-{number}" for number in range(len(below))]
    for name, path in zip(names, below, strict=True):
        os.symlink(path, work / name)
    environment = {
        "PATH": PATH, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", "HOME": "/root",
        "SOURCE_DATE_EPOCH": str(apt.newest_release()), "LOWER": ":".join(reversed(names)),
        "LISTS": str(apt.lists), "ARCHIVES": str(apt.archives), "SOURCES": str(apt.sources), "WHEELS": str(wheels),
        "EXCLUDES": " ".join(f"-o DPkg::Options::=--path-exclude={pattern}" for pattern in recipe.excludes),
        "PACKAGES": " ".join(packages), "PYTHON": " ".join(recipe.python), "SCRIPT": recipe.script,
    }  # fmt: skip
    argv = ["sh", "-euc", _INSTALL]
    yield from child.lines(argv, environment, f"installing {recipe.title}", cwd=work, isolated=True)


def complete(recipe: Recipe, programs: list[Path], npm: list[Path], upper: Path, epoch: int) -> None:
    """Add the programs and files of the recipe, and remove traces of the host and the build."""
    for wheel in programs:
        _unpack_programs(wheel, upper / "usr/local/bin")
    for package in npm:
        _unpack_npm(package, upper / "usr/local")
    for name, text in recipe.files.items():
        _write(upper, name, text)
    finish.remove_traces(upper)
    finish.clamp_times(upper, epoch)
    finish.check_by_time(upper)
    finish.clamp_times(upper, epoch)


def _unpack_programs(wheel: Path, target: Path) -> None:
    """Unpack the wheel's scripts, which are binaries."""
    finish.make_directories(target)
    with zipfile.ZipFile(wheel) as archive:
        for item in archive.infolist():
            match = re.fullmatch(r"[\w.+-]+\.data/scripts/([a-z][a-z0-9-]*)", item.filename)
            if match is None:
                continue
            if item.file_size > _LARGEST:
                raise SkerryError(f"{wheel.name} holds {item.filename!r} of {item.file_size} bytes")
            with archive.open(item) as source, open(target / match[1], "xb") as file:
                while chunk := source.read(1 << 20):
                    file.write(chunk)
            (target / match[1]).chmod(0o755)


def _unpack_npm(package: Path, prefix: Path) -> None:
    """Unpack a package without dependencies as `npm install -g` does. Only regular files: a package holds no other."""
    with tarfile.open(package) as archive:
        members = {PurePosixPath(member.name): member for member in archive.getmembers() if not member.isdir()}
        top = PurePosixPath("package")
        described = json.loads(_content(archive, members[top / "package.json"]))
        home = prefix / "lib/node_modules" / described["name"]
        for path, member in members.items():
            if ".." in path.parts or path.is_absolute() or not member.isfile() or member.size > _LARGEST:
                raise SkerryError(f"{package.name} holds {member.name!r}")
            target = home / path.relative_to(top)
            finish.make_directories(target.parent)
            target.write_bytes(_content(archive, member))
            target.chmod(0o755 if member.mode & 0o111 else 0o644)
    finish.make_directories(prefix / "bin")
    for name, place in described["bin"].items():
        os.symlink(f"../lib/node_modules/{described['name']}/{PurePosixPath(place)}", prefix / "bin" / name)
        (home / place).chmod(0o755)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    if file is None:
        raise SkerryError(f"{member.name!r} is not a file")
    return file.read()


def _write(upper: Path, name: str, text: str) -> None:
    """Write a file. Directories below the user's home belong to the user."""
    user = name.startswith(f"{finish.HOME[1:]}/")
    path = upper / name
    finish.make_directories(path.parent)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)
    for place in (path, *path.parents) if user else ():
        if place == (upper / finish.HOME[1:]).parent:
            break
        os.chown(place, finish.UID, finish.UID, follow_symlinks=False)


def dpkg_status(below: list[Path]) -> Path:
    """Return the package database of an image."""
    for path in reversed(below):
        if (path / "var/lib/dpkg/status").is_file():
            return path / "var/lib/dpkg/status"
    raise SkerryError("the image has no package database", hint="build it again: skerry image build base-slim")


def python_version(below: list[Path]) -> str:
    """Return the version of the image's Python, like `3.11`."""
    for path in below:
        try:
            target = os.readlink(path / "usr/bin/python3")
        except OSError:
            continue
        if match := re.fullmatch(r"python(3\.[0-9]+)", target):
            return match[1]
    raise SkerryError("the image has no Python", hint="build it again: skerry image build base-slim")
