"""Changes of a workspace by hunk, decisions about them, and patch sets.

Paths are relative to the workspace, in bytes that need not be UTF-8 (then `raw_path` is set). Text from inside is not
escaped: the program that displays it must escape it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

from msgspec import Meta

from skerry.errors import InvalidRequest
from skerry.types.globs import check_globs
from skerry.types.processes import Result
from skerry.types.sandboxes import SandboxInfo
from skerry.types.values import Answer, Value, check_name, check_path, check_text

HUNK_ID = re.compile(r"h-[0-9a-f]{16}")
OBJECT_ID = re.compile(r"[0-9a-f]{40}")
WORKSPACE = "/workspace"
MAX_REASON = 4000
MAX_HUNKS = 10_000
MAX_KNOWN = 10_000
MAX_IGNORE = 1 << 20  # characters of ignore lines and tracked paths: they are rewritten with the state of a review
MAX_IGNORE_LINES = 20_000
MAX_SHOWN = 64 << 10  # bytes of a hunk that lists show

MAX_TOOL_CALLS = 256  # of one report
MAX_TOOL_NAME = 1000
MAX_TOOL_PATHS = 64
MAX_TOOL_PATH = 4096

HunkState = Literal["open", "accepted", "rejected", "applied"]
HunkKind = Literal["text", "added", "deleted", "renamed", "mode", "link", "binary", "large"]
"""`text`: lines of a file that exists before and after. All others concern a whole file: `added` and `deleted`
of a text file have its lines; `renamed` may have lines too; `large`: over the ledger's limit, known by its hash."""


class Hunk(Answer, frozen=True, kw_only=True):
    r"""The unit of approval. `id` is derived from its content: other content is another hunk. `text` has its lines as
    in a patch (prefixed ' ', '-', '+', '\\ No newline…'), with three lines of context and without its `@@` line; `raw`
    the same if it is not UTF-8; truncated after 64 KiB (`truncated`). `risk`: why it must be accepted individually.
    `edited`: the lines to apply in place of its new lines. `decided_at`, `decided_by`: the time and the
    reviewer of its decision: the ID of a token, or the owner for a user of the unix socket."""

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
    decided_at: float | None = None
    decided_by: str | None = None
    raw_path: bytes | None = None

    @property
    def replacement(self) -> str:
        """The lines after the hunk is applied, from the first changed line to the last: the text that `edit` replaces.
        Valid for a hunk that is not truncated."""
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
    """A path that differs from the user's files. `added`, `removed`: lines; None if the file has no lines to count.
    Modes as in git: 100644, 100755, 120000; None: absent."""

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
    """An entry of the workspace that no patch can carry, with the reason: a name that git cannot store, a device, a
    nested `.git`. `new`: it appeared after the start of the review."""

    path: str
    reason: str
    new: bool = True
    raw_path: bytes | None = None


class GeneratedFiles(Answer, frozen=True, kw_only=True):
    """New files that look generated (caches, build outputs), or match the review's `exclude`. `path`: their directory,
    with a slash; else the file or the pattern. `files`: their number. A path or glob that names them selects them."""

    path: str
    files: int


