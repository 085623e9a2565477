"""serve, and server status, start, stop, logs, repair, backup, restore."""

from __future__ import annotations

import os
import time
from pathlib import Path
from threading import Event
from typing import Any, BinaryIO

import click
import msgspec

from skerry import extras
from skerry.cli import output
from skerry.cli.background import log_path, require_root, start_in_background
from skerry.cli.context import CliContext, json_option, pass_cli
from skerry.client.transport.local_server import listening
from skerry.codecs.text import escape
from skerry.config import Settings, load
from skerry.errors import NotFound, ServerUnreachable
from skerry.types import parse_span

STOP_TIMEOUT_S = 60.0


@click.command()
@click.option("--listen", metavar="HOST:PORT", help="Also listen on TCP; callers need a token. Default: server.listen.")
@click.option("--group", metavar="NAME", help="Allow this group to use the unix socket.")
@click.option("--state-dir", metavar="DIR", help="Store all data in this directory.")
@click.option("--log-file", metavar="FILE", help="Log to this file, bounded in size and age, instead of stderr.")
@click.option("--idle-exit", metavar="TIME", help="Exit after this time without a call and without a sandbox.")
@click.option(
    "--background", is_flag=True, help="Run in the background: return when the server is ready; it exits when idle."
)
def serve(background: bool, **given: Any) -> None:
    """Run the server in the foreground on a unix socket and, with --listen, on TCP."""
    extras.require("server")
    require_root()
    settings = load(flags={"state_dir": given["state_dir"]})
    if background:
        _start(settings, given["listen"], given["group"], given["idle_exit"])
        return
    from skerry.server.serve import serve as serve_forever  # other commands here do not need the engine

    idle = parse_span(given["idle_exit"], "--idle-exit") if given["idle_exit"] else None
    log_file = Path(given["log_file"]).absolute() if given["log_file"] else None
    serve_forever(
        settings, listen=given["listen"], group=given["group"], idle_exit=idle, log_file=log_file,
        ready=_print_addresses,
    )  # fmt: skip


def _print_addresses(addresses: Any) -> None:
    for address in addresses:
        output.info(f"listening on {address}")


def _start(
    settings: Settings, listen: str | None = None, group: str | None = None, idle_exit: str | None = None
) -> bool:
    extras.require("server")
    idle = parse_span(idle_exit or settings["server.idle_exit"], "--idle-exit")

    def serve_here(ready: Any) -> None:
        from skerry.server.serve import serve  # after the fork: the caller does not load the engine

        serve(settings, listen=listen, group=group, idle_exit=idle, log_file=log_path(settings), ready=ready)

    return start_in_background(settings, serve_here)


@click.group()
def server() -> None:
    """Manage the server of this host, or the one given by --server."""


@server.command()
@json_option
@pass_cli
def status(cli: CliContext, as_json: bool) -> int:
    """Show the server's process ID, address and uptime. The exit code is 1 if it is not running."""
    info = _info(cli)
    if info is None:
        if as_json:
            output.json({"running": False})
        else:
            output.info("the server is not running")
        return 1
    if as_json:
        output.json({"running": True, **info})
        return 0
    uptime = output.format_age(info.get("uptime_s", 0))
    shown = {**info, "uptime_s": None, "started_at": None, "uptime": uptime, "addresses": None}
    output.pairs((name, str(value)) for name, value in shown.items() if value is not None)
    return 0


def _info(cli: CliContext) -> dict[str, Any] | None:
    with cli.client() as client:
        if client.address.socket and not os.path.exists(client.address.socket):
            return None
        if client.address.own and client.address.socket and os.geteuid() == 0 and not listening(client.address.socket):
            return None
        return client.info()


@server.command()
@pass_cli
def start(cli: CliContext) -> None:
    """Start the server in the background."""
    started = _start(load())
    if not cli.quiet:
        output.info("started" if started else "already running")


