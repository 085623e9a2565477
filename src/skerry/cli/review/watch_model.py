"""`skerry watch` as a state machine: events and keys go in, rows and effects come out. No I/O.

`a` and `r` decide about the last shown change. They include a hunk only if every line of it was on the screen unchanged
and at the same position. A key that follows too closely on a new change was meant for the previous one and is
ignored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from skerry.cli.review import labels, patch
from skerry.cli.review.escape import escape_name, width_of
from skerry.cli.review.file_rows import file_patch_rows
from skerry.cli.review.items import LineInput
from skerry.cli.review.patch import FilePatch, PatchHunk
from skerry.cli.review.rows import Layout, fold, is_too_long, truncate
from skerry.cli.review.style import Row, styled
from skerry.types import MAX_REASON, Decisions, Hunk, HunkState, Review, ReviewEvent

MAX_FILE_LINES = 60  # lines
MAX_EVENT_LINES = 300
MAX_FILES = 20
SETTLE_S = 0.7
HELP = ["a  accept the last shown change", "r  reject it, with a reason that the agent can read",
        "u  undo the decision", "q  quit (also Ctrl-C)"]  # fmt: skip

Run = tuple[str, int, tuple[str, ...], tuple[str, ...]]
"""A path, the number of lines before the change in the new file, the removed lines, the added lines."""


@dataclass(frozen=True)
class ShownChange:
    """A change that was shown. `tip` is the ledger's commit, `whole` means that nothing was left out."""

    sandbox: str
    tip: str
    label: str
    paths: tuple[str, ...]
    runs: frozenset[Run]
    whole: bool
    at: float


@dataclass(frozen=True)
class DecideShown:
    """Find the hunks of a shown change and decide about them; answered by `decided` or `failed`."""

    shown: ShownChange
    do: Literal["accept", "reject"]
    reason: str | None = None


@dataclass(frozen=True)
class Undo:
    """Revert a decision; `applied`: the accepted hunks were applied, which is undone first."""

    sandbox: str
    request: Decisions
    applied: bool = False


@dataclass(frozen=True)
class Quit:
    """End the program."""


WatchEffect = DecideShown | Undo | Quit


