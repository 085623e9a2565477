"""The mounts that a runtime sees: the host's, with the root of one sandbox, device nodes and an inode of the keeper's
binary for it, with the runtime's program on a read-only mount, and with a bundle in memory.

A runtime takes the nodes of a sandbox's /dev, and the /dev/null that masks files, from the host by bind mounts. With
the host's own inodes, locks, inotify watches and times would be shared with the host and with other sandboxes. So every
start has a separate mount namespace, which ends with the runtime: there is nothing to remove.
"""

from __future__ import annotations

import contextlib
import os
import stat
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skerry import linux
from skerry.runtimes.overlay import Overlays
from skerry.runtimes.runtime import ContainerConfig

KEEPER_DIR: Final = Path("/dev/skerry")
ROOTS: Final = Path("/dev/roots")
BOOT_ID: Final = Path("/dev/boot_id")
# A runtime whose program a sandbox might overwrite copies or remounts itself and starts again, with this variable (see
# CVE-2019-5736). Here it is on a read-only mount from the beginning; a runtime checks that too.
SEALED: Final = {"_LIBCONTAINER_CLONED_BINARY": "1"}
_NODES: Final = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}


class Bundle:
    """The files of one start: the spec, the pid, the messages and the state of the runtime. They are on a separate file
    system, which ends when the runtime has ended and this is closed."""

    def __init__(self, spec: bytes) -> None:
        context = linux.fsopen("tmpfs")
        try:
            for key, value in (("mode", "700"), ("size", "4m"), ("nr_inodes", "256")):
                linux.fsconfig_string(context, key, value)
            linux.fsconfig_create(context)
            self.fd = linux.fsmount(context, linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV | linux.MOUNT_ATTR_NOEXEC)
        finally:
            os.close(context)
        try:
            fd = os.open("config.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self.fd)
            with open(fd, "wb") as file:
                file.write(spec)
        except BaseException:
            self.close()
            raise

    def read(self, name: str) -> bytes:
        with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.fd), "rb") as file:
            return file.read()

    def close(self) -> None:
        os.close(self.fd)


@dataclass(frozen=True)
class MountView:
    """`runtime`: its program, which is `program` for the processes that start there. `overlays` are those below ROOTS.
    `bundle` is mounted on `place`, a path directly below /dev. `hidden`: a mount that the runtime does not see."""

    config: ContainerConfig
    runtime: Path
    overlays: Overlays
    bundle: Bundle
    place: Path
    hidden: Path | None = None

    @property
    def program(self) -> Path:
        return Path("/dev") / self.runtime.name

    def enter(self) -> None:
        """Move the calling thread into a new mount namespace for good. The processes that it starts stay there."""
        linux.unshare(linux.CLONE_FS | linux.CLONE_NEWNS)
        linux.mount("none", "/", "", linux.MS_REC | linux.MS_SLAVE, "")
        if self.hidden is not None:
            linux.umount(str(self.hidden), linux.MNT_DETACH)
            _cover(self.hidden)
        config = self.config
        with contextlib.ExitStack() as stack:  # opened before /dev is covered: all of it may be below /dev
            layers = stack.enter_context(self.overlays.opened(config.layers, config.upper_dir, config.uid_base))
            program = linux.open_tree(str(self.runtime))
            stack.callback(os.close, program)
            keeper = os.open(config.keeper.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, keeper)
            _make_devices()
            _mount_keeper(keeper)
            _mount_program(program, self.program)
            os.mkdir(self.place, 0o700)
            linux.move_mount(self.bundle.fd, str(self.place))
            os.mkdir(ROOTS, 0o711)
            self.overlays.mount(config.id, layers, config.uid_base)


def _cover(path: Path) -> None:
    """Whatever the runtime creates there must not stay on the host."""
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    linux.mount("tmpfs", str(path), "tmpfs", flags, "mode=755,size=64k,nr_inodes=64")


def _make_devices() -> None:
    """They belong to the host's root, so that root inside cannot change their mode or owner."""
    linux.mount("tmpfs", "/dev", "tmpfs", linux.MS_NOSUID | linux.MS_NOEXEC, "mode=755,size=64k,nr_inodes=1024")
    for name, (major, minor) in _NODES.items():
        os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o666, os.makedev(major, minor))
        os.chmod(f"/dev/{name}", 0o666)  # noqa: S103 - the mode that the host's have; mknod subtracts the umask
    fd = os.open(BOOT_ID, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
    with open(fd, "w") as file:
        os.fchmod(fd, 0o444)
        file.write(f"{uuid.uuid4()}\n")


def _mount_keeper(lower: int) -> None:
    """An overlay has separate inodes and shares the cached pages. A read-only one needs two layers."""
    empty = "/dev/empty"
    os.mkdir(empty, 0o755)
    os.mkdir(KEEPER_DIR, 0o755)
    options = f"lowerdir=/proc/self/fd/{lower}:{empty},xino=off"
    flags = linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOATIME
    linux.mount("overlay", str(KEEPER_DIR), "overlay", flags, options)


def _mount_program(tree: int, target: Path) -> None:
    linux.mount_setattr(tree, linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV)
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    linux.move_mount(tree, str(target))
