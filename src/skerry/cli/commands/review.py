"""diff, history, why, watch, review, accept, reject: show changes and decide about them."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from skerry.cli import output, terminal
from skerry.cli.context import (
    CliContext,
    SandboxName,
    json_lines_option,
    json_option,
    known_names,
    pass_cli,
    sandbox_argument,
    sandboxes_argument,
)
from skerry.cli.review import external, labels
from skerry.cli.review import patch as patches
from skerry.cli.review.escape import escape_name, spans
from skerry.cli.review.file_rows import patch_rows, stat_rows
from skerry.cli.review.rows import Layout, fold, hunk_rows, truncate
from skerry.cli.review.screen import stdout_encoding
from skerry.cli.review.style import Row, Style, detect_colours, encode, paint_lines, styled
from skerry.client.transport.requests import review as review_requests
from skerry.client.transport.requests.review import workspace_paths
from skerry.errors import Conflict, InvalidRequest, SkerryError
from skerry.types import (
    HUNK_ID,
    DecisionResult,
    Decisions,
    DeletedSandbox,
    DiffStat,
    GeneratedFiles,
    Hunk,
    HunkOrigin,
    HunkState,
    LedgerEntry,
    Review,
)

if TYPE_CHECKING:
    from skerry.client._sync.sandbox import Sandbox

EXIT_HELD_BACK = 3
WIDTH = 4000  # columns without a terminal: the reader of a pipe or a file wraps lines itself
MAX_OUTPUT_LINES = 200  # of each command
MAX_OUTPUT_LINE = 2000
MAX_LISTED = 8
MAX_FAILED = 3
_LIKE_AN_ID = re.compile(r"h-[0-9a-f]*")


class HunkName(click.ParamType[str]):
    """A hunk of the preceding sandbox argument; the shell completes IDs, paths, or both."""

    name = "hunk"

    def __init__(self, *, ids: bool = True, paths: bool = False) -> None:
        self._ids, self._paths = ids, paths

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        cli, sandbox = CliContext(server=ctx.find_root().params.get("server")), ctx.params.get("sandbox")
        found: dict[str, str | None] = {}
        for hunk in known_hunks(cli, sandbox) if isinstance(sandbox, str) else ():
            is_plain = hunk.path.isascii() and hunk.path.isprintable() and " " not in hunk.path
            if self._ids:
                found[hunk.id] = f"{hunk.path} {hunk.state}" if is_plain else hunk.state
            if is_plain and self._paths:
                found.setdefault(hunk.path, None)
        return [
            click.shell_completion.CompletionItem(name, help=text)
            for name, text in found.items()
            if name.startswith(incomplete)
        ]


def known_hunks(cli: CliContext, sandbox: str) -> tuple[Hunk, ...]:
    """Return hunks for shell completion."""
    if sandbox not in known_names(cli):
        return ()
    try:
        return cli.sandbox(sandbox).review.changes().hunks
    except SkerryError:
        return ()


def unapplied_summary(sandbox: Sandbox) -> str:
    """Count a sandbox's changes that exist only in the sandbox; return "" if it has no review or no such changes."""
    try:
        states = Counter(hunk.state for hunk in sandbox.review.changes().hunks)
    except SkerryError:
        return ""
    known = [f"{states[state]} {state}" for state in ("accepted", "open") if states[state]]
    words = "change that was" if states["accepted"] + states["open"] == 1 else "changes that were"
    return f"{' and '.join(known)} {words} not applied" if known else ""


dir_option = click.option(
    "--dir", "to", metavar="DIR", callback=lambda _, __, given: os.path.abspath(given) if given else ".",
    help="Use this directory. Default: the directory that the sandbox was created from.",
)  # fmt: skip
paths_argument = click.argument("paths", nargs=-1, type=HunkName(ids=False, paths=True), metavar="[PATH]...")
exclude_option = click.option("--exclude", multiple=True, metavar="GLOB", help="Leave out files that match this glob.")
pager_option = click.option("--no-pager", is_flag=True, help="Print without a pager.")

# -- printing ---------------------------------------------------------------------------------------------------------


def stdout_layout() -> Layout:
    is_terminal = terminal.is_terminal(1)
    return Layout(terminal.size().cols if is_terminal else WIDTH, ink=detect_colours(terminal=is_terminal) == 256)


