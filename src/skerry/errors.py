"""All errors, as one tree.

    SkerryError
    ├── InvalidRequest (ValueError)          an invalid argument or field
    ├── NotFound (LookupError)               no such sandbox, image, token …, or another owner's
    ├── Conflict                             it already exists, or its state does not permit the call
    │   └── UnappliedChanges                 the sandbox has accepted changes that were not applied
    ├── CommandFailed                        a command ended non-zero, with check=True
    │   ├── OutOfMemory (MemoryError)        it needed more memory than its limit
    │   └── NetworkDenied (PermissionError)  it failed, and some of its network attempts were denied
    ├── CommandTimeout (TimeoutError)        a command timed out, with check=True
    ├── PermissionDenied (PermissionError)   the token is missing, unknown or lacks the scope
    ├── QuotaExceeded                        a maximum of the operator is reached
    │   └── BudgetExceeded                   a budget is used up; the message has its amounts
    ├── SandboxUnavailable                   the sandbox failed, stopped or does not respond
    ├── ServerUnreachable (ConnectionError)  no server at that address
    ├── RegistryError                        a registry is unreachable or sends invalid data
    ├── ToolchainMissing                     the sandbox lacks the toolchain of a language
    ├── HostUnsupported                      this host cannot provide the isolation; the message names the gap
    ├── AuditUnavailable                     the audit log cannot be written, for example on a full disk
    └── FileError (OSError)                  a file operation inside; each is also the matching builtin
        ├── FileNotFound (FileNotFoundError)     ├── FileExists (FileExistsError)
        ├── FileIsDirectory (IsADirectoryError)  ├── FileNotDirectory (NotADirectoryError)
        └── FilePermissionDenied (PermissionError)

A command that ends non-zero is a result, not an error, unless `check=True`.
Over HTTP every error is `{"error": {"code", "message", "hint", "details"}}`; `code` is stable and names the class here.
"""

from __future__ import annotations

import errno as _errno
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from skerry.types import Result

