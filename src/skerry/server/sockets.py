"""Listening sockets of the server."""

from __future__ import annotations

import contextlib
import grp
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from skerry.errors import Conflict, InvalidRequest, NotFound
from skerry.network.listen import BACKLOG


def bind_unix(path: Path, group: str | None) -> socket.socket:
    """Return a listening unix socket: 0600, or 0660 with a group. The caller holds the lock of the state directory, so
    a socket without a listener belongs to a dead server and is replaced."""
    gid = _gid(group)
    _clear_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with _creating(0o117 if gid is not None else 0o177, gid):
            listener.bind(str(path))
        _check(path, gid)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno is None and "too long" in str(error):
            raise InvalidRequest(f"{path}: a socket's path is at most 107 bytes") from error
        raise InvalidRequest(f"{path}: {error.strerror or error}", hint="check that its directory exists") from error
    except BaseException:
        listener.close()
        raise
    return listener


def is_answering(path: Path) -> bool:
    """Return whether a server listens on the path. Uncertain counts as yes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True


def remove_unix(path: Path, listener: socket.socket) -> None:
    """Remove the path if it still belongs to this listener; accepted connections stay open."""
    with contextlib.suppress(OSError):
        if _is_socket(path) and listener.getsockname() == str(path):
            path.unlink()


def url_of(listener: socket.socket) -> str:
    name = listener.getsockname()
    if isinstance(name, str):
        return f"unix://{name}"
    return f"http://[{name[0]}]:{name[1]}" if ":" in name[0] else f"http://{name[0]}:{name[1]}"


def _gid(group: str | None) -> int | None:
    if group is None:
        return None
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError as error:
        raise NotFound(f"group {group!r} not found on this host", hint=f"groupadd --system {group}") from error


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _clear_stale(path: Path) -> None:
    if not os.path.lexists(path):
        return
    if not _is_socket(path):
        raise Conflict(f"{path} already exists and is not a socket", hint="move it, or listen on another path")
    if is_answering(path):
        raise Conflict(f"another server listens on {path}", hint="use that server, or listen on another path")
    path.unlink()


@contextlib.contextmanager
def _creating(mask: int, gid: int | None) -> Iterator[None]:
    """Create files with their final mode and group: no window before a chmod, and no chmod by path."""
    old_mask, old_gid = os.umask(mask), os.getegid()
    try:
        if gid is not None:
            os.setegid(gid)
        yield
    finally:
        os.setegid(old_gid)
        os.umask(old_mask)


def _check(path: Path, gid: int | None) -> None:
    """Check mode and group: a setgid directory or an ACL may have changed them."""
    made = path.lstat()
    wanted = 0o660 if gid is not None else 0o600
    if stat.S_IMODE(made.st_mode) != wanted or (gid is not None and made.st_gid != gid):
        path.unlink()
        raise Conflict(f"{path} was not created with mode {wanted:04o}", hint="use a plain directory owned by root")