def print_rows(rows: Iterable[Row], *, no_pager: bool) -> bool:
    """Print rows to stdout: coloured and paged at a terminal, plain elsewhere. Return False if `rows` is empty."""
    is_terminal = terminal.is_terminal(1)
    colours = detect_colours(terminal=is_terminal)
    remaining = iter(rows)
    first = next(remaining, None)
    if first is None:
        return False
    chunks = (encode(paint_lines([row], colours), stdout_encoding()) for row in chain([first], remaining))
    words = external.pager() if is_terminal and not no_pager else None
    if words is not None:
        external.page(chunks, words)
    else:
        for chunk in chunks:
            output.write_raw("stdout", chunk)
    return True


# -- diff, history, why -----------------------------------------------------------------------------------------------


@click.command()
@click.option("--stat", is_flag=True, help="Show only file names and line counts.")
@pager_option
@json_option
@sandbox_argument
@paths_argument
@pass_cli
def diff(cli: CliContext, sandbox: str, paths: tuple[str, ...], stat: bool, no_pager: bool, as_json: bool) -> None:
    """Show the changes in SANDBOX to your files as a patch: all changes, or those below PATH.

    At a terminal the patch is coloured and paged. In a file or a pipe it is a plain patch that `git apply` accepts.
    Lines at the top that begin with `# skerry:` name changes that a patch cannot contain.
    """
    target = cli.sandbox(sandbox)
    if as_json:
        review = target.review
        output.json(review.diff(paths=paths, stat=True) if stat else review.changes(paths=paths))
    elif stat:
        print_rows(stat_rows_of(target.review.diff(paths=paths, stat=True)), no_pager=no_pager)
    else:
        with target.client.stream(review_requests.diff(target.id, workspace_paths(paths))) as chunks:
            if terminal.is_terminal(1):
                if not print_rows(patch_rows(patches.split_lines(chunks), stdout_layout()), no_pager=no_pager):
                    output.info("no changes")
            else:
                for chunk in chunks:
                    output.write_raw("stdout", chunk)


def stat_rows_of(found: DiffStat) -> Iterator[Row]:
    """Render the changed files with their line counts."""
    yield from stat_rows(found.files, stdout_layout())
    for one in found.left_out:
        path = escape_name(one.raw_path if one.raw_path is not None else one.path)
        yield (styled(f" left out: {path}: {escape_name(one.reason)}", "risk"),)
    for group in found.generated:
        yield (styled(f" left out: {escape_name(group.path)}: {group.files} generated files", "dim"),)
    if found.trouble:
        yield (styled(f" the latest changes are missing here: {escape_name(found.trouble)}", "risk"),)


@click.command()
@click.option("-p", "--patch", is_flag=True, help="Show the patch of each command.")
@click.option(
    "-n", "--limit", type=click.IntRange(1, 1000), default=1000, metavar="N", help="Show only the newest N entries."
)
@pager_option
@json_option
@sandbox_argument
@paths_argument
@pass_cli
def history(cli: CliContext, /, sandbox: str, paths: tuple[str, ...], patch: bool, **given: Any) -> None:
    """List the commands in SANDBOX with their outcome and changes, oldest first.

    With PATH, list only commands that changed files there."""
    found = cli.sandbox(sandbox).review.history(patch=patch, paths=paths, limit=given["limit"])
    if given["as_json"]:
        output.json(found)
        return
    if found.truncated:
        output.info("older entries exist; -n shows more")
    print_rows(_history_rows(found.entries, patch), no_pager=given["no_pager"])
    if found.trouble:
        output.info(f"the latest changes are missing here: {found.trouble}")


def _history_rows(entries: Iterable[LedgerEntry], patch: bool) -> Iterator[Row]:
    layout = stdout_layout()
    for entry in entries:
        moment = time.strftime("%H:%M:%S", time.gmtime(entry.at))
        lead = (styled(f"{entry.commit[:7] or '-' * 7} {moment}  ", "dim"),)
        yield truncate((*lead, *labels.command_row(entry, layout.cols - 18)), layout.cols)
        if not patch:
            continue
        yield from labels.hosts_rows([entry], layout.cols)
        yield from patch_rows((entry.patch or "").encode("utf-8", "surrogatepass").split(b"\n"), layout)
        if entry.truncated:
            yield (styled("CUT: the rest is not shown here", "risk"),)
        yield ()


