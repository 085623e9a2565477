"""setup: install the server as a systemd service with a socket for a group, so that users other than root can use
it."""

from __future__ import annotations

import grp
import os
import shlex
import subprocess
import sys
from pathlib import Path

import click

from skerry import extras
from skerry.cli import output
from skerry.cli.background import require_root
from skerry.errors import HostUnsupported

GROUP = "skerry"
UNIT = Path("/etc/systemd/system/skerry.service")


@click.command()
@click.option("--print", "only_print", is_flag=True, help="Print the unit and the commands without running them.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def setup(only_print: bool, yes: bool) -> int:
    """Install the server as a service of this host, usable by the group `skerry`."""
    command = [sys.executable, "-P", "-m", "skerry", "serve", "--group", GROUP]
    unit = unit_file(command)
    steps = commands(os.environ.get("SUDO_USER"))
    if only_print:
        click.echo(f"# {UNIT}\n{unit}\n# then:\n" + "\n".join(shlex.join(step) for step in steps))
        click.echo(f"# for each user of the server:\n{_FOR_EACH}")
        return 0
    extras.require("server")
    require_root()
    if not Path("/run/systemd/system").is_dir():
        raise HostUnsupported(
            "this host does not run systemd",
            hint=f"`groupadd --system {GROUP}`, then run this command with your supervisor: {shlex.join(command)}\n"
            f"for each user of the server: {_FOR_EACH}",
        )
    output.info(f"This writes {UNIT}:\n\n{unit}\nand runs:\n" + "\n".join("  " + shlex.join(step) for step in steps))
    if not output.confirm("Continue?", yes=yes):
        return 1
    _install(unit, steps)
    output.info(f"done: members of the group {GROUP} can use the server after their next login")
    output.info(f"to add one: {_FOR_EACH}")
    return 0


def add_member(user: str, group: str) -> list[str]:
    return ["usermod", "--append", "--groups", group, user]


_FOR_EACH = f"sudo {shlex.join(add_member('USER', GROUP))}"


def unit_file(command: list[str]) -> str:
    """Return the systemd unit. Delegate gives the server the cgroups below the service; KillMode=process lets sandboxes
    outlive the server."""
    quoted = " ".join('"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"' for word in command)
    return f"""\
[Unit]
Description=Skerry: sandboxes for AI agents
After=network.target local-fs.target

[Service]
Type=exec
ExecStart={quoted}
Delegate=yes
DelegateSubgroup=server
KillMode=process
Restart=on-failure
LimitNOFILE=1048576
TasksMax=infinity

[Install]
WantedBy=multi-user.target
"""


def commands(user: str | None) -> list[list[str]]:
    steps = [] if _group_exists() else [["groupadd", "--system", GROUP]]
    if user and user != "root":
        steps.append(add_member(user, GROUP))
    return [
        *steps,
        [sys.executable, "-P", "-m", "skerry", "server", "stop"],
        ["systemctl", "daemon-reload"],
        ["systemctl", "enable", "--now", "skerry.service"],
    ]


def _group_exists() -> bool:
    try:
        grp.getgrnam(GROUP)
    except KeyError:
        return False
    return True


def _install(unit: str, steps: list[list[str]]) -> None:
    UNIT.write_text(unit)
    UNIT.chmod(0o644)
    for step in steps:
        done = subprocess.run(step, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
        if done.returncode:
            raise HostUnsupported(
                f"`{shlex.join(step)}` failed with exit code {done.returncode}",
                hint="fix the cause and run `skerry setup` again",
            )
