"""Read a client's file and replace it atomically, without following hostile links."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from skerry.errors import Conflict, PermissionDenied
from skerry.mcp.install.installer import ConfigChange

MAX_SIZE: Final = 64 << 20
BACKUP: Final = ".before-skerry"


def resolve(path: Path, project: Path | None) -> Path:
    """Resolve links. A user's file may be a link, for settings in a repository. A project's file must not be a link and
    must be in the project: the author of the project may have placed a hostile link."""
    real = Path(os.path.realpath(path))
    if project is not None:
        root = Path(os.path.realpath(project))
        if real != root / path.relative_to(project):
            raise PermissionDenied(
                f"{path} points outside the project, to {real}", hint="check it first; --print changes nothing"
            )
    return real


def read(path: Path) -> str | None:
    """Return the text of the file, or None if it does not exist."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        _check_place(path)
        return None
    with open(fd, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_SIZE:
            raise Conflict(f"{path} is not a settings file", hint="move it away")
        if found.st_uid != os.geteuid():
            raise PermissionDenied(f"{path} belongs to another user", hint="run this as that user, without sudo")
        try:
            return file.read(MAX_SIZE).decode()
        except UnicodeDecodeError:
            raise Conflict(f"{path} is not UTF-8", hint="--print shows the entry to add by hand") from None


def _check_place(path: Path) -> None:
    """Reject a new file of root in another user's home: with sudo, the client could not read or change it."""
    parent = next(one for one in path.parents if one.exists())
    if os.geteuid() == 0 and parent.stat().st_uid != 0:
        raise PermissionDenied(f"{parent} belongs to another user", hint="run this as that user, without sudo")


def write(change: ConfigChange, *, private: bool, secret: bool = False) -> None:
    """Replace the file if it is unchanged since it was read. A user's file is backed up beside it; a project's file has
    its version history. With `secret` the file contains a token, and only its owner may read it."""
    path = change.path
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = 0o600 if private else 0o644
    if change.before is not None:
        mode = stat.S_IMODE(path.stat(follow_symlinks=False).st_mode) & (0o700 if secret else 0o7777)
    if change.before is not None and private:
        _replace(path.with_name(path.name + BACKUP), change.before, mode)
    if read(path) != change.before:
        raise Conflict(f"{path} was changed by another program", hint="run this again")
    _replace(path, change.after, mode)


def _replace(path: Path, text: str, mode: int) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