@server.command()
@pass_cli
def stop(cli: CliContext) -> None:
    """Stop the server. Sandboxes keep running, and the next server takes them over."""
    with cli.client() as client:
        place = client.address.socket
        if place and not os.path.exists(place):
            if not cli.quiet:
                output.info("the server is not running")
            return
        pid = client.info().get("pid")
        client.stop()
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while (place and listening(place)) or (place and pid and Path(f"/proc/{pid}").exists()):
        if time.monotonic() > deadline:
            raise ServerUnreachable(
                f"the server is still running after {STOP_TIMEOUT_S:.0f} s", hint="see `skerry server logs`"
            )
        Event().wait(0.02)
    if not cli.quiet:
        output.info("stopped")


@server.command()
@click.option("-n", "--lines", default=100, show_default=True, metavar="N", help="Show the last N lines.")
@click.option("-f", "--follow", is_flag=True, help="Follow new lines.")
def logs(lines: int, follow: bool) -> None:
    """Show the log of the background server, one JSON object per line."""
    path = log_path(load())
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise NotFound(f"{path} not found", hint="the log of a service is in `journalctl -u skerry`") from error
    with file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - (1 << 20)))
        _print(b"\n".join(file.read().splitlines()[-lines:]) + b"\n")
        if follow:
            _follow(path, file)


def _follow(path: Path, file: BinaryIO) -> None:
    """Print new lines, also after the server has renamed the file and begun another."""
    while True:
        if piece := file.read(1 << 16):
            _print(piece)
        elif not path.exists() or os.path.samestat(path.stat(), os.fstat(file.fileno())):
            Event().wait(0.2)
        else:
            with path.open("rb") as newer:
                rest = file.read()  # lines that were written before the rename
                _print(rest)
                return _follow(path, newer)


def _print(data: bytes) -> None:
    """Print lines of the log, which may contain names from a sandbox."""
    click.echo(escape(data.decode("utf-8", "replace"), lines=True), nl=False)


# -- the database -----------------------------------------------------------------------------------------------------


@server.command()
@click.option("--dry-run", is_flag=True, help="List the repairs without making them.")
@click.option("--list", "only_list", is_flag=True, help="List quarantined data; the server may be running.")
@click.option("--purge", is_flag=True, help="Remove all quarantined data, including running sandboxes.")
@json_option
def repair(dry_run: bool, only_list: bool, purge: bool, as_json: bool) -> None:
    """Repair a damaged database from the record files beside the data. Stop the server first.

    The damaged database is kept as state.db.corrupt-TIME in the state directory."""
    require_root()
    from skerry.engine.repair import rebuild  # other commands here do not need the engine

    settings = load()
    report = rebuild.listing(settings) if only_list else rebuild.repair_now(settings, dry_run=dry_run, purge=purge)
    if as_json:
        output.json(msgspec.to_builtins(report))
        return
    for action in report.actions:
        output.info(f"{action.action} {action.kind} {action.id}" + (f": {action.detail}" if action.detail else ""))
    if not only_list and not report.actions:
        output.info("the database needs no repair")
    now = time.time()
    rows = [(one.kind, one.id, output.format_age(now - one.found_at), one.path or "") for one in report.quarantine]
    if rows or only_list:
        output.table(("KIND", "ID", "AGE", "PATH"), rows)


@server.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@json_option
def backup(file: Path, as_json: bool) -> None:
    """Write a backup of the database and the audit log to FILE, a tar archive. The server may be running."""
    require_root()
    from skerry.engine.repair.backup import back_up

    manifest = back_up(load(), file.absolute())
    if as_json:
        output.json(msgspec.to_builtins(manifest))
    else:
        output.info(f"wrote {file}: {manifest.objects} sandboxes, snapshots, reviews and tokens")


@server.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Restore beside existing data; the present database is kept aside.")
@json_option
def restore(file: Path, force: bool, as_json: bool) -> None:
    """Restore the database, and a lost audit log, from the backup FILE. Stop the server first."""
    require_root()
    from skerry.engine.repair.backup import restore as restore_now

    manifest = restore_now(load(), file.absolute(), force=force)
    if as_json:
        output.json(msgspec.to_builtins(manifest))
    else:
        output.info(f"restored {manifest.objects} sandboxes, snapshots, reviews and tokens")
