"""A review on a screen of so many columns and rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from skerry.cli.review import headings, patch
from skerry.cli.review.going import Going
from skerry.cli.review.rows import Look, cut, folded, part_rows
from skerry.cli.review.stops import Stop
from skerry.cli.review.style import Row, plain
from skerry.cli.review.visible import name_shown, width_of
from skerry.types import Hunk

KEYS = "y accept  n reject  e edit  s split  f file  j skip  u undo  ? help  q quit"
END_KEYS = "u undo  J K look through  g files  R look for more  ? help  q quit"
HELP = """\
y        accept (Y, if it is flagged with a risk, or cut)
n        reject; a reason is asked for, which the agent can read
e        edit its new lines in $EDITOR, look at it, then accept
s        split it into its smallest parts
f        the whole file: everything in it that is open, but not what is flagged
o        open again
u        undo the last decision
j, Tab   skip: the next that is open          k    the one before
J, K     the next and the one before, whatever was decided
g        go to a file                         /    search
↓ ↑ Space b   scroll
v        all of it in your pager
R        look for what is new
q        leave; Ctrl-C too. What was decided stays decided
Nothing touches your files before `skerry apply`."""


@dataclass(frozen=True)
class Page:
    """`cursor`: column and row, where something is being typed."""

    rows: list[Row]
    cursor: tuple[int, int] | None = None


def draw(going: Going, cols: int, rows: int, *, ink: bool = True) -> Page:
    """Exactly `rows` rows of at most `cols` cells. Notes in `going` how far it can be scrolled."""
    cols, rows = max(20, cols), max(4, rows)
    look = Look(cols, ink)
    head, body = _content(going, look)
    foot, cursor = _foot(going, cols)
    head = head[: max(1, rows // 2)]
    foot = foot[: max(1, rows - len(head) - 1)]
    room = rows - len(head) - len(foot)
    going.rows, going.room = len(body), room
    going.top = max(0, min(going.top, len(body) - room))
    shown = body[going.top : going.top + room]
    if len(body) > room and going.mode not in ("files", "help"):
        last = min(len(body), going.top + room)
        where = f" lines {going.top + 1}–{last} of {len(body)} "
        foot[0] = _right(foot[0], where, cols)
    blank: list[Row] = [()] * (room - len(shown))
    screen = [*head, *shown, *blank, *foot]
    place = (min(cursor, cols - 1), len(screen) - len(foot)) if cursor is not None else None
    return Page([cut(row, cols) for row in screen], place)


def _right(row: Row, words: str, cols: int) -> Row:
    left = cut(row, max(1, cols - len(words) - 1))
    gap = cols - len(words) - sum(width_of(span.text) for span in left)
    return (*left, plain(" " * max(1, gap)), plain(words, "dim"))


def _content(going: Going, look: Look) -> tuple[list[Row], list[Row]]:
    title = _title(going, look.cols)
    if going.mode == "help":
        return [title], [(plain(line),) for line in HELP.split("\n")]
    if going.mode == "files":
        return [title], _file_list(going, look)
    if going.stop is None or going.mode == "end":
        return [title], _end(going, look)
    stop = going.stop
    head = [title, *_origin(going, stop, look), *_risk(stop.hunk, look)]
    if stop.hunk.state != "open" and going.mode != "edited":
        head.append(headings.state_row(stop.hunk, look.cols))
    meant = _as_edited(going, stop)
    key = (meant.hunk.id, meant.hunk.text, look)
    if going.drawn is None or going.drawn[0] != key:
        going.drawn = (key, list(body_rows(meant, look)))
    return head, going.drawn[1]


def _title(going: Going, cols: int) -> Row:
    counts = f" {going.count('accepted')} accepted · {going.count('rejected')} rejected · {going.count('open')} open "
    if going.stop is None or going.mode == "end":
        where = f" {name_shown(going.name)}"
    else:
        where = f" {going.at + 1}/{len(going.stops)} {headings.path_of(going.stop.file)}"
    if len(counts) > cols // 2 + 8:
        counts = f" {going.count('open')} open "
    left = cut((plain(where, "status"),), cols - len(counts))
    gap = cols - len(counts) - sum(width_of(span.text) for span in left)
    return (*left, plain(" " * gap, "status"), plain(counts, "status"))


def _origin(going: Going, stop: Stop, look: Look) -> list[Row]:
    entries = going.known.get(stop.hunk.id)
    if entries is None:
        return [(plain("…", "dim"),)]
    if not entries:
        return [(plain("nobody can tell what made it", "dim"),)]
    rows = headings.command_rows(replace(entries[-1], files=0), look.cols)
    if len(entries) > 1:
        others = f"and {len(entries) - 1} before it: skerry why {name_shown(going.name)} {stop.hunk.id}"
        rows.append(cut((plain(others, "dim"),), look.cols))
    return [*rows, *headings.hosts_rows(entries, look.cols)]


def _risk(hunk: Hunk, look: Look) -> list[Row]:
    words = "; ".join(map(name_shown, hunk.risk))
    return folded((plain(f"FLAGGED: {words}", "risk"),), look.cols)[:3] if words else []


def _as_edited(going: Going, stop: Stop) -> Stop:
    """Where it was edited: what would land."""
    text = going.draft if going.mode == "edited" else stop.hunk.edited
    return stop if text is None else Stop(stop.file, with_new_lines(stop.hunk, text))


def with_new_lines(hunk: Hunk, text: str) -> Hunk:
    """The same hunk with other new lines, from its first changed one to its last."""
    lines = [line for part in patch.of_hunk(hunk) for line in part.lines]
    changed = [at for at, line in enumerate(lines) if line.kind in ("added", "removed")]
    if not changed:
        return hunk
    first, last = changed[0], changed[-1]
    new = text.split("\n")
    ended = not new[-1]
    new = new[:-1] if ended else new
    body = [f" {line.text}" for line in lines[:first]]
    body += [f"-{line.text}" for line in lines[first : last + 1] if line.kind in ("context", "removed")]
    body += [f"+{line}" for line in new]
    body += [] if ended else ["\\ No newline at end of file"]
    context = [line for line in (*lines[:first], *lines[last + 1 :]) if line.kind == "context"]
    body += [f" {line.text}" for line in lines[last + 1 :] if line.kind == "context"]
    return replace(hunk, text="\n".join(body) + "\n", raw=None, new_lines=len(context) + len(new))


def body_rows(stop: Stop, look: Look) -> Iterator[Row]:
    """All that a decision is about."""
    hunk = stop.hunk
    facts = headings.file_facts(stop.file) if hunk.kind != "text" else []
    for fact in facts:
        yield from folded((plain(fact, "bold"),), look.cols)
    parts = patch.of_hunk(hunk)
    for part in parts:
        yield from part_rows(stop.file.path, part, look, head=hunk.kind in ("text", "renamed"))
    if hunk.truncated:
        shown = sum(line.kind != "note" for part in parts for line in part.lines)
        total = max(hunk.old_lines, hunk.new_lines)
        more = f"{total - shown:,} more lines" if total > shown else "more lines"
        yield from folded((plain(f"CUT: about {more} are not shown here; v shows all of it", "risk"),), look.cols)
    elif not facts and not parts:
        yield (plain("nothing to show of it", "dim"),)


def _file_list(going: Going, look: Look) -> list[Row]:
    rows: list[Row] = []
    opened, hunks = Counter[int](), Counter[int]()
    for stop in going.stops:
        hunks[id(stop.file)] += 1
        opened[id(stop.file)] += stop.hunk.state == "open"
    for place, at in enumerate(going.listed):
        file, hunk = going.stops[at]
        sign = "> " if place == going.chosen else "  "
        flag = (plain(" FLAGGED", "risk"),) if file.risk or hunk.risk else ()
        name = plain(headings.path_of(file), "bold" if place == going.chosen else "")
        rows.append((plain(sign), name, plain(f"  {opened[id(file)]} of {hunks[id(file)]} open", "dim"), *flag))
    room = max(1, going.room)
    going.top = max(0, going.chosen - room // 2)
    return rows or [(plain("no file has that in its name", "dim"),)]


def _end(going: Going, look: Look) -> list[Row]:
    counts = [f"{going.count(state)} {state}" for state in ("accepted", "rejected", "open")]
    if not going.stops:
        words = ["Nothing differs from what you have."]
    else:
        words = ["Everything is decided: " + ", ".join(counts) + ".", ""]
        if going.count("accepted"):
            words += [
                "Your files are as they were. To bring in what was accepted:",
                f"  skerry apply {name_shown(going.name)}",
            ]
    rows: list[Row] = [(), *((plain(f"  {line}" if line else ""),) for line in words)]
    return [*rows, *(left_out_rows(going, look))]


def left_out_rows(going: Going, look: Look) -> list[Row]:
    rows: list[Row] = []
    for one in going.review.left_out[:8]:
        path = name_shown(one.raw_path if one.raw_path is not None else one.path)
        rows.append(cut((plain(f"  left out: {path}: {name_shown(one.reason)}", "risk"),), look.cols))
    more = len(going.review.left_out) - 8
    if more > 0:
        rows.append((plain(f"  and {more} more were left out: skerry diff {name_shown(going.name)} --stat", "risk"),))
    if going.review.truncated:
        rows.append((plain("  There is more than was told: apply or reject some of it first.", "risk"),))
    return [(), *rows] if rows else []


def _foot(going: Going, cols: int) -> tuple[list[Row], int | None]:
    prompts = {
        "reason": ("reason, for the agent: ", "Enter rejects  ↑ the last reason  Esc back"),
        "find": ("search: ", "Enter searches  Esc back"),
        "files": ("file: ", "type to narrow  ↑ ↓ choose  Enter goes there  Esc back"),
    }
    if going.mode in prompts:
        prompt, keys = prompts[going.mode]
        typed = name_shown(going.typing.text) if going.typing.text.strip() else going.typing.text
        room = max(1, cols - len(prompt) - 2)
        typed = typed[-room:]
        return [(plain(prompt, "bold"), plain(typed)), _keys(keys, cols)], len(prompt) + width_of(typed)
    if going.mode == "file" and going.stop is not None:
        file = going.stop.file
        number = sum(stop.file is file and stop.hunk.state == "open" for stop in going.stops)
        question = f"all {number} open in {headings.path_of(file)}: "
        return [(plain(question, "bold"),), _keys("y accept  n reject  Esc back", cols)], None
    if going.mode == "edited":
        said = going.message or "this would land in its place"
        return [(plain(said, "bold"),), _keys(f"{_yes(going)} accept it so  e edit again  Esc back", cols)], None
    if going.mode == "help":
        return [(), _keys("any key: back", cols)], None
    said = "…" if going.busy else going.message
    return [(plain(name_shown(said), "bold"),), _keys(_known_keys(going), cols)], None


def _known_keys(going: Going) -> str:
    if going.mode == "end":
        return END_KEYS
    return f"{_yes(going)}{KEYS[1:]}"


def _yes(going: Going) -> str:
    return "Y" if going.stop is not None and going.stop.hunk.risk else "y"


def _keys(words: str, cols: int) -> Row:
    """As many as fit, `?` among them."""
    known: Sequence[str] = words.split("  ")
    while len("  ".join(known)) > cols and len(known) > 2:
        known = [*known[:-3], *known[-2:]]
    return (plain("  ".join(known), "dim"),)