class Review(Answer, frozen=True, kw_only=True):
    """All differences from the user's files; iterable as a list of files. `base`, `tip`: commits of the ledger.
    `origin`: the source named by the client (opaque). `ignored`: new paths that the project's own ignore rules exclude.
    `generated`: files that are kept apart; no other field counts them.
    `truncated`: files or hunks are missing from the lists. `trouble`: why the latest changes are missing: a full disk,
    a full ledger."""

    sandbox: str
    path: str
    base: str
    tip: str
    origin: str | None = None
    files: tuple[FileChange, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    ignored: tuple[str, ...] = ()
    generated: tuple[GeneratedFiles, ...] = ()
    open: int = 0
    accepted: int = 0
    rejected: int = 0
    applied: int = 0
    truncated: bool = False
    trouble: str | None = None
    failed: tuple[LedgerEntry, ...] = ()

    def __iter__(self) -> Iterator[FileChange]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def hunks(self) -> tuple[Hunk, ...]:
        return tuple(hunk for file in self.files for hunk in file.hunks)


class BeginReview(Value, frozen=True, kw_only=True):
    """POST …/review: take the present content of `path` as the user's files and record changes from now on. `ignore`:
    lines of gitignore files by the directory that they apply to ('' is the root), the weaker first. `tracked`: paths
    that count in spite of them. `origin`: the source, named by the client, opaque here. `head`: the commit that it is
    based on, if any. `known`: the commits of its branches and tags at the start: the user has them. `exclude`: globs of
    files to keep apart like generated files. `copied_at`: when the client read the files, in seconds since 1970."""

    path: str = WORKSPACE
    origin: str | None = None
    head: str | None = None
    ignore: tuple[tuple[str, tuple[str, ...]], ...] = ()
    tracked: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    copied_at: float | None = None

    def __post_init__(self) -> None:
        check_path("path", self.path)
        check_globs("exclude", self.exclude)
        check_text("exclude", *self.exclude)
        if not self.path.startswith("/") or self.path == "/":
            raise InvalidRequest(f"path: {self.path[:80]!r} is no directory below /", hint=f"like {WORKSPACE}")
        check_text("origin and head", self.origin or "", self.head or "")
        if len(self.origin or "") > 1024 or len(self.head or "") > 64:
            raise InvalidRequest("origin and head: too long")
        self._check_ignore()
        if len(self.known) > MAX_KNOWN or any(not OBJECT_ID.fullmatch(oid) for oid in self.known):
            raise InvalidRequest(f"known: more than {MAX_KNOWN}, or one that is no object's id")

    def _check_ignore(self) -> None:
        """Check the amount before the content: the keeper parses all of it."""
        lines = sum(len(lines) for _, lines in self.ignore)
        if max(len(self.ignore), lines, len(self.tracked)) > MAX_IGNORE_LINES:
            raise InvalidRequest(
                f"ignore and tracked: more than {MAX_IGNORE_LINES:,} lines or paths",
                hint="ignore directories instead of single files",
            )
        letters = sum(map(len, self.tracked)) + sum(len(place) + sum(map(len, lines)) for place, lines in self.ignore)
        if letters > MAX_IGNORE:
            raise InvalidRequest(f"ignore and tracked: more than {MAX_IGNORE >> 20} MiB together")
        for place, lines_there in self.ignore:
            check_text("ignore", place, *lines_there)


class LedgerStep(Answer, frozen=True, kw_only=True):
    """A commit of the ledger that was made while a command ran."""

    commit: str
    at: float
    files: int = 0
    added: int = 0
    removed: int = 0


class LedgerEntry(Answer, frozen=True, kw_only=True):
    """A command and its changes. `kind`: `base` is the import, `command` a command, `background` changes while no
    command ran, `api` changes through the files API, `pulled` the user's later edits, `applied` and `unapplied` the
    user's. `commit`: the last commit of the ledger with its changes; empty if nothing changed. `steps`: its commits, if
    there are several. `runs`: the ID of the process, or of the run in a context. `also`: other commands that ran at the
    same time: their changes cannot be separated. `running`: the command had not ended. `signal`: the signal that ended
    it. `cpu_s`, `memory_peak`: its usage, if known. `hosts`: hosts that it contacted. `patch`: if requested,
    bounded. `within`: for a tool call that an agent reported, the command of the agent; then `command` is the title of
    the tool call, in the agent's words, and `exit_code` is 1 if it reported a failure."""

    commit: str
    at: float
    kind: Literal["base", "command", "background", "api", "rollback", "pulled", "applied", "unapplied"]
    command: str = ""
    processes: tuple[str, ...] = ()
    exit_code: int | None = None
    duration_s: float | None = None
    signal: str | None = None
    cpu_s: float | None = None
    memory_peak: int | None = None
    running: bool = False
    runs: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    steps: tuple[LedgerStep, ...] = ()
    hosts: tuple[str, ...] = ()
    files: int = 0
    added: int = 0
    removed: int = 0
    left_out: int = 0
    patch: str | None = None
    truncated: bool = False
    within: str | None = None


class ReportedCall(Value, frozen=True, kw_only=True):
    """A tool call that a coding agent reports. `id`: unique in its process. `name`: its title, like `Edit app.py`.
    `paths`: the files that it names, absolute or relative to the workspace. `state`: `started`, `ended` or `failed`; a
    call that is reported only at its end has started then. A running call may be reported again, with another name."""

    id: Annotated[str, Meta(min_length=1, max_length=128)]
    name: Annotated[str, Meta(max_length=MAX_TOOL_NAME)] = ""
    paths: Annotated[tuple[str, ...], Meta(max_length=MAX_TOOL_PATHS)] = ()
    state: Literal["started", "ended", "failed"] = "started"

    def __post_init__(self) -> None:
        check_text("id, name and paths", self.id, self.name, *self.paths)
        if any(len(path) > MAX_TOOL_PATH for path in self.paths):
            raise InvalidRequest(f"paths: one is longer than {MAX_TOOL_PATH:,} characters")


class ReportedCalls(Value, frozen=True, kw_only=True):
    """POST …/processes/{process}/tool-calls: tool calls of a running command, in their order. Changes of files while a
    tool call runs are attributed to it."""

    calls: Annotated[tuple[ReportedCall, ...], Meta(max_length=MAX_TOOL_CALLS)]


class CommandTotals(Answer, frozen=True, kw_only=True):
    """All commands of a review that have ended. `failed`: those with another exit code than 0, or ended by a signal.
    `memory_peak`: of the largest process."""

    commands: int = 0
    failed: int = 0
    duration_s: float = 0.0
    cpu_s: float = 0.0
    memory_peak: int | None = None


class History(Answer, frozen=True, kw_only=True):
    """Oldest first. `agent`: exported refs of the agent's own repository, with their commits. `truncated`: older
    entries exist. `totals`: of all commands, also older ones. `trouble`: as in a review."""

    entries: tuple[LedgerEntry, ...]
    totals: CommandTotals = CommandTotals()
    agent: dict[str, str] = {}
    truncated: bool = False
    trouble: str | None = None

    def __iter__(self) -> Iterator[LedgerEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


class DiffStat(Answer, frozen=True, kw_only=True):
    """The differences from the user's files, without their lines. `left_out`, `generated`, `trouble`: as in a
    review."""

    files: tuple[FileChange, ...]
    left_out: tuple[LeftOut, ...] = ()
    generated: tuple[GeneratedFiles, ...] = ()
    trouble: str | None = None

    def __iter__(self) -> Iterator[FileChange]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


class ReviewEvent(Answer, frozen=True, kw_only=True):
    """An event of `watch`. `change`: a new commit, with its changed files (hunks are those of the whole review that it
    touched); `command`: a command ended without changes since its last commit, `entry` has its outcome; `decision`:
    hunks with a changed state; `lost`: the watcher was too slow, read the review again; `trouble`: the reason why
    changes cannot be recorded; None: they can again."""

    type: Literal["change", "command", "decision", "lost", "trouble"]
    sandbox: str
    tip: str
    entry: LedgerEntry | None = None
    files: tuple[FileChange, ...] = ()
    hunks: tuple[Hunk, ...] = ()
    trouble: str | None = None


class Decisions(Value, frozen=True, kw_only=True):
    """POST …/review/decisions (scope `review`). Hunks by id, or `paths`, or `all` open ones; a hunk flagged with a risk
    is accepted only by its id, never by `all` or `paths`. `paths` may be globs (`*`, `?`, `**`); generated files are
    selected only by a path or glob that names them. `exclude`: globs of files that `all` and `paths` skip. `reopen`
    withdraws a decision. `split`: into its smallest parts. `edit`: accept with these new lines instead of the
    hunk's. `seen`: the displayed states of hunks; Conflict if one of them has another state now. Without it, a hunk
    that another caller decided differently is a Conflict."""

    accept: tuple[str, ...] = ()
    reject: tuple[str, ...] = ()
    reopen: tuple[str, ...] = ()
    split: tuple[str, ...] = ()
    edit: dict[str, str] = {}
    paths: tuple[str, ...] = ()
    do: Literal["accept", "reject", "reopen"] | None = None  # to all of `paths`, or with `all` to all
    all: bool = False
    exclude: tuple[str, ...] = ()
    reason: Annotated[str, Meta(max_length=MAX_REASON)] | None = None
    tip: str | None = None  # the displayed state; Conflict if a hunk named here has changed since
    seen: dict[str, HunkState] = {}

    def __post_init__(self) -> None:
        named = (*self.accept, *self.reject, *self.reopen, *self.split, *self.edit)
        if len(self.seen) > MAX_HUNKS:
            raise InvalidRequest(f"seen: more than {MAX_HUNKS} hunks")
        for one in (*named, *self.seen):
            if not HUNK_ID.fullmatch(one):
                raise InvalidRequest(f"hunk: {one[:80]!r} is not a hunk's id", hint="like h-0123456789abcdef")
        if len(named) > MAX_HUNKS:
            raise InvalidRequest(f"more than {MAX_HUNKS} hunks at once")
        if (self.do is None) != (not self.paths and not self.all) or (self.all and self.paths):
            raise InvalidRequest("do: requires paths or all")
        for path in self.paths:
            check_path("paths", path)
            check_text("paths", path)  # for other names, give the hunks by id
        check_globs("exclude", self.exclude)
        check_text("exclude", *self.exclude)
        check_text("reason", self.reason or "", *self.edit.values())
        if sum(map(len, self.edit.values())) > 8 << 20:
            raise InvalidRequest("edit: more than 8 MiB")


class DecisionResult(Answer, frozen=True, kw_only=True):
    """`hunks`: the changed hunks in their new state (the parts of a split hunk). `held_back`: hunks flagged with a
    risk, and therefore not accepted by `all` or `paths`. `generated`: files that `all` or `paths` left out."""

    hunks: tuple[Hunk, ...] = ()
    held_back: tuple[Hunk, ...] = ()
    generated: tuple[GeneratedFiles, ...] = ()


class PatchSetFile(Answer, frozen=True, kw_only=True):
    """A file to apply: from `old` (the user's) to `new` (`old` with the accepted hunks only). Contents are blobs of the
    ledger; of a `large` file the sandbox's own file, which must have that hash."""

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


class PatchSet(Answer, frozen=True, kw_only=True):
    """The patch set that `apply` writes. `digest`: of its content; a recorded apply names it. `entries`: the commits
    that the hunks came from, newest last. `held_back`: with `open=true`, open hunks that a bulk accept skips;
    `generated`: files that it skips."""

    sandbox: str
    path: str
    base: str
    tip: str
    digest: str
    origin: str | None = None
    files: tuple[PatchSetFile, ...] = ()
    entries: tuple[LedgerEntry, ...] = ()
    held_back: tuple[Hunk, ...] = ()
    generated: tuple[GeneratedFiles, ...] = ()


class AppliedRequest(Value, frozen=True, kw_only=True):
    """POST …/review/applies (scope `review`): record that a patch set was applied to the client's tree. The client
    chooses `id`; repeating a request has no effect. `elsewhere`: only a branch has the changes, the working tree lacks
    them."""

    id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    digest: str | None = None
    hunks: tuple[str, ...] = ()
    elsewhere: bool = False


class AppliedFile(Answer, frozen=True, kw_only=True):
    """`how`: `written` as accepted, `merged` with changes of the user, `same`: already identical."""

    path: str
    how: Literal["written", "merged", "removed", "same"]
    raw_path: bytes | None = None


class ApplyResult(Answer, frozen=True, kw_only=True):
    """The result of an apply. `checked`: the result of `check`. `commit`, `branch`: the destination, if not the working
    tree alone. `held_back`: hunks that `all` did not include, because they are flagged with a risk; `generated`: files
    that it did not include. `notified`: the
    server was notified; if not, the next apply or undo does so. `notes`: further messages, for example about an earlier
    interrupted apply."""

    id: str
    sandbox: str
    files: tuple[AppliedFile, ...] = ()
    hunks: tuple[str, ...] = ()
    commit: str | None = None
    branch: str | None = None
    checked: Result | None = None
    held_back: tuple[Hunk, ...] = ()
    generated: tuple[GeneratedFiles, ...] = ()
    notified: bool = True
    notes: tuple[str, ...] = ()


class DeletedSandbox(Answer, frozen=True, kw_only=True):
    """A deleted sandbox with a review that is kept. `accepted`: accepted hunks that were not applied. `files`: files
    that differ from the user's. `kept_until`: the end of `review.keep_deleted`; a full disk ends it earlier."""

    sandbox: SandboxInfo
    deleted_at: float
    kept_until: float
    accepted: int = 0
    files: int = 0
    path: str = WORKSPACE
    origin: str | None = None


class DeletedSandboxList(Answer, frozen=True, kw_only=True):
    """The last deleted sandbox first."""

    sandboxes: list[DeletedSandbox]


class UndeleteRequest(Value, frozen=True, kw_only=True):
    """POST /v1/review/deleted/{ref}. `name`: a new name, for example because another sandbox has the former one."""

    name: str | None = None

    def __post_init__(self) -> None:
        check_name(self.name)


class HunkOrigin(Answer, frozen=True, kw_only=True):
    """The origin of a hunk: the commands that produced it, newest last, with their output (bounded)."""

    hunk: Hunk
    entries: tuple[LedgerEntry, ...]
    output: dict[str, str] = {}


class RepoCopy(Answer, frozen=True, kw_only=True):
    """The copy of a repository in a sandbox. `head`: the commit that it is based on. `copied_at`: when the user's files
    were read last, by the client's clock, in seconds since 1970. `listing`: the `listing_of` these files."""

    sandbox: str
    name: str | None = None
    origin: str | None = None
    head: str | None = None
    copied_at: float | None = None
    listing: str | None = None


def listing_of(paths: Iterable[bytes]) -> str:
    """Return the SHA-256 of the sorted paths, each with a zero byte."""
    return hashlib.sha256(b"".join(path + b"\0" for path in sorted(paths))).hexdigest()


class RepoCopies(Answer, frozen=True, kw_only=True):
    copies: tuple[RepoCopy, ...] = ()


class TreeVersion(Value, frozen=True, array_like=True):
    """A file or link of the ledger: its mode as in git, and its blob. `sha256`: of the content of a file that is too
    large for the ledger."""

    mode: Literal["100644", "100755", "120000"]
    oid: Annotated[str, Meta(pattern="^[0-9a-f]{40}$")]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] | None = None


class TreeHead(Answer, frozen=True, kw_only=True):
    """The first line of …/review/tree: commits of the ledger. `synced`: the user's files when they were read last;
    `base`: with applied changes; `tip`: the sandbox's files."""

    synced: str
    base: str
    tip: str
    path: str
    origin: str | None = None


class TreeFile(Value, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A path of …/review/tree. `changed`: its versions in `base` and `tip`, if either differs from `synced`. The last
    line has no path but `end`."""

    path: str = ""
    synced: TreeVersion | None = None
    changed: tuple[TreeVersion | None, TreeVersion | None] | None = None
    raw_path: bytes | None = None
    end: bool = False


MAX_PULL_FILES = 100_000
PULL_GROUP = 100  # files in a line of a pull


class PullHead(Value, frozen=True, kw_only=True):
    """The first line of POST …/review/pulls (scope `review`). Lines with groups of `PullFile`s follow, `files` in all,
    then `contents` contents: each a line with a `PullContent`, and its bytes. `synced` and `base`: commits of the
    ledger that the merge started from; Conflict if they moved since. Others as for the start of a review."""

    synced: Annotated[str, Meta(pattern="^[0-9a-f]{40}$")]
    base: Annotated[str, Meta(pattern="^[0-9a-f]{40}$")]
    files: Annotated[int, Meta(ge=0, le=MAX_PULL_FILES)]
    contents: Annotated[int, Meta(ge=0, le=3 * MAX_PULL_FILES)]
    copied_at: float
    head: str | None = None
    known: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_text("head", self.head or "")
        if len(self.head or "") > 64:
            raise InvalidRequest("head: too long")
        if len(self.known) > MAX_KNOWN or any(not OBJECT_ID.fullmatch(oid) for oid in self.known):
            raise InvalidRequest(f"known: more than {MAX_KNOWN}, or one that is no object's id")


class PullFile(Value, frozen=True, kw_only=True):
    """`tip`: the version in the sandbox that was merged; Conflict if it changed since. `merged`: the version to write
    there. `new`: the user's version; `base`: the user's version with applied changes, from which hunks are computed.
    None: absent."""

    path: str
    tip: TreeVersion | None = None
    merged: TreeVersion | None = None
    new: TreeVersion | None = None
    base: TreeVersion | None = None
    raw_path: bytes | None = None


class PullContent(Value, frozen=True, kw_only=True):
    oid: Annotated[str, Meta(pattern="^[0-9a-f]{40}$")]
    size: Annotated[int, Meta(ge=0, le=1 << 40)]


class PulledFile(Answer, frozen=True, kw_only=True):
    """`how`: `written` as the user has it, `merged` with changes of the sandbox, `removed`, `same`: the sandbox had
    it."""

    path: str
    how: Literal["written", "merged", "removed", "same"]
    raw_path: bytes | None = None


class PullResult(Answer, frozen=True, kw_only=True):
    """The result of a pull. `commit`: its entry in the ledger, if the sandbox's files changed. `head`: the commit that
    the copy is based on now."""

    sandbox: str
    files: tuple[PulledFile, ...] = ()
    commit: str | None = None
    head: str | None = None


class RepoStatus(Answer, frozen=True, kw_only=True):
    """How far a copy is behind the user's repository. `commits`: new commits of the current branch; None if they cannot
    be counted, because another history is checked out. `files`: edited files; None if they were not compared."""

    sandbox: str
    commits: int | None = 0
    files: int | None = 0

    @property
    def behind(self) -> bool:
        return self.commits != 0 or bool(self.files)

    def __str__(self) -> str:
        parts = ["another commit is checked out"] if self.commits is None else []
        parts += [f"{self.commits:,} commit{'s' * (self.commits != 1)}"] if self.commits else []
        parts += [f"{self.files:,} edited file{'s' * (self.files != 1)}"] if self.files else []
        return " and ".join(parts) + (" behind" if self.commits or self.files else "") if parts else "up to date"


class ReviewRefs(Answer, frozen=True, kw_only=True):
    """A review as a git remote: the ledger's tip, and the agent's own refs (`heads/…`, `tags/…`). `refused`: refs of
    the agent that were not exported, with the reason."""

    sandbox: str
    tip: str
    name: str | None = None
    origin: str | None = None
    agent: dict[str, str] = {}
    refused: dict[str, str] = {}


class ReviewRefsList(Answer, frozen=True, kw_only=True):
    reviews: list[ReviewRefs]


class PackRequest(Value, frozen=True, kw_only=True):
    """POST …/review/git/pack: the objects reachable from `wants`, without those reachable from `haves`."""

    wants: tuple[str, ...]
    haves: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.wants or len(self.wants) > 10_000 or len(self.haves) > 10_000:
            raise InvalidRequest("wants and haves: from 1 to 10,000, and at most 10,000")
        for oid in (*self.wants, *self.haves):
            if not OBJECT_ID.fullmatch(oid):
                raise InvalidRequest(f"{oid[:80]!r} is no object", hint="forty hexadecimal digits")


class Attempted(Answer, frozen=True, kw_only=True):
    """One sandbox of a comparison. `check`: the result of the command in a fork of it. `commands`, `failed`,
    `duration_s`, `cpu_s`: of its commands, including those before a fork. `memory_peak`: of the sandbox or the largest
    command."""

    sandbox: str
    name: str | None = None
    files: tuple[FileChange, ...] = ()
    added: int = 0
    removed: int = 0
    commands: int = 0
    failed: int = 0
    duration_s: float = 0.0
    cpu_s: float | None = None
    memory_peak: int | None = None
    check: Result | None = None


class Comparison(Answer, frozen=True, kw_only=True):
    """Several attempts at one task, side by side. `paths`: all changed paths, each with the attempts that touch it."""

    attempts: tuple[Attempted, ...]
    paths: dict[str, tuple[str, ...]] = {}
