"""diff, history, why: what changed, as text."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from skerry.cli import here, talk
from skerry.cli.review.printing import give, look_here
from skerry.cli.session import Session, json_option, known_names, pass_session, sandbox_argument
from skerry.errors import InvalidRequest
from skerry.types import HUNK_ID, DiffStat, Hunk, LedgerEntry

if TYPE_CHECKING:
    from skerry.cli.review.style import Row
    from skerry.client._sync.sandbox import Sandbox


class HunkName(click.ParamType[str]):
    """A hunk of the sandbox named before it; the shell completes ids, paths, or both, whatever may stand there."""

    name = "hunk"

    def __init__(self, *, ids: bool = True, paths: bool = False) -> None:
        self._ids, self._paths = ids, paths

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        session, sandbox = Session(server=ctx.find_root().params.get("server")), ctx.params.get("sandbox")
        found: dict[str, str | None] = {}
        for hunk in known_hunks(session, sandbox) if isinstance(sandbox, str) else ():
            known = hunk.path.isascii() and hunk.path.isprintable() and " " not in hunk.path
            if self._ids:
                found[hunk.id] = f"{hunk.path} {hunk.state}" if known else hunk.state
            if known and self._paths:
                found.setdefault(hunk.path, None)
        return [
            click.shell_completion.CompletionItem(name, help=said)
            for name, said in found.items()
            if name.startswith(incomplete)
        ]


def known_hunks(session: Session, sandbox: str) -> tuple[Hunk, ...]:
    from skerry.errors import SkerryError

    if sandbox not in known_names(session):
        return ()
    try:
        return session.sandbox(sandbox).review.changes().hunks
    except SkerryError:
        return ()


def not_applied(sandbox: Sandbox) -> str:
    """In words, what of a sandbox's changes is on no disk but its own; nothing where it has no review."""
    from skerry.errors import SkerryError

    try:
        states = Counter(hunk.state for hunk in sandbox.review.changes().hunks)
    except SkerryError:
        return ""
    known = [f"{states[state]} {state}" for state in ("accepted", "open") if states[state]]
    words = "change that was" if states["accepted"] + states["open"] == 1 else "changes that were"
    return f"{' and '.join(known)} {words} not applied" if known else ""


paths_argument = click.argument("paths", nargs=-1, type=HunkName(ids=False, paths=True), metavar="[PATH]...")
pager_option = click.option("--no-pager", is_flag=True, help="Print it all at once, also at a terminal.")


@click.command(short_help="What differs from what you have, as a patch.")
@click.option("--stat", is_flag=True, help="Files and numbers of lines alone.")
@pager_option
@json_option
@sandbox_argument
@paths_argument
@pass_session
def diff(session: Session, sandbox: str, paths: tuple[str, ...], stat: bool, no_pager: bool, as_json: bool) -> None:
    """Show what differs in SANDBOX from what you have, all of it or below PATH.

    At a terminal it is coloured and paged. To a file or a pipe it is a plain patch, which `git apply` takes. What can't
    be part of a patch is said in lines in front that begin with `# skerry:`.
    """
    from skerry.cli.review import pieces
    from skerry.cli.review.patch import lines_of
    from skerry.client import review_requests
    from skerry.client.review_paths import relative

    target = session.sandbox(sandbox)
    if as_json:
        review = target.review
        talk.give_json(review.diff(paths=paths, stat=True) if stat else review.changes(paths=paths))
    elif stat:
        give(_stat_rows(target.review.diff(paths=paths, stat=True)), no_pager=no_pager)
    else:
        with target.client.stream(review_requests.diff(target.id, relative(paths))) as chunks:
            if here.is_terminal(1):
                if not give(pieces.patch_rows(lines_of(chunks), look_here()), no_pager=no_pager):
                    talk.say("nothing differs from what you have")
            else:
                for chunk in chunks:
                    talk.pass_on("stdout", chunk)


def _stat_rows(found: DiffStat) -> Iterator[Row]:
    from skerry.cli.review.pieces import stat_rows
    from skerry.cli.review.style import plain
    from skerry.cli.review.visible import name_shown

    yield from stat_rows(found.files, look_here())
    for one in found.left_out:
        path = name_shown(one.raw_path if one.raw_path is not None else one.path)
        yield (plain(f" not in this: {path}: {name_shown(one.reason)}", "risk"),)
    if found.trouble:
        yield (plain(f" what came last is not in this: {name_shown(found.trouble)}", "risk"),)


@click.command(short_help="What each command changed.")
@click.option("-p", "--patch", is_flag=True, help="With what it changed.")
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=1000, metavar="N", help="Only the newest.")
@pager_option
@json_option
@sandbox_argument
@paths_argument
@pass_session
def history(session: Session, /, sandbox: str, paths: tuple[str, ...], patch: bool, **given: Any) -> None:
    """List what changed in SANDBOX, command by command, oldest first."""
    found = session.sandbox(sandbox).review.history(patch=patch, paths=paths, limit=given["limit"])
    if given["as_json"]:
        talk.give_json(found)
        return
    if found.truncated:
        talk.say("there are older ones; -n shows more")
    give(_history_rows(found.entries, patch), no_pager=given["no_pager"])
    if found.trouble:
        talk.say(f"what came last is not in this: {found.trouble}")


def _history_rows(entries: Iterable[LedgerEntry], patch: bool) -> Iterator[Row]:
    from skerry.cli.review import headings
    from skerry.cli.review.pieces import patch_rows
    from skerry.cli.review.rows import cut
    from skerry.cli.review.style import plain

    look = look_here()
    for entry in entries:
        moment = time.strftime("%H:%M:%S", time.gmtime(entry.at))
        lead = (plain(f"{entry.commit[:7]} {moment}  ", "dim"),)
        yield cut((*lead, *headings.command_row(entry, look.cols - 18)), look.cols)
        if not patch:
            continue
        yield from headings.hosts_rows([entry], look.cols)
        yield from patch_rows((entry.patch or "").encode("utf-8", "surrogatepass").split(b"\n"), look)
        if entry.truncated:
            yield (plain("CUT: more of it is not shown here", "risk"),)
        yield ()


@click.command(short_help="Which command made a hunk.")
@pager_option
@json_option
@sandbox_argument
@click.argument("hunk", type=HunkName())
@pass_session
def why(session: Session, sandbox: str, hunk: str, no_pager: bool, as_json: bool) -> None:
    """Show where HUNK of SANDBOX came from: the commands that made it, what they printed, whom they contacted."""
    if not HUNK_ID.fullmatch(hunk):
        raise InvalidRequest(f"{hunk[:80]!r} is not a hunk's id", hint=f"skerry review {sandbox} --list has them")
    found = session.sandbox(sandbox).review.why(hunk)
    if as_json:
        talk.give_json(found)
        return
    from skerry.cli.review.origin import why_rows

    give(why_rows(found, look_here()), no_pager=no_pager)
