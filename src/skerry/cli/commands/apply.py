"""apply, undo: accepted changes in the local working tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from skerry.cli import output
from skerry.cli.commands.review import dir_option, exclude_option, paths_argument, report_generated
from skerry.cli.context import CliContext, json_option, pass_cli, sandbox_argument
from skerry.client.apply.session import undo_without_server
from skerry.client.apply.target_dir import find_target
from skerry.codecs.text import escape
from skerry.errors import CommandFailed, Conflict, NotFound
from skerry.types import ApplyResult
from skerry.types.values import decode_path

if TYPE_CHECKING:
    from skerry.client.results.command import Output

EXIT_HELD_BACK = 3
EXIT_CONFLICT = 4
EXIT_CHECK_FAILED = 5
_SHOWN = 50


@click.command()
@click.option(
    "--all", "everything", is_flag=True, help="Accept all open hunks first, except risky ones and generated files."
)
@exclude_option
@click.option(
    "--check",
    metavar="COMMAND",
    help="Run this command first, in a fork with only the accepted changes; apply if it succeeds.",
)
@click.option("--commit", is_flag=True, help="Commit the changes, with their origin in the message.")
@click.option("--branch", metavar="NAME", help="Commit to this branch without changing local files.")
@click.option("--patch", is_flag=True, help="Print the changes as a patch for `git apply` and exit.")
@click.option("--dry-run", is_flag=True, help="Show the planned changes; write and accept nothing.")
@dir_option
@json_option
@sandbox_argument
@paths_argument
@pass_cli
def apply(
    cli: CliContext, /, sandbox: str, paths: tuple[str, ...], exclude: tuple[str, ...], everything: bool,
    check: str | None, commit: bool, branch: str | None, patch: bool, dry_run: bool, to: str, as_json: bool,
) -> int:  # fmt: skip
    """Apply accepted changes to the local working tree, all or nothing; `skerry undo` reverts them.

    PATHs are files and directories of the workspace. Default: all accepted changes.

    Exit codes: 3 if --all skipped hunks that are flagged as risky and applied the rest; 4 after a conflict and 5 after
    a failed check: in both cases nothing was written.
    """
    target = cli.sandbox(sandbox)
    if patch:
        if everything or exclude or check or commit or branch or dry_run or as_json:
            raise click.UsageError("--patch cannot be combined with other options")
        output.write("stdout", target.review.patch(paths))
        return 0
    try:
        done = target.review.apply(
            to, paths=paths, check=check, commit=commit, branch=branch, all=everything, exclude=exclude,
            dry_run=dry_run, on_output=_show, on_notice=output.info,
        )  # fmt: skip
    except Conflict as error:
        return report_conflict(error, as_json)
    except CommandFailed as error:
        if not error.details.get("check"):
            raise
        if as_json and error.result is not None:
            output.json({"checked": output.result_data(error.result)})
        output.error(error)
        return EXIT_CHECK_FAILED
    if as_json:
        output.json(done)
    else:
        _report(cli, done, sandbox, paths, branch, dry_run=dry_run)
    for hunk in done.held_back[:_SHOWN]:
        output.info(
            f"left out: {escape(hunk.path)}: {escape(', '.join(hunk.risk))}: `skerry accept {sandbox} {hunk.id}`"
        )
    if len(done.held_back) > _SHOWN:
        output.info(f"left out: {len(done.held_back) - _SHOWN} more")
    report_generated(sandbox, done.generated)
    return EXIT_HELD_BACK if done.held_back else 0


@click.command()
@dir_option
@json_option
@sandbox_argument
@pass_cli
def undo(cli: CliContext, sandbox: str, to: str, as_json: bool) -> int:
    """Undo the last apply of a sandbox in the local working tree.

    If those lines have changed since, nothing is undone and the exit code is 4. Commits stay: no history is
    rewritten.
    """
    try:
        done = _undo(cli, sandbox, to)
    except Conflict as error:
        return report_conflict(error, as_json)
    if as_json:
        output.json(done)
        return 0
    for file in done.files:
        output.line(f"{file.how} {decode_path(file.path, file.raw_path)}")
    if done.branch is not None:
        output.info(f"branch {done.branch} is not changed")
    elif done.commit is not None:
        output.info(f"commit {done.commit[:12]} is kept; your working tree is as before it")
    if not cli.quiet:
        output.info(_undo_summary(done))
    return 0


def _undo(cli: CliContext, sandbox: str, to: str) -> ApplyResult:
    try:
        return cli.sandbox(sandbox).review.undo(to, on_notice=output.info)
    except NotFound:
        try:
            return undo_without_server(find_target(to), sandbox)
        except Conflict as error:
            if error.details:
                raise
        raise  # neither the sandbox nor a record of an apply exists


def _show(piece: Output) -> None:
    output.write("stderr", piece.data)


def report_conflict(error: Conflict, as_json: bool) -> int:
    """Print the paths that are in the way and return the exit code. Raise any other error."""
    if "conflicts" not in error.details:
        raise error
    if as_json:
        output.json({"conflicts": error.details["conflicts"]})
    output.error(error)
    return EXIT_CONFLICT


def _report(
    cli: CliContext, done: ApplyResult, sandbox: str, paths: tuple[str, ...], branch: str | None, *, dry_run: bool
) -> None:
    for file in done.files:
        output.line(f"{file.how} {decode_path(file.path, file.raw_path)}")
    if cli.quiet:
        return
    if not done.hunks:
        where = f" in {escape(', '.join(paths[:3]))}" if paths else ""
        output.info(f"no accepted changes{where}; `skerry review {sandbox}` shows the open ones")
    elif dry_run:
        output.info(f"{_count(done)} would change; nothing was written")
    elif done.branch is not None and done.commit is not None:
        output.info(f"committed on {done.branch}: {done.commit[:12]}")
    elif branch is not None and done.commit is None:
        output.info(f"nothing to commit: {branch} (or HEAD, for a new branch) has all of it already")
    else:
        if done.commit is not None:
            output.info(f"committed: {done.commit[:12]}")
        output.info(f"{_count(done)} changed; `skerry undo {sandbox}` reverts it")


def _undo_summary(done: ApplyResult) -> str:
    if any(file.how != "same" for file in done.files):
        return f"{_count(done)} restored"
    return "no other file was restored" if done.notes else "no file had to be changed"


def _count(done: ApplyResult) -> str:
    number = sum(file.how != "same" for file in done.files)
    return f"{number} files" if number != 1 else "1 file"
