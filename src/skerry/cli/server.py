"""serve, and server status, start, stop, logs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from threading import Event
from typing import Any

import click

from skerry.cli import talk
from skerry.cli.background import log_path, require_root, start_in_background
from skerry.cli.session import Session, json_option, pass_session
from skerry.client.harmless import harmless
from skerry.config import Settings, load
from skerry.errors import NotFound, ServerUnreachable
from skerry.types import parse_span

STOPPED_WITHIN = 60.0


@click.command(short_help="Serve this host's sandboxes.")
@click.option("--listen", metavar="HOST:PORT", help="Also on TCP, where a token is required.")
@click.option("--group", metavar="NAME", help="A group of this host that may use the unix socket.")
@click.option("--state-dir", metavar="DIR", help="Where everything is kept.")
@click.option("--idle-exit", metavar="TIME", help="Leave after this long with no call and no sandbox.")
@click.option("--background", is_flag=True, help="Come back once it listens; it leaves again when idle.")
def serve(background: bool, **given: Any) -> None:
    """Serve this host's sandboxes: on a unix socket, and on TCP if asked to."""
    require_root()
    settings = load(flags={"state_dir": given["state_dir"]})
    if background:
        _start(settings, given["listen"], given["group"], given["idle_exit"])
        return
    from skerry.server.serve import serve as serve_until_told

    idle = parse_span(given["idle_exit"], "--idle-exit") if given["idle_exit"] else None
    serve_until_told(settings, listen=given["listen"], group=given["group"], idle_exit=idle, ready=_say_addresses)


def _say_addresses(addresses: Any) -> None:
    for address in addresses:
        talk.say(f"listening on {address}")


def _start(
    settings: Settings, listen: str | None = None, group: str | None = None, idle_exit: str | None = None
) -> bool:
    idle = parse_span(idle_exit or settings["server_idle_exit"], "--idle-exit")

    def serve_here(ready: Any) -> None:
        from skerry.server.serve import serve

        serve(settings, listen=listen, group=group, idle_exit=idle, log_file=log_path(settings), ready=ready)

    return start_in_background(settings, serve_here)


@click.group()
def server() -> None:
    """The server of this host, or the one that --server names."""


@server.command()
@json_option
@pass_session
def status(session: Session, as_json: bool) -> int:
    """Show the server: pid, address, uptime. Exit code 1 if there is none."""
    info = _info(session)
    if info is None:
        if as_json:
            talk.give_json({"running": False})
        else:
            talk.say("no server runs")
        return 1
    if as_json:
        talk.give_json({"running": True, **info})
        return 0
    uptime = talk.ago(info.get("uptime_s", 0))
    shown = {**info, "uptime_s": None, "started_at": None, "uptime": uptime, "addresses": None}
    talk.give_pairs((name, str(value)) for name, value in shown.items() if value is not None)
    return 0


def _info(session: Session) -> dict[str, Any] | None:
    from skerry.client.local import listening

    with session.client() as client:
        if client.address.socket and not os.path.exists(client.address.socket):
            return None
        if client.address.own and client.address.socket and os.geteuid() == 0 and not listening(client.address.socket):
            return None
        return client.info()


@server.command()
@pass_session
def start(session: Session) -> None:
    """Start the server in the background."""
    started = _start(load())
    if not session.quiet:
        talk.say("started" if started else "it runs already")


@server.command()
@pass_session
def stop(session: Session) -> None:
    """Stop the server. Sandboxes live on, and the next server takes them over."""
    from skerry.client.local import listening

    with session.client() as client:
        place = client.address.socket
        if place and not os.path.exists(place):
            if not session.quiet:
                talk.say("no server runs")
            return
        pid = client.info().get("pid")
        client.stop()
    deadline = time.monotonic() + STOPPED_WITHIN
    while (place and listening(place)) or (place and pid and Path(f"/proc/{pid}").exists()):
        if time.monotonic() > deadline:
            raise ServerUnreachable(
                f"the server is still there after {STOPPED_WITHIN:.0f} s", hint="`skerry server logs`"
            )
        Event().wait(0.02)
    if not session.quiet:
        talk.say("stopped")


@server.command()
@click.option("-n", "--lines", default=100, show_default=True, metavar="N", help="How many of the last lines.")
@click.option("-f", "--follow", is_flag=True, help="Go on as more comes.")
def logs(lines: int, follow: bool) -> None:
    """Show what the background server wrote, one JSON object a line."""
    path = log_path(load())
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise NotFound(f"{path}: there is none yet", hint="a service's log is in `journalctl -u skerry`") from error
    with file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - (1 << 20)))
        _give(b"\n".join(file.read().splitlines()[-lines:]) + b"\n")
        while follow:
            if piece := file.read(1 << 16):
                _give(piece)
            else:
                Event().wait(0.2)


def _give(data: bytes) -> None:
    """Lines of the log, in which names from inside may stand."""
    click.echo(harmless(data.decode("utf-8", "replace"), lines=True), nl=False)
