"""`skerry`: the commands, and what becomes of their failures."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from types import FrameType
from typing import NoReturn

import click

from skerry._version import __version__
from skerry.cli import (
    apply,
    archives,
    compare,
    completion,
    doctor,
    events,
    files,
    images,
    languages,
    mcp,
    mcp_install,
    network,
    pool,
    previews,
    processes,
    run,
    sandboxes,
    server,
    settings,
    setup,
    snapshots,
    talk,
    terminals,
    tokens,
)
from skerry.cli.review import commands as changes
from skerry.cli.review import deciding
from skerry.cli.session import Session
from skerry.errors import SkerryError


class InOrder(click.Group):
    """Commands are listed as they stand below, the most used first."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=InOrder, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--server", metavar="ADDRESS", help="unix:///path or http://host:port; this host's own if left out.")
@click.option("-q", "--quiet", is_flag=True, help="No talk but errors.")
@click.version_option(__version__, package_name="skerry", message="skerry %(version)s")
@click.pass_context
def skerry(ctx: click.Context, server: str | None, quiet: bool) -> None:
    """Isolated Linux machines for AI agents.

    \b
    skerry run -- python3 -c 'print(6*7)'     one command in a sandbox of its own
    skerry create --name dev                  a sandbox that stays
    skerry exec dev -- bash -lc 'id'          a command in it
    skerry shell dev                          a terminal in it
    skerry create --repo . --name fix         a copy of this repository to work on
    skerry review fix; skerry apply fix       what changed there, hunk by hunk; only what you accept lands here

    Exit codes: those of the command inside (a signal: 128 + its number; a time-out: 124); 2 if what was asked for can't
    be; 125 if a sandbox, server or host failed; 130 after Ctrl-C.
    """
    ctx.obj = Session(server=server, quiet=quiet)
    if quiet:
        from skerry.client import progress

        progress.silence()


for command in (
    run.run, run.exec_, terminals.shell, terminals.attach,
    sandboxes.create, sandboxes.ls, sandboxes.show, sandboxes.update, sandboxes.rm, sandboxes.prune,
    sandboxes.stop, sandboxes.resume, sandboxes.pause,
    deciding.watch, changes.diff, changes.history, deciding.review, deciding.accept, deciding.reject, deciding.dismiss,
    changes.why,
    snapshots.fork, snapshots.rollback, snapshots.snapshot,
    apply.apply, apply.unapply, compare.compare,
    previews.expose, previews.previews, previews.forward,
    files.cp, processes.ps, processes.logs, processes.wait, processes.kill, network.network, events.events,
    languages.languages, images.image, pool.pool, tokens.token, server.server, server.serve, mcp.mcp,
    doctor.doctor, setup.setup, settings.config, completion.completion,
):  # fmt: skip
    skerry.add_command(command)
archives.add(snapshots.snapshot, images.image)
mcp.mcp.add_command(mcp_install.install)


def run_and_exit() -> NoReturn:
    _fill_gaps()
    # A terminal that closes and a plain `kill` end as Ctrl-C does: what was begun inside is ended and cleared.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _leave)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    sys.exit(_run())


def _fill_gaps() -> None:
    """A closed stdin, stdout or stderr: its number must not become that of our connection to the server."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _leave(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def _interrupt(_: int, __: FrameType | None) -> None:
    """The first Ctrl-C ends what was begun; the second is only answered, so that the clean-up is not cut short."""
    signal.signal(signal.SIGINT, _insist)
    raise KeyboardInterrupt


def _insist(_: int, __: FrameType | None) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    talk.say("clearing up; once more leaves at once")


def _run() -> int:
    try:
        code = skerry.main(prog_name="skerry", standalone_mode=False)
    except SkerryError as error:
        talk.say_error(error)
        return talk.code_of_error(error)
    except click.exceptions.NoArgsIsHelpError as error:
        talk.say(error.format_message())
        return talk.CALLER_ERRED
    except click.ClickException as error:
        usage = error.ctx.get_usage() + "\n" if isinstance(error, click.UsageError) and error.ctx else ""
        message = error.format_message().replace("\n\t", " ")  # choices stand one a line, behind tabs
        talk.say(f"{usage}error: {message}")
        return talk.CALLER_ERRED
    except (click.Abort, KeyboardInterrupt):
        return talk.INTERRUPTED
    except OSError as error:
        talk.say(f"error: {error}")
        return talk.CALLER_ERRED
    except Exception:
        talk.say(f"{traceback.format_exc()}error: this should not have happened, and is ours to mend")
        return talk.WE_FAILED
    return code if isinstance(code, int) else 0
