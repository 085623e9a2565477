"""watch, review, accept, reject: deciding about what changed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

import click

from skerry.cli import here, talk
from skerry.cli.review.commands import HunkName, paths_argument
from skerry.cli.session import Session, json_option, pass_session, sandbox_argument, sandboxes_argument
from skerry.errors import InvalidRequest
from skerry.types import HUNK_ID, Decided, DecideRequest, Hunk, Review

HELD_BACK = 3
_LIKE_AN_ID = re.compile(r"h-[0-9a-f]*")


@click.command(short_help="Changes as they are made, each under its command.")
@click.option("--json", "as_json", is_flag=True, help="Give JSON, an object a line.")
@sandboxes_argument
@pass_session
def watch(session: Session, sandboxes: tuple[str, ...], as_json: bool) -> None:
    """Show what changes in SANDBOX as it happens: each change under the command that made it.

    At a terminal, `a` accepts what was just shown, `r` rejects it and asks for a reason, `u` undoes that, `?` helps and
    `q` leaves.
    """
    from skerry.cli.review import onlooking  # asyncio and the SDK take a moment to load

    found = [session.sandbox(one).known for one in dict.fromkeys(sandboxes)]
    onlooking.watch(session.server, found, as_json=as_json)


@click.command(short_help="Decide about changes, hunk by hunk.")
@click.option("--list", "listed", is_flag=True, help="A line for each hunk, and no questions.")
@json_option
@sandbox_argument
@paths_argument
@pass_session
def review(session: Session, sandbox: str, paths: tuple[str, ...], listed: bool, as_json: bool) -> int:
    """Go through what changed in SANDBOX, hunk by hunk, and decide: `?` shows the keys.

    Each decision is kept at once. Nothing touches your files: `skerry apply` brings in what was accepted.
    """
    target = session.sandbox(sandbox)
    if as_json:
        talk.give_json(target.review.changes(paths=paths))
        return 0
    if listed:
        _list(target.review.changes(paths=paths))
        return 0
    if not here.can_be_drawn_on():
        raise InvalidRequest(
            "a review needs a terminal",
            hint=f"without one: skerry review {sandbox} --list, skerry accept, skerry reject",
        )
    from skerry.cli.review import reviewing

    code, done = reviewing.review(session.server, target.known, paths)
    if not session.quiet:
        _tell(done.review, sandbox, {state: done.count(state) for state in ("accepted", "rejected", "open")})
    return code


def _tell(found: Review, name: str, counts: dict[str, int]) -> None:
    if not any(counts.values()):
        talk.say("nothing differs from what you have")
    else:
        talk.say(", ".join(f"{number} {state}" for state, number in counts.items()))
    for one in found.left_out[:8]:
        talk.say(f"left out: {one.path}: {one.reason}")
    if found.ignored:
        talk.say(f"not in this, by your own ignore rules: {', '.join(found.ignored[:8])}" + _more(found.ignored))
    if found.trouble:
        talk.say(f"what came last is not in this: {found.trouble}")
    if counts["accepted"]:
        talk.say(f"hint: skerry apply {name} brings in what was accepted")


def _more(listed: tuple[str, ...]) -> str:
    return f" and {len(listed) - 8} more" if len(listed) > 8 else ""


def _list(found: Review) -> None:
    talk.give_table(("HUNK", "STATE", "WHERE", "LINES", "WHY IT IS FLAGGED"), map(_hunk_row, found.hunks))


def _hunk_row(hunk: Hunk) -> tuple[str, ...]:
    from skerry.cli.review import headings, patch

    changed = patch.changed_lines(hunk)
    added = sum(kind == "added" for kind, _ in changed)
    lines = f"+{added} -{len(changed) - added}" if changed else hunk.kind
    return (
        hunk.id,
        hunk.state,
        headings.place_of(hunk),
        f"{lines}…" if hunk.truncated else lines,
        "; ".join(hunk.risk) or "-",
    )


def _decision_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for add in (
        pass_session,
        click.argument("hunks", nargs=-1, type=HunkName(paths=True), metavar="[HUNK|PATH]..."),
        sandbox_argument,
        json_option,
        click.option("--all", "everything", is_flag=True, help="Everything that is open."),
    ):
        command = add(command)
    return command


@click.command(short_help="Accept hunks, by id or by path.")
@_decision_options
def accept(session: Session, sandbox: str, hunks: tuple[str, ...], everything: bool, as_json: bool) -> int:
    """Accept changes in SANDBOX: HUNK by its id, all that is open below a PATH, or --all.

    What is flagged with a risk is only accepted by its id. Nothing touches your files before `skerry apply`.
    """
    ids, paths = _named(hunks, everything)
    do: Literal["accept"] | None = "accept" if paths or everything else None
    wish = DecideRequest(accept=ids, paths=paths, all=everything, do=do)
    return _decided(session, session.sandbox(sandbox).review.decide(wish), sandbox, as_json)


def _reject(session: Session, /, sandbox: str, hunks: tuple[str, ...], reason: str | None, **given: Any) -> int:
    """Reject changes in SANDBOX: HUNK by its id, all that is open below a PATH, or --all.

    The agent can read the reason, in /run/skerry/review.json.
    """
    ids, paths = _named(hunks, given["everything"])
    do: Literal["reject"] | None = "reject" if paths or given["everything"] else None
    wish = DecideRequest(reject=ids, paths=paths, all=given["everything"], do=do, reason=reason)
    return _decided(session, session.sandbox(sandbox).review.decide(wish), sandbox, given["as_json"])


_reason_option = click.option("--reason", metavar="TEXT", help="Why; the agent can read it.")
reject = click.command("reject", short_help="Reject hunks, with a reason.")(_reason_option(_decision_options(_reject)))
dismiss = click.command("dismiss", short_help="The same as reject.")(_reason_option(_decision_options(_reject)))


def _named(words: tuple[str, ...], everything: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if everything == bool(words):
        raise click.UsageError("name hunks or paths, or say --all" + (", not both" if everything else ""))
    if cut := next((word for word in words if _LIKE_AN_ID.fullmatch(word) and not HUNK_ID.fullmatch(word)), None):
        raise InvalidRequest(
            f"{cut!r} is not a hunk's id", hint=f"an id is h- and 16 digits; a file of that name is ./{cut}"
        )
    ids = tuple(word for word in words if HUNK_ID.fullmatch(word))
    return ids, tuple(word for word in words if not HUNK_ID.fullmatch(word))


def _decided(session: Session, done: Decided, sandbox: str, as_json: bool) -> int:
    from skerry.cli.review import headings

    if as_json:
        talk.give_json(done)
    elif not session.quiet:
        for hunk in done.hunks:
            talk.say(f"{hunk.id}  {headings.place_of(hunk)}  {hunk.state}")
        if not done.hunks and not done.held_back:
            talk.say(f"nothing of it is open; `skerry review {sandbox} --list` has what there is")
        for hunk in done.held_back:
            talk.say(f"held back: {headings.path_of(hunk)}: {'; '.join(hunk.risk)}: skerry accept {sandbox} {hunk.id}")
    return HELD_BACK if done.held_back else 0
