"""What changed in a workspace, hunk by hunk, what was decided about it, and what is to land.

Paths are relative to the workspace, as bytes that need not be UTF-8 (`raw_path` where they are not). What comes from
inside is told as it is: whoever shows it makes it harmless.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from skerry.errors import InvalidRequest
from skerry.types.processes import Result
from skerry.types.values import Answer, Value, check_path, check_text

HUNK_ID = re.compile(r"h-[0-9a-f]{16}")
OBJECT_ID = re.compile(r"[0-9a-f]{40}")
WORKSPACE = "/workspace"
REASON_MOST = 4000
HUNKS_MOST = 10_000
KNOWN_MOST = 10_000
RULES_MOST = 8 << 20  # letters: they are written anew with the state of a review
SHOWN_MOST = 64 << 10  # bytes of a hunk that lists show

HunkState = Literal["open", "accepted", "rejected", "applied"]
HunkKind = Literal["text", "added", "deleted", "renamed", "mode", "link", "binary", "large"]
"""`text`: lines of a file that is there before and after. All others are about a file as a whole: `added` and `deleted`
of a text file have its lines; `renamed` may have lines too; `large`: over the ledger's limit, known by its hash."""


class Hunk(Answer, frozen=True, kw_only=True):
    """The unit of approval. `id` is of its content: another content is another hunk. `text` is its lines as in a patch
    (' ', '-', '+' in front, '\\\\ No newline…'), with three of context and without its `@@` line; `raw` the same where
    that is not UTF-8; cut after 64 KiB (`truncated`). `risk`: why it needs accepting by itself. `edited`: what is to
    land in place of its new lines."""

    id: str
    path: str
    kind: HunkKind
    state: HunkState = "open"
    reason: str | None = None
    risk: tuple[str, ...] = ()
    old_start: int = 0
    old_lines: int = 0
    new_start: int = 0
    new_lines: int = 0
    heading: str = ""
    text: str = ""
    raw: bytes | None = None
    truncated: bool = False
    splittable: bool = False
    edited: str | None = None
    raw_path: bytes | None = None

    @property
    def replacement(self) -> str:
        """What stands there when it has landed, from the first changed line to the last: what `edit` takes another
        text for. Of a hunk that is not cut."""
        shown = self.text.split("\n")[:-1]
        changed = [number for number, line in enumerate(shown) if line[:1] in ("-", "+")]
        new: list[str] = []
        sign = ""
        for number in range(changed[0], len(shown)) if changed else ():
            line = shown[number]
            if line.startswith("\\"):
                if sign != "-":
                    new[-1] = new[-1].removesuffix("\n")
                continue
            if number > changed[-1]:
                break
            sign = line[:1]
            if sign != "-":
                new.append(line[1:] + "\n")
        return "".join(new)


class FileChange(Answer, frozen=True, kw_only=True):
    """One path that differs from what the user has. `added`, `removed`: lines; None where there are none to count.
    Modes as git has them: 100644, 100755, 120000; None: not there."""

    path: str
    kind: Literal["added", "modified", "deleted", "renamed"]
    old_path: str | None = None
    old_mode: str | None = None
    new_mode: str | None = None
    old_oid: str | None = None
    new_oid: str | None = None
    old_size: int | None = None
    new_size: int | None = None
    added: int | None = None
    removed: int | None = None
    binary: bool = False
    large: bool = False
    sha256: str | None = None
    risk: tuple[str, ...] = ()
    hunks: tuple[Hunk, ...] = ()
    raw_path: bytes | None = None
    raw_old_path: bytes | None = None


class LeftOut(Answer, frozen=True, kw_only=True):
    """What is in the workspace and in no patch, and why: a name that git can't carry, a device, a nested `.git`. `new`:
    it was not so when the review began."""

    path: str
    reason: str
    new: bool = True
    raw_path: bytes | None = None


