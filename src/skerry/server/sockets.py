"""The sockets that the server listens on."""

from __future__ import annotations

import contextlib
import errno
import grp
import ipaddress
import os
import re
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from skerry.errors import Conflict, InvalidRequest, NotFound

BACKLOG = 2048
# A listener of a stream may say nothing for hours: one whose machine is gone is noticed within two minutes.
KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15), (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)  # fmt: skip
_LISTEN = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]*)):([0-9]{1,5})")


def bind_unix(path: Path, group: str | None) -> socket.socket:
    """A listening unix socket: 0600, or 0660 with a group. The caller holds the lock of the state directory, so a
    socket that nobody listens on is a dead server's and is replaced."""
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
        raise InvalidRequest(f"{path}: {error.strerror or error}", hint="is its directory there?") from error
    except BaseException:
        listener.close()
        raise
    return listener


def is_answering(path: Path) -> bool:
    """Does anybody listen there? Unsure counts as yes."""
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
    """Take the name away, if it is still ours; who has connected already is still served."""
    with contextlib.suppress(OSError):
        if _is_socket(path) and listener.getsockname() == str(path):
            path.unlink()


def parse_listen(text: str) -> tuple[str, int]:
    """127.0.0.1:7070, [::1]:7070, localhost:7070, :7070 (all addresses). Other names are not looked up: what is
    listened on should not depend on a resolver."""
    match = _LISTEN.fullmatch(text)
    if match is None or int(match[3]) > 65535:
        raise InvalidRequest(f"listen: {text[:80]!r} is not an address", hint="like 127.0.0.1:7070 or [::1]:7070")
    host = match[1] or match[2] or "0.0.0.0"  # noqa: S104 -- what an empty host means; TCP needs tokens anyway
    host = "127.0.0.1" if host == "localhost" else host
    try:
        return str(ipaddress.ip_address(host)), int(match[3])
    except ValueError as error:
        raise InvalidRequest(f"listen: {host[:80]!r} is not an IP address", hint="like 127.0.0.1:7070") from error


def bind_tcp(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for level, option, value in KEEP_ALIVE:  # what is accepted has the same
            listener.setsockopt(level, option, value)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise Conflict(f"listen: {host} port {port} is in use", hint="take another port") from error
        raise InvalidRequest(f"listen: {host} port {port}: {error.strerror}") from error
    return listener


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
        raise NotFound(f"there is no group {group!r} on this host", hint=f"groupadd --system {group}") from error


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _clear_stale(path: Path) -> None:
    if not os.path.lexists(path):
        return
    if not _is_socket(path):
        raise Conflict(f"{path} is there and is not a socket", hint="move it away, or listen elsewhere")
    if is_answering(path):
        raise Conflict(f"another server listens on {path}", hint="talk to that one, or listen elsewhere")
    path.unlink()


@contextlib.contextmanager
def _creating(mask: int, gid: int | None) -> Iterator[None]:
    """A file made in here has its mode and group from its first moment: no window, and no path to chmod by."""
    old_mask, old_gid = os.umask(mask), os.getegid()
    try:
        if gid is not None:
            os.setegid(gid)
        yield
    finally:
        os.setegid(old_gid)
        os.umask(old_mask)


def _check(path: Path, gid: int | None) -> None:
    """A setgid directory or an ACL may have had other ideas."""
    made = path.lstat()
    wanted = 0o660 if gid is not None else 0o600
    if stat.S_IMODE(made.st_mode) != wanted or (gid is not None and made.st_gid != gid):
        path.unlink()
        raise Conflict(f"{path} came out with other rights than {wanted:04o}", hint="use a plain directory of root's")
