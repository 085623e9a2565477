"""/v1/replays: a sandbox in the state at the start of a trace. The client repeats the steps with other requests."""

from __future__ import annotations

from skerry.errors import Conflict, NotFound
from skerry.server.http.call import Call, Empty
from skerry.server.routes.sandboxes import key_of
from skerry.types import CreateRequest, Lifecycle, SandboxInfo
from skerry.types.replays import ReplayRequest


async def create(call: Call[Empty, ReplayRequest]) -> SandboxInfo:
    """Create the sandbox. A trace may come from elsewhere: everything that it asks for is checked like the request of
    any other caller."""
    body = call.body
    image = call.engine.snapshots.of_digest(call.caller, body.image_digest)
    if image is None:
        raise image_not_found(body)
    request = CreateRequest(
        image=image, env=body.env, limits=body.limits, network=body.network, options=body.options, secrets=body.secrets,
        lifecycle=Lifecycle(
            on_idle="stop" if body.keep else "delete", on_start=body.on_start,
            ready="" if body.ready is None else body.ready, ready_timeout=body.ready_timeout,
        ),
    )  # fmt: skip
    info = await call.engine.sandboxes.create(call.caller, request, key_of(call))
    if info.image_digest != body.image_digest:  # the name was given to another image meanwhile
        await call.engine.sandboxes.delete(call.caller, info.id)
        raise Conflict(f"image {image!r} was replaced", hint="try again")
    return info


def image_not_found(body: ReplayRequest) -> NotFound:
    name = body.image or "?"
    how = (
        "`skerry image build base` builds the one of this version"
        if name == "base"
        else f"`skerry image pull {name}`, or `skerry image import FILE` with an export of it; a snapshot: `skerry"
        " snapshot import FILE`"
    )
    return NotFound(
        f"image {name[:200]!r} with the digest {body.image_digest[:100]} not found",
        hint=how[:400],
        details={"image": name[:200], "digest": body.image_digest[:100]},
    )