class Review(Answer, frozen=True, kw_only=True):
    """All that differs from what the user has; to be gone through as a list of files. `base`, `tip`: commits of the
    ledger. `origin`: what the client said where it came from (opaque). `ignored`: paths that the project's own ignore
    rules leave out and that are new. `truncated`: there are more files or hunks than were told. `trouble`: why what
    came last is not in it: a full disk, a full ledger."""

    sandbox: str
    path: str
    base: str
    tip: str
    origin: str | None = None
    files: tuple[FileChange, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    ignored: tuple[str, ...] = ()
    open: int = 0
    accepted: int = 0
    rejected: int = 0
    applied: int = 0
    truncated: bool = False
    trouble: str | None = None

    def __iter__(self) -> Iterator[FileChange]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def hunks(self) -> tuple[Hunk, ...]:
        return tuple(hunk for file in self.files for hunk in file.hunks)


class BeginReview(Value, frozen=True, kw_only=True):
    """POST …/review: what is in `path` now is what the user has; from here on its changes are kept. `ignore`: lines of
    gitignore files, each list under the directory that it counts in ('' is the root), the weaker first. `tracked`:
    paths that count in spite of them. `origin`: where it came from, in the client's own words, opaque here. `head`:
    the commit that it stands on, if any. `known`: what its branches and tags named as it came: the user has those."""

    path: str = WORKSPACE
    origin: str | None = None
    head: str | None = None
    ignore: tuple[tuple[str, tuple[str, ...]], ...] = ()
    tracked: tuple[str, ...] = ()
    known: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_path("path", self.path)
        if not self.path.startswith("/") or self.path == "/":
            raise InvalidRequest(f"path: {self.path[:80]!r} is no directory below /", hint=f"like {WORKSPACE}")
        check_text("origin and head", self.origin or "", self.head or "")
        if len(self.origin or "") > 1024 or len(self.head or "") > 64:
            raise InvalidRequest("origin and head: too long")
        if len(self.ignore) > 10_000 or sum(len(lines) for _, lines in self.ignore) > 100_000:
            raise InvalidRequest("ignore: too many lines")
        for place, lines in self.ignore:
            check_text("ignore", place, *lines)
        if len(self.known) > KNOWN_MOST or any(not OBJECT_ID.fullmatch(oid) for oid in self.known):
            raise InvalidRequest(f"known: more than {KNOWN_MOST}, or one that is no object's id")
        if len(self.tracked) > 100_000:
            raise InvalidRequest("tracked: too many paths")
        letters = sum(map(len, self.tracked)) + sum(len(place) + sum(map(len, lines)) for place, lines in self.ignore)
        if letters > RULES_MOST:
            raise InvalidRequest(f"ignore and tracked: more than {RULES_MOST >> 20} MiB together")


class LedgerEntry(Answer, frozen=True, kw_only=True):
    """One commit of the ledger: what a command changed. `kind`: `base` is what was imported, `command` one or several
    commands (several: they ran at once, and nobody can tell whose a change was), `background` what was written while
    none ran, `api` what came by the files API, `applied` and `unapplied` the user's. `running`: it had not ended.
    `hosts`: whom it contacted meanwhile. `patch`: where it was asked for, bounded."""

    commit: str
    at: float
    kind: Literal["base", "command", "background", "api", "rollback", "applied", "unapplied"]
    command: str = ""
    processes: tuple[str, ...] = ()
    exit_code: int | None = None
    duration_s: float | None = None
    running: bool = False
    hosts: tuple[str, ...] = ()
    files: int = 0
    added: int = 0
    removed: int = 0
    left_out: int = 0
    patch: str | None = None
    truncated: bool = False


class History(Answer, frozen=True, kw_only=True):
    """Oldest first. `agent`: refs of the agent's own repository that came out, with their commits. `truncated`: there
    are older ones. `trouble`: as of a review."""

    entries: tuple[LedgerEntry, ...]
    agent: dict[str, str] = {}
    truncated: bool = False
    trouble: str | None = None

    def __iter__(self) -> Iterator[LedgerEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


class DiffStat(Answer, frozen=True, kw_only=True):
    """What differs from what the user has, without any line of it. `left_out`, `trouble`: as of a review."""

    files: tuple[FileChange, ...]
    left_out: tuple[LeftOut, ...] = ()
    trouble: str | None = None

    def __iter__(self) -> Iterator[FileChange]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


class ReviewEvent(Answer, frozen=True, kw_only=True):
    """What `watch` tells. `change`: a new commit, with its files as they changed in it (hunks are those of the whole
    review that it touched); `decision`: hunks whose state changed; `lost`: the watcher was too slow, look again;
    `trouble`: changes can't be kept for now, and why; None: they can again."""

    type: Literal["change", "decision", "lost", "trouble"]
    sandbox: str
    tip: str
    entry: LedgerEntry | None = None
    files: tuple[FileChange, ...] = ()
    hunks: tuple[Hunk, ...] = ()
    trouble: str | None = None


class DecideRequest(Value, frozen=True, kw_only=True):
    """POST …/review/decisions (scope `review`). Hunks by id, or `paths`, or `all` that is open; what is flagged with a
    risk is accepted only by its id, never by `all` or `paths`. `reopen` takes a decision
    back. `split`: into its smallest parts. `edit`: accepted, with these new lines in place of its own."""

    accept: tuple[str, ...] = ()
    reject: tuple[str, ...] = ()
    reopen: tuple[str, ...] = ()
    split: tuple[str, ...] = ()
    edit: dict[str, str] = {}
    paths: tuple[str, ...] = ()
    do: Literal["accept", "reject", "reopen"] | None = None  # to all of `paths`, or with `all` to all
    all: bool = False
    reason: Annotated[str, Meta(max_length=REASON_MOST)] | None = None
    tip: str | None = None  # what was looked at; refused (Conflict) if a hunk named here is no longer as it was

    def __post_init__(self) -> None:
        named = (*self.accept, *self.reject, *self.reopen, *self.split, *self.edit)
        for one in named:
            if not HUNK_ID.fullmatch(one):
                raise InvalidRequest(f"hunk: {one[:80]!r} is not a hunk's id", hint="like h-0123456789abcdef")
        if len(named) > HUNKS_MOST:
            raise InvalidRequest(f"more than {HUNKS_MOST} hunks at once")
        if (self.do is None) != (not self.paths and not self.all) or (self.all and self.paths):
            raise InvalidRequest("do: with paths, or with all, and not without")
        for path in self.paths:
            check_path("paths", path)
            check_text("paths", path)  # of another name the hunks are told by id
        check_text("reason", self.reason or "", *self.edit.values())
        if sum(map(len, self.edit.values())) > 8 << 20:
            raise InvalidRequest("edit: more than 8 MiB")


class Decided(Answer, frozen=True, kw_only=True):
    """`hunks`: those that changed, as they are now (of a split one: its parts). `held_back`: flagged with a risk, and
    so not accepted by `all` or `paths`."""

    hunks: tuple[Hunk, ...] = ()
    held_back: tuple[Hunk, ...] = ()


class AcceptedFile(Answer, frozen=True, kw_only=True):
    """A file as it is to land: from `old` (what the user had) to `new` (that with its accepted hunks, and no others).
    Contents are the ledger's blobs; of a `large` one the sandbox's own file, which must have that hash."""

    path: str
    kind: Literal["added", "modified", "deleted", "renamed"]
    hunks: tuple[str, ...]
    old_path: str | None = None
    old_mode: str | None = None
    new_mode: str | None = None
    old_oid: str | None = None
    new_oid: str | None = None
    old_size: int | None = None
    new_size: int | None = None
    large: bool = False
    sha256: str | None = None
    raw_path: bytes | None = None
    raw_old_path: bytes | None = None


class Accepted(Answer, frozen=True, kw_only=True):
    """What `apply` lands. `digest`: of all of it; what is reported as applied names it. `entries`: the commits that the
    hunks came from, newest last."""

    sandbox: str
    path: str
    base: str
    tip: str
    digest: str
    origin: str | None = None
    files: tuple[AcceptedFile, ...] = ()
    entries: tuple[LedgerEntry, ...] = ()


class AppliedRequest(Value, frozen=True, kw_only=True):
    """POST …/review/applied and …/review/unapplied (scope `review`): it was done, in the client's tree. `id` is the
    client's own; told twice, it counts once."""

    id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    digest: str | None = None
    hunks: tuple[str, ...] = ()


class AppliedFile(Answer, frozen=True, kw_only=True):
    """`how`: `written` as accepted, `merged` with what the user had changed, `same`: it was so already."""

    path: str
    how: Literal["written", "merged", "removed", "same"]
    raw_path: bytes | None = None


class Applied(Answer, frozen=True, kw_only=True):
    """What landed. `checked`: how `check` ended. `commit`, `branch`: where it went, if not into the working tree alone.
    `held_back`: hunks that `all` did not take, because they are flagged with a risk. `told`: the server knows; if not,
    the next apply or undo tells it. `notes`: what else there is to say, as of an earlier one that was cut off."""

    id: str
    sandbox: str
    files: tuple[AppliedFile, ...] = ()
    hunks: tuple[str, ...] = ()
    commit: str | None = None
    branch: str | None = None
    checked: Result | None = None
    held_back: tuple[Hunk, ...] = ()
    told: bool = True
    notes: tuple[str, ...] = ()


class Why(Answer, frozen=True, kw_only=True):
    """Where a hunk came from: the commands that made it, newest last, and what each printed (bounded)."""

    hunk: Hunk
    entries: tuple[LedgerEntry, ...]
    output: dict[str, str] = {}


class ReviewRefs(Answer, frozen=True, kw_only=True):
    """What a git remote shows of a review: the ledger's tip, and the agent's own refs (`heads/…`, `tags/…`). `refused`:
    refs of the agent that did not come out, and why."""

    sandbox: str
    tip: str
    name: str | None = None
    origin: str | None = None
    agent: dict[str, str] = {}
    refused: dict[str, str] = {}


class PackRequest(Value, frozen=True, kw_only=True):
    """POST …/review/pack: the objects behind `wants`, without those behind `haves`."""

    wants: tuple[str, ...]
    haves: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.wants or len(self.wants) > 10_000 or len(self.haves) > 10_000:
            raise InvalidRequest("wants and haves: from 1 to 10,000, and at most 10,000")
        for oid in (*self.wants, *self.haves):
            if not OBJECT_ID.fullmatch(oid):
                raise InvalidRequest(f"{oid[:80]!r} is no object", hint="forty hexadecimal digits")


class Attempted(Answer, frozen=True, kw_only=True):
    """One sandbox of a comparison. `check`: how the command ended in a fork of it. `cpu_s`, `commands`, `duration_s`:
    what it took."""

    sandbox: str
    name: str | None = None
    files: tuple[FileChange, ...] = ()
    added: int = 0
    removed: int = 0
    commands: int = 0
    duration_s: float = 0.0
    cpu_s: float | None = None
    memory_peak: int | None = None
    check: Result | None = None


class Comparison(Answer, frozen=True, kw_only=True):
    """Several attempts at one task, side by side. `paths`: of all of them, each with the attempts that touch it."""

    attempts: tuple[Attempted, ...]
    paths: dict[str, tuple[str, ...]] = {}
