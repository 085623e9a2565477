"""Watching as a machine: events and keys in, rows and wishes out. No I/O.

`a` and `r` are about what was shown last. A hunk is part of that only if every change in it was on the screen just as
it is, and where it is; and a key that follows too closely on something new was meant for what was there before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from skerry.cli.review import headings, patch
from skerry.cli.review.patch import Part, Piece
from skerry.cli.review.pieces import piece_rows
from skerry.cli.review.rows import Look, cut, folded, is_too_long
from skerry.cli.review.stops import Typing
from skerry.cli.review.style import Row, plain
from skerry.cli.review.visible import name_shown, width_of
from skerry.types import REASON_MOST, DecideRequest, FileChange, Hunk, Review, ReviewEvent

MOST_OF_A_FILE = 60  # lines
MOST_OF_AN_EVENT = 300
MOST_FILES = 20
SETTLE_S = 0.7
HELP = ["a  accept what was just shown", "r  reject it; a reason is asked for, which the agent can read",
        "u  undo that", "q  leave; Ctrl-C too"]  # fmt: skip

Run = tuple[str, int, tuple[str, ...], tuple[str, ...]]
"""A path, how many lines of the file as it is now stand before, the lines that go, the lines that come."""


@dataclass(frozen=True)
class Shown:
    """What an event put on the screen. `tip`: as of which commit. `whole`: nothing of it was cut."""

    sandbox: str
    tip: str
    label: str
    paths: tuple[str, ...]
    runs: frozenset[Run]
    whole: bool
    at: float


@dataclass(frozen=True)
class Judge:
    """Look up the hunks behind what was shown, and decide about them; answered by `judged` or `failed`."""

    shown: Shown
    do: Literal["accept", "reject"]
    reason: str | None = None


@dataclass(frozen=True)
class Undo:
    sandbox: str
    request: DecideRequest


@dataclass(frozen=True)
class Quit:
    pass


Wish = Judge | Undo | Quit


@dataclass
class Watching:
    """`names`: of the sandboxes, by id."""

    names: dict[str, str]
    mode: Literal["watch", "reason"] = "watch"
    typing: Typing = field(default_factory=Typing)
    message: str = ""
    busy: bool = False
    last: Shown | None = None
    before: Shown | None = None
    meant: Shown | None = None  # what a reason is being typed for, also when something new comes meanwhile
    undoing: list[Undo] = field(default_factory=list)

    def name_of(self, sandbox: str) -> str:
        return self.names.get(sandbox, sandbox)

    # -- events -------------------------------------------------------------------------------------------------------

    def take(self, event: ReviewEvent, look: Look, now: float = 0.0) -> list[Row]:
        """What is printed for it."""
        prefix = f"{name_shown(self.name_of(event.sandbox))}  " if len(self.names) > 1 else ""
        if event.type == "change" and event.entry is not None:
            return self._change(event, look, now, prefix)
        if event.type == "decision":
            return [_decision(hunk, prefix, look) for hunk in event.hunks[:MOST_FILES]]
        if event.type == "trouble":
            said = event.trouble or "changes are kept again"
            return folded((plain(f"{prefix}{name_shown(said)}", "risk"),), look.cols)
        name = name_shown(self.name_of(event.sandbox))
        return folded((plain(f"{prefix}too much at once, some was not shown: skerry diff {name}", "risk"),), look.cols)

    def _change(self, event: ReviewEvent, look: Look, now: float, prefix: str) -> list[Row]:
        entry, files = event.entry, event.files
        if entry is None:
            return []
        head = headings.command_row(entry, look.cols - width_of(prefix), files)
        rows: list[Row] = [(), (plain(prefix, "dim"), *head), *headings.hosts_rows([entry], look.cols)]
        lines = (entry.patch or "").encode("utf-8", "surrogatepass").split(b"\n")
        found = list(patch.pieces(lines[:-1] if not lines[-1] else lines))
        whole = not entry.truncated and len(found) <= MOST_FILES and not any(piece.cut for piece in found)
        runs = frozenset(run for piece in found for run in runs_of(piece)) if whole else frozenset[Run]()
        left = MOST_OF_AN_EVENT
        risks = {headings.exact_path(file): file.risk for file in files}
        for piece in found[:MOST_FILES]:
            size = sum(len(part.lines) for part in piece.parts)
            whole &= size <= min(MOST_OF_A_FILE, left) and not is_too_long(
                line.text for part in piece.parts for line in part.lines
            )
            most = max(0, min(MOST_OF_A_FILE, left))
            rows += piece_rows(piece, look, prefix=prefix, most=most, risk=risks.get(piece.path, ()))
            left -= min(size, MOST_OF_A_FILE)
        if not whole:
            name = name_shown(self.name_of(event.sandbox))
            more = f"{len(found) - MOST_FILES} more files; all of it: " if len(found) > MOST_FILES else "all of it: "
            rows.append(cut((plain(f"CUT: {more}skerry diff {name}", "risk"),), look.cols))
        if entry.kind in ("command", "background", "api") and files:
            label = headings.path_of(files[0]) if len(files) == 1 else f"{len(files)} files"
            paths = tuple(map(headings.exact_path, files))
            self.before, self.last = self.last, Shown(event.sandbox, event.tip, label, paths, runs, whole, now)
            self.message = ""
        return rows

    # -- keys ---------------------------------------------------------------------------------------------------------

    def press(self, key: str, now: float = 0.0) -> tuple[Wish | None, list[Row]]:
        """A wish, and rows to be printed."""
        if self.mode == "reason":
            return self._reason(key), []
        self.message = ""
        if key in ("q", "ctrl-c", "ctrl-d"):
            return Quit(), []
        if self.busy:
            return None, []
        if key == "?":
            return None, [(plain(line),) for line in HELP]
        if key == "u":
            if self.undoing:
                self.busy = True
                return self.undoing.pop(), []
            self.message = "nothing to undo"
        elif key in ("a", "r"):
            return self._judge(key, now), []
        elif len(key) == 1:
            self.message = f"{name_shown(key)} is no key here; ? helps"
        return None, []

    def _judge(self, key: str, now: float) -> Wish | None:
        if self.last is None:
            self.message = "nothing was shown yet"
        elif self.before is not None and now - self.last.at < SETTLE_S:
            self.message = "something new came just then: look, then press it again"
        elif not self.last.whole:
            self.message = f"not all of it was shown: skerry review {self.name_of(self.last.sandbox)}"
        elif key == "r":
            self.mode, self.typing, self.meant = "reason", Typing(most=REASON_MOST), self.last
        else:
            self.busy = True
            return Judge(self.last, "accept")
        return None

    def _reason(self, key: str) -> Wish | None:
        if key in ("escape", "ctrl-c"):
            self.mode = "watch"
        elif key == "enter" and self.meant is not None:
            self.mode, self.busy = "watch", True
            return Judge(self.meant, "reject", self.typing.text.strip() or None)
        else:
            self.typing.press(key)
        return None

    # -- answers ------------------------------------------------------------------------------------------------------

    def judged(self, shown: Shown, done: Iterable[Hunk], left: Iterable[str], do: str) -> None:
        self.busy = False
        hunks = tuple(hunk.id for hunk in done)
        said = [f"{len(hunks)} {'accepted' if do == 'accept' else 'rejected'} in {shown.label}"] if hunks else []
        self.message = "; ".join([*said, *left]) or "nothing of it is open"
        if hunks:
            self.undoing.append(Undo(shown.sandbox, DecideRequest(reopen=hunks)))

    def failed(self, message: str) -> None:
        self.busy = False
        self.message = message

    def status(self, cols: int) -> Row:
        if self.mode == "reason":
            prompt = "reason, for the agent: "
            return (plain(prompt, "bold"), plain(name_shown(self.typing.text)[-max(1, cols - len(prompt) - 2) :]))
        about = f"{self.last.label}: a accept  r reject  " if self.last else ""
        keys = f"{about}{'u undo  ' if self.undoing else ''}? help  q quit"
        said = "…" if self.busy else self.message
        row: Row = (plain(f"{name_shown(said)}  " if said else "", "bold"), plain(keys, "dim"))
        return cut(row, cols - 1)


def _decision(hunk: Hunk, prefix: str, look: Look) -> Row:
    where = plain(f"{prefix}{headings.place_of(hunk)} ", "dim")
    return cut((where, *headings.state_row(hunk, look.cols)), look.cols)


def runs_of(piece: Piece) -> list[Run]:
    return [(piece.path, *run) for part in piece.parts for run in _runs(part)]


def _runs(part: Part) -> list[tuple[int, tuple[str, ...], tuple[str, ...]]]:
    """What goes and what comes, place by place."""
    found: list[tuple[int, tuple[list[str], list[str]]]] = []
    inside = came = False
    before = part.new_start - (part.new_lines > 0)
    for line in part.lines:
        if line.kind == "note":
            if inside:
                found[-1][1][came].append(line.text)
            continue
        came = line.kind == "added"
        if line.kind == "context":
            inside = False
        else:
            if not inside:
                found.append((before, ([], [])))
                inside = True
            found[-1][1][came].append(line.text)
        before += line.kind != "removed"
    return [(at, tuple(gone), tuple(come)) for at, (gone, come) in found]


def sorted_out(shown: Shown, review: Review, do: str) -> tuple[list[Hunk], list[str]]:
    """The hunks that were on the screen, whole; and in words why others are not among them."""
    if review.tip != shown.tip and do == "accept":  # a reason takes a while to type, and lets nothing in
        return [], ["something changed since: look, then press it again"]
    meant: list[Hunk] = []
    other = flagged = 0
    for file in review.files:
        for hunk in file.hunks:
            if hunk.state != "open" or headings.exact_path(file) not in shown.paths:
                continue
            if not _was_shown(shown, file, hunk):
                other += 1
            elif hunk.risk and do == "accept":
                flagged += 1
            else:
                meant.append(hunk)
    left = [f"{flagged} flagged, each by itself in skerry review"] if flagged else []
    return meant, [*left, f"{other} changed in more than was shown: skerry review"] if other else left


def _was_shown(shown: Shown, file: FileChange, hunk: Hunk) -> bool:
    if hunk.truncated or hunk.kind not in ("text", "added", "deleted"):
        return False
    runs = [run for part in patch.of_hunk(hunk) for run in _runs(part)]
    path = headings.exact_path(file)
    return bool(runs) and all((path, *run) in shown.runs for run in runs)