@click.command()
@pager_option
@json_option
@sandbox_argument
@click.argument("hunk", type=HunkName())
@pass_cli
def why(cli: CliContext, sandbox: str, hunk: str, no_pager: bool, as_json: bool) -> None:
    """Show the commands that produced HUNK in SANDBOX, with their output and network contacts."""
    if not HUNK_ID.fullmatch(hunk):
        raise InvalidRequest(f"{hunk[:80]!r} is not a hunk ID", hint=f"`skerry review {sandbox} --list` lists them")
    found = cli.sandbox(sandbox).review.origin(hunk)
    if as_json:
        output.json(found)
        return
    print_rows(origin_rows(found, stdout_layout()), no_pager=no_pager)


def origin_rows(origin: HunkOrigin, layout: Layout) -> Iterator[Row]:
    """Render a hunk and the commands that produced it."""
    hunk, cols = origin.hunk, layout.cols
    yield from fold((styled(labels.path_of(hunk), "file"), styled(f"  {hunk.id}  "), styled(hunk.state)), cols)
    for reason in hunk.risk:
        yield from fold((styled(f"FLAGGED: {escape_name(reason)}", "risk"),), cols)
    for part in patches.hunk_parts(hunk):
        yield from hunk_rows(hunk.path, part, layout, head=hunk.kind in ("text", "renamed"))
    if not origin.entries:
        yield ()
        yield (styled("origin unknown", "dim"),)
    for entry in origin.entries:
        yield ()
        yield (styled("made by  ", "dim"), *labels.command_row(entry, cols - 9))
        if entry.within is not None:
            yield from fold((styled(f"reported by  {labels.command_line(entry.within)}", "dim"),), cols)
        moment = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(entry.at))
        processes = " ".join(map(escape_name, entry.processes))
        yield (styled(f"{moment}  {entry.commit[:12]}  {processes}".rstrip(), "dim"),)
        yield from labels.hosts_rows([entry], cols)
        for process in entry.processes:
            yield from _output_rows(origin.output.get(process), layout)


def _output_rows(text: str | None, layout: Layout) -> Iterator[Row]:
    lines = (text or "").split("\n")
    lines = lines[:-1] if not lines[-1] else lines
    for line in lines[:MAX_OUTPUT_LINES]:
        yield from fold((styled("  "), *spans(line[:MAX_OUTPUT_LINE], Style())), layout.cols)
    if len(lines) > MAX_OUTPUT_LINES:
        yield (styled(f"  CUT: {len(lines) - MAX_OUTPUT_LINES:,} more lines", "risk"),)


# -- watch, review ----------------------------------------------------------------------------------------------------


@click.command()
@click.option("--apply", "at_once", is_flag=True, help="Apply accepted changes at once; `u` undoes that too.")
@dir_option
@json_lines_option
@sandboxes_argument
@pass_cli
def watch(cli: CliContext, /, sandboxes: tuple[str, ...], at_once: bool, to: str, as_json: bool) -> None:
    """Show changes in SANDBOX as they happen, grouped by the command that made them.

    At a terminal, `a` accepts the last shown change, `r` rejects it and asks for a reason, `u` undoes the decision, `?`
    shows help and `q` quits. With --apply, `a` also applies the accepted changes to the local working tree.
    """
    from skerry.cli.review import watch_app  # asyncio and the async SDK take a moment to load

    found = [cli.sandbox(one).cached_info for one in dict.fromkeys(sandboxes)]
    watch_app.watch(cli.server, found, as_json=as_json, apply_to=to if at_once else None)


@click.command()
@click.option("--list", "listed", is_flag=True, help="Print one line per hunk and exit.")
@click.option("--deleted", is_flag=True, help="List deleted sandboxes whose review is kept, and exit.")
@exclude_option
@json_option
@click.argument("sandbox", type=SandboxName(), required=False)
@paths_argument
@pass_cli
def review(
    cli: CliContext,
    /,
    sandbox: str | None,
    paths: tuple[str, ...],
    exclude: tuple[str, ...],
    listed: bool,
    deleted: bool,
    as_json: bool,
) -> int:
    """Review the changes in SANDBOX hunk by hunk; `?` shows the keys.

    PATHs are files, directories or globs of the workspace. Generated files (caches, build outputs and the globs of
    `review.exclude` in skerry.toml) are only counted, unless a PATH names them.

    Each decision is saved at once. Your files do not change until `skerry apply` writes the accepted hunks.

    --deleted lists deleted sandboxes whose review is kept for a while; `skerry undelete` restores one.
    """
    if deleted:
        return _list_deleted(cli, as_json=as_json)
    if sandbox is None:
        raise click.UsageError("Missing argument 'SANDBOX'.")
    target = cli.sandbox(sandbox)
    if as_json:
        output.json(target.review.changes(paths=paths, exclude=exclude))
        return 0
    if listed:
        found = target.review.changes(paths=paths, exclude=exclude)
        _list(found)
        report_generated(sandbox, found.generated)
        report_failed(found)
        return 0
    if not terminal.is_interactive():
        raise InvalidRequest(
            "`skerry review` needs a terminal",
            hint=f"without a terminal: skerry review {sandbox} --list, skerry accept, skerry reject",
        )
    return run_review(cli, target, sandbox, paths, exclude)


