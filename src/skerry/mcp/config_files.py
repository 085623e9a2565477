"""Reading and replacing a client's file: whole or not at all, and no other file than the one that is meant."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from skerry.errors import Conflict, Denied
from skerry.mcp.install import Change

MOST: Final = 64 << 20
BACKUP: Final = ".before-skerry"


def settle(path: Path, project: Path | None) -> Path:
    """The file itself. A person's own may be a link, as those have it who keep their settings in a repository; a
    project's may not, nor lie outside of it: whoever wrote the project may have put the link there."""
    real = Path(os.path.realpath(path))
    if project is not None:
        root = Path(os.path.realpath(project))
        if real != root / path.relative_to(project):
            raise Denied(
                f"{path} leads out of the project, to {real}", hint="look at it first; --print changes nothing"
            )
    return real


def read(path: Path) -> str | None:
    """None: there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        _check_place(path)
        return None
    with open(fd, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST:
            raise Conflict(f"{path} is not a file of settings", hint="move it away")
        if found.st_uid != os.geteuid():
            raise Denied(f"{path} is another user's", hint="run this as that user, without sudo")
        try:
            return file.read(MOST).decode()
        except UnicodeDecodeError:
            raise Conflict(f"{path} is not UTF-8", hint="--print shows what to put in by hand") from None


def _check_place(path: Path) -> None:
    """With sudo, a file that root makes in somebody's home could not be read or changed by their client."""
    there = next(parent for parent in path.parents if parent.exists())
    if os.geteuid() == 0 and there.stat().st_uid != 0:
        raise Denied(f"{there} is another user's", hint="run this as that user, without sudo")


def write(change: Change, *, private: bool, secret: bool = False) -> None:
    """Replace it, if it is still as it was read. A person's own file: what it was is kept beside it; a project's has
    its history. `secret`: there is a token in it, so nobody else may read it from now on."""
    path = change.path
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = 0o600 if private else 0o644
    if change.before is not None:
        mode = stat.S_IMODE(path.stat(follow_symlinks=False).st_mode) & (0o700 if secret else 0o7777)
    if change.before is not None and private:
        _replace(path.with_name(path.name + BACKUP), change.before, mode)
    if read(path) != change.before:
        raise Conflict(f"{path} was changed meanwhile", hint="do it again")
    _replace(path, change.after, mode)


def _replace(path: Path, text: str, mode: int) -> None:
    made = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        made.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            made.unlink()
        raise
