"""User namespaces created in advance: one cached fd for each uid range.

A namespace is created with a process, which ends at once; its namespace is mapped from outside and opened, and the fd
keeps it alive. (0.2 ms; a program that does it takes 5.)
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from concurrent.futures import Future

from skerry import linux
from skerry.errors import HostUnsupported
from skerry.runtimes.runtime import RANGE_SIZE

_KEPT = 256  # fds; the lowest free range is taken first, so the same few are used repeatedly


class UserNamespaces:
    """Namespaces for idmapped mounts: IDs 0–65535 on disk are `base`… on the host, and vice versa. Or, if `owned`,
    namespaces for sandboxes."""

    def __init__(self, *, owned: bool = False) -> None:
        self._make = _make_owned if owned else _make_map
        self._fds: OrderedDict[int, int] = OrderedDict()
        self._lock = threading.Lock()

    def fd(self, base: int) -> int:
        """Return a new fd, which the caller closes: the cache may drop its own at any time."""
        with self._lock:
            if base not in self._fds:
                self._fds[base] = self._make(base)
            self._fds.move_to_end(base)
            fresh = os.dup(self._fds[base])
            while len(self._fds) > _KEPT:
                os.close(self._fds.popitem(last=False)[1])
        return fresh

    def close(self) -> None:
        with self._lock:
            while self._fds:
                os.close(self._fds.popitem()[1])


def _make_map(base: int) -> int:
    # The second line gives host root an ID on disk: overlayfs creates its work directory and whiteouts as kuid 0, and
    # if that is unmapped it mounts read-only without an error. These are the maps of a mount, not of the sandbox: its
    # own namespace does not map host root.
    return _mapped(_create(), f"0 {base} {RANGE_SIZE}\n{RANGE_SIZE} 0 1\n".encode())


def one_user(uid: int, gid: int, inside: int) -> int:
    """Return a namespace for an idmapped mount in which one user of the host is the user `inside`; no other ID is
    mapped."""
    return _mapped(_create(), f"{uid} {inside} 1\n".encode(), f"{gid} {inside} 1\n".encode())


def _make_owned(base: int) -> int:
    """Create it as the range's first ID. The kernel also charges a namespace's inotify instances, queued signals,
    message queues and the like to its owner: with root as owner, one sandbox could use up the quota of root and all
    others (128 inotify instances). The capabilities are for hosts that restrict creation; they have no effect
    inside."""
    created: Future[int] = Future()

    def work() -> None:
        try:
            linux.become(base)
            created.set_result(_create())
        except BaseException as error:
            created.set_exception(error)

    thread = threading.Thread(target=work, name="skerry-userns")
    thread.start()
    thread.join()
    return _mapped(created.result(), f"0 {base} {RANGE_SIZE}\n".encode())


def _create() -> int:
    try:
        return linux.clone_ended(linux.CLONE_NEWUSER)
    except OSError as error:
        hint = "sysctl -w user.max_user_namespaces=10000"
        raise HostUnsupported(f"a user namespace cannot be created: {error}", hint=hint) from error


def _mapped(pid: int, users: bytes, groups: bytes | None = None) -> int:
    """Write the maps of the namespace of an ended process, and reap it."""
    try:
        for name, text in (("uid_map", users), ("gid_map", groups or users)):
            with open(f"/proc/{pid}/{name}", "wb", buffering=0) as file:
                file.write(text)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.waitpid(pid, 0)
