"""setup: the server as a systemd service with a socket for a group, so that others than root can have sandboxes."""

from __future__ import annotations

import grp
import os
import shlex
import subprocess
import sys
from pathlib import Path

import click

from skerry.cli import talk
from skerry.cli.background import require_root
from skerry.errors import HostUnsupported

GROUP = "skerry"
UNIT = Path("/etc/systemd/system/skerry.service")


@click.command(short_help="Make the server a service of this host.")
@click.option("--print", "only_print", is_flag=True, help="Only show the unit and the commands.")
@click.option("--yes", is_flag=True, help="Don't ask.")
def setup(only_print: bool, yes: bool) -> int:
    """Make the server a service of this host, usable by the group `skerry`."""
    command = [sys.executable, "-P", "-m", "skerry", "serve", "--group", GROUP]
    unit = unit_file(command)
    steps = commands(os.environ.get("SUDO_USER"))
    if only_print:
        click.echo(f"# {UNIT}\n{unit}\n# then:\n" + "\n".join(shlex.join(step) for step in steps))
        return 0
    require_root()
    if not Path("/run/systemd/system").is_dir():
        raise HostUnsupported(
            "this host does not run systemd",
            hint=f"have your own supervisor run: {shlex.join(command)}",
        )
    talk.say(f"This writes {UNIT}:\n\n{unit}\nand runs:\n" + "\n".join("  " + shlex.join(step) for step in steps))
    if not talk.confirm("Go on?", yes=yes):
        return 1
    _do(unit, steps)
    talk.say("done: members of the group skerry can use it after their next login")
    return 0


def unit_file(command: list[str]) -> str:
    """Delegate: the cgroups below the service are ours. KillMode=process: sandboxes outlive the server."""
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
        steps.append(["usermod", "--append", "--groups", GROUP, user])
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


def _do(unit: str, steps: list[list[str]]) -> None:
    UNIT.write_text(unit)
    UNIT.chmod(0o644)
    for step in steps:
        done = subprocess.run(step, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
        if done.returncode:
            raise HostUnsupported(
                f"`{shlex.join(step)}` ended with {done.returncode}", hint="mend it and run this again"
            )
