"""User namespaces made beforehand: one fd for each uid range, cached.

A namespace needs a process to be born in. Forking a threaded server can deadlock, so util-linux's `unshare` is spawned
(1.5 ms), mapped from outside, opened and killed; the fd keeps the namespace alive.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections import OrderedDict

from skerry.errors import HostUnsupported
from skerry.runtimes.runtime import RANGE

_KEPT = 256  # fds; the lowest free range is taken first, so few are in use over and over


class UserNamespaces:
    """For idmapped mounts: ids 0–65535 on disk are `base`… on the host, and the other way round. Or, `owned`, for
    sandboxes to live in."""

    def __init__(self, *, owned: bool = False) -> None:
        self._make = _make_owned if owned else _make_map
        self._fds: OrderedDict[int, int] = OrderedDict()
        self._lock = threading.Lock()

    def fd(self, base: int) -> int:
        """A new fd, the caller's to close: the cache may drop its own at any time."""
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
    # The second line gives host root an id on disk: overlayfs makes its work directory and whiteouts as kuid 0, and
    # where that is unmapped it mounts read-only without an error. These are the maps of a mount, not of the sandbox,
    # whose own namespace knows nothing of host root.
    return _mapped([], f"0 {base} {RANGE}\n{RANGE} 0 1\n".encode())


def _make_owned(base: int) -> int:
    """Made by the range's first id. What a namespace uses of inotify instances, queued signals, message queues and the
    like the kernel also counts as its owner's: if that were root, one sandbox could take what root and all others have
    (128 inotify instances). CAP_SYS_ADMIN is for hosts where making one is restricted; it counts for nothing inside."""
    setpriv = _program("setpriv")
    ids = [f"--reuid={base}", f"--regid={base}", "--clear-groups", "--inh-caps=+sys_admin", "--ambient-caps=+sys_admin"]
    return _mapped([setpriv, *ids], f"0 {base} {RANGE}\n".encode())


def _program(name: str) -> str:
    if found := shutil.which(name):
        return found
    raise HostUnsupported(f"`{name}` was not found", hint="install util-linux and coreutils")


def _mapped(before: list[str], text: bytes) -> int:
    argv = [*before, _program("unshare"), "--user", _program("cat")]
    near, child_out = os.pipe2(os.O_CLOEXEC)
    child_in, far = os.pipe2(os.O_CLOEXEC)
    pid = 0
    try:
        actions = [(os.POSIX_SPAWN_DUP2, child_in, 0), (os.POSIX_SPAWN_DUP2, child_out, 1)]
        pid = os.posix_spawn(argv[0], argv, {}, file_actions=actions)
        os.close(child_out)
        child_out = -1
        os.write(far, b"?")
        if os.read(near, 1) != b"?":  # an echo: cat runs, so the namespace exists
            raise HostUnsupported("a user namespace can't be made", hint="sysctl -w user.max_user_namespaces=10000")
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{pid}/{name}", "wb", buffering=0) as file:
                file.write(text)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        if pid:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        for fd in (near, far, child_in, child_out):
            with contextlib.suppress(OSError):
                os.close(fd)