__all__ = [
    "AuditUnavailable",
    "BudgetExceeded",
    "CommandFailed",
    "CommandTimeout",
    "Conflict",
    "FileError",
    "FileExists",
    "FileIsDirectory",
    "FileNotDirectory",
    "FileNotFound",
    "FilePermissionDenied",
    "HostUnsupported",
    "InvalidRequest",
    "NetworkDenied",
    "NotFound",
    "OutOfMemory",
    "PermissionDenied",
    "QuotaExceeded",
    "RegistryError",
    "SandboxUnavailable",
    "ServerUnreachable",
    "SkerryError",
    "ToolchainMissing",
    "UnappliedChanges",
    "error_for_code",
    "file_error",
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
    """The request is invalid: an unknown field, a wrong value."""

    code = "invalid_request"


class NotFound(SkerryError, LookupError):
    """The resource does not exist, or belongs to another owner."""

    code = "not_found"


class Conflict(SkerryError):
    """The resource already exists, or its state does not permit the call."""

    code = "conflict"


class UnappliedChanges(Conflict):
    """The sandbox has accepted changes that were not applied: it is deleted only with `force`. `details["accepted"]`
    is the number of hunks."""

    code = "unapplied_changes"


class CommandFailed(SkerryError):
    """A command ended non-zero and the caller asked for an error (`check=True`)."""

    code = "command_failed"
    result: Result | None = None


class OutOfMemory(CommandFailed, MemoryError):
    """A command was killed because it needed more memory than its limit (`check=True`)."""

    code = "out_of_memory"


class NetworkDenied(CommandFailed, PermissionError):
    """A command failed after network attempts that were denied (`check=True`); `result.denied` lists them."""

    code = "network_denied"


class CommandTimeout(SkerryError, TimeoutError):
    """A command timed out and the caller asked for an error (`check=True`)."""

    code = "command_timeout"
    result: Result | None = None


class PermissionDenied(SkerryError, PermissionError):
    """The token is missing, unknown or lacks the scope."""

    code = "permission_denied"


class QuotaExceeded(SkerryError):
    """A maximum of the operator is reached; the message names it."""

    code = "quota_exceeded"


class BudgetExceeded(QuotaExceeded):
    """A budget of the sandbox, of a label or of the owner is used up. `details` has the `budget` (its ID), the `amount`
    ("cpu", "cost", "network" or "wall"), and the numbers `used` and `maximum`."""

    code = "budget_exceeded"


class SandboxUnavailable(SkerryError):
    """The sandbox failed or cannot be reached; never raised for a failure of the program itself."""

    code = "sandbox_unavailable"


class ServerUnreachable(SkerryError, ConnectionError):
    """No server answers at the address."""

    code = "server_unreachable"


class RegistryError(SkerryError):
    """A registry of images is unreachable, stalls, or sends invalid data. `details["reason"]` has the reason:
    unreachable, stalled, refused, busy, html, malformed, digest."""

    code = "registry_error"


class ToolchainMissing(SkerryError):
    """The sandbox lacks the toolchain of a language; the message names it, the hint how to install it."""

    code = "toolchain_missing"


class HostUnsupported(SkerryError):
    """This host cannot provide the isolation. `skerry doctor` explains."""

    code = "host_unsupported"


class AuditUnavailable(SkerryError):
    """The audit log cannot be written, so the action was not permitted, or its record may be incomplete."""

    code = "audit_unavailable"


class FileError(SkerryError, OSError):
    """A file operation inside a sandbox failed; `errno` and `filename` are set."""

    code = "file_error"
    number: ClassVar[int] = _errno.EIO

    def __init__(self, message: str, *, hint: str | None = None, details: dict[str, Any] | None = None) -> None:
        super().__init__(message, hint=hint, details=details)
        self.errno = int(self.details.get("errno", self.number))
        self.filename = self.details.get("path")


class FileNotFound(FileError, FileNotFoundError):
    code = "file_not_found"
    number = _errno.ENOENT


class FileExists(FileError, FileExistsError):
    code = "file_exists"
    number = _errno.EEXIST


class FileIsDirectory(FileError, IsADirectoryError):
    code = "file_is_directory"
    number = _errno.EISDIR


class FileNotDirectory(FileError, NotADirectoryError):
    code = "file_not_directory"
    number = _errno.ENOTDIR


class FilePermissionDenied(FileError, PermissionError):
    code = "file_permission_denied"
    number = _errno.EACCES


_FILE_CLASSES: dict[int, type[FileError]] = {
    _errno.ENOENT: FileNotFound,
    _errno.EEXIST: FileExists,
    _errno.EISDIR: FileIsDirectory,
    _errno.ENOTDIR: FileNotDirectory,
    _errno.EACCES: FilePermissionDenied,
    _errno.EPERM: FilePermissionDenied,
    _errno.EROFS: FilePermissionDenied,
}

_CLASSES: tuple[type[SkerryError], ...] = (
    SkerryError,
    InvalidRequest,
    NotFound,
    Conflict,
    UnappliedChanges,
    CommandFailed,
    OutOfMemory,
    NetworkDenied,
    CommandTimeout,
    PermissionDenied,
    QuotaExceeded,
    BudgetExceeded,
    SandboxUnavailable,
    ServerUnreachable,
    RegistryError,
    ToolchainMissing,
    HostUnsupported,
    AuditUnavailable,
    FileError,
    *_FILE_CLASSES.values(),
)
_BY_CODE = {c.code: c for c in _CLASSES}


def file_error(number: int, path: str, message: str) -> FileError:
    """Return the error for the errno of a file operation inside."""
    cls = _FILE_CLASSES.get(number, FileError)
    return cls(message, details={"errno": number, "path": path})


def error_for_code(
    code: str, message: str, hint: str | None = None, details: dict[str, Any] | None = None
) -> SkerryError:
    """Return the typed error for a code received over HTTP; a plain SkerryError for an unknown code."""
    return _BY_CODE.get(code, SkerryError)(message, hint=hint, details=details)
