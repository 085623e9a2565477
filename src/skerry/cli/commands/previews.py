"""expose, preview ls, preview show, preview rm, forward."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from skerry.cli import output
from skerry.cli.context import CliContext, json_option, pass_cli, sandbox_argument
from skerry.client.transport.requests import previews
from skerry.errors import InvalidRequest, SkerryError
from skerry.types import PreviewInfo, SandboxInfo, check_port

if TYPE_CHECKING:
    from skerry.client._sync.previews import Preview

_PORTS = re.compile(r"(?:(?:\[([0-9A-Fa-f:.]+)\]|([0-9]+\.[0-9.]+|localhost|\*)):)?([0-9]{1,5})(?::([0-9]{1,5}))?")


@click.command()
@click.option("--name", metavar="NAME", help="Use a name in the URL. Default: the port.")
@click.option("--public", is_flag=True, help="Allow access without a token.")
@click.option("--expires", metavar="TIME", help="Revoke the preview after this time, like 1h. Default: never.")
@click.option("--token-env", metavar="VARIABLE", help="Take the token from this variable. Default: a random token.")
@json_option
@sandbox_argument
@click.argument("port", type=int)
@pass_cli
def expose(
    cli: CliContext,
    sandbox: str,
    port: int,
    name: str | None,
    public: bool,
    expires: str | None,
    token_env: str | None,
    as_json: bool,
) -> None:
    """Expose a port of a sandbox at a URL and print the link.

    The link contains a token and works for every holder. Exposing the same port again changes the options of the same
    preview.
    """
    token = _token(token_env)
    preview = cli.sandbox(sandbox).expose(port, name=name, public=public, expires=expires, token=token)
    if as_json:
        output.json(_data(preview))
    else:
        output.line(preview.link)


def _token(variable: str | None) -> str | None:
    if variable is None:
        return None
    if variable not in os.environ:
        raise InvalidRequest(f"--token-env: {variable[:80]} is not set", hint=f"export {variable[:80]}=…")
    return os.environ[variable]


@click.group()
def preview() -> None:
    """Manage the previews of a sandbox."""


@preview.command()
@json_option
@sandbox_argument
@pass_cli
def ls(cli: CliContext, sandbox: str, as_json: bool) -> None:
    """List a sandbox's previews with their links."""
    found = cli.sandbox(sandbox).previews.list()
    if as_json:
        output.json([_data(one) for one in found])
    else:
        output.table(("PORT", "NAME", "ACCESS", "EXPIRES", "LINK"), map(_row, found))


@preview.command()
@json_option
@sandbox_argument
@click.argument("place", metavar="PORT|NAME")
@pass_cli
def show(cli: CliContext, sandbox: str, place: str, as_json: bool) -> None:
    """Show one preview with its link."""
    found = cli.sandbox(sandbox).previews.get(_place(place))
    if as_json:
        output.json(_data(found))
    else:
        output.table(("PORT", "NAME", "ACCESS", "EXPIRES", "LINK"), [_row(found)])


@preview.command()
@sandbox_argument
@click.argument("place", metavar="[PORT|NAME]", required=False)
@pass_cli
def rm(cli: CliContext, sandbox: str, place: str | None) -> None:
    """Revoke one preview or all previews of a sandbox and close their open connections."""
    found = cli.sandbox(sandbox)
    if place is None:
        for one in found.previews.list():
            one.revoke()
    else:
        port = _place(place)
        found.client.request(
            previews.revoke(found.id, port if isinstance(port, int) else found.previews.get(port).port)
        )


def _place(text: str) -> int | str:
    """Return the port or the name of a preview; a name begins with a letter."""
    return int(text) if text.isascii() and text.isdecimal() else text


def _data(preview: Preview) -> dict[str, object]:
    return {**output.plain(preview.info), "link": preview.link}


def _row(preview: Preview) -> tuple[str, ...]:
    info: PreviewInfo = preview.info
    left = "-" if info.expires is None else f"in {output.format_age(info.expires - time.time())}"
    return str(info.port), info.name or "-", "public" if info.public else "token", left, preview.link


@dataclass(frozen=True)
class PortMapping:
    """A local address and a port of the sandbox."""

    bind: str
    local: int
    remote: int


@click.command()
@sandbox_argument
@click.argument("ports", nargs=-1, required=True, metavar="[[BIND:]LOCAL:]REMOTE...")
@pass_cli
def forward(cli: CliContext, sandbox: str, ports: tuple[str, ...]) -> None:
    """Forward local TCP ports to ports of a sandbox.

    \b
    skerry forward dev 8000               forward 127.0.0.1:8000 to port 8000 of the sandbox
    skerry forward dev 5432:5433 8000     forward two ports; 0:8000 uses any free local port
    skerry forward dev 0.0.0.0:8000:80    also accept connections from other machines

    Each address is printed when it is ready. Ctrl-C ends forwarding.
    """
    from skerry.cli import asyncio_run  # asyncio takes a moment to load, and no other command here needs it

    pairs = [_pair(text) for text in ports]
    found = cli.sandbox(sandbox).cached_info
    with contextlib.suppress(KeyboardInterrupt):
        asyncio_run.run(_forward(cli, found, pairs))


def _pair(text: str) -> PortMapping:
    match = _PORTS.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"{text[:80]!r} is not a port mapping", hint="like 8000, 8000:3000 or 127.0.0.1:8000:3000")
    bind = match[1] or {"localhost": "127.0.0.1", "*": "0.0.0.0"}.get(match[2] or "", match[2]) or "127.0.0.1"  # noqa: S104
    try:
        bind = str(ipaddress.ip_address(bind))
    except ValueError:
        raise InvalidRequest(f"{bind!r} is not an IP address", hint="example: 127.0.0.1:8000:3000") from None
    local, remote = int(match[3]), int(match[4] or match[3])
    for port in (remote, local or remote):
        check_port(port)
    return PortMapping(bind, local, remote)


async def _forward(cli: CliContext, sandbox: SandboxInfo, pairs: list[PortMapping]) -> None:
    import asyncio

    from skerry.client._async.client import AsyncClient
    from skerry.client._async.forward import AsyncForward
    from skerry.client._async.sandbox import AsyncSandbox

    async with AsyncClient(cli.server) as client, contextlib.AsyncExitStack() as stack:
        inside = AsyncSandbox._of(sandbox, client, shared=True)
        for pair in pairs:
            reporter = ErrorReporter(cli)
            one = AsyncForward(inside, pair.remote, local=pair.local, bind=pair.bind, on_error=reporter.report)
            await stack.enter_async_context(one)
            host = f"[{one.host}]" if ":" in one.host else one.host
            output.line(f"{host}:{one.port} -> {pair.remote}")
        await asyncio.Event().wait()


class ErrorReporter:
    """Prints an error once, not for every connection."""

    def __init__(self, cli: CliContext) -> None:
        self._cli = cli
        self._last = ""

    def report(self, error: SkerryError) -> None:
        if error.message != self._last and not self._cli.quiet:
            self._last = error.message
            output.error(error)