@dataclass
class WatchModel:
    """The state of `skerry watch`. `names` are the sandboxes' names by ID."""

    names: dict[str, str]
    mode: Literal["watch", "reason"] = "watch"
    line: LineInput = field(default_factory=LineInput)
    message: str = ""
    busy: bool = False
    last: ShownChange | None = None
    before: ShownChange | None = None
    meant: ShownChange | None = None  # the change that a reason is being typed for, also after newer changes
    undo_stack: list[Undo] = field(default_factory=list)

    def name_of(self, sandbox: str) -> str:
        return self.names.get(sandbox, sandbox)

    # -- events -------------------------------------------------------------------------------------------------------

    def take(self, event: ReviewEvent, layout: Layout, now: float = 0.0) -> list[Row]:
        """Return the rows to print for an event."""
        prefix = f"{escape_name(self.name_of(event.sandbox))}  " if len(self.names) > 1 else ""
        if event.type == "change" and event.entry is not None:
            return self._change(event, layout, now, prefix)
        if event.type == "command" and event.entry is not None:
            shown = labels.has_failed(event.entry) or event.entry.steps
            head = labels.command_row(event.entry, layout.cols - width_of(prefix)) if shown else ()
            return [(), (styled(prefix, "dim"), *head)] if shown else []
        if event.type == "decision":
            return [_decision(hunk, prefix, layout) for hunk in event.hunks[:MAX_FILES]]
        if event.type == "trouble":
            message = event.trouble or "changes are recorded again"
            return fold((styled(f"{prefix}{escape_name(message)}", "risk"),), layout.cols)
        name = escape_name(self.name_of(event.sandbox))
        return fold(
            (styled(f"{prefix}too many changes at once, some were not shown: skerry diff {name}", "risk"),), layout.cols
        )

    def _change(self, event: ReviewEvent, layout: Layout, now: float, prefix: str) -> list[Row]:
        entry, files = event.entry, event.files
        if entry is None:
            return []
        head = labels.command_row(entry, layout.cols - width_of(prefix), files)
        rows: list[Row] = [(), (styled(prefix, "dim"), *head), *labels.hosts_rows([entry], layout.cols)]
        lines = (entry.patch or "").encode("utf-8", "surrogatepass").split(b"\n")
        found = list(patch.file_patches(lines[:-1] if not lines[-1] else lines))
        whole = not entry.truncated and len(found) <= MAX_FILES and not any(file.cut for file in found)
        runs = frozenset(run for file in found for run in runs_of(file)) if whole else frozenset[Run]()
        left = MAX_EVENT_LINES
        risks = {labels.exact_path(file): file.risk for file in files}
        for file in found[:MAX_FILES]:
            size = sum(len(part.lines) for part in file.parts)
            whole &= size <= min(MAX_FILE_LINES, left) and not is_too_long(
                line.text for part in file.parts for line in part.lines
            )
            most = max(0, min(MAX_FILE_LINES, left))
            rows += file_patch_rows(file, layout, prefix=prefix, most=most, risk=risks.get(file.path, ()))
            left -= min(size, MAX_FILE_LINES)
        if not whole:
            name = escape_name(self.name_of(event.sandbox))
            more = f"{len(found) - MAX_FILES} more files; see all: " if len(found) > MAX_FILES else "see all: "
            rows.append(truncate((styled(f"CUT: {more}skerry diff {name}", "risk"),), layout.cols))
        if entry.kind in ("command", "background", "api") and files:
            label = labels.path_of(files[0]) if len(files) == 1 else f"{len(files)} files"
            paths = tuple(map(labels.exact_path, files))
            self.before, self.last = self.last, ShownChange(event.sandbox, event.tip, label, paths, runs, whole, now)
            self.message = ""
        return rows

    # -- keys ---------------------------------------------------------------------------------------------------------

    def press(self, key: str, now: float = 0.0) -> tuple[WatchEffect | None, list[Row]]:
        """Handle a key; return an effect and rows to print."""
        if self.mode == "reason":
            return self._reason(key), []
        self.message = ""
        if key in ("q", "ctrl-c", "ctrl-d"):
            return Quit(), []
        if self.busy:
            return None, []
        if key == "?":
            return None, [(styled(line),) for line in HELP]
        if key == "u":
            if self.undo_stack:
                self.busy = True
                return self.undo_stack.pop(), []
            self.message = "nothing to undo"
        elif key in ("a", "r"):
            return self._judge(key, now), []
        elif len(key) == 1:
            self.message = f"unknown key {escape_name(key)}; ? shows help"
        return None, []

    def _judge(self, key: str, now: float) -> WatchEffect | None:
        if self.last is None:
            self.message = "no change was shown yet"
        elif self.before is not None and now - self.last.at < SETTLE_S:
            self.message = "a new change just arrived: check it, then press the key again"
        elif not self.last.whole:
            self.message = f"not all of it was shown: skerry review {self.name_of(self.last.sandbox)}"
        elif key == "r":
            self.mode, self.line, self.meant = "reason", LineInput(max_length=MAX_REASON), self.last
        else:
            self.busy = True
            return DecideShown(self.last, "accept")
        return None

    def _reason(self, key: str) -> WatchEffect | None:
        if key in ("escape", "ctrl-c"):
            self.mode = "watch"
        elif key == "enter" and self.meant is not None:
            self.mode, self.busy = "watch", True
            return DecideShown(self.meant, "reject", self.line.text.strip() or None)
        else:
            self.line.press(key)
        return None

    # -- answers ------------------------------------------------------------------------------------------------------

    def decided(
        self, shown: ShownChange, done: Iterable[Hunk], left: Iterable[str], do: str, *, applied: bool = False
    ) -> None:
        """Show the result of a decision; `applied`: the accepted hunks are in the user's files."""
        self.busy = False
        hunks = tuple(hunk.id for hunk in done)
        verb = "rejected" if do == "reject" else "applied" if applied else "accepted"
        done_text = [f"{len(hunks)} {verb} in {shown.label}"] if hunks else []
        self.message = "; ".join([*done_text, *left]) or "no open hunks in it"
        if hunks:
            state: HunkState = "accepted" if do == "accept" else "rejected"
            request = Decisions(reopen=hunks, seen=dict.fromkeys(hunks, state))
            self.undo_stack.append(Undo(shown.sandbox, request, applied))

    def failed(self, message: str) -> None:
        self.busy = False
        self.message = message

    def status(self, cols: int) -> Row:
        if self.mode == "reason":
            prompt = "reason, for the agent: "
            return (styled(prompt, "bold"), styled(escape_name(self.line.text)[-max(1, cols - len(prompt) - 2) :]))
        about = f"{self.last.label}: a accept  r reject  " if self.last else ""
        keys = f"{about}{'u undo  ' if self.undo_stack else ''}? help  q quit"
        message = "…" if self.busy else self.message
        row: Row = (styled(f"{escape_name(message)}  " if message else "", "bold"), styled(keys, "dim"))
        return truncate(row, cols - 1)


