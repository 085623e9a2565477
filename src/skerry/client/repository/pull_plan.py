"""Plan a pull: merge the user's edits since the last read with the sandbox's files, path by path.

Four versions of a path count: as the user had it when it was read last (`synced`), as the user has it now, as the
sandbox has it (`tip`), and the base of the review, which is `synced` with the applied changes.
"""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from skerry.client.apply.content import Hasher, oid_of
from skerry.client.apply.merge import MergeResult, is_binary, merge
from skerry.client.apply.plan import MAX_SHOWN, Problem
from skerry.client.apply.tree import Tree
from skerry.client.repository.host_files import HostFile, HostFiles
from skerry.errors import Conflict
from skerry.types import PULL_GROUP, PullContent, PulledFile, PullFile, PullHead, TreeHead, TreeVersion
from skerry.types.values import encode_path

Prefer = Literal["host", "sandbox"]
How = Literal["written", "merged", "removed", "same"]
MAX_MERGED: Final = 16 << 20  # bytes of a file that is merged line by line
_MAX_CANDIDATES: Final = 20  # files that are compared to find a renamed one
_SIMILAR: Final = 0.5
_LINK: Final = "120000"
_BOTH: Final = "changed here and in the sandbox"
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Versions:
    synced: TreeVersion | None = None
    base: TreeVersion | None = None
    tip: TreeVersion | None = None

    def knows(self, oid: str) -> bool:
        return any(one is not None and one.oid == oid for one in (self.synced, self.base, self.tip))


_ABSENT: Final = Versions()


@dataclass(frozen=True)
class PlannedPull:
    path: bytes
    tip: TreeVersion | None
    merged: TreeVersion | None
    new: TreeVersion | None
    base: TreeVersion | None
    how: How

    @property
    def request(self) -> PullFile:
        path, raw = encode_path(os.fsdecode(self.path))
        return PullFile(path=path, raw_path=raw, tip=self.tip, merged=self.merged, new=self.new, base=self.base)

    @property
    def result(self) -> PulledFile:
        path, raw = encode_path(os.fsdecode(self.path))
        return PulledFile(path=path, raw_path=raw, how=self.how)


@dataclass
class PullPlan:
    """`files`: by path. `made`: merged contents by object ID. `host`: the paths whose current content is needed, by
    object ID."""

    files: dict[bytes, PlannedPull] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    made: dict[str, bytes] = field(default_factory=dict)
    host: dict[str, bytes] = field(default_factory=dict)


