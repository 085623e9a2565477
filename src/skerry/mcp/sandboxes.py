"""create_sandbox, list_sandboxes, remove_sandbox, fork_sandbox, snapshot_sandbox, rollback_sandbox."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from skerry.client._async.sandbox import AsyncSandbox
from skerry.mcp.arguments import NamedSandbox, SandboxRef
from skerry.mcp.call import Call
from skerry.mcp.text import shown
from skerry.mcp.tool import changes, reads
from skerry.types import Limits, SandboxInfo, State

LISTED = 200


class SandboxState(BaseModel):
    sandbox: str = Field(description="Its id: what other tools take as `sandbox`.")
    name: str | None = None
    state: State
    reason: str | None = Field(default=None, description="Why it stopped or failed.")
    image: str
    default: bool = Field(default=False, description="It is meant where no sandbox is named.")
    cpus: float | None = None
    memory: str | None = None
    disk: str | None = None
    hint: str | None = None


class SandboxList(BaseModel):
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
    snapshot: str = Field(description="Its id: for rollback_sandbox, or as the image of create_sandbox.")
    name: str | None = None


async def create_sandbox(
    at: Call,
    name: Annotated[
        str | None,
        Field(description="Its name: small letters, digits, dots, dashes. A named one is never deleted by itself."),
    ] = None,
    image: Annotated[
        str | None, Field(description="What it starts from: an image, or a snapshot by id or name.")
    ] = None,
    cpus: Annotated[float | None, Field(gt=0, description="Processors, like 0.5 or 2.")] = None,
    memory: Annotated[str | None, Field(description="Like 512M or 4G.")] = None,
    disk: Annotated[str | None, Field(description="Like 10G.")] = None,
    env: Annotated[dict[str, str] | None, Field(description="Environment variables of all that runs in it.")] = None,
) -> SandboxState:
    """Make another sandbox: a Linux machine of its own, apart from the others and from the host. You need this only for
    more than one, for another image or other limits: a default sandbox is made for you when you first use a tool.

    Without a name it does not last: it goes when this connection ends, or at the end of its life. It has the network
    that the person gave, which is none as a rule."""
    made = await at.caller.create(name, **await _wishes(at, image, cpus, memory, disk, env))
    return _state(at, made.known).model_copy(update={"hint": f'give sandbox="{made.id}" to the other tools'})


async def list_sandboxes(at: Call) -> SandboxList:
    """List your sandboxes with their ids, names and states, and which of them is the default one."""
    found = [one.known for one in await AsyncSandbox.list(server=at.caller.client)]
    listed = [_state(at, info) for info in found[-LISTED:]]
    return SandboxList(sandboxes=listed, left_out=len(found) - len(listed))


async def remove_sandbox(at: Call, sandbox: NamedSandbox) -> Removed:
    """Delete a sandbox with all that is in it: its processes end, its files are gone. There is no way back."""
    place = await at.sandbox(sandbox)
    await place.delete()
    at.caller.forget(place.id)
    return Removed(sandbox=place.id)


async def fork_sandbox(
    at: Call,
    sandbox: SandboxRef = None,
    count: Annotated[int, Field(ge=1, le=20, description="How many.")] = 1,
) -> Forks:
    """Make new sandboxes that begin with the files of one as they are now, to try several ways at once. What runs in it
    is not copied, and it goes on untouched. They have no names, and go when this connection ends."""
    place = await at.sandbox(sandbox)
    forks = await place.fork(count)
    for fork in forks:
        at.caller.take(fork)
    return Forks(of=place.id, sandboxes=[_state(at, fork.known) for fork in forks])


async def snapshot_sandbox(
    at: Call,
    sandbox: SandboxRef = None,
    name: Annotated[str | None, Field(description="A name to find it by.")] = None,
) -> Snapshotted:
    """Keep the files of a sandbox as they are now, to come back to (rollback_sandbox) or to start others from
    (create_sandbox with it as the image). The sandbox goes on."""
    place = await at.sandbox(sandbox)
    made = await place.snapshot(name)
    return Snapshotted(sandbox=place.id, snapshot=made.id, name=made.name)


async def rollback_sandbox(
    at: Call,
    snapshot: Annotated[str, Field(description="Id or name of a snapshot of this sandbox.")],
    sandbox: SandboxRef = None,
) -> SandboxState:
    """Put the files of a sandbox back to what they were in a snapshot. What was written since is gone, and its
    processes end."""
    place = await at.sandbox(sandbox)
    await place.rollback(snapshot)
    return _state(at, place.known)


async def _wishes(
    at: Call,
    image: str | None,
    cpus: float | None,
    memory: str | None,
    disk: str | None,
    env: dict[str, str] | None,
) -> dict[str, Any]:
    terms = await at.caller.terms()
    wishes: dict[str, Any] = {} if image is None else {"image": image}
    limits = {name: value for name, value in (("cpus", cpus), ("memory", memory), ("disk", disk)) if value is not None}
    if limits:
        given: Limits = terms.get("limits", Limits())
        wishes["limits"] = Limits(**{**{name: getattr(given, name) for name in given.__struct_fields__}, **limits})
    if env:
        wishes["env"] = {**terms.get("env", {}), **env}
    return wishes


def _state(at: Call, info: SandboxInfo) -> SandboxState:
    limits = info.limits
    return SandboxState(
        sandbox=info.id, name=info.name, state=info.state, reason=info.reason and shown(info.reason),
        image=shown(info.image), default=at.caller.known_default == info.id, cpus=limits.cpus,
        memory=None if limits.memory is None else str(limits.memory),
        disk=None if limits.disk is None else str(limits.disk),
    )  # fmt: skip


TOOLS = (
    changes(create_sandbox, "Make a sandbox"),
    reads(list_sandboxes, "List sandboxes"),
    changes(remove_sandbox, "Delete a sandbox", destroys=True, again=True),
    changes(fork_sandbox, "Fork a sandbox"),
    changes(snapshot_sandbox, "Keep a sandbox's files"),
    changes(rollback_sandbox, "Go back to a snapshot", destroys=True, again=True),
)
