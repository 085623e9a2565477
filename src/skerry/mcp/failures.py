"""What a model reads when a call fails: what happened, and what to do next."""

from __future__ import annotations

from pydantic import ValidationError

from skerry.errors import (
    CommandTimeout,
    Denied,
    FileForbidden,
    FileIsDirectory,
    FileMissing,
    HostUnsupported,
    NotFound,
    QuotaExceeded,
    SandboxUnavailable,
    ServerUnreachable,
    SkerryError,
)
from skerry.mcp.text import bounded

_MOST = 8000
_NEXT: tuple[tuple[type[SkerryError], str], ...] = (
    (FileMissing, "list_files and glob_files show what is there"),
    (FileIsDirectory, "list_files shows what is in it"),
    (FileForbidden, 'user="root" has the rights of root inside the sandbox'),
    (NotFound, "list_sandboxes, list_processes and list_files show what there is"),
    (QuotaExceeded, "remove_sandbox what is no longer needed, or ask the person who runs this server"),
    (Denied, "ask the person: this token may not do that"),
    (SandboxUnavailable, "list_sandboxes tells its state; create_sandbox makes another one"),
    (ServerUnreachable, "tell the person that the Skerry server does not answer; try again later"),
    (HostUnsupported, "tell the person: `skerry doctor` on the host explains it"),
    (CommandTimeout, "wait again, or kill the process"),
)


def in_words(error: SkerryError) -> str:
    lines = [f"error: {_indented(error.message)}"]
    if error.hint:
        lines.append(f"hint: {_indented(error.hint)}")
    following = next((text for kind, text in _NEXT if isinstance(error, kind)), None)
    if following:
        lines.append(f"next: {following}")
    return bounded("\n".join(lines), _MOST)[0]


def _indented(text: str) -> str:
    """What an error quotes may be from inside: no line of it stands where ours do."""
    return text.replace("\n", "\n    ")


def refused(tool: str, names: list[str], error: ValidationError) -> str:
    """Without the values: they are the caller's own, and may be long."""
    lines = []
    for one in error.errors(include_url=False, include_input=False, include_context=False):
        where = ".".join(str(part) for part in one["loc"])
        if one["type"] == "extra_forbidden":
            lines.append(f"error: {tool} has no argument {where!r}")
        elif one["type"] == "missing":
            lines.append(f"error: {tool} needs the argument {where!r}")
        else:
            lines.append(f"error: {where}: {one['msg']}")
    lines.append(f"next: call {tool} again with what it takes: {', '.join(names)}")
    return bounded("\n".join(lines), _MOST)[0]