class PullPlanner:
    """`survey` returns the objects of the ledger that `plan` needs."""

    def __init__(
        self, tree: Mapping[bytes, Versions], host: HostFiles, working: Tree, prefer: Prefer | None = None
    ) -> None:
        self._tree, self._host, self._working, self._prefer = tree, host.files, working, prefer
        self._changed = sorted(path for path in {*tree, *host.files} if self._is_changed(path, host))
        self._contents: Mapping[str, bytes] = {}
        self._plan = PullPlan()
        self._renamed_here: dict[bytes, bytes] = {}  # new path to old path
        self._renamed_inside: dict[bytes, bytes] = {}  # old path to new path

    def _is_changed(self, path: bytes, host: HostFiles) -> bool:
        synced, mine = self._tree.get(path, _ABSENT).synced, host.files.get(path)
        if mine is None:
            return synced is not None and path not in host.kept
        return not mine.equals(synced)

    def survey(self) -> set[str]:
        needed: set[TreeVersion | None] = set()
        for path in self._changed:
            versions, mine = self._of(path), self._host.get(path)
            if versions.base != versions.synced:
                needed |= {versions.synced, versions.base}
            if not self._is_simple(versions, mine):
                needed |= {versions.synced, versions.tip}
                if mine is not None and versions.tip is None:
                    needed |= {self._of(one).tip for one in self._added_inside(path)}
        return {one.oid for one in needed if one is not None and one.sha256 is None}

    def plan(self, contents: Mapping[str, bytes]) -> PullPlan:
        """Return the plan. `contents`: the objects that `survey` named, except those too large to merge."""
        self._contents = contents
        self._find_renames()
        for path in self._changed:
            self._one(path)
        self._check_directories()
        return self._plan

    # -- one path -----------------------------------------------------------------------------------------------------

    def _of(self, path: bytes) -> Versions:
        return self._tree.get(path, _ABSENT)

    def _is_simple(self, versions: Versions, mine: HostFile | None) -> bool:
        same = versions.tip is None if mine is None else mine.equals(versions.tip)
        return same or versions.tip == versions.synced

    def _one(self, path: bytes) -> None:
        versions, mine = self._of(path), self._host.get(path)
        new = self._version(path, mine)
        if path in self._renamed_here:
            merged, how = self._across(path, self._of(self._renamed_here[path]), mine)
        elif path in self._renamed_here.values():
            merged, how = None, "removed"
        elif path in self._renamed_inside:
            merged, how = self._follow(path, versions, mine)
        elif mine.equals(versions.tip) if mine is not None else versions.tip is None:
            merged, how = versions.tip, "same"
            new = versions.tip
        elif versions.tip == versions.synced:
            merged, how = new, "written" if new is not None else "removed"
        else:
            merged, how = self._both(path, versions, mine)
        base = self._base(path, versions, mine, new)
        self._plan.files[path] = PlannedPull(path, versions.tip, merged, new, base, how)

    def _version(self, path: bytes, mine: HostFile | None) -> TreeVersion | None:
        if mine is None:
            return None
        self._plan.host.setdefault(mine.oid, path)
        return TreeVersion(mine.mode, mine.oid)  # type: ignore[arg-type]

    def _both(self, path: bytes, versions: Versions, mine: HostFile | None) -> tuple[TreeVersion | None, How]:
        """Merge a path that both sides changed."""
        reason: str | None = None
        if mine is None:
            reason = "removed here, changed in the sandbox"
        elif versions.tip is None:
            reason = "changed here, removed in the sandbox"
        elif versions.synced is None:
            reason = "added here and in the sandbox, with different contents"
        elif _LINK in (mine.mode, versions.tip.mode, versions.synced.mode):
            reason = f"{_BOTH}, and a link cannot be merged"
        if reason is not None or mine is None or versions.tip is None or versions.synced is None:
            return self._conflict(path, versions, mine, Problem(path, reason or _BOTH))
        merged = self._merged(path, mine, versions.synced, versions.tip)
        if isinstance(merged, Problem):
            return self._conflict(path, versions, mine, merged)
        return merged, "merged"

    def _conflict(
        self, path: bytes, versions: Versions, mine: HostFile | None, problem: Problem
    ) -> tuple[TreeVersion | None, How]:
        if self._prefer == "host":
            return self._version(path, mine), "written" if mine is not None else "removed"
        if self._prefer is None:
            self._plan.problems.append(problem)
        return versions.tip, "same"

    def _merged(self, path: bytes, mine: HostFile, synced: TreeVersion, theirs: TreeVersion) -> TreeVersion | Problem:
        """Apply the change from `synced` to `theirs` to the user's file."""
        mode = mine.mode if theirs.mode == synced.mode else theirs.mode
        if theirs.oid == synced.oid:
            return TreeVersion(mode, mine.oid)  # type: ignore[arg-type]
        if mine.equals(TreeVersion(mine.mode, synced.oid, synced.sha256)):  # type: ignore[arg-type]
            return self._make(mode, self._contents[theirs.oid]) if theirs.oid in self._contents else self._large(path)
        if synced.oid not in self._contents or theirs.oid not in self._contents or mine.size > MAX_MERGED:
            return self._large(path)
        texts = self._read(path, mine), self._contents[synced.oid], self._contents[theirs.oid]
        if any(map(is_binary, texts)):
            return Problem(path, f"{_BOTH}, and it is binary")
        merged: MergeResult = merge(*texts)
        return Problem(path, _BOTH, merged.conflicts) if merged.conflicts else self._make(mode, merged.data)

    def _large(self, path: bytes) -> Problem:
        return Problem(path, f"{_BOTH}, and it is too large to merge")

    def _make(self, mode: str, data: bytes) -> TreeVersion:
        oid = oid_of(data)
        self._plan.made[oid] = data
        return TreeVersion(mode, oid)  # type: ignore[arg-type]

    def _read(self, path: bytes, mine: HostFile) -> bytes:
        data = b"".join(self._working.pieces(path))
        if oid_of(data) != mine.oid:
            raise Conflict(f"{os.fsdecode(path)}: it was written while it was read", hint="pull again")
        return data

    def _base(
        self, path: bytes, versions: Versions, mine: HostFile | None, new: TreeVersion | None
    ) -> TreeVersion | None:
        """Return the base of the review: the user's version with the applied changes. Applied changes that cannot be
        merged are changes of the sandbox again."""
        base, synced = versions.base, versions.synced
        if base == synced or mine is None or base is None or synced is None or _LINK in (mine.mode, base.mode):
            return new
        if mine.equals(base):
            return base
        merged = self._merged(path, mine, synced, base)
        return new if isinstance(merged, Problem) else merged

    # -- renames ------------------------------------------------------------------------------------------------------

    def _find_renames(self) -> None:
        """Find renames of files that the other side edited: such a path would be a conflict."""
        for path in self._changed:
            versions, mine = self._of(path), self._host.get(path)
            if versions.synced is None or self._is_simple(versions, mine) or versions.synced.mode == _LINK:
                continue
            if mine is None:
                found = self._most_similar(path, versions.synced, self._added_here(path), here=True)
                if found is not None:
                    self._renamed_here[found] = path
            elif versions.tip is None:
                found = self._most_similar(path, versions.synced, self._added_inside(path), here=False)
                if found is not None:
                    self._renamed_inside[path] = found

    def _added_here(self, path: bytes) -> list[bytes]:
        added = [one for one in self._changed if one in self._host and self._of(one) == _ABSENT]
        return _candidates(path, [one for one in added if one not in self._renamed_here])

    def _added_inside(self, path: bytes) -> list[bytes]:
        taken = set(self._renamed_inside.values())
        added = (one for one, versions in self._tree.items() if versions.tip is not None and versions.synced is None)
        return _candidates(path, [one for one in added if one not in self._host and one not in taken])

    def _most_similar(self, path: bytes, synced: TreeVersion, candidates: list[bytes], *, here: bool) -> bytes | None:
        best: tuple[float, bytes] | None = None
        for one in candidates:
            mine, tip = self._host.get(one), self._of(one).tip
            oid = mine.oid if here and mine is not None else tip.oid if tip is not None else ""
            if oid == synced.oid:
                return one
            text = self._read(one, mine) if here and mine and mine.size <= MAX_MERGED else self._contents.get(oid)
            old = self._contents.get(synced.oid)
            if text is not None and old is not None and not is_binary(text) and not is_binary(old):
                best = max(filter(None, (best, (_similarity(old, text), one))))
        return best[1] if best is not None and best[0] >= _SIMILAR else None

    def _across(self, path: bytes, old: Versions, mine: HostFile | None) -> tuple[TreeVersion | None, How]:
        """Merge the sandbox's edits of a file into its new name on the host."""
        if mine is None or old.synced is None or old.tip is None:
            return self._version(path, mine), "written"
        merged = self._merged(path, mine, old.synced, old.tip)
        if isinstance(merged, Problem):
            return self._conflict(path, self._of(path), mine, merged)
        return merged, "merged"

    def _follow(self, path: bytes, versions: Versions, mine: HostFile | None) -> tuple[TreeVersion | None, How]:
        """Merge the user's edits of a file into its new name in the sandbox."""
        target = self._renamed_inside[path]
        there = self._of(target)
        if mine is None or versions.synced is None or there.tip is None:
            return None, "removed"
        merged = self._merged(path, mine, versions.synced, there.tip)
        if isinstance(merged, Problem):
            return self._conflict(path, versions, mine, merged)
        self._plan.files[target] = PlannedPull(target, there.tip, merged, there.synced, there.base, "merged")
        return None, "same"

    # -- directories --------------------------------------------------------------------------------------------------

    def _check_directories(self) -> None:
        """Report paths that would be a file and a directory."""
        files = self._plan.files
        after = {path for path, versions in self._tree.items() if versions.tip is not None and path not in files}
        after |= {path for path, file in files.items() if file.merged is not None}
        above = {parent for path in after for parent in _parents(path)}
        for path in sorted(after & above):
            self._plan.problems.append(Problem(path, "a file on one side, a directory on the other"))


