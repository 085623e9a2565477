"""The root file system of a sandbox: an overlay of idmapped layers and an idmapped upper.

Layers and uppers hold container IDs on disk and are reachable only by root; the overlay is mounted nosuid,nodev on
`<dir>/<id>/root`, and `<dir>/<id>` is a 0700 directory of the sandbox's root, so no other user of the host gets in.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from skerry import linux
from skerry.errors import HostUnsupported, SandboxUnavailable
from skerry.runtimes.userns import UserNamespaces

# redirect_dir: renaming a directory of a layer works. It and metacopy are stored in trusted.* xattrs, which a sandbox
# cannot set; metacopy is off nevertheless, so that an upper's files are complete.
_OPTIONS = (("metacopy", "off"), ("redirect_dir", "on"), ("index", "off"))
_CHECKED = ("proc", "sys", "dev", "run", "run/skerry")
# Runtimes open these inside the root, as files and without a timeout, to look up the user of PID 1.
_READ = ("etc/passwd", "etc/group")


def kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)


def takes_fds() -> bool:
    """Since Linux 6.13, overlayfs accepts layers as fds, and detached mounts as layers."""
    return kernel() >= (6, 13)


@dataclass(frozen=True)
class Layers:
    """fds of idmapped mounts."""

    lower: list[int]
    upper: int


class Overlays:
    """The overlay mounts under one directory."""

    def __init__(self, root: Path, *, by_fd: bool | None = None) -> None:
        self.root = root
        self.by_fd = takes_fds() if by_fd is None else by_fd
        self.namespaces = UserNamespaces()

    def path(self, sandbox: str) -> Path:
        return self.root / sandbox / "root"

    @contextlib.contextmanager
    def opened(self, layers: tuple[Path, ...], upper_dir: Path, base: int) -> Iterator[Layers]:
        with contextlib.ExitStack() as stack:
            namespace = _closing(stack, self.namespaces.fd(base))
            lower = [_closing(stack, _idmapped(layer, namespace, read_only=True)) for layer in layers]
            yield Layers(lower, _closing(stack, _idmapped(upper_dir, namespace)))

    def mount(self, sandbox: str, layers: Layers, base: int) -> Path:
        home = self.root / sandbox
        os.mkdir(home, 0o700)
        root = self.path(sandbox)
        os.mkdir(root, 0o755)
        os.chown(home, base, base)
        try:
            if self.by_fd:
                _mount_by_fd(root, layers)
            else:
                _mount_by_path(home, root, layers)
        except OSError as error:
            raise SandboxUnavailable(f"the overlay root could not be mounted: {error}") from error
        check_root(root, base)
        return root

    def close(self) -> None:
        self.namespaces.close()


def unmount(home: Path) -> None:
    """Remove the mounts in the directories of `home`, and `home`. Idempotent; also removes the remains of an
    interrupted mount."""
    for entry in _entries(home):
        _unmount(str(home / entry))
        os.rmdir(home / entry)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(home)


class UnusableRoot(SandboxUnavailable):
    """The root file system has a link or file in a place that the runtime needs."""


def check_root(root: Path, base: int) -> None:
    """Check that the runtime's mount points are real directories: the sandbox owned that tree, and a link there would
    redirect the runtime's mounts (the family of CVE-2023-27561, CVE-2025-31133). Missing ones are created."""
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for place in _CHECKED:
            make_directory(top, place, base)
        for place in _READ:
            _check_file(top, place)
    finally:
        os.close(top)


def make_directory(top: int, place: str, base: int) -> None:
    """Make a directory of the sandbox's root, unless it exists. Raise UnusableRoot for a link, a file or a mount."""
    with contextlib.suppress(FileNotFoundError):
        _open_directory(top, place)
        return
    above, name = os.path.split(place)
    parent = open_beneath(top, above) if above else os.dup(top)
    try:
        os.mkdir(name, 0o755, dir_fd=parent)
        os.chown(name, base, base, dir_fd=parent, follow_symlinks=False)
    finally:
        os.close(parent)


def _check_file(top: int, place: str) -> None:
    """Reject a FIFO or terminal, which would never end, and a link into a file system that is not mounted yet."""
    itself, target = _mode(top, place, os.O_NOFOLLOW), _mode(top, place, 0)
    if itself is None or stat.S_ISDIR(itself) or (target is not None and stat.S_ISREG(target)):
        return
    raise UnusableRoot(
        f"/{place} in the sandbox's root is not a file",
        hint="an image or an earlier command replaced it; put a file there or use another image",
        details={"path": f"/{place}"},
    )


def _mode(top: int, place: str, flags: int) -> int | None:
    """Return the mode, following links as inside the sandbox. None: not reachable."""
    resolve = linux.RESOLVE_IN_ROOT | linux.RESOLVE_NO_MAGICLINKS | linux.RESOLVE_NO_XDEV
    try:
        fd = linux.openat2(top, place, os.O_PATH | flags, resolve)
    except OSError:
        return None
    try:
        return os.fstat(fd).st_mode
    finally:
        os.close(fd)


