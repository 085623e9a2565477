"""Change a running sandbox from outside, without help from inside: the size of its /dev/shm, its host name, and the
directories mounted in it."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath

from skerry import linux
from skerry.errors import Conflict, SandboxUnavailable, SkerryError
from skerry.runtimes import processes
from skerry.runtimes.overlay import make_directory, map_ids, open_beneath
from skerry.runtimes.runtime import BindMount, Init
from skerry.runtimes.userns import UserNamespaces, one_user
from skerry.types import readable_size

DEFAULT_USER = 1000  # uid and gid of `user` in the base image
_SHM = "dev/shm"
_BENEATH = linux.RESOLVE_IN_ROOT | linux.RESOLVE_NO_SYMLINKS | linux.RESOLVE_NO_MAGICLINKS


def shm_size_for(memory: int) -> int:
    """Return the size for this memory limit; pages of /dev/shm count as the sandbox's memory."""
    return memory // 2


def set_shm_size(init: Init, size: int) -> None:
    """Set the size; works on a frozen sandbox too. The mount there is Skerry's: code in a sandbox cannot mount or
    rename a mount point; and in any case only the root of a mount in that sandbox's namespace is reachable."""
    mount = _opened(init)
    try:
        _configure(mount, size)
    finally:
        os.close(mount)