def _parents(path: bytes) -> Iterator[bytes]:
    while path := posixpath.dirname(path):
        yield path


def _candidates(path: bytes, added: list[bytes]) -> list[bytes]:
    """Return the files that may be the renamed one: of the same name or suffix, those of the same name first."""
    name = posixpath.basename(path)
    suffix = posixpath.splitext(name)[1]
    alike = [one for one in added if posixpath.splitext(one)[1] == suffix]
    return sorted(alike, key=lambda one: (posixpath.basename(one) != name, one))[:_MAX_CANDIDATES]


def _similarity(old: bytes, new: bytes) -> float:
    """Return the share of lines that two texts have in common."""
    before, after = old.splitlines(), new.splitlines()
    common = sum((Counter(before) & Counter(after)).values())
    return common / max(len(before), len(after), 1)


def pull_conflict(problems: Sequence[Problem]) -> Conflict:
    shown = [str(problem) for problem in problems[:MAX_SHOWN]]
    more = [f"and {len(problems) - MAX_SHOWN} more"] if len(problems) > MAX_SHOWN else []
    count = f"{len(problems)} paths are" if len(problems) != 1 else "1 path is"
    return Conflict(
        "\n  ".join([f"{count} in the way of this pull; nothing was changed", *shown, *more]),
        hint="apply or reject the sandbox's changes there; or use `--prefer host` or `--prefer sandbox`",
        details={
            "conflicts": [
                {"path": os.fsdecode(one.path), "reason": one.reason, "lines": [list(span) for span in one.lines]}
                for one in problems
            ]
        },
    )


