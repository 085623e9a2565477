"""`skerry`: the table of commands, signal handling, and exit codes for errors."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import traceback
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import FrameType
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from skerry._version import __version__
from skerry.cli import output, signals
from skerry.cli.context import CliContext
from skerry.client.host import progress
from skerry.errors import InvalidRequest, SkerryError


@dataclass(frozen=True)
class CommandEntry:
    """A command of the group: its name, its module and attribute, and its line in the help."""

    name: str
    module: str
    attribute: str
    help: str


@dataclass(frozen=True)
class Section:
    """Commands under one heading of the help."""

    heading: str
    entries: tuple[CommandEntry, ...]


class _Commands(MutableMapping[str, click.Command]):
    """The commands by name, imported on access. Listing the names imports nothing."""

    def __init__(self, entries: Sequence[CommandEntry]) -> None:
        self._entries = {entry.name: entry for entry in entries}
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            entry = self._entries[name]
            self._loaded[name] = getattr(import_module(entry.module), entry.attribute)
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        raise TypeError("add commands to the table of sections")

    def __delitem__(self, name: str) -> None:
        raise TypeError("remove commands from the table of sections")

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class LazyGroup(click.Group):
    """A group of the commands in `sections`, which are listed in that order under their headings."""

    def __init__(self, name: str | None = None, *, sections: Sequence[Section], **kwargs: Any) -> None:
        self.sections = tuple(sections)
        self._entries = [entry for section in self.sections for entry in section.entries]
        super().__init__(name, commands=_Commands(self._entries), **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and args[0] in SYNONYMS:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {SYNONYMS[args[0]]}?")
        found = super().resolve_command(ctx, args)
        signals.interrupts_work()  # the command is imported
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(len(entry.name) for entry in self._entries)
        for section in self.sections:
            with formatter.section(section.heading):
                formatter.write_dl([(entry.name.ljust(width), entry.help) for entry in section.entries])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [
            CompletionItem(entry.name, help=entry.help) for entry in self._entries if entry.name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]


# Names of other tools' commands, and the ones here.
SYNONYMS = {
    "build": "'image build'",
    "commit": "'snapshot create'",
    "delete": "'rm'",
    "destroy": "'rm'",
    "download": "'cp'",
    "enter": "'shell'",
    "images": "'image ls'",
    "info": "'show'",
    "inspect": "'show'",
    "list": "'ls'",
    "load": "'image import'",
    "log": "'logs'",
    "monitor": "'stats'",
    "new": "'create'",
    "port": "'expose'",
    "processes": "'ps'",
    "remove": "'rm'",
    "restart": "'stop', then 'resume'",
    "start": "'resume', or 'create' for a new sandbox",
    "status": "'show', or 'server status'",
    "top": "'stats', or 'ps'",
    "unpause": "'resume'",
    "upload": "'cp'",
    "version": "'--version'",
}


def _command(name: str, module: str, attribute: str, help_line: str) -> CommandEntry:
    return CommandEntry(name, f"skerry.cli.commands.{module}", attribute, help_line)


# Every command, in the order of the help. The module of a command is imported when the command is used.
SECTIONS = (
    Section("Run", (
        _command("run", "run", "run", "Run a command in a new sandbox and delete it afterwards."),
        _command("exec", "run", "exec_", "Run a command in a sandbox."),
        _command("shell", "shell.commands", "shell", "Open a terminal in a sandbox."),
        _command("ssh", "ssh", "ssh", "Open a sandbox with OpenSSH."),
        _command("ssh-config", "ssh", "ssh_config", "Print OpenSSH's configuration for sandboxes."),
        _command("attach", "shell.commands", "attach", "Attach to a running process."),
        _command("ps", "processes", "ps", "List the processes of a sandbox."),
        _command("logs", "processes", "logs", "Print the output of a process."),
        _command("wait", "processes", "wait", "Wait until a process ends."),
        _command("kill", "processes", "kill", "Send a signal to processes."),
        _command("cp", "files", "cp", "Copy files into or out of a sandbox."),
        _command("languages", "languages", "languages", "List the languages for running code."),
    )),
    Section("Agents", (
        _command("agent", "agent", "agent", "Run a coding agent on a copy of your repository."),
        _command("worker", "worker", "worker", "Run the tools of managed agents in sandboxes here."),
    )),
    Section("Sandboxes", (
        _command("create", "sandboxes", "create", "Create a sandbox."),
        _command("ls", "sandboxes", "ls", "List sandboxes."),
        _command("show", "sandboxes", "show", "Show a sandbox."),
        _command("stats", "stats", "stats", "Show the CPU, memory, disk and network use."),
        _command("rename", "sandboxes", "rename", "Rename a sandbox."),
        _command("update", "sandboxes", "update", "Change limits, variables, labels, lifecycle or budget."),
        _command("rm", "sandboxes", "rm", "Delete sandboxes and their files."),
        _command("undelete", "sandboxes", "undelete", "Restore the review of a deleted sandbox."),
        _command("prune", "sandboxes", "prune", "Delete stopped and failed sandboxes without a name."),
        _command("pause", "sandboxes", "pause", "Freeze the processes of sandboxes."),
        _command("resume", "sandboxes", "resume", "Resume paused or stopped sandboxes."),
        _command("stop", "sandboxes", "stop", "End the processes of sandboxes and keep their files."),
        _command("fork", "snapshots", "fork", "Fork a sandbox into copies with the same files."),
        _command("rollback", "snapshots", "rollback", "Restore a sandbox's files from a snapshot."),
        _command("events", "events", "events", "List events of sandboxes and processes."),
        _command("replay", "replay", "replay", "Run a trace again in a new sandbox and compare."),
        _command("usage", "usage", "usage", "Show the resources used and their cost."),
        _command("trace", "trace", "trace", "Show and export the steps of a sandbox."),
        _command("audit", "audit", "audit", "List, verify and export the audit log."),
        _command("budget", "budgets", "budget", "Manage budgets of labels and owners."),
    )),
    Section("Review", (
        _command("watch", "review", "watch", "Show changes as they happen."),
        _command("diff", "review", "diff", "Show the changes to your files as a patch."),
        _command("history", "review", "history", "List the changes of each command."),
        _command("review", "review", "review", "Review changes hunk by hunk."),
        _command("accept", "review", "accept", "Accept hunks by ID or by path."),
        _command("reject", "review", "reject", "Reject hunks and give a reason."),
        _command("dismiss", "review", "dismiss", "Reject hunks (alias of reject)."),
        _command("why", "review", "why", "Show the commands that produced a hunk."),
        _command("apply", "apply", "apply", "Apply accepted changes to the local working tree."),
        _command("undo", "apply", "undo", "Undo the last apply."),
        _command("pull", "pull", "pull", "Bring your later edits into a sandbox."),
        _command("compare", "compare", "compare", "Compare the changes of several sandboxes."),
    )),
    Section("Network", (
        _command("network", "network", "network", "Manage the network policy and show its log."),
        _command("expose", "previews", "expose", "Expose a port of a sandbox at a URL."),
        _command("preview", "previews", "preview", "List or revoke the previews of a sandbox."),
        _command("forward", "previews", "forward", "Forward local TCP ports to a sandbox."),
        _command("tunnel", "tunnel", "tunnel", "Make a port reachable on an SSH server of yours."),
    )),
    Section("Images", (
        _command("image", "images", "image", "Build, pull and manage images."),
        _command("snapshot", "snapshots", "snapshot", "Take and manage snapshots of sandboxes."),
        _command("volume", "volumes", "volume", "Create and manage volumes."),
    )),
    Section("Admin", (
        _command("server", "server", "server", "Start, stop and inspect the server."),
        _command("serve", "server", "serve", "Run the server in the foreground."),
        _command("setup", "setup", "setup", "Install the server as a service of this host."),
        _command("doctor", "doctor", "doctor", "Check which isolation this host supports."),
        _command("config", "config", "config", "Show the settings."),
        _command("trust", "trust", "trust", "Trust the skerry.toml of this project."),
        _command("secret", "secrets", "secret", "Manage your stored secrets for sandboxes."),
        _command("token", "tokens", "token", "Manage access tokens."),
        _command("webhook", "webhooks", "webhook", "List and test webhooks, and retry dead deliveries."),
        _command("pool", "pool", "pool", "Manage the pool of ready sandboxes."),
        _command("mcp", "mcp", "mcp", "Serve MCP on stdin and stdout, or set up a client."),
        _command("skill", "skill", "skill", "Teach a coding agent how to use Skerry."),
        _command("help", "help", "help_", "Show the help of a command."),
        _command("completion", "completion", "completion", "Print the completion script for a shell."),
    )),
)  # fmt: skip


@click.group(cls=LazyGroup, sections=SECTIONS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--server",
    metavar="ADDRESS",
    help="Connect to this server, as unix:///path or http://host:port. Default: the server of this host.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.version_option(__version__, package_name="skerry", message="skerry %(version)s")
@click.pass_context
def skerry(ctx: click.Context, server: str | None, quiet: bool) -> None:
    """Isolated Linux machines for AI agents.

    \b
    skerry run -- python3 -c 'print(6*7)'     run one command in a new sandbox
    skerry create --name dev                  create a sandbox that stays
    skerry exec dev -- bash -lc 'id'          run a command in it
    skerry shell dev                          open a terminal in it
    skerry run -it -- bash                    use a new sandbox in this terminal
    skerry create --repo . --name fix         create a sandbox with a copy of this repository
    skerry review fix; skerry apply fix       review its changes and apply the accepted hunks here

    Exit codes: the exit code of the command (128 + number after a signal, 124 after a timeout); 2 for an invalid
    request; 125 if a sandbox, the server or the host failed; 130 after Ctrl-C.
    """
    ctx.obj = CliContext(server=server, quiet=quiet)
    if quiet:
        progress.silence()


def run_and_exit() -> NoReturn:
    _fill_gaps()
    # A closed terminal and a plain `kill` end the program as Ctrl-C does, with clean-up in the sandbox.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _leave)
    code = output.EXIT_INTERRUPTED
    try:
        code = _run()
    except KeyboardInterrupt:  # pressed again, while the first one was handled
        pass
    finally:
        signals.ignore_interrupts()
    sys.exit(code)


def _fill_gaps() -> None:
    """Open /dev/null for a closed stdin, stdout or stderr, so that no connection to the server gets its number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _leave(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def _run() -> int:
    try:
        code = skerry.main(prog_name="skerry", standalone_mode=False)
    except SkerryError as error:
        output.error(error)
        return output.error_exit_code(error)
    except click.exceptions.NoArgsIsHelpError as error:
        output.info(error.format_message())
        return output.EXIT_INVALID
    except click.ClickException as error:
        if "--json" in itertools.takewhile(lambda word: word != "--", sys.argv):  # perhaps not parsed yet
            output.use_json_errors()
        usage = error.ctx.get_usage() + "\n" if isinstance(error, click.UsageError) and error.ctx else ""
        message = error.format_message().replace("\n\t", " ")  # click lists choices on lines that begin with a tab
        output.error(InvalidRequest(message), before=usage)
        return output.EXIT_INVALID
    except (click.Abort, KeyboardInterrupt):
        return output.EXIT_INTERRUPTED
    except OSError as error:
        output.error(InvalidRequest(str(error)))
        return output.EXIT_INVALID
    except Exception:
        details = {"traceback": traceback.format_exc()}
        failure = SkerryError("internal error; this is a bug in Skerry", details=details)
        output.error(failure, before=details["traceback"])
        return output.EXIT_FAILED
    return code if isinstance(code, int) else 0
