"""Arguments that several tools share, with descriptions for the model."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from skerry.mcp.text import MAX_SHOWN

SandboxRef = Annotated[
    str | None,
    Field(description="ID or name. Default: your default sandbox."),
]
NamedSandbox = Annotated[str, Field(description="ID or name of the sandbox; list_sandboxes lists them.")]
InsidePath = Annotated[
    str,
    Field(description="Path in the sandbox: absolute, or relative to /workspace."),
]
User = Annotated[
    str | None,
    Field(description="User to act as in the sandbox, like root. Default: the image's user."),
]
ProcessId = Annotated[str, Field(description="ID of a process, from run, spawn or list_processes.")]
Characters = Annotated[
    int,
    Field(ge=100, le=MAX_SHOWN, description="Maximum number of characters to return."),
]
Command = Annotated[
    str | list[str],
    Field(description="A bash command line, or a list of arguments that is run without a shell."),
]
Env = Annotated[dict[str, str] | None, Field(description="Environment variables for this command.")]
Cwd = Annotated[
    str | None,
    Field(description="Working directory in the sandbox, absolute or below the default, the image's (/workspace)."),
]
