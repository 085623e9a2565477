"""Files of the user that no other user of this machine may read or change."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from skerry.client.host.posix import FILE, NEW_FILE, effective_uid
from skerry.errors import PermissionDenied


def user_directory() -> Path:
    """Return `skerry` in the user's directory of settings."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".config") / "skerry"


def check_directory(directory: Path) -> None:
    found = os.stat(directory)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != effective_uid() or found.st_mode & 0o022:
        raise PermissionDenied(
            f"{directory}: another user owns it or can write there",
            hint="make it yours with mode 0700, and run this without sudo",
        )


def check_private(path: Path, found: os.stat_result, content: str) -> None:
    """Raise an error for a file that another user could have read or written. `content`: its content in plural."""
    if not stat.S_ISREG(found.st_mode):
        raise PermissionDenied(f"{path}: not a regular file", hint="move it away")
    if found.st_uid != effective_uid():
        raise PermissionDenied(f"{path}: it belongs to another user", hint="run this as that user, without sudo")
    if found.st_mode & 0o077:
        raise PermissionDenied(
            f"{path}: other users may read it (mode {stat.S_IMODE(found.st_mode):04o})",
            hint=f"replace the {content} in it, or, if no other user has read it: chmod 600 {path}",
        )


def read_private(path: Path, content: str, limit: int) -> bytes | None:
    """Return the content of a private file; None if it does not exist."""
    try:
        fd = os.open(path, FILE)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PermissionDenied(f"{path}: {error.strerror}") from None
    with open(fd, "rb") as source:
        check_directory(path.parent)
        check_private(path, os.fstat(fd), content)
        return source.read(limit)


def create_private(path: Path, data: bytes) -> bool:
    """Create a private file, complete or not at all; return False if it exists already."""
    draft = f"{path}.{secrets.token_hex(6)}.new"
    fd = os.open(draft, NEW_FILE, 0o600)
    try:
        with open(fd, "wb") as target:
            os.fchmod(fd, 0o600)
            target.write(data)
            target.flush()
            os.fsync(fd)
        os.link(draft, path)  # unlike a rename, never replaces the file of a concurrent call
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(OSError):
            os.unlink(draft)
    return True
