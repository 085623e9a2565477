"""What can go wrong, as one tree.

    SkerryError
    ├── InvalidRequest (ValueError)          the caller erred
    ├── NotFound (LookupError)               no such sandbox, image, token … or it is another's
    ├── Conflict                             a name taken, a state that does not allow it
    ├── CommandFailed                        a command ended non-zero, and check=True asked for this
    ├── CommandTimeout (TimeoutError)        a command ran out of time, and check=True asked for this
    ├── Denied (PermissionError)             no token, a wrong one, or one without the scope
    ├── QuotaExceeded                        a maximum that the operator set
    ├── SandboxUnavailable                   the sandbox failed, stopped or does not answer
    ├── ServerUnreachable (ConnectionError)  no server at that address
    ├── RegistryFailed                       a registry can't be reached, or sends what it should not
    ├── SetupFailed                          code can't be run: the sandbox has not what its language needs
    ├── HostUnsupported                      this host can't build the wall; the message names what is missing
    └── FileFailure (OSError)                a file operation inside; each is also the builtin that it is
        ├── FileMissing (FileNotFoundError)      ├── FileThere (FileExistsError)
        ├── FileIsDirectory (IsADirectoryError)  ├── FileNotDirectory (NotADirectoryError)
        └── FileForbidden (PermissionError)

A command that ends non-zero is a result, not an error, unless `check=True`.
Over HTTP every error is `{"error": {"code", "message", "hint", "details"}}`; `code` is stable and names the class here.
"""

from __future__ import annotations

import errno as _errno
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from skerry.types import Result

__all__ = [
    "CommandFailed",
    "CommandTimeout",
    "Conflict",
    "Denied",
    "FileFailure",
    "FileForbidden",
    "FileIsDirectory",
    "FileMissing",
    "FileNotDirectory",
    "FileThere",
    "HostUnsupported",
    "InvalidRequest",
    "NotFound",
    "QuotaExceeded",
    "RegistryFailed",
    "SandboxUnavailable",
    "ServerUnreachable",
    "SetupFailed",
    "SkerryError",
    "error_for_code",
    "file_failure",
]


class SkerryError(Exception):
    """The root of all errors raised by Skerry."""

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, *, hint: str | None = None, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details or {}

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class InvalidRequest(SkerryError, ValueError):
    """What was asked for makes no sense: an unknown field, a bad value."""

    code = "invalid_request"


class NotFound(SkerryError, LookupError):
    """There is no such thing, or it belongs to another owner."""

    code = "not_found"


class Conflict(SkerryError):
    """The thing exists already, or is in a state that does not allow the call."""

    code = "conflict"


class CommandFailed(SkerryError):
    """A command ended non-zero and the caller asked for an error (`check=True`)."""

    code = "command_failed"
    result: Result | None = None


class CommandTimeout(SkerryError, TimeoutError):
    """A command was ended by its time-out and the caller asked for an error (`check=True`)."""

    code = "command_timeout"
    result: Result | None = None


class Denied(SkerryError, PermissionError):
    """The token is missing, unknown or has not the scope."""

    code = "denied"


class QuotaExceeded(SkerryError):
    """An operator's maximum stands in the way; the message names it."""

    code = "quota_exceeded"


class SandboxUnavailable(SkerryError):
    """The sandbox failed or can't be reached: never the program's own failure."""

    code = "sandbox_unavailable"


class ServerUnreachable(SkerryError, ConnectionError):
    """No server answers at the address."""

    code = "server_unreachable"


class RegistryFailed(SkerryError):
    """A registry of images can't be reached, stalls, or sends what it should not. `details["reason"]` says which:
    unreachable, stalled, refused, busy, html, malformed, digest."""

    code = "registry_failed"


class SetupFailed(SkerryError):
    """What a language needs is not in the sandbox; the message names it, the hint what brings it."""

    code = "setup_failed"


class HostUnsupported(SkerryError):
    """This host lacks what the wall needs. `skerry doctor` explains."""

    code = "host_unsupported"


class FileFailure(SkerryError, OSError):
    """A file operation inside a sandbox failed; `errno` and `filename` are set."""

    code = "file_failed"
    number: ClassVar[int] = _errno.EIO

    def __init__(self, message: str, *, hint: str | None = None, details: dict[str, Any] | None = None) -> None:
        super().__init__(message, hint=hint, details=details)
        self.errno = int(self.details.get("errno", self.number))
        self.filename = self.details.get("path")


class FileMissing(FileFailure, FileNotFoundError):
    code = "file_missing"
    number = _errno.ENOENT


class FileThere(FileFailure, FileExistsError):
    code = "file_there"
    number = _errno.EEXIST


class FileIsDirectory(FileFailure, IsADirectoryError):
    code = "file_is_directory"
    number = _errno.EISDIR


class FileNotDirectory(FileFailure, NotADirectoryError):
    code = "file_not_directory"
    number = _errno.ENOTDIR


class FileForbidden(FileFailure, PermissionError):
    code = "file_forbidden"
    number = _errno.EACCES


_FILE_CLASSES: dict[int, type[FileFailure]] = {
    _errno.ENOENT: FileMissing,
    _errno.EEXIST: FileThere,
    _errno.EISDIR: FileIsDirectory,
    _errno.ENOTDIR: FileNotDirectory,
    _errno.EACCES: FileForbidden,
    _errno.EPERM: FileForbidden,
    _errno.EROFS: FileForbidden,
}

_CLASSES: tuple[type[SkerryError], ...] = (
    SkerryError,
    InvalidRequest,
    NotFound,
    Conflict,
    CommandFailed,
    CommandTimeout,
    Denied,
    QuotaExceeded,
    SandboxUnavailable,
    ServerUnreachable,
    RegistryFailed,
    SetupFailed,
    HostUnsupported,
    FileFailure,
    *_FILE_CLASSES.values(),
)
_BY_CODE = {c.code: c for c in _CLASSES}


def file_failure(number: int, path: str, message: str) -> FileFailure:
    """The error for an errno that a file operation inside met."""
    cls = _FILE_CLASSES.get(number, FileFailure)
    return cls(message, details={"errno": number, "path": path})


def error_for_code(
    code: str, message: str, hint: str | None = None, details: dict[str, Any] | None = None
) -> SkerryError:
    """The typed error for a code that came over HTTP; an unknown code is a plain SkerryError."""
    return _BY_CODE.get(code, SkerryError)(message, hint=hint, details=details)
