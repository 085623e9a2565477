"""A stack of layers as one tree, as a sandbox sees it: an overlay that is not attached anywhere, held by an fd.

The kernel applies whiteouts, opaque directories and redirects, so the view is exact. The mount is read-only, nosuid,
nodev, noexec, and disappears with its last fd, also when the process is killed.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from skerry import linux
from skerry.errors import HostUnsupported, SkerryError

_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_ATTRIBUTES = linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV | linux.MOUNT_ATTR_NOEXEC
_MOUNT_FLAGS = linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
# As in the sandboxes' overlays (runtimes/overlay.py): renamed directories are followed, files are complete. Inode
# numbers are those of the layers on any file system.
_OPTIONS = (("metacopy", "off"), ("redirect_dir", "on"), ("index", "off"), ("xino", "off"))


@contextmanager
def merged(layers: Sequence[Path], *, by_fd: bool | None = None) -> Iterator[int]:
    """Yield an fd of the root of these layers, top first. It can be listed and opened from; no path leads out of it."""
    if not layers:
        raise SkerryError("a tree needs at least one layer")
    fd = _by_fd(layers) if (_takes_fds() if by_fd is None else by_fd) else _apart(layers)
    try:
        yield fd
    finally:
        os.close(fd)


def _takes_fds() -> bool:
    """Since Linux 6.13, overlayfs accepts layers as fds, and detached mounts as layers."""
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int("".join(c for c in minor if c.isdigit()) or 0)) >= (6, 13)


def _by_fd(layers: Sequence[Path]) -> int:
    with ExitStack() as stack:
        context = _closing(stack, linux.fsopen("overlay"))
        for layer in layers:
            linux.fsconfig_fd(context, "lowerdir+", _closing(stack, _layer(layer)))
        linux.fsconfig_fd(context, "lowerdir+", _closing(stack, _nothing()))
        for key, value in _OPTIONS:
            linux.fsconfig_string(context, key, value)
        linux.fsconfig_create(context)
        mount = _closing(stack, linux.fsmount(context, _ATTRIBUTES))
        return os.open(".", _READ, dir_fd=mount)


def _nothing() -> int:
    """Return an empty file system: an overlay without an upper needs at least two layers."""
    context = linux.fsopen("tmpfs")
    try:
        linux.fsconfig_string(context, "size", "4k")
        linux.fsconfig_create(context)
        return linux.fsmount(context, _ATTRIBUTES)
    finally:
        os.close(context)


def _apart(layers: Sequence[Path]) -> int:
    """Mount for older kernels: in the private mount namespace of a thread, which ends with the thread."""
    found: list[int | BaseException] = []

    def work() -> None:
        try:
            found.append(_mount_apart(layers))
        except BaseException as error:  # raised to the caller below
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def _mount_apart(layers: Sequence[Path]) -> int:
    linux.unshare(linux.CLONE_FS | linux.CLONE_NEWNS)
    linux.mount("none", "/", "none", linux.MS_REC | linux.MS_PRIVATE, "")
    place = str(layers[0].parent)
    with ExitStack() as stack:
        fds = [_closing(stack, _layer(layer)) for layer in layers]
        linux.mount("tmpfs", place, "tmpfs", _MOUNT_FLAGS, "size=4k")
        fds.append(_closing(stack, os.open(place, _FLAGS)))
        lower = ":".join(f"/proc/thread-self/fd/{fd}" for fd in fds)
        data = ",".join((f"lowerdir={lower}", *(f"{key}={value}" for key, value in _OPTIONS)))
        if len(data) >= linux.MAX_MOUNT_DATA:
            raise HostUnsupported(f"{len(layers)} layers are too many for this kernel", hint="use Linux 6.13 or newer")
        linux.mount("overlay", place, "overlay", _MOUNT_FLAGS, data)
        return os.open(place, _READ)


def _layer(path: Path) -> int:
    try:
        return os.open(path, _FLAGS)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise SkerryError(f"a layer is missing: {path}", hint="`skerry image verify` names it") from error
        raise


def _closing(stack: ExitStack, fd: int) -> int:
    stack.callback(os.close, fd)
    return fd