class PullBody:
    """The body of a pull: its head, the planned files, and their contents, read from the user's files as they are sent.
    Iterate once for the bytes."""

    def __init__(
        self, head: TreeHead, host: HostFiles, plan: PullPlan, tree: Mapping[bytes, Versions], working: Tree
    ) -> None:
        self._head, self._host, self._plan, self._working = head, host, plan, working
        self._needed = list(dict.fromkeys(oid for one in plan.files.values() for oid in _needed(one, tree)))

    def __iter__(self) -> Iterator[bytes]:
        files = [one.request for _, one in sorted(self._plan.files.items())]
        yield _line(
            PullHead(
                synced=self._head.synced,
                base=self._head.base,
                files=len(files),
                contents=len(self._needed),
                copied_at=self._host.read_at,
                head=self._host.head,
                known=self._host.known,
            )
        )
        for start in range(0, len(files), PULL_GROUP):
            yield _line(files[start : start + PULL_GROUP])
        for oid in self._needed:
            yield from self._content(oid)

    def _content(self, oid: str) -> Iterator[bytes]:
        if (made := self._plan.made.get(oid)) is not None:
            yield _line(PullContent(oid=oid, size=len(made))) + made
            return
        path = self._plan.host[oid]
        size = self._host.files[path].size
        yield _line(PullContent(oid=oid, size=size))
        hasher = Hasher(size)
        for piece in self._working.pieces(path):
            hasher.add(piece)
            if hasher.size > size:
                break
            yield piece
        if hasher.size != size or hasher.oid != oid:
            raise Conflict(
                f"{os.fsdecode(path)}: it was written while it was read; nothing was changed", hint="pull again"
            )


def _needed(planned: PlannedPull, tree: Mapping[bytes, Versions]) -> Iterator[str]:
    """Return the contents that the server lacks, or has to write into the sandbox."""
    known = tree.get(planned.path, Versions())
    if planned.merged is not None and planned.merged != planned.tip:
        yield planned.merged.oid
    for version in (planned.new, planned.base):
        if version is not None and not known.knows(version.oid):
            yield version.oid


def _line(value: object) -> bytes:
    return _encode(value) + b"\n"