def run_review(
    cli: CliContext, target: Sandbox, name: str, paths: tuple[str, ...] = (), exclude: tuple[str, ...] = ()
) -> int:
    """Open the review in this terminal, and print its result. `name`: the sandbox as the user names it."""
    from skerry.cli.review import app

    code, model = app.review(cli.server, target.cached_info, paths, exclude)
    if not cli.quiet:
        counts = {state: model.count(state) for state in ("accepted", "rejected", "open")}
        _print_summary(model.review, name, counts | ({"hidden": model.hidden} if model.hidden else {}))
    return code


def _list_deleted(cli: CliContext, *, as_json: bool) -> int:
    from skerry.client._sync.sandbox import Sandbox

    found = Sandbox.list_deleted(server=cli.client())
    if as_json:
        output.json(found)
    elif found:
        output.table(("ID", "NAME", "DELETED", "KEPT", "ACCEPTED", "FILES"), map(_deleted_row, found))
    else:
        output.info("no deleted sandbox has a review that is kept")
    return 0


def _deleted_row(deleted: DeletedSandbox) -> tuple[str, ...]:
    now, info = time.time(), deleted.sandbox
    ago, left = output.format_age(now - deleted.deleted_at), output.format_age(deleted.kept_until - now)
    return info.id, info.name or "-", f"{ago} ago", f"{left} more", str(deleted.accepted), str(deleted.files)


def _print_summary(found: Review, name: str, counts: dict[str, int]) -> None:
    if not any(counts.values()):
        output.info("no changes")
    else:
        output.info(", ".join(f"{number} {state}" for state, number in counts.items()))
    for one in found.left_out[:MAX_LISTED]:
        output.info(f"left out: {one.path}: {one.reason}")
    if found.ignored:
        more = f" and {len(found.ignored) - MAX_LISTED} more" if len(found.ignored) > MAX_LISTED else ""
        output.info(f"left out by your ignore rules: {', '.join(found.ignored[:MAX_LISTED])}{more}")
    report_generated(name, found.generated)
    if found.trouble:
        output.info(f"the latest changes are missing here: {found.trouble}")
    report_failed(found)
    if counts["accepted"]:
        output.info(f"hint: skerry apply {name} applies the accepted changes")


def report_generated(name: str, generated: tuple[GeneratedFiles, ...]) -> None:
    """Name the files that were kept apart, and how to select them."""
    if not generated:
        return
    groups = [f"{escape_name(one.path)} ({one.files})" for one in generated[:MAX_LISTED]]
    more = f" and {len(generated) - MAX_LISTED} more" if len(generated) > MAX_LISTED else ""
    output.info(f"left out as generated files: {', '.join(groups)}{more}")
    output.info(f"hint: name their path to select them: skerry review {name} {shlex.quote(generated[0].path)}")


def report_failed(found: Review) -> None:
    """Report the last commands that failed: their changes may be incomplete."""
    for entry in found.failed[-MAX_FAILED:]:
        text = f"{labels.command_of(entry)}  {' · '.join(labels.ending_of(entry))}"
        output.info(f"failed: {text}")


def _list(found: Review) -> None:
    output.table(("HUNK", "STATE", "WHERE", "LINES", "RISK"), map(_hunk_row, found.hunks))


def _hunk_row(hunk: Hunk) -> tuple[str, ...]:
    changed = patches.changed_lines(hunk)
    added = sum(kind == "added" for kind, _ in changed)
    lines = f"+{added} -{len(changed) - added}" if changed else hunk.kind
    return (
        hunk.id,
        hunk.state,
        labels.location_of(hunk),
        f"{lines}…" if hunk.truncated else lines,
        "; ".join(hunk.risk) or "-",
    )


# -- accept, reject ---------------------------------------------------------------------------------------------------


def _decision_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for add in (
        pass_cli,
        click.argument("hunks", nargs=-1, type=HunkName(paths=True), metavar="[HUNK|PATH|GLOB]..."),
        sandbox_argument,
        json_option,
        exclude_option,
        click.option("--force", is_flag=True, help="Also replace decisions that were made before."),
        click.option("--all", "everything", is_flag=True, help="Select all open hunks, except generated files."),
    ):
        command = add(command)
    return command


