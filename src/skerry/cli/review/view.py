"""Draw a review on a screen of a given size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from skerry.cli.review import labels, patch
from skerry.cli.review.escape import escape_name, width_of
from skerry.cli.review.items import ReviewItem
from skerry.cli.review.model import ReviewModel
from skerry.cli.review.rows import Layout, fold, hunk_rows, truncate
from skerry.cli.review.style import Row, styled
from skerry.types import Hunk

KEYS = "y accept  n reject  e edit  s split  f file  j skip  u undo  ? help  q quit"
END_KEYS = "u undo  J K browse  g files  R reload  ? help  q quit"
HELP = """\
y        accept (Y if it is flagged as risky or cut)
n        reject, with a reason that the agent can read
e        edit the new lines in $EDITOR, check them, then accept
s        split into the smallest parts
f        decide about all open hunks of the file, except flagged ones
o        reopen
u        undo the last decision
j, Tab   next open hunk                       k    previous open hunk
J, K     next and previous hunk, open or not
g        go to a file                         /    search
x        hide files by a glob                 X    show all again
↓ ↑ Space b   scroll
v        show the whole hunk in your pager
R        reload: look for new changes
q        quit (also Ctrl-C); decisions are kept
Your files do not change before `skerry apply`."""


@dataclass(frozen=True)
class Frame:
    """The rows of the screen. `cursor` is the column and row of the text input, if any."""

    rows: list[Row]
    cursor: tuple[int, int] | None = None


def draw(model: ReviewModel, cols: int, rows: int, *, ink: bool = True) -> Frame:
    """Return exactly `rows` rows of at most `cols` cells. Note in `model` how far it can be scrolled."""
    cols, rows = max(20, cols), max(4, rows)
    layout = Layout(cols, ink)
    head, body = _content(model, layout)
    foot, cursor = _foot(model, cols)
    head = head[: max(1, rows // 2)]
    foot = foot[: max(1, rows - len(head) - 1)]
    room = rows - len(head) - len(foot)
    model.rows, model.room = len(body), room
    model.top = max(0, min(model.top, len(body) - room))
    shown = body[model.top : model.top + room]
    if len(body) > room and model.mode not in ("files", "help"):
        last = min(len(body), model.top + room)
        where = f" lines {model.top + 1}–{last} of {len(body)} "
        foot[0] = _right(foot[0], where, cols)
    blank: list[Row] = [()] * (room - len(shown))
    screen = [*head, *shown, *blank, *foot]
    place = (min(cursor, cols - 1), len(screen) - len(foot)) if cursor is not None else None
    return Frame([truncate(row, cols) for row in screen], place)


def _right(row: Row, words: str, cols: int) -> Row:
    left = truncate(row, max(1, cols - len(words) - 1))
    gap = cols - len(words) - sum(width_of(span.text) for span in left)
    return (*left, styled(" " * max(1, gap)), styled(words, "dim"))


def _content(model: ReviewModel, layout: Layout) -> tuple[list[Row], list[Row]]:
    title = _title(model, layout.cols)
    if model.mode == "help":
        return [title], [(styled(line),) for line in HELP.split("\n")]
    if model.mode == "files":
        return [title], _file_list(model, layout)
    if model.item is None or model.mode == "end":
        return [title], _end(model, layout)
    item = model.item
    head = [title, *_origin(model, item, layout), *_risk(item.hunk, layout)]
    if item.hunk.state != "open" and model.mode != "edited":
        head.append(labels.state_row(item.hunk, layout.cols))
    item = _as_edited(model, item)
    key = (item.hunk.id, item.hunk.text, layout)
    if model.drawn is None or model.drawn[0] != key:
        model.drawn = (key, list(body_rows(item, layout)))
    return head, model.drawn[1]


def _title(model: ReviewModel, cols: int) -> Row:
    counts = f" {model.count('accepted')} accepted · {model.count('rejected')} rejected · {model.count('open')} open "
    if model.item is None or model.mode == "end":
        where = f" {escape_name(model.name)}"
    else:
        where = f" {model.at + 1}/{len(model.items)} {labels.path_of(model.item.file)}"
    if len(counts) > cols // 2 + 8:
        counts = f" {model.count('open')} open "
    left = truncate((styled(where, "status"),), cols - len(counts))
    gap = cols - len(counts) - sum(width_of(span.text) for span in left)
    return (*left, styled(" " * gap, "status"), styled(counts, "status"))


def _origin(model: ReviewModel, item: ReviewItem, layout: Layout) -> list[Row]:
    entries = model.known.get(item.hunk.id)
    if entries is None:
        return [(styled("…", "dim"),)]
    if not entries:
        return [(styled("origin unknown", "dim"),)]
    rows = labels.command_rows(replace(entries[-1], files=0), layout.cols)
    if len(entries) > 1:
        others = f"and {len(entries) - 1} earlier: skerry why {escape_name(model.name)} {item.hunk.id}"
        rows.append(truncate((styled(others, "dim"),), layout.cols))
    return [*rows, *labels.hosts_rows(entries, layout.cols)]


def _risk(hunk: Hunk, layout: Layout) -> list[Row]:
    words = "; ".join(map(escape_name, hunk.risk))
    return fold((styled(f"FLAGGED: {words}", "risk"),), layout.cols)[:3] if words else []


def _as_edited(model: ReviewModel, item: ReviewItem) -> ReviewItem:
    """Return the item with its edited lines, as they would be applied."""
    text = model.draft if model.mode == "edited" else item.hunk.edited
    return item if text is None else ReviewItem(item.file, with_new_lines(item.hunk, text))


def with_new_lines(hunk: Hunk, text: str) -> Hunk:
    """Return a hunk with other new lines, from its first to its last changed line."""
    lines = [line for part in patch.hunk_parts(hunk) for line in part.lines]
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


def body_rows(item: ReviewItem, layout: Layout) -> Iterator[Row]:
    """Render everything that a decision covers."""
    hunk = item.hunk
    facts = labels.file_facts(item.file) if hunk.kind != "text" else []
    for fact in facts:
        yield from fold((styled(fact, "bold"),), layout.cols)
    parts = patch.hunk_parts(hunk)
    for part in parts:
        yield from hunk_rows(item.file.path, part, layout, head=hunk.kind in ("text", "renamed"))
    if hunk.truncated:
        shown = sum(line.kind != "note" for part in parts for line in part.lines)
        total = max(hunk.old_lines, hunk.new_lines)
        more = f"{total - shown:,} more lines" if total > shown else "more lines"
        yield from fold((styled(f"CUT: about {more} are not shown here; v shows all of it", "risk"),), layout.cols)
    elif not facts and not parts:
        yield (styled("no content to show", "dim"),)


def _file_list(model: ReviewModel, layout: Layout) -> list[Row]:
    rows: list[Row] = []
    opened, hunks = Counter[int](), Counter[int]()
    for item in model.items:
        hunks[id(item.file)] += 1
        opened[id(item.file)] += item.hunk.state == "open"
    for place, at in enumerate(model.listed):
        file, hunk = model.items[at]
        sign = "> " if place == model.chosen else "  "
        flag = (styled(" FLAGGED", "risk"),) if file.risk or hunk.risk else ()
        name = styled(labels.path_of(file), "bold" if place == model.chosen else "")
        rows.append((styled(sign), name, styled(f"  {opened[id(file)]} of {hunks[id(file)]} open", "dim"), *flag))
    room = max(1, model.room)
    model.top = max(0, model.chosen - room // 2)
    return rows or [(styled("no matching file", "dim"),)]


def _end(model: ReviewModel, layout: Layout) -> list[Row]:
    counts = [f"{model.count(state)} {state}" for state in ("accepted", "rejected", "open")]
    if not model.items:
        words = ["No changes." if not model.hidden else "All changes are hidden."]
    else:
        words = ["All hunks are decided: " + ", ".join(counts) + ".", ""]
        if model.count("accepted"):
            words += [
                "Your files are unchanged. To apply the accepted hunks:",
                f"  skerry apply {escape_name(model.name)}",
            ]
    rows: list[Row] = [(), *((styled(f"  {line}" if line else ""),) for line in words)]
    return [*rows, *(left_out_rows(model, layout))]


def left_out_rows(model: ReviewModel, layout: Layout) -> list[Row]:
    rows: list[Row] = []
    for one in model.review.left_out[:8]:
        path = escape_name(one.raw_path if one.raw_path is not None else one.path)
        rows.append(truncate((styled(f"  left out: {path}: {escape_name(one.reason)}", "risk"),), layout.cols))
    more = len(model.review.left_out) - 8
    if more > 0:
        rows.append((styled(f"  and {more} more were left out: skerry diff {escape_name(model.name)} --stat", "risk"),))
    for group in model.review.generated[:8]:
        words = f"  left out as generated: {escape_name(group.path)} ({group.files} files)"
        rows.append(truncate((styled(words, "dim"),), layout.cols))
    if len(model.review.generated) > 8:
        rows.append((styled(f"  and {len(model.review.generated) - 8} more groups of generated files", "dim"),))
    if model.hidden:
        rows.append((styled(f"  {model.hidden} hunks are hidden: X shows them", "dim"),))
    if model.review.truncated:
        rows.append(
            (styled("  The review is too large to list completely: apply or reject some of it first.", "risk"),)
        )
    return [(), *rows] if rows else []


def _foot(model: ReviewModel, cols: int) -> tuple[list[Row], int | None]:
    prompts = {
        "reason": ("reason, for the agent: ", "Enter reject  ↑ last reason  Esc back"),
        "find": ("search: ", "Enter search  Esc back"),
        "hide": ("hide files (glob): ", "Enter hide  Ctrl-U clear  Esc back"),
        "files": ("file: ", "type to filter  ↑ ↓ choose  Enter open  Esc back"),
    }
    if model.mode in prompts:
        prompt, keys = prompts[model.mode]
        typed = escape_name(model.line.text) if model.line.text.strip() else model.line.text
        room = max(1, cols - len(prompt) - 2)
        typed = typed[-room:]
        return [(styled(prompt, "bold"), styled(typed)), _keys(keys, cols)], len(prompt) + width_of(typed)
    if model.mode == "file" and model.item is not None:
        file = model.item.file
        number = sum(item.file is file and item.hunk.state == "open" for item in model.items)
        question = f"all {number} open hunks in {labels.path_of(file)}: "
        return [(styled(question, "bold"),), _keys("y accept  n reject  Esc back", cols)], None
    if model.mode == "edited":
        message = model.message or "this would be applied instead"
        return [(styled(message, "bold"),), _keys(f"{_yes(model)} accept  e edit again  Esc back", cols)], None
    if model.mode == "help":
        return [(), _keys("any key: back", cols)], None
    message = "…" if model.busy else model.message
    return [(styled(escape_name(message), "bold"),), _keys(_known_keys(model), cols)], None


def _known_keys(model: ReviewModel) -> str:
    if model.mode == "end":
        return END_KEYS
    return f"{_yes(model)}{KEYS[1:]}"


def _yes(model: ReviewModel) -> str:
    return "Y" if model.item is not None and model.item.hunk.risk else "y"


def _keys(words: str, cols: int) -> Row:
    """Return as many keys as fit, always with `?`."""
    known: Sequence[str] = words.split("  ")
    while len("  ".join(known)) > cols and len(known) > 2:
        known = [*known[:-3], *known[-2:]]
    return (styled("  ".join(known), "dim"),)
