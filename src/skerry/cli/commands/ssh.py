"""ssh, ssh-config: OpenSSH for sandboxes."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from typing import NoReturn

import click

from skerry import extras
from skerry.cli import output
from skerry.cli.context import CliContext, SandboxName, pass_cli
from skerry.client.host.ssh_keys import UserKeys, ssh_options
from skerry.client.transport.requests import sandboxes
from skerry.errors import HostUnsupported, InvalidRequest
from skerry.types import NAME, SANDBOX_ID, SandboxInfo

SUFFIX = ".skerry"
_agent_option = click.option(
    "-A", "--forward-agent", "agent", is_flag=True, help="Let programs inside use your SSH agent. Default: never."
)


@click.command(context_settings={"allow_interspersed_args": False})
@_agent_option
@click.option("--stdio", is_flag=True, help="Serve an SSH client on stdin and stdout: OpenSSH's ProxyCommand.")
@click.argument("sandbox", type=SandboxName(), metavar="[USER@]SANDBOX")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[SSH OPTIONS] [COMMAND...]")
@pass_cli
def ssh(cli: CliContext, sandbox: str, words: tuple[str, ...], agent: bool, stdio: bool) -> None:
    """Open SANDBOX with OpenSSH's `ssh`: a shell, or COMMAND. USER is by default the image's user.

    \b
    skerry ssh dev                              open a shell
    skerry ssh root@dev -- apt-get update       run a command as root
    skerry ssh dev -L 8000:localhost:8000 -N    forward a port

    The image needs no SSH server, and no port is opened. `skerry ssh-config` sets up scp, rsync, git and editors.
    """
    extras.require("ssh")
    if stdio:
        _serve(cli, sandbox, agent=agent)
        return
    user, at, name = sandbox.rpartition("@")
    _check_name(name)
    options = dict(_options(cli, f"{name}{SUFFIX}", agent=agent))
    if at:
        options["User"] = user
    given = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    if words[:1] == ("--",):
        words = words[1:]
    _execute(["ssh", *given, f"{name}{SUFFIX}", *words])


def _serve(cli: CliContext, host: str, *, agent: bool) -> None:
    from skerry.cli import asyncio_run

    name = host.removesuffix(SUFFIX)
    _check_name(name)
    asyncio_run.run(_login(cli, name, agent=agent))


async def _login(cli: CliContext, name: str, *, agent: bool) -> None:
    from skerry.client._async.client import AsyncClient
    from skerry.client.ssh import LoginOptions, serve  # asyncssh takes a moment to load

    async with AsyncClient(cli.server) as client:
        found = await client.request_json(sandboxes.get(name), SandboxInfo)
        await serve(client, found.id, UserKeys(), LoginOptions(agent=agent))


def _check_name(name: str) -> None:
    """Reject a text that is neither a name nor an ID before it becomes a part of a command line."""
    if not (NAME.fullmatch(name) or SANDBOX_ID.fullmatch(name)):
        raise InvalidRequest(f"{name[:80]!r} is not the name of a sandbox", hint="`skerry ls` lists sandboxes")


def _options(cli: CliContext, name: str, *, agent: bool) -> list[tuple[str, str]]:
    keys = UserKeys()
    keys.prepare()
    return list(ssh_options(keys, _proxy_command(cli, name, agent=agent), agent=agent))


def _proxy_command(cli: CliContext, name: str, *, agent: bool) -> str:
    """Return the ProxyCommand, which the user's shell runs. `%h` is the only word that OpenSSH replaces."""
    words = [*_program(), *(["--server", cli.server] if cli.server else []), "ssh", "--stdio"]
    words += ["-A"] if agent else []
    quoted = shlex.join(words).replace("%", "%%")
    if "\n" in quoted or "\r" in quoted:
        raise InvalidRequest("OpenSSH cannot read a line break in a ProxyCommand", hint="move the installation")
    return f"{quoted} -- {name}"


def _program() -> list[str]:
    """Return the words that start this program from any directory."""
    here = shutil.which(sys.argv[0]) if os.path.basename(sys.argv[0]) == "skerry" else None
    return [os.path.abspath(here)] if here else [sys.executable, "-m", "skerry"]


def _execute(words: list[str]) -> NoReturn:
    program = shutil.which(words[0])
    if program is None:
        raise HostUnsupported(f"{words[0]} is not installed here", hint="install openssh-client")
    sys.stdout.flush()
    os.execv(program, words)  # noqa: S606 - OpenSSH takes over this process and its terminal


@click.command("ssh-config")
@_agent_option
@click.argument("names", nargs=-1, type=SandboxName(), metavar="[SANDBOX...]")
@pass_cli
def ssh_config(cli: CliContext, names: tuple[str, ...], agent: bool) -> None:
    """Print the lines for ~/.ssh/config that make `ssh NAME.skerry` work for every sandbox, or for each SANDBOX.

    \b
    skerry ssh-config >> ~/.ssh/config
    ssh dev.skerry uname -a
    scp report.csv dev.skerry:/workspace/
    rsync -a src/ dev.skerry:src/

    Editors list hosts with a name: `skerry ssh-config dev >> ~/.ssh/config`.
    """
    extras.require("ssh")
    for name in names:
        _check_name(name)
    blocks = [(f"{name}{SUFFIX}", f"{name}{SUFFIX}") for name in names] or [(f"*{SUFFIX}", "%h")]
    for host, target in blocks:
        output.line(f"Host {host}")
        for key, value in _options(cli, target, agent=agent):
            output.line(f"    {key} {value}")