def _decision(hunk: Hunk, prefix: str, layout: Layout) -> Row:
    where = styled(f"{prefix}{labels.location_of(hunk)} ", "dim")
    return truncate((where, *labels.state_row(hunk, layout.cols)), layout.cols)


def runs_of(file: FilePatch) -> list[Run]:
    return [(file.path, *run) for part in file.parts for run in _runs(part)]


def _runs(part: PatchHunk) -> list[tuple[int, tuple[str, ...], tuple[str, ...]]]:
    """Return the removed and added lines of each change in a hunk."""
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


def shown_hunks(shown: ShownChange, review: Review, do: str) -> tuple[list[Hunk], list[str]]:
    """Return the hunks that were shown completely, and the reasons why others are excluded."""
    if (
        review.tip != shown.tip and do == "accept"
    ):  # rejecting is safe: typing a reason takes a while, and a rejection applies nothing
        return [], ["changed since it was shown: check it, then press the key again"]
    selected: list[Hunk] = []
    other = flagged = 0
    for hunk in _open_hunks(shown, review):
        share = _shown_share(shown, hunk)
        if share == "none":
            continue  # an older open change of the same file
        if share != "all":
            other += 1
        elif hunk.risk and do == "accept":
            flagged += 1
        else:
            selected.append(hunk)
    left = [f"{flagged} flagged: accept each in skerry review"] if flagged else []
    return selected, [*left, f"{other} not shown completely: skerry review"] if other else left


def joined_hunks(shown: ShownChange, review: Review) -> list[Hunk]:
    """Return the hunks that join shown lines and an older open change close to them: their parts can be decided."""
    if review.tip != shown.tip:
        return []
    return [one for one in _open_hunks(shown, review) if one.splittable and _shown_share(shown, one) == "some"]


def _open_hunks(shown: ShownChange, review: Review) -> list[Hunk]:
    files = [file for file in review.files if labels.exact_path(file) in shown.paths]
    return [hunk for file in files for hunk in file.hunks if hunk.state == "open"]


def _shown_share(shown: ShownChange, hunk: Hunk) -> Literal["all", "some", "changed", "none"]:
    """Return how much of a hunk was shown. `changed`: lines were shown at its place, but not these."""
    if hunk.truncated or hunk.kind not in ("text", "added", "deleted"):
        return "changed"
    runs = [run for part in patch.hunk_parts(hunk) for run in _runs(part)]
    path = labels.exact_path(hunk)
    found = [(path, *run) in shown.runs for run in runs]
    if any(found):
        return "all" if all(found) else "some"
    return "changed" if not runs or _touches(shown, path, runs) else "none"


def _touches(shown: ShownChange, path: str, runs: Iterable[tuple[int, tuple[str, ...], tuple[str, ...]]]) -> bool:
    """Return whether a shown change is within one of these: it joined an older change of neighbouring lines."""
    places = [(at, at + len(come)) for name, at, _, come in shown.runs if name == path]
    return any(start <= at + len(come) and at <= end for at, _, come in runs for start, end in places)
