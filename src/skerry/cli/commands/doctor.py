"""doctor: check the isolation that this host supports, and name the command that fixes a missing part."""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import socket
from pathlib import Path
from typing import Any

import click

from skerry.cli import output
from skerry.cli.commands.setup import add_member
from skerry.cli.context import CliContext, json_option, pass_cli
from skerry.config import load, socket_path
from skerry.engine.doctor import examine
from skerry.types import Check

_MARKS = {True: "ok", False: "MISSING", None: "?"}


@click.command()
@json_option
@pass_cli
def doctor(cli: CliContext, as_json: bool) -> int:
    """Check this host: supported isolation, missing parts and fixes. The exit code is 125 if sandboxes cannot run.

    A user other than root gets the checks of the host's server; if that is not possible, the way to get access, and
    the checks that do not require root.
    """
    checks = _checks(cli)
    ok = all(check["ok"] is not False for check in checks)
    if as_json:
        output.json({"ok": ok, "checks": checks})
    else:
        output.table(("", "CHECK", "FOUND"), ((_MARKS[c["ok"]], c["name"], c["detail"]) for c in checks))
        for check in checks:
            if check["ok"] is not True and check["fix"]:
                output.info(f"hint: {check['name']}: {check['fix']}")
    return 0 if ok else output.EXIT_FAILED


def _checks(cli: CliContext) -> list[dict[str, Any]]:
    """Ask the server that this user uses. Root needs none: root's checks are complete without it."""
    settings = load()
    if cli.server or settings["server"]:
        with cli.client() as client:
            return list(client.doctor()["checks"])
    if os.geteuid() == 0:
        return [_row(check) for check in examine(settings)]
    server = _server_check(socket_path(settings.state_dir))
    if not server.ok:
        return [_row(check) for check in (server, *examine(settings))]
    with cli.client() as client:
        return [_row(server), *client.doctor()["checks"]]


def _row(check: Check) -> dict[str, Any]:
    return {"name": check.name, "ok": check.ok, "detail": check.detail, "fix": check.fix}


def _server_check(place: Path) -> Check:
    """Check whether this user can use the host's server without being root."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(5)
        try:
            probe.connect(str(place))
        except PermissionError:
            return Check("server", False, "running, but this user is not allowed to use it", access_fix(place))
        except OSError:
            return Check("server", False, "not running", "sudo skerry setup installs it as a service for other users")
    return Check("server", True, f"running at unix://{place}; this user is allowed to use it")


def access_fix(place: Path) -> str:
    """Return what gives this user access to the socket."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
        group = grp.getgrgid(place.stat().st_gid)
    except (OSError, KeyError):
        return "sudo skerry setup"
    if group.gr_gid == 0:
        return "sudo skerry setup installs it as a service for the members of a group"
    if user in group.gr_mem:
        return f"log in again: you are a member of the group {group.gr_name}, but this session began before"
    return f"sudo {shlex.join(add_member(user, group.gr_name))}; then log in again"
