"""network_refused, expose_port: what a sandbox may not reach, and who may look into it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, Field

from skerry.mcp.arguments import SandboxRef
from skerry.mcp.call import Call
from skerry.mcp.text import in_one_line, shown
from skerry.mcp.tool import changes, reads
from skerry.types import Attempt

ATTEMPTS = 100
ASKED = 10  # hosts in the line that a person may use
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}|[0-9A-Fa-f:.]{2,45}")
_ASK = "No tool changes the policy. Ask the person, and say what it is for; they decide with: "


class Refusal(BaseModel):
    """One thing that was not reached. Host and path are what the program inside asked for."""

    host: str
    port: int | None = None
    method: str | None = None
    path: str | None = None
    process: str | None = Field(default=None, description="Who tried it.")
    why: str
    count: int = 1
    seq: int = Field(description="Its number: give the last one as `since` to see only newer ones.")


class NetworkRefused(BaseModel):
    sandbox: str
    allowed: list[str] = Field(description="The rules for what may be reached; none: nothing may.")
    denied: list[str] = Field(default=[], description="Rules for what may not, whatever else allows it.")
    refused: list[Refusal] = Field(description="What was tried and refused, oldest first, the newest hundred.")
    how_to_ask: str = Field(description="What a person would do to allow it.")


class Exposed(BaseModel):
    sandbox: str
    port: int
    url: str = Field(description="Where it is; a browser on the server's machine opens it.")
    link: str = Field(description="The URL with the token that opens it, if it needs one. Who has it can look.")
    public: bool
    expires: float | None = Field(
        default=None, description="Until when, as a Unix time; until it is taken back, if not given."
    )


async def network_refused(
    at: Call,
    sandbox: SandboxRef = None,
    since: Annotated[int, Field(ge=0, description="Only attempts after this number.")] = 0,
) -> NetworkRefused:
    """Show what the sandbox tried to reach on the network and was refused, what it may reach, and how to ask a person
    for more. Use it when a download, install or request fails: most sandboxes have no network until a person allows
    it, name by name."""
    place = await at.sandbox(sandbox)
    policy = (await place.network.show()).network
    refused = [attempt async for attempt in place.network.log(since=since, denied=True, limit=ATTEMPTS)]
    hosts = " ".join(list(dict.fromkeys(map(_rule, refused)))[-ASKED:]) or "HOST"
    return NetworkRefused(
        sandbox=place.id,
        allowed=[*policy.allow, *(f"preset {_name(preset)}" for preset in policy.presets)],
        denied=list(policy.deny),
        refused=refusals(refused),
        how_to_ask=f"{_ASK}`skerry network allow {place.id} {hosts}`",
    )


async def expose_port(
    at: Call,
    port: Annotated[int, Field(ge=1, le=65535, description="The port that a program inside listens on.")],
    sandbox: SandboxRef = None,
    expires: Annotated[
        str | None, Field(description='How long, like "1h"; until the sandbox goes, if left out.')
    ] = None,
) -> Exposed:
    """Give a port of the sandbox a URL, so that a person can look at what is served there. Start the server first
    (spawn). The link has a token in it; only who has that gets in. The same port again gives the same URL."""
    place = await at.sandbox(sandbox)
    preview = await place.expose(port, expires=expires)
    return Exposed(
        sandbox=place.id, port=preview.port, url=preview.url, link=preview.link, public=preview.public,
        expires=preview.expires,
    )  # fmt: skip


def refusals(attempts: Iterable[Attempt]) -> list[Refusal]:
    return [
        Refusal(
            host=in_one_line(one.host), port=one.port, method=one.method, path=one.path and in_one_line(one.path),
            process=one.process, why=shown(one.why), count=one.count, seq=one.seq,
        )
        for one in attempts
    ]  # fmt: skip


def _rule(attempt: Attempt) -> str:
    """What a person would allow. Only what can be a host's name gets into a line that they may paste."""
    host = attempt.host if _HOST.fullmatch(attempt.host) else "HOST"
    return host if attempt.port in (None, 80, 443) else f"{host}:{attempt.port}"


def _name(preset: object) -> str:
    return preset if isinstance(preset, str) else str(getattr(preset, "name", preset))


TOOLS = (
    reads(network_refused, "What the network refused"),
    changes(expose_port, "Show a port by URL", again=True, outside=True),
)