def _opened(init: Init) -> int:
    pidfd = processes.pidfd(init)
    try:
        root = os.open(f"/proc/{init.pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.close(processes.pidfd(init))  # still the same process: then the root is its own
            return linux.openat2(root, _SHM, os.O_PATH | os.O_DIRECTORY, _BENEATH)
        finally:
            os.close(root)
    except OSError as error:
        raise SandboxUnavailable(f"the sandbox's /dev/shm is not reachable: {error.strerror}") from error
    finally:
        os.close(pidfd)


def _configure(mount: int, size: int) -> None:
    context = linux.fspick(mount)
    try:
        linux.fsconfig_string(context, "size", str(size))
        linux.fsconfig_reconfigure(context)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise Conflict(
            f"the files in /dev/shm take more than the {readable_size(size)} that the new memory limit allows",
            hint="delete some first, or give it more memory",
            details={"limit": "memory"},
        ) from error
    finally:
        os.close(context)


def set_hostname(init: Init, name: str) -> None:
    def work(pidfd: int) -> None:
        linux.setns(pidfd, linux.CLONE_NEWUTS)
        socket.sethostname(name)

    try:
        _on_thread(init, work, "skerry-uts")
    except OSError as error:
        raise SandboxUnavailable(f"the host name could not be set: {error}") from error


def mount(init: Init, base: int, mounts: Sequence[BindMount], namespaces: UserNamespaces) -> None:
    """Mount directories at places that code of the sandbox may have prepared: no part of a place may be a link, and
    none is below another mount. The idmapped copies are made in the host's mount namespace, and attached in the
    sandbox's."""
    with contextlib.ExitStack() as stack:
        trees = [(stack.enter_context(_tree(one, base, namespaces)), one.target) for one in mounts]

        def work(top: int) -> None:
            for tree, target in trees:
                _attach(top, tree, target, base)

        _in_mounts(init, work, "a volume could not be mounted")


# /var/lib/skerry holds the keeper's journal.
WRITABLE = ("workspace", "tmp", "var/tmp", "home", "root", "var/lib/skerry")


def split_root(init: Init, base: int) -> None:
    """Make each writable place of a read-only root a separate mount, with the volumes below it. Called before the
    keeper has opened a file: an open file belongs to the mount that it was opened on, which could not be sealed."""

    def work(top: int) -> None:
        for place in WRITABLE:
            for parent in (*reversed(PurePosixPath(place).parents[:-1]), place):
                make_directory(top, str(parent), base)
            point = open_beneath(top, place)
            try:
                tree = linux.open_tree("", dir_fd=point, recursive=True)
                try:
                    linux.move_mount(tree, "", dir_fd=point)
                finally:
                    os.close(tree)
            finally:
                os.close(point)

    _in_mounts(init, work, "the writable places could not be mounted")


def seal_root(init: Init) -> None:
    """Make the root mount read-only. Code inside cannot undo this: it has no CAP_SYS_ADMIN."""
    _in_mounts(
        init, lambda top: linux.mount_setattr(top, linux.MOUNT_ATTR_RDONLY), "the root could not be made read-only"
    )


def _in_mounts(init: Init, work: Callable[[int], None], what: str) -> None:
    """Run `work` with an fd of the root, in the sandbox's mount namespace."""

    def enter(pidfd: int) -> None:
        linux.unshare(linux.CLONE_FS)
        linux.setns(pidfd, linux.CLONE_NEWNS)
        top = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            work(top)
        finally:
            os.close(top)

    try:
        _on_thread(init, enter, "skerry-mounts")
    except OSError as error:
        raise SandboxUnavailable(f"{what}: {error}") from error


def _attach(top: int, tree: int, target: str, base: int) -> None:
    place = target.lstrip("/")
    for parent in (*reversed(PurePosixPath(place).parents[:-1]), place):
        make_directory(top, str(parent), base)
    point = open_beneath(top, place)
    try:
        linux.move_mount(tree, "", dir_fd=point)
    finally:
        os.close(point)


@contextlib.contextmanager
def _tree(given: BindMount, base: int, namespaces: UserNamespaces) -> Iterator[int]:
    """Yield a detached mount of a directory, for this sandbox only."""
    if given.tree is not None:
        yield given.tree
        return
    tree, owner = _opened_tree(given)
    try:
        namespace = namespaces.fd(base) if owner is None else one_user(*owner, base + DEFAULT_USER)
    except BaseException:
        os.close(tree)
        raise
    try:
        attributes = linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV
        map_ids(tree, given.source, namespace, attributes | (linux.MOUNT_ATTR_RDONLY if given.read_only else 0))
    finally:
        os.close(namespace)
    try:
        yield tree
    finally:
        os.close(tree)


def _opened_tree(given: BindMount) -> tuple[int, tuple[int, int] | None]:
    """Return a detached copy of the mount, and the host user that its files belong to, if it is only one's."""
    resolve = linux.RESOLVE_NO_SYMLINKS | linux.RESOLVE_NO_MAGICLINKS if given.listed else 0
    try:
        source = linux.openat2(linux.AT_FDCWD, str(given.source), os.O_PATH | os.O_DIRECTORY, resolve)
        try:
            owner = _writer(given, os.fstat(source)) if given.listed and not given.read_only else None
            return linux.open_tree("", dir_fd=source), owner
        finally:
            os.close(source)
    except OSError as error:
        raise SandboxUnavailable(f"the directory for {given.target} is not available: {error.strerror}") from error


def _writer(given: BindMount, found: os.stat_result) -> tuple[int, int]:
    if found.st_uid == 0 or found.st_gid == 0:
        raise SandboxUnavailable(
            f"the directory for {given.target} is writable and belongs to root",
            hint="the operator gives it to another user and group, or lists it with read_only = true",
        )
    return found.st_uid, found.st_gid


def _on_thread(init: Init, work: Callable[[int], None], name: str) -> None:
    """Run `work` with a pidfd of PID 1 on a thread that ends afterwards, because it cannot leave the sandbox's
    namespaces."""
    failed: list[OSError | SkerryError] = []

    def run(pidfd: int) -> None:
        try:
            work(pidfd)
        except (OSError, SkerryError) as error:
            failed.append(error)

    pidfd = processes.pidfd(init)
    try:
        thread = threading.Thread(target=run, args=(pidfd,), name=name)
        thread.start()
        thread.join()
    finally:
        os.close(pidfd)
    if failed:
        raise failed[0]
