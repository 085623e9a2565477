"""The root file system of a sandbox: an overlay of idmapped layers and an idmapped upper.

Layers and uppers hold container ids on disk and lie where only root can reach them; the overlay is mounted nosuid,nodev
on `<m>/<id>/root`, and `<m>/<id>` is a 0700 directory of the sandbox's own root, so no other user of the host gets in.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from skerry import syscalls
from skerry.errors import HostUnsupported, SandboxUnavailable
from skerry.runtimes.userns import UserNamespaces

# redirect_dir: renaming a directory of a layer works. It and metacopy are kept in trusted.* xattrs, which the inside
# can't set; metacopy stays off all the same, so that an upper's files are whole.
_OPTIONS = (("metacopy", "off"), ("redirect_dir", "on"), ("index", "off"))
_CHECKED = ("proc", "sys", "dev", "run", "run/skerry")
# Runtimes open these inside, as files and without a time limit, to learn who PID 1 is.
_READ = ("etc/passwd", "etc/group")


def kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)


def takes_fds() -> bool:
    """Since 6.13 overlayfs takes layers as fds, and detached mounts as layers."""
    return kernel() >= (6, 13)


class Overlays:
    """The overlay mounts under one directory (`run_dir/m`)."""

    def __init__(self, root: Path, *, by_fd: bool | None = None) -> None:
        self.root = root
        self.by_fd = takes_fds() if by_fd is None else by_fd
        self._namespaces = UserNamespaces()

    def path(self, sandbox: str) -> Path:
        return self.root / sandbox / "root"

    def mount(self, sandbox: str, layers: tuple[Path, ...], unit: Path, base: int) -> Path:
        home = self.root / sandbox
        os.mkdir(home, 0o700)
        root = self.path(sandbox)
        os.mkdir(root, 0o755)
        os.chown(home, base, base)
        with contextlib.ExitStack() as stack:
            namespace = _closing(stack, self._namespaces.fd(base))
            lower = [_closing(stack, _idmapped(layer, namespace, read_only=True)) for layer in layers]
            upper = _closing(stack, _idmapped(unit, namespace))
            try:
                if self.by_fd:
                    _mount_by_fd(stack, root, lower, upper)
                else:
                    _mount_by_path(home, root, lower, upper)
            except OSError as error:
                raise SandboxUnavailable(f"the overlay root could not be mounted: {error}") from error
        check_root(root, base)
        return root

    def unmount(self, sandbox: str) -> None:
        """Idempotent; also takes what a mount cut short left behind."""
        home = self.root / sandbox
        for entry in _entries(home):
            _unmount(str(home / entry))
            os.rmdir(home / entry)
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(home)

    def ids(self) -> set[str]:
        return set(_entries(self.root))

    def close(self) -> None:
        self._namespaces.close()


def check_root(root: Path, base: int) -> None:
    """The places that the runtime mounts on are real directories: the inside owned that tree, and a link there would
    send the runtime's mounts elsewhere (the family of CVE-2023-27561, CVE-2025-31133). Missing ones are made."""
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for place in _CHECKED:
            _check_directory(top, place, base)
        for place in _READ:
            _check_file(top, place)
    finally:
        os.close(top)


