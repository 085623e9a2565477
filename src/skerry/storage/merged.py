"""A stack of layers as one tree, as a sandbox would see it: an overlay that is mounted nowhere, held by an fd.

The kernel itself applies whiteouts, opaque directories and redirects, so what is read here is what was there. The mount
is read-only, nosuid, nodev, noexec, and gone with its last fd, also when the process is killed.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from skerry import syscalls
from skerry.errors import HostUnsupported, SkerryError

_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_ATTRIBUTES = (
    syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV | syscalls.MOUNT_ATTR_NOEXEC
)
_MOUNT_FLAGS = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
# As the sandboxes' own overlays have it (runtimes/overlay.py): renamed directories are followed, files are whole. And
# inode numbers are those of the layers, whatever file systems these lie on.
_OPTIONS = (("metacopy", "off"), ("redirect_dir", "on"), ("index", "off"), ("xino", "off"))


@contextmanager
def merged(layers: Sequence[Path], *, by_fd: bool | None = None) -> Iterator[int]:
    """An fd of the root of these layers, top first. It can be listed and opened from; nothing leads out of it."""
    if not layers:
        raise SkerryError("a tree of no layers")
    fd = _by_fd(layers) if (_takes_fds() if by_fd is None else by_fd) else _apart(layers)
    try:
        yield fd
    finally:
        os.close(fd)


def _takes_fds() -> bool:
    """Since 6.13 overlayfs takes layers as fds, and detached mounts as layers."""
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int("".join(c for c in minor if c.isdigit()) or 0)) >= (6, 13)


def _by_fd(layers: Sequence[Path]) -> int:
    with ExitStack() as stack:
        context = _closing(stack, syscalls.fsopen("overlay"))
        for layer in layers:
            syscalls.fsconfig_fd(context, "lowerdir+", _closing(stack, _layer(layer)))
        syscalls.fsconfig_fd(context, "lowerdir+", _closing(stack, _nothing()))
        for key, value in _OPTIONS:
            syscalls.fsconfig_string(context, key, value)
        syscalls.fsconfig_create(context)
        mount = _closing(stack, syscalls.fsmount(context, _ATTRIBUTES))
        return os.open(".", _READ, dir_fd=mount)


def _nothing() -> int:
    """An empty file system: an overlay without an upper wants two layers at least."""
    context = syscalls.fsopen("tmpfs")
    try:
        syscalls.fsconfig_string(context, "size", "4k")
        syscalls.fsconfig_create(context)
        return syscalls.fsmount(context, _ATTRIBUTES)
    finally:
        os.close(context)


def _apart(layers: Sequence[Path]) -> int:
    """The same for older kernels: mounted in a mount namespace that a thread has for itself and that ends with it."""
    found: list[int | BaseException] = []

    def work() -> None:
        try:
            found.append(_mount_apart(layers))
        except BaseException as error:  # told to the caller below
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def _mount_apart(layers: Sequence[Path]) -> int:
    syscalls.unshare(syscalls.CLONE_FS | syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", "none", syscalls.MS_REC | syscalls.MS_PRIVATE, "")
    place = str(layers[0].parent)
    with ExitStack() as stack:
        fds = [_closing(stack, _layer(layer)) for layer in layers]
        syscalls.mount("tmpfs", place, "tmpfs", _MOUNT_FLAGS, "size=4k")
        fds.append(_closing(stack, os.open(place, _FLAGS)))
        lower = ":".join(f"/proc/thread-self/fd/{fd}" for fd in fds)
        data = ",".join((f"lowerdir={lower}", *(f"{key}={value}" for key, value in _OPTIONS)))
        if len(data) >= syscalls.MOUNT_DATA_MOST:
            raise HostUnsupported(f"{len(layers)} layers are too many for this kernel", hint="use Linux 6.13 or newer")
        syscalls.mount("overlay", place, "overlay", _MOUNT_FLAGS, data)
        return os.open(place, _READ)


def _layer(path: Path) -> int:
    try:
        return os.open(path, _FLAGS)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise SkerryError(f"a layer is missing: {path}", hint="`skerry image verify` tells which") from error
        raise


def _closing(stack: ExitStack, fd: int) -> int:
    stack.callback(os.close, fd)
    return fd
