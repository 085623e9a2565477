"""apply, unapply: what was accepted, in the working tree here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from skerry.cli import talk
from skerry.cli.review.commands import paths_argument
from skerry.cli.session import Session, json_option, pass_session, sandbox_argument
from skerry.client.harmless import harmless
from skerry.errors import CommandFailed, Conflict, NotFound
from skerry.types import Applied
from skerry.types.values import real_path

if TYPE_CHECKING:
    from skerry.client.outcome import Output

HELD_BACK = 3
IN_THE_WAY = 4
CHECK_FAILED = 5
_SHOWN = 50
_to = click.option("--to", metavar="DIR", callback=lambda _, __, given: os.path.abspath(given) if given else ".",
                   help="Another directory than the one that the sandbox was made of.")  # fmt: skip


@click.command()
@click.option("--all", "everything", is_flag=True, help="Accept all that is open first, but for what is flagged.")
@click.option("--check", metavar="COMMAND", help="Must succeed first, in a fork with what was accepted alone.")
@click.option("--commit", is_flag=True, help="Commit it too, with where it came from.")
@click.option("--branch", metavar="NAME", help="Only commit it, on that branch; no file here is touched.")
@click.option("--patch", is_flag=True, help="Only print it, as a patch that `git apply` takes.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be done.")
@_to
@json_option
@sandbox_argument
@paths_argument
@pass_session
def apply(
    session: Session, /, sandbox: str, paths: tuple[str, ...], everything: bool, check: str | None, commit: bool,
    branch: str | None, patch: bool, dry_run: bool, to: str, as_json: bool,
) -> int:  # fmt: skip
    """Land accepted changes in the working tree here, all or nothing; `skerry unapply` takes them back.

    PATHs are files and directories of the workspace; without them, all that is accepted.

    Exit codes: 3 if --all left out what is flagged with a risk, and applied the rest; 4 if something stood in the way,
    and 5 if the check failed: then nothing was written.
    """
    target = session.sandbox(sandbox)
    if patch:
        if everything or check or commit or branch or dry_run or as_json:
            raise click.UsageError("--patch only prints what is accepted: it goes with no other option")
        talk.show("stdout", target.review.patch(paths))
        return 0
    try:
        done = target.review.apply(
            to, paths=paths, check=check, commit=commit, branch=branch, all=everything, dry_run=dry_run,
            on_output=_show, on_notice=talk.say,
        )  # fmt: skip
    except Conflict as error:
        return _in_the_way(error, as_json)
    except CommandFailed as error:
        if not error.details.get("check"):
            raise
        talk.say_error(error)
        return CHECK_FAILED
    if as_json:
        talk.give_json(done)
    else:
        _tell(session, done, sandbox, paths, branch, dry_run=dry_run)
    for hunk in done.held_back[:_SHOWN]:
        talk.say(
            f"left out: {harmless(hunk.path)}: {harmless(', '.join(hunk.risk))}: `skerry accept {sandbox} {hunk.id}`"
        )
    if len(done.held_back) > _SHOWN:
        talk.say(f"left out: {len(done.held_back) - _SHOWN} more")
    return HELD_BACK if done.held_back else 0


@click.command()
@_to
@json_option
@sandbox_argument
@pass_session
def unapply(session: Session, sandbox: str, to: str, as_json: bool) -> int:
    """Take the last apply of a sandbox back, from the working tree here.

    Refused, with exit code 4, where those lines were changed since. Commits stay: no history is rewritten.
    """
    try:
        done = _undone(session, sandbox, to)
    except Conflict as error:
        return _in_the_way(error, as_json)
    if as_json:
        talk.give_json(done)
        return 0
    for file in done.files:
        talk.give_text(f"{file.how} {real_path(file.path, file.raw_path)}")
    if done.branch is not None:
        talk.say(f"branch {done.branch} stays as it is")
    elif done.commit is not None:
        talk.say(f"commit {done.commit[:12]} stays; your working tree is as before it")
    if not session.quiet:
        talk.say(_taken_back(done))
    return 0


def _undone(session: Session, sandbox: str, to: str) -> Applied:
    try:
        return session.sandbox(sandbox).review.undo(to, on_notice=talk.say)
    except NotFound:
        from skerry.client.applying.place import find
        from skerry.client.applying.work import undo_here

        try:
            return undo_here(find(to), sandbox)
        except Conflict as error:
            if error.details:
                raise
        raise  # there is no such sandbox, and nothing of one


def _show(output: Output) -> None:
    talk.show("stderr", output.data)


def _in_the_way(error: Conflict, as_json: bool) -> int:
    if "conflicts" not in error.details:
        raise error
    if as_json:
        talk.give_json({"conflicts": error.details["conflicts"]})
    talk.say_error(error)
    return IN_THE_WAY


def _tell(
    session: Session, done: Applied, sandbox: str, paths: tuple[str, ...], branch: str | None, *, dry_run: bool
) -> None:
    for file in done.files:
        talk.give_text(f"{file.how} {real_path(file.path, file.raw_path)}")
    if session.quiet:
        return
    if not done.hunks:
        where = f" in {harmless(', '.join(paths[:3]))}" if paths else ""
        talk.say(f"nothing is accepted{where}; `skerry review {sandbox}` goes through what is open")
    elif dry_run:
        talk.say(f"{_count(done)} would change; nothing was written")
    elif done.branch is not None and done.commit is not None:
        talk.say(f"committed on {done.branch}: {done.commit[:12]}")
    elif branch is not None and done.commit is None:
        talk.say(f"nothing was committed: {branch}, or HEAD where it is new, has all of it already")
    else:
        if done.commit is not None:
            talk.say(f"committed: {done.commit[:12]}")
        talk.say(f"{_count(done)} changed; `skerry unapply {sandbox}` takes that back")


def _taken_back(done: Applied) -> str:
    if any(file.how != "same" for file in done.files):
        return f"{_count(done)} taken back"
    return "nothing else was taken back" if done.notes else "no file here had to change for it"


def _count(done: Applied) -> str:
    number = sum(file.how != "same" for file in done.files)
    return f"{number} files" if number != 1 else "1 file"
