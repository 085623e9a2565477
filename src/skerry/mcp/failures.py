"""Error texts for the model: the failure, and the next step."""

from __future__ import annotations

import re

from pydantic import ValidationError

from skerry.errors import (
    CommandTimeout,
    FileIsDirectory,
    FileNotFound,
    FilePermissionDenied,
    HostUnsupported,
    NotFound,
    PermissionDenied,
    QuotaExceeded,
    SandboxUnavailable,
    ServerUnreachable,
    SkerryError,
)
from skerry.mcp.text import shorten

_MAX_LENGTH = 8000
_MAX_ERRORS = 20
_NEXT: tuple[tuple[type[SkerryError], str], ...] = (
    (FileNotFound, "list_files and glob_files list existing files"),
    (FileIsDirectory, "list_files lists its contents"),
    (FilePermissionDenied, 'user="root" acts as root in the sandbox'),
    (NotFound, "list_sandboxes, list_processes and list_files list what exists"),
    (QuotaExceeded, "ask the person: a limit of this server is reached"),
    (PermissionDenied, "ask the person: this token lacks the permission"),
    (SandboxUnavailable, "list_sandboxes shows its state; create_sandbox creates another sandbox"),
    (ServerUnreachable, "report to the person that the Skerry server does not answer; try again later"),
    (HostUnsupported, "ask the person to run `skerry doctor` on the host"),
    (CommandTimeout, "wait again, or kill the process"),
)


# Hints for people: they know which sandboxes and snapshots are still needed. A model would follow them.
_DELETING = re.compile(r"\b(?:delete|remove|rm|prune)\b", re.IGNORECASE)


def hint_for_model(hint: str | None) -> str | None:
    return None if hint is None or _DELETING.search(hint) else hint


def error_text(error: SkerryError) -> str:
    lines = [f"error: {_indented(error.message)}"]
    if hint := hint_for_model(error.hint):
        lines.append(f"hint: {_indented(hint)}")
    following = next((text for kind, text in _NEXT if isinstance(error, kind)), None)
    if following:
        lines.append(f"next: {following}")
    return shorten("\n".join(lines), _MAX_LENGTH)[0]


def _indented(text: str) -> str:
    """Indent further lines: quoted text from a sandbox must not look like a line of ours."""
    return text.replace("\n", "\n    ")


def argument_errors(tool: str, names: list[str], error: ValidationError) -> str:
    """Describe the first invalid arguments without their values, which may be long."""
    lines = []
    for one in error.errors(include_url=False, include_input=False, include_context=False)[:_MAX_ERRORS]:
        where = ".".join(str(part) for part in one["loc"])
        if one["type"] == "extra_forbidden":
            lines.append(f"error: {tool} has no argument {where!r}")
        elif one["type"] == "missing":
            lines.append(f"error: {tool} needs the argument {where!r}")
        else:
            lines.append(f"error: {where}: {one['msg']}")
    if error.error_count() > _MAX_ERRORS:
        lines.append(f"error: {error.error_count() - _MAX_ERRORS} more")
    lines.append(f"next: call {tool} again with these arguments: {', '.join(names)}")
    return shorten("\n".join(lines), _MAX_LENGTH)[0]