def _open_directory(top: int, place: str) -> None:
    try:
        fd = open_beneath(top, place)
    except OSError as error:
        if error.errno == errno.ENOENT and not _is_there(top, place):
            raise
        raise UnusableRoot(
            f"/{place} in the sandbox's root is not a real directory",
            hint="an image or an earlier command put a link or file there; put the directory back or use another image",
            details={"path": f"/{place}"},
        ) from error
    os.close(fd)


def open_beneath(top: int, place: str) -> int:
    """Open a directory without following links or crossing mounts."""
    resolve = linux.RESOLVE_BENEATH | linux.RESOLVE_NO_SYMLINKS | linux.RESOLVE_NO_XDEV
    return linux.openat2(top, place, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, resolve)


def _is_there(top: int, place: str) -> bool:
    try:
        mode = os.stat(place, dir_fd=top, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISDIR(mode)


def _idmapped(path: Path, namespace: int, *, read_only: bool = False) -> int:
    try:
        fd = linux.open_tree(str(path))
    except OSError as error:
        raise SandboxUnavailable(f"a layer is missing: {error}") from error
    map_ids(fd, path, namespace, linux.MOUNT_ATTR_RDONLY if read_only else 0)
    return fd


def map_ids(tree: int, path: Path, namespace: int, attributes: int) -> None:
    """Map the IDs of a detached mount of `path`. Close it on failure."""
    try:
        linux.mount_setattr(tree, linux.MOUNT_ATTR_IDMAP | attributes, namespace, propagation=linux.MS_PRIVATE)
    except OSError as error:
        os.close(tree)
        raise HostUnsupported(
            f"the file system under {path} does not support idmapped mounts: {error}",
            hint="put it on ext4, xfs or btrfs",
        ) from error


def _mount_by_fd(root: Path, given: Layers) -> None:
    with contextlib.ExitStack() as stack:
        context = _closing(stack, linux.fsopen("overlay"))
        for fd in given.lower:
            linux.fsconfig_fd(context, "lowerdir+", fd)
        for key, name in (("upperdir", "upper"), ("workdir", "work")):
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = _closing(stack, os.open(name, flags, dir_fd=given.upper))
            linux.fsconfig_fd(context, key, fd)
        for key, value in _OPTIONS:
            linux.fsconfig_string(context, key, value)
        linux.fsconfig_create(context)
        mount = _closing(stack, linux.fsmount(context, linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV))
        linux.move_mount(mount, str(root))


def _mount_by_path(home: Path, root: Path, given: Layers) -> None:
    """Before Linux 6.13 a layer must be attached and is named by a path; once the overlay holds it, it is detached
    again."""
    with _attached(home, [*given.lower, given.upper]) as (near, names):
        layers, rw = names[:-1], names[-1]
        options = {
            "lowerdir": ":".join(f"{near}/{name}" for name in layers),
            "upperdir": f"{near}/{rw}/upper",
            "workdir": f"{near}/{rw}/work",
            **dict(_OPTIONS),
        }
        data = ",".join(f"{key}={value}" for key, value in options.items())
        if len(data) > linux.MAX_MOUNT_DATA:
            raise HostUnsupported(
                f"{len(given.lower)} layers are too many for this kernel", hint="use Linux 6.13 or newer"
            )
        linux.mount("overlay", str(root), "overlay", linux.MS_NOSUID | linux.MS_NODEV, data)


@contextlib.contextmanager
def _attached(home: Path, mounts: list[int]) -> Iterator[tuple[str, list[str]]]:
    """Yield a short path to `home`: the option string has one page for all layers."""
    names = [str(n) for n in range(len(mounts))]
    here = os.open(home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name, fd in zip(names, mounts, strict=True):
            os.mkdir(name, 0o700, dir_fd=here)
            linux.move_mount(fd, name, dir_fd=here)
        yield f"/proc/self/fd/{here}", names
    finally:
        for name in names:
            with contextlib.suppress(OSError):  # detached: the open fd would make a plain umount busy
                linux.umount(str(home / name), linux.MNT_DETACH)
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(name, dir_fd=here)
        os.close(here)


def _unmount(path: str) -> None:
    """Unmount every mount stacked there. A dying process may hold it briefly; detaching is the last resort."""
    end = time.monotonic() + 1.0
    while True:
        try:
            linux.umount(path, 0 if time.monotonic() < end else linux.MNT_DETACH)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):  # nothing is mounted there
                return
            if error.errno != errno.EBUSY:
                raise
            time.sleep(0.002)


def _closing(stack: contextlib.ExitStack, fd: int) -> int:
    stack.callback(os.close, fd)
    return fd


def _entries(path: Path) -> list[str]:
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []
