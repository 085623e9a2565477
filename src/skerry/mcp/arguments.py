"""Arguments that several tools have, as a model reads them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from skerry.mcp.text import SHOWN_MOST

SandboxRef = Annotated[
    str | None,
    Field(description="Id or name; your default sandbox if left out."),
]
NamedSandbox = Annotated[str, Field(description="Id or name of the sandbox; list_sandboxes shows them.")]
InsidePath = Annotated[
    str,
    Field(description="Path inside the sandbox: absolute, or from /workspace on."),
]
User = Annotated[
    str | None,
    Field(description='Whose rights it has inside: the image\'s user if left out, or "root".'),
]
ProcessId = Annotated[str, Field(description="Id of a process, from run, spawn or list_processes.")]
Characters = Annotated[
    int,
    Field(ge=100, le=SHOWN_MOST, description="At most so many characters of it."),
]
Command = Annotated[
    str | list[str],
    Field(description="A shell line (bash), or a list of words that is run as it is, without a shell."),
]
Env = Annotated[dict[str, str] | None, Field(description="Environment variables for this command.")]
Cwd = Annotated[
    str | None,
    Field(description="Absolute directory inside to run in; the image's own (/workspace) if left out."),
]