@click.command()
@_decision_options
def accept(cli: CliContext, /, sandbox: str, hunks: tuple[str, ...], everything: bool, **given: Any) -> int:
    """Accept changes in SANDBOX: a HUNK by ID, all open hunks below a PATH or matching a GLOB, or --all.

    A hunk that is flagged as risky is accepted only by ID, a generated file only by a PATH or GLOB that names it. A
    rejected hunk is accepted only with --force. Your files do not change until `skerry apply`.
    """
    ids, paths = _ids_and_paths(hunks, everything)
    do: Literal["accept"] | None = "accept" if paths or everything else None
    decisions = Decisions(accept=ids, paths=paths, all=everything, do=do, exclude=given["exclude"])
    return _decide(cli, sandbox, decisions, ids, force=given["force"], as_json=given["as_json"])


def _reject(cli: CliContext, /, sandbox: str, hunks: tuple[str, ...], reason: str | None, **given: Any) -> int:
    """Reject changes in SANDBOX: a HUNK by ID, all open hunks below a PATH or matching a GLOB, or --all.

    The agent can read the reason in /run/skerry/review.json. An accepted hunk is rejected only with --force.
    """
    ids, paths = _ids_and_paths(hunks, given["everything"])
    do: Literal["reject"] | None = "reject" if paths or given["everything"] else None
    everything, exclude = given["everything"], given["exclude"]
    decisions = Decisions(reject=ids, paths=paths, all=everything, do=do, reason=reason, exclude=exclude)
    return _decide(cli, sandbox, decisions, ids, force=given["force"], as_json=given["as_json"])


_reason_option = click.option("--reason", metavar="TEXT", help="Give a reason that the agent can read.")
reject = click.command("reject")(_reason_option(_decision_options(_reject)))
dismiss = click.command("dismiss")(_reason_option(_decision_options(_reject)))


def _decide(
    cli: CliContext, sandbox: str, decisions: Decisions, ids: tuple[str, ...], *, force: bool, as_json: bool
) -> int:
    """Decide about hunks that are open, so that two reviewers never replace each other's decisions unseen. With
    `force`, decide about their current states."""
    review = cli.sandbox(sandbox).review
    before = {one: review.hunk(one) for one in ids} if force else {}
    states: dict[str, HunkState] = {one: before[one].state if force else "open" for one in ids}
    try:
        done = review.decide(msgspec.structs.replace(decisions, seen=states))
    except Conflict as error:
        if not force and "decided" in error.details:
            error.hint = f"`skerry review {sandbox}` shows the hunk; --force replaces the decision"
        raise
    if not as_json and not cli.quiet:
        for hunk in before.values():
            if hunk.state in ("accepted", "rejected"):
                output.info(f"{hunk.id}  was {hunk.state} by {hunk.decided_by or 'an unknown reviewer'}")
    return _report(cli, done, sandbox, as_json)


def _ids_and_paths(words: tuple[str, ...], everything: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if everything == bool(words):
        raise click.UsageError("name hunks or paths, or use --all" + (", not both" if everything else ""))
    if cut := next((word for word in words if _LIKE_AN_ID.fullmatch(word) and not HUNK_ID.fullmatch(word)), None):
        raise InvalidRequest(
            f"{cut!r} is not a hunk ID", hint=f"an ID is h- and 16 digits; for a file of that name write ./{cut}"
        )
    ids = tuple(word for word in words if HUNK_ID.fullmatch(word))
    return ids, tuple(word for word in words if not HUNK_ID.fullmatch(word))


def _report(cli: CliContext, done: DecisionResult, sandbox: str, as_json: bool) -> int:
    if as_json:
        output.json(done)
    elif not cli.quiet:
        for hunk in done.hunks:
            output.info(f"{hunk.id}  {labels.location_of(hunk)}  {hunk.state}")
        report_generated(sandbox, done.generated)
        if not done.hunks and not done.held_back and not done.generated:
            output.info(f"no open hunks match; `skerry review {sandbox} --list` lists all hunks")
        for hunk in done.held_back:
            risk = "; ".join(hunk.risk)
            output.info(f"held back: {labels.path_of(hunk)}: {risk}: skerry accept {sandbox} {hunk.id}")
    return EXIT_HELD_BACK if done.held_back else 0
