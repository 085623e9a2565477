"""create_sandbox, list_sandboxes, remove_sandbox, fork_sandbox, snapshot_sandbox, rollback_sandbox."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from skerry.errors import UnappliedChanges
from skerry.mcp.call import ToolCall
from skerry.mcp.text import escape
from skerry.mcp.tool import changes, reads
from skerry.mcp.tools.arguments import NamedSandbox, SandboxRef
from skerry.types import Limits, SandboxInfo, State

MAX_LISTED = 200


class SandboxState(BaseModel):
    sandbox: str = Field(description="The ID, for the `sandbox` argument of other tools.")
    name: str | None = None
    state: State
    reason: str | None = Field(default=None, description="Why it stopped or failed.")
    image: str
    default: bool = Field(default=False, description="Used by calls without a `sandbox` argument.")
    cpus: float | None = None
    memory: str | None = None
    disk: str | None = None
    hint: str | None = None


class ListedSandboxes(BaseModel):
    sandboxes: list[SandboxState]
    left_out: int = 0


class Removed(BaseModel):
    sandbox: str
    removed: bool = True


class Forks(BaseModel):
    of: str
    sandboxes: list[SandboxState]


class Snapshotted(BaseModel):
    sandbox: str
    snapshot: str = Field(description="The ID, for rollback_sandbox or as the image of create_sandbox.")
    name: str | None = None


async def create_sandbox(
    at: ToolCall,
    name: Annotated[
        str | None,
        Field(
            description="Lower-case letters, digits, dots, dashes. A named sandbox is never deleted automatically, but "
            "a later connection can use it only if the person configures that."
        ),
    ] = None,
    image: Annotated[str | None, Field(description="The image to start from, or a snapshot by ID or name.")] = None,
    cpus: Annotated[float | None, Field(gt=0, description="Number of CPUs, like 0.5 or 2.")] = None,
    memory: Annotated[str | None, Field(description="Memory limit, like 512M or 4G.")] = None,
    disk: Annotated[str | None, Field(description="Disk limit, like 10G.")] = None,
    env: Annotated[
        dict[str, str] | None, Field(description="Environment variables for all commands in the sandbox.")
    ] = None,
) -> SandboxState:
    """Create another sandbox: a Linux machine that is isolated from other sandboxes and from the host. You need
    this only for several sandboxes, another image or other limits: a default sandbox is created when you first
    use a tool.

    A sandbox without a name is deleted when this connection ends or at the end of its lifetime. It has the network
    access that the person configured, usually none."""
    if image is not None:
        await at.caller.check_image(image, at.access)
    made = await at.caller.create(name, **await _options(at, image, cpus, memory, disk, env))
    return _state(at, made.cached_info).model_copy(update={"hint": f'pass sandbox="{made.id}" to the other tools'})


async def list_sandboxes(at: ToolCall) -> ListedSandboxes:
    """List the sandboxes that you created or may use, with IDs, names and states, and mark the default sandbox."""
    found = [one.cached_info for one in await at.caller.sandboxes(at.access)]
    listed = [_state(at, info) for info in found[-MAX_LISTED:]]
    return ListedSandboxes(sandboxes=listed, left_out=len(found) - len(listed))


async def remove_sandbox(at: ToolCall, sandbox: NamedSandbox) -> Removed:
    """Delete a sandbox: end its processes and delete its files. Only the person can restore a part of it, for a while:
    changes under review that were not applied. A sandbox with changes that the person accepted and has not applied yet
    is not deleted."""
    place = await at.sandbox(sandbox)
    try:
        await place.delete()
    except UnappliedChanges as error:
        raise UnappliedChanges(
            error.message, hint=f"ask the person to apply them with `skerry apply {place.name or place.id}`"
        ) from error
    at.caller.forget(place.id)
    return Removed(sandbox=place.id)


async def fork_sandbox(
    at: ToolCall,
    sandbox: SandboxRef = None,
    count: Annotated[int, Field(ge=1, le=20, description="Number of copies.")] = 1,
) -> Forks:
    """Create new sandboxes with the current files of a sandbox, to try several approaches at once. Running
    processes are not copied, and the original continues unchanged. The copies have no names and are deleted when
    this connection ends."""
    place = await at.sandbox(sandbox)
    forks = await place.fork(count)
    for fork in forks:
        await at.caller.take(fork)
    return Forks(of=place.id, sandboxes=[_state(at, fork.cached_info) for fork in forks])


async def snapshot_sandbox(
    at: ToolCall,
    sandbox: SandboxRef = None,
    name: Annotated[str | None, Field(description="Name of the snapshot.")] = None,
) -> Snapshotted:
    """Take a snapshot of a sandbox's current files, to return to it (rollback_sandbox) or to start other
    sandboxes from it (as the image of create_sandbox). The sandbox keeps running."""
    place = await at.sandbox(sandbox)
    made = await place.snapshot(name)
    at.caller.take_snapshot(made.id)
    return Snapshotted(sandbox=place.id, snapshot=made.id, name=made.name)


async def rollback_sandbox(
    at: ToolCall,
    snapshot: Annotated[str, Field(description="ID or name of a snapshot of this sandbox.")],
    sandbox: SandboxRef = None,
) -> SandboxState:
    """Restore the files of a sandbox from a snapshot. Later changes are lost, and its processes end."""
    place = await at.sandbox(sandbox)
    await place.rollback(snapshot)
    return _state(at, place.cached_info)


async def _options(
    at: ToolCall,
    image: str | None,
    cpus: float | None,
    memory: str | None,
    disk: str | None,
    env: dict[str, str] | None,
) -> dict[str, Any]:
    defaults = await at.caller.sandbox_defaults()
    options: dict[str, Any] = {} if image is None else {"image": image}
    limits = {name: value for name, value in (("cpus", cpus), ("memory", memory), ("disk", disk)) if value is not None}
    if limits:
        given: Limits = defaults.get("limits", Limits())
        options["limits"] = Limits(**{**{name: getattr(given, name) for name in given.__struct_fields__}, **limits})
    if env:
        options["env"] = {**defaults.get("env", {}), **env}
    return options


def _state(at: ToolCall, info: SandboxInfo) -> SandboxState:
    limits = info.limits
    return SandboxState(
        sandbox=info.id, name=info.name, state=info.state, reason=info.reason and escape(info.reason),
        image=escape(info.image), default=at.caller.known_default == info.id, cpus=limits.cpus,
        memory=None if limits.memory is None else str(limits.memory),
        disk=None if limits.disk is None else str(limits.disk),
    )  # fmt: skip


TOOLS = (
    changes(create_sandbox, "Create a sandbox"),
    reads(list_sandboxes, "List sandboxes"),
    changes(remove_sandbox, "Delete a sandbox", destroys=True, again=True),
    changes(fork_sandbox, "Fork a sandbox"),
    changes(snapshot_sandbox, "Take a snapshot"),
    changes(rollback_sandbox, "Roll back to a snapshot", destroys=True, again=True),
)
