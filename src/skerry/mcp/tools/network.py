"""network_denied, expose_port: denied connections, and previews."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, Field

from skerry.mcp.call import ToolCall
from skerry.mcp.text import escape, one_line
from skerry.mcp.tool import changes, reads
from skerry.mcp.tools.arguments import SandboxRef
from skerry.types import NetworkAttempt

MAX_ATTEMPTS = 100
MAX_HOSTS = 10  # in the command for the person
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}|[0-9A-Fa-f:.]{2,45}")
_ASK = "No tool changes the policy. Ask the person and state the purpose; the person allows it with: "


class DeniedAttempt(BaseModel):
    """One denied network attempt. Host and path come from the program in the sandbox."""

    host: str
    port: int | None = None
    method: str | None = None
    path: str | None = None
    process: str | None = Field(default=None, description="ID of the process that made the attempt.")
    why: str
    count: int = 1
    seq: int = Field(description="Sequence number: pass the last one as `since` to get only newer attempts.")


class DeniedAttempts(BaseModel):
    sandbox: str
    allowed: list[str] = Field(description="Allow rules; empty: every connection is denied.")
    deny_rules: list[str] = Field(default=[], description="Deny rules, which win over allow rules.")
    attempts: list[DeniedAttempt] = Field(description="The newest 100 denied attempts, oldest first.")
    how_to_ask: str = Field(description="How a person can allow it.")


class Exposed(BaseModel):
    sandbox: str
    port: int
    url: str = Field(description="The URL; a browser on the server's machine opens it.")
    link: str = Field(description="The URL with its token, if it needs one. Every holder of the link has access.")
    public: bool
    expires: float | None = Field(default=None, description="Expiry as a Unix time; missing: valid until revoked.")


async def network_denied(
    at: ToolCall,
    sandbox: SandboxRef = None,
    since: Annotated[int, Field(ge=0, description="Only attempts after this number.")] = 0,
) -> DeniedAttempts:
    """List denied network attempts of the sandbox, the network rules, and how to ask a person for more access.
    Use it when a download, install or request fails: most sandboxes have no network until a person allows each
    host."""
    place = await at.sandbox(sandbox)
    policy = (await place.network.show()).network
    attempts = [attempt async for attempt in place.network.log(since=since, denied=True, limit=MAX_ATTEMPTS)]
    hosts = " ".join(list(dict.fromkeys(map(_rule, attempts)))[-MAX_HOSTS:]) or "HOST"
    return DeniedAttempts(
        sandbox=place.id,
        allowed=[*policy.allow, *(f"preset {_name(preset)}" for preset in policy.presets)],
        deny_rules=list(policy.deny),
        attempts=denied_attempts(attempts),
        how_to_ask=f"{_ASK}`skerry network allow {place.id} {hosts}`",
    )


async def expose_port(
    at: ToolCall,
    port: Annotated[int, Field(ge=1, le=65535, description="The port that a program in the sandbox listens on.")],
    sandbox: SandboxRef = None,
    expires: Annotated[
        str | None, Field(description='Lifetime, like "1h". Default: until the sandbox is deleted.')
    ] = None,
) -> Exposed:
    """Expose a port of the sandbox at a URL, so that a person can open it. Start the server first (spawn). The
    link contains a token that grants access. Exposing the same port again returns the same URL."""
    place = await at.sandbox(sandbox)
    preview = await place.expose(port, expires=expires)
    return Exposed(
        sandbox=place.id, port=preview.port, url=preview.url, link=preview.link, public=preview.public,
        expires=preview.expires,
    )  # fmt: skip


def denied_attempts(attempts: Iterable[NetworkAttempt]) -> list[DeniedAttempt]:
    return [
        DeniedAttempt(
            host=one_line(one.host), port=one.port, method=one.method, path=one.path and one_line(one.path),
            process=one.process, why=escape(one.why), count=one.count, seq=one.seq,
        )
        for one in attempts
    ]  # fmt: skip


def _rule(attempt: NetworkAttempt) -> str:
    """Return a rule for the person to allow. Only valid host names are included, because the person may paste the
    line."""
    host = attempt.host if _HOST.fullmatch(attempt.host) else "HOST"
    return host if attempt.port in (None, 80, 443) else f"{host}:{attempt.port}"


def _name(preset: object) -> str:
    return preset if isinstance(preset, str) else str(getattr(preset, "name", preset))


TOOLS = (
    reads(network_denied, "List denied network attempts"),
    changes(expose_port, "Expose a port", again=True, outside=True),
)