def _check_directory(top: int, place: str, base: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        _open_directory(top, place)
        return
    above, name = os.path.split(place)
    parent = _open_beneath(top, above) if above else os.dup(top)
    try:
        os.mkdir(name, 0o755, dir_fd=parent)
        os.chown(name, base, base, dir_fd=parent, follow_symlinks=False)
    finally:
        os.close(parent)


def _check_file(top: int, place: str) -> None:
    """Not a FIFO or terminal, which would never be read to its end, nor a link to what is yet to be mounted."""
    itself, target = _mode(top, place, os.O_NOFOLLOW), _mode(top, place, 0)
    if itself is None or stat.S_ISDIR(itself) or (target is not None and stat.S_ISREG(target)):
        return
    raise SandboxUnavailable(
        f"/{place} in the sandbox's root is not a file",
        hint="an image or an earlier command replaced it; put a file there or use another image",
        details={"path": f"/{place}"},
    )


def _mode(top: int, place: str, flags: int) -> int | None:
    """Links are followed as the inside would. None: it can't be reached."""
    resolve = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS | syscalls.RESOLVE_NO_XDEV
    try:
        fd = syscalls.openat2(top, place, os.O_PATH | flags, resolve)
    except OSError:
        return None
    try:
        return os.fstat(fd).st_mode
    finally:
        os.close(fd)


def _open_directory(top: int, place: str) -> None:
    try:
        fd = _open_beneath(top, place)
    except OSError as error:
        if error.errno == errno.ENOENT and not _is_there(top, place):
            raise
        raise SandboxUnavailable(
            f"/{place} in the sandbox's root is not a real directory",
            hint="an image or an earlier command put a link or file there; put the directory back or use another image",
            details={"path": f"/{place}"},
        ) from error
    os.close(fd)


def _open_beneath(top: int, place: str) -> int:
    resolve = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_XDEV
    return syscalls.openat2(top, place, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, resolve)


def _is_there(top: int, place: str) -> bool:
    try:
        mode = os.stat(place, dir_fd=top, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISDIR(mode)


def _idmapped(path: Path, namespace: int, *, read_only: bool = False) -> int:
    try:
        fd = syscalls.open_tree(str(path))
    except OSError as error:
        raise SandboxUnavailable(f"a layer is missing: {error}") from error
    attributes = syscalls.MOUNT_ATTR_IDMAP | (syscalls.MOUNT_ATTR_RDONLY if read_only else 0)
    try:
        syscalls.mount_setattr(fd, attributes, namespace)
    except OSError as error:
        os.close(fd)
        raise HostUnsupported(
            f"the file system under {path} takes no idmapped mounts: {error}",
            hint="put the state directory on ext4, xfs or btrfs",
        ) from error
    return fd


def _mount_by_fd(stack: contextlib.ExitStack, root: Path, lower: list[int], unit: int) -> None:
    context = _closing(stack, syscalls.fsopen("overlay"))
    for fd in lower:
        syscalls.fsconfig_fd(context, "lowerdir+", fd)
    for key, name in (("upperdir", "upper"), ("workdir", "work")):
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = _closing(stack, os.open(name, flags, dir_fd=unit))
        syscalls.fsconfig_fd(context, key, fd)
    for key, value in _OPTIONS:
        syscalls.fsconfig_string(context, key, value)
    syscalls.fsconfig_create(context)
    mount = _closing(stack, syscalls.fsmount(context, syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV))
    syscalls.move_mount(mount, str(root))


def _mount_by_path(home: Path, root: Path, lower: list[int], unit: int) -> None:
    """Below 6.13 a layer must be attached, and is named by a path; once the overlay holds it, it is detached again."""
    with _attached(home, [*lower, unit]) as (near, names):
        layers, rw = names[:-1], names[-1]
        options = {
            "lowerdir": ":".join(f"{near}/{name}" for name in layers),
            "upperdir": f"{near}/{rw}/upper",
            "workdir": f"{near}/{rw}/work",
            **dict(_OPTIONS),
        }
        data = ",".join(f"{key}={value}" for key, value in options.items())
        if len(data) > syscalls.MOUNT_DATA_MOST:
            raise HostUnsupported(f"{len(lower)} layers are too many for this kernel", hint="use Linux 6.13 or newer")
        syscalls.mount("overlay", str(root), "overlay", syscalls.MS_NOSUID | syscalls.MS_NODEV, data)


@contextlib.contextmanager
def _attached(home: Path, mounts: list[int]) -> Iterator[tuple[str, list[str]]]:
    """Yields a short path to `home`: the option string has one page for all layers."""
    names = [str(n) for n in range(len(mounts))]
    here = os.open(home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name, fd in zip(names, mounts, strict=True):
            os.mkdir(name, 0o700, dir_fd=here)
            syscalls.move_mount(fd, name, dir_fd=here)
        yield f"/proc/self/fd/{here}", names
    finally:
        for name in names:
            with contextlib.suppress(OSError):  # detached: our own fd of it makes a plain umount busy
                syscalls.umount(str(home / name), syscalls.MNT_DETACH)
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(name, dir_fd=here)
        os.close(here)


def _unmount(path: str) -> None:
    """Every mount stacked there. A dying process may hold it for a moment; detaching is the last resort."""
    end = time.monotonic() + 1.0
    while True:
        try:
            syscalls.umount(path, 0 if time.monotonic() < end else syscalls.MNT_DETACH)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):  # nothing mounted there
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
