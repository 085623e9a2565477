"""expose, previews ls and rm, forward."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from skerry.cli import talk
from skerry.cli.session import Session, json_option, pass_session, sandbox_argument
from skerry.errors import InvalidRequest, SkerryError
from skerry.types import PreviewInfo, SandboxInfo, check_port

if TYPE_CHECKING:
    from skerry.client._sync.previews import Preview

_PORTS = re.compile(r"(?:(?:\[([0-9A-Fa-f:.]+)\]|([0-9]+\.[0-9.]+|localhost|\*)):)?([0-9]{1,5})(?::([0-9]{1,5}))?")


@click.command()
@click.option("--public", is_flag=True, help="No token is needed.")
@click.option("--expires", metavar="TIME", help="After so long, like 1h; never if left out.")
@json_option
@sandbox_argument
@click.argument("port", type=int)
@pass_session
def expose(session: Session, sandbox: str, port: int, public: bool, expires: str | None, as_json: bool) -> None:
    """Show what listens on a port inside by URL.

    The link that is printed has the token in it: who has the link can look. The same port again is the same preview,
    with the new terms.
    """
    preview = session.sandbox(sandbox).expose(port, public=public, expires=expires)
    if as_json:
        talk.give_json(_data(preview))
    else:
        talk.give_text(preview.link)


@click.group()
def previews() -> None:
    """The ports that are shown by URL."""


@previews.command()
@json_option
@sandbox_argument
@pass_session
def ls(session: Session, sandbox: str, as_json: bool) -> None:
    """List a sandbox's previews, with the links that open them."""
    found = session.sandbox(sandbox).previews.list()
    if as_json:
        talk.give_json([_data(preview) for preview in found])
    else:
        talk.give_table(("PORT", "WHO", "EXPIRES", "LINK"), map(_row, found))


@previews.command()
@sandbox_argument
@click.argument("port", type=int, required=False)
@pass_session
def rm(session: Session, sandbox: str, port: int | None) -> None:
    """Revoke a preview, or all of a sandbox's. Who is looking is put out."""
    found = session.sandbox(sandbox)
    if port is None:
        for preview in found.previews.list():
            preview.revoke()
    else:
        from skerry.client import preview_requests

        found.client.done(preview_requests.revoke(found.id, port))


def _data(preview: Preview) -> dict[str, object]:
    return {**talk.plain(preview.info), "link": preview.link}


def _row(preview: Preview) -> tuple[str, ...]:
    info: PreviewInfo = preview.info
    left = "-" if info.expires is None else f"in {talk.ago(info.expires - time.time())}"
    return str(info.port), "everyone" if info.public else "by token", left, preview.link


@dataclass(frozen=True)
class Pair:
    bind: str
    local: int
    remote: int


@click.command()
@sandbox_argument
@click.argument("ports", nargs=-1, required=True, metavar="[[BIND:]LOCAL:]REMOTE...")
@pass_session
def forward(session: Session, sandbox: str, ports: tuple[str, ...]) -> None:
    """Lead ports of this machine to ports inside, TCP as it is.

    \b
    skerry forward dev 8000               127.0.0.1:8000 leads to port 8000 inside
    skerry forward dev 5432:5433 8000     two at once; 0:8000 takes any port that is free here
    skerry forward dev 0.0.0.0:8000:80    also for others who can reach this machine

    Each is printed as it listens. Ctrl-C ends it.
    """
    from skerry.cli import loop  # asyncio takes a moment to load, and no other command here needs it

    pairs = [_pair(text) for text in ports]
    found = session.sandbox(sandbox).known
    with contextlib.suppress(KeyboardInterrupt):
        loop.run(_forward(session, found, pairs))


def _pair(text: str) -> Pair:
    match = _PORTS.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"{text[:80]!r} names no ports", hint="like 8000, 8000:3000 or 127.0.0.1:8000:3000")
    bind = match[1] or {"localhost": "127.0.0.1", "*": "0.0.0.0"}.get(match[2] or "", match[2]) or "127.0.0.1"  # noqa: S104
    try:
        bind = str(ipaddress.ip_address(bind))
    except ValueError:
        raise InvalidRequest(f"{bind!r} is not an IP address", hint="like 127.0.0.1:8000:3000") from None
    local, remote = int(match[3]), int(match[4] or match[3])
    for port in (remote, local or remote):
        check_port(port)
    return Pair(bind, local, remote)


async def _forward(session: Session, sandbox: SandboxInfo, pairs: list[Pair]) -> None:
    import asyncio

    from skerry.client._async.client import AsyncClient
    from skerry.client._async.forward import AsyncForward
    from skerry.client._async.sandbox import AsyncSandbox

    async with AsyncClient(session.server) as client, contextlib.AsyncExitStack() as stack:
        inside = AsyncSandbox._of(sandbox, client, shared=True)
        for pair in pairs:
            told = Told(session)
            one = AsyncForward(inside, pair.remote, local=pair.local, bind=pair.bind, on_error=told.tell)
            await stack.enter_async_context(one)
            host = f"[{one.host}]" if ":" in one.host else one.host
            talk.give_text(f"{host}:{one.port} -> {pair.remote}")
        await asyncio.Event().wait()


class Told:
    """Says what goes wrong once, not for every connection."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._last = ""

    def tell(self, error: SkerryError) -> None:
        if error.message != self._last and not self._session.quiet:
            self._last = error.message
            talk.say_error(error)
