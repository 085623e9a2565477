"""The three-way action for each path, and the problems that prevent it. Planning reads the tree and changes nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from skerry.client.apply.content import MAX_MERGE_BYTES, Contents
from skerry.client.apply.directories import Directories
from skerry.client.apply.journal import FileVersion, PathChange
from skerry.client.apply.merge import is_binary, merge
from skerry.client.apply.tree import PathMoved, PathState, Tree
from skerry.codecs.text import escape
from skerry.errors import Conflict
from skerry.types.paths import refused

KIND_NAMES = {"file": "a file", "link": "a link", "directory": "a directory", "other": "not a regular file"}
MAX_SHOWN = 20


def display_path(path: bytes) -> str:
    return escape(path.decode("utf-8", "backslashreplace"))


@dataclass(frozen=True)
class Side:
    """One version of a file or link; `size` if known. `sha256`: a file with that hash is accepted too."""

    kind: Literal["file", "link"]
    oid: str
    size: int = 0
    executable: bool = False
    mode: int | None = None
    sha256: str | None = None

    def is_at(self, found: PathState | None) -> bool:
        if found is None or found.kind != self.kind or found.executable != self.executable:
            return False
        return found.oid == self.oid or (self.sha256 is not None and found.sha256 == self.sha256)


@dataclass(frozen=True)
class PlannedEdit:
    """The change of one path from `base` to `new`; None: absent. `source`: the path of `base`, if different."""

    path: bytes
    base: Side | None
    new: Side | None
    source: bytes | None = None


@dataclass(frozen=True)
class Problem:
    """The reason why a path cannot be changed. `lines`: first and last lines in the user's file; last < first if
    removed."""

    path: bytes
    reason: str
    lines: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        spans = [f"{a}" if b <= a else f"{a}-{b}" for a, b in self.lines]
        where = (
            f": line{'s' if len(spans) > 1 or '-' in spans[0] else ''} {', '.join(spans[:MAX_SHOWN])}" if spans else ""
        )
        return f"{display_path(self.path)}{where}: {self.reason}"


@dataclass
class ApplyPlan:
    changes: list[PathChange] = field(default_factory=list)
    same: list[bytes] = field(default_factory=list)
    made: list[bytes] = field(default_factory=list)
    removed: list[tuple[bytes, int]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def check(self, what: str = "apply") -> None:
        raise_problems(self.problems, what)


def raise_problems(problems: Sequence[Problem], what: str) -> None:
    if not problems:
        return
    paths = sorted({problem.path for problem in problems})
    shown = [str(problem) for problem in problems]
    more = [f"and {len(shown) - MAX_SHOWN} more"] if len(shown) > MAX_SHOWN else []
    count = f"{len(paths)} paths are" if len(paths) > 1 else "1 path is"
    raise Conflict(
        "\n  ".join([f"{count} in the way of this {what}; nothing was written", *shown[:MAX_SHOWN], *more]),
        hint="commit, move or undo your changes there, or leave those paths out",
        details={
            "conflicts": [
                {"path": os.fsdecode(t.path), "reason": t.reason, "lines": [list(span) for span in t.lines]}
                for t in problems
            ]
        },
    )


def why_impossible(edit: PlannedEdit, protected: Iterable[bytes]) -> str | None:
    """Return the reason why a path can be applied in no tree, or not in this one."""
    for path in (edit.path, edit.path if edit.source is None else edit.source):
        if (why := refused(path, link=edit.new is not None and edit.new.kind == "link")) is not None:
            return f"{why}; it cannot be applied anywhere"
        if any(path == one or path.startswith(one + b"/") for one in protected):
            return "it would change git's internal files; it cannot be applied here"
    return None


class Planner:
    """Plans in two passes: `survey` returns the contents that are needed, `plan` uses them."""

    def __init__(self, tree: Tree, edits: Sequence[PlannedEdit], protected: Iterable[bytes] = ()) -> None:
        self._tree = tree
        self._wishes = edits
        self._protected = tuple(protected)
        self._seen: dict[bytes, PathState | None] = {}
        self._gone: set[bytes] = set()
        self._plan = ApplyPlan()

    def survey(self) -> set[str]:
        """Return the objects that the plan needs."""
        needed = set()
        for edit in self._wishes:
            self._look(edit.path)
            mine = self._look(edit.source or edit.path)
            if edit.new is not None and (edit.source is not None or not edit.new.is_at(mine)):
                needed.add(edit.new.oid)
                if edit.base is not None and not edit.base.sha256 and mine is not None and not edit.base.is_at(mine):
                    needed.add(edit.base.oid)
        return needed

    def plan(self, contents: Contents) -> ApplyPlan:
        self._gone = {edit.source or edit.path for edit in self._wishes if edit.new is None or edit.source is not None}
        for edit in self._wishes:
            try:
                reason = why_impossible(edit, self._protected) or self._one(edit, contents)
            except PathMoved as error:
                reason = error.message
            except OSError as error:
                reason = f"it cannot be read: {error.strerror}"
            if isinstance(reason, str):
                self._problem(edit.path, reason)
        changes = self._plan.changes
        directories = Directories(self._tree, self._fresh, changes)
        self._plan.removed, self._plan.made = directories.removed(), directories.made()
        for path, reason in directories.problems():
            self._problem(path, reason)
        return self._plan

    def _look(self, path: bytes) -> PathState | None:
        if path not in self._seen:
            try:
                self._seen[path] = None if refused(path) else self._tree.look(path)
            except (OSError, PathMoved):
                return None  # examined again, and reported, during planning
        return self._seen[path]

    def _problem(self, path: bytes, reason: str, lines: tuple[tuple[int, int], ...] = ()) -> None:
        self._plan.problems.append(Problem(path, reason, lines))

    def _one(self, edit: PlannedEdit, contents: Contents) -> str | None:
        source = edit.source or edit.path
        if edit.new is not None and edit.new.kind == "link" and not _is_target(contents, edit.new):
            return "it is a dangling link"
        mine, there = self._fresh(source), self._fresh(edit.path)
        if edit.source is not None and mine is None and edit.new is not None and edit.new.is_at(there):
            self._plan.same += [source, edit.path]
            return None
        if edit.source is None and (
            edit.new is None if mine is None else edit.new is not None and edit.new.is_at(mine)
        ):
            self._plan.same.append(edit.path)
            return None
        if edit.base is None:
            return self._added(edit, mine)
        if mine is None:
            return self._missing(source)
        if mine.kind not in ("file", "link"):
            return f"it is {KIND_NAMES[mine.kind]} here"
        if mine.kind == "file" and not mine.mode & stat.S_IWUSR:
            return "it is read-only here"
        if edit.new is None:
            return self._deleted(edit, mine)
        return self._changed(edit, edit.base, edit.new, mine, there, contents)

    def _fresh(self, path: bytes) -> PathState | None:
        if path not in self._seen:
            self._seen[path] = self._tree.look(path)
        return self._seen[path]

    def _missing(self, path: bytes) -> str:
        blocked = self._obstacle(path)
        return blocked or "it was removed or renamed here"

    def _obstacle(self, path: bytes) -> str | None:
        """Return the problem if a file or link stands where a directory is needed, unless the plan removes it."""
        parts = path.split(b"/")
        for count in range(1, len(parts)):
            above = b"/".join(parts[:count])
            found = self._fresh(above)
            if found is None:
                return None
            if found.kind != "directory":
                if above in self._gone:
                    return None
                return f"{display_path(above)} is {KIND_NAMES[found.kind]} here, and links are not followed"
        return None

    def _added(self, edit: PlannedEdit, mine: PathState | None) -> str | None:
        new = edit.new
        if new is None:
            return None
        if mine is not None and mine.kind == new.kind == "file" and mine.oid == new.oid:  # only executable or not
            self._put(edit.path, mine, new, "merged", new.oid, mine.size)
            return None
        if mine is not None and mine.kind != "directory":  # which may be empty after the plan's removals
            return "a different file of that name exists here"
        if (blocked := self._obstacle(edit.path)) is not None:
            return blocked
        self._put(edit.path, None, new, "written", new.oid, new.size)
        return None

    def _deleted(self, edit: PlannedEdit, mine: PathState) -> str | None:
        if edit.base is None or not edit.base.is_at(mine):
            return "it is to be deleted, but was changed here"
        self._drop(edit.path, mine)
        return None

    def _changed(
        self, edit: PlannedEdit, base: Side, new: Side, mine: PathState, there: PathState | None, contents: Contents
    ) -> str | None:
        if edit.source is not None and there is not None:
            return "a different file of that name exists here"
        if edit.source is not None and (blocked := self._obstacle(edit.path)) is not None:
            return blocked
        oid, size, how = new.oid, new.size, "written"
        unchanged = mine.kind == base.kind and (mine.oid == base.oid or (base.sha256 and mine.sha256 == base.sha256))
        if new.kind != base.kind and not base.is_at(mine):
            return "it was changed here too"
        if new.kind == base.kind == "file" and (new.oid == base.oid or mine.oid == new.oid) and mine.kind == "file":
            oid, size, how = mine.oid, mine.size, "written" if unchanged else "merged"
            contents.store_user_file(mine.oid, mine.size, self._tree.pieces(edit.source or edit.path))
        elif not unchanged:
            if not mine.kind == base.kind == new.kind == "file":
                return "it was changed here too"
            merged = self._merged(edit, base, new, mine, contents)
            if merged is None:
                return None
            if isinstance(merged, str):
                return merged
            oid, size, how = contents.add(merged), len(merged), "merged"
        if edit.source is not None:
            self._drop(edit.source, mine)
            self._put(edit.path, None, new, how, oid, size, like=mine, base=base)
            return None
        self._put(edit.path, mine, new, how, oid, size, like=mine, base=base)
        return None

    def _merged(
        self, edit: PlannedEdit, base: Side, new: Side, mine: PathState, contents: Contents
    ) -> bytes | str | None:
        if base.sha256 or max(mine.size, contents.size(base.oid), contents.size(new.oid)) > MAX_MERGE_BYTES:
            return "it was changed here too and is too large to merge"
        contents.store_user_file(mine.oid, mine.size, self._tree.pieces(edit.source or edit.path))
        ours, old, theirs = contents.read(mine.oid), contents.read(base.oid), contents.read(new.oid)
        if is_binary(ours) or is_binary(old) or is_binary(theirs):
            return "it was changed here too and is binary"
        merged = merge(ours, old, theirs)
        if merged.conflicts:
            self._problem(edit.source or edit.path, "changed here too", merged.conflicts)
            return None
        return merged.data

    def _drop(self, path: bytes, mine: PathState) -> None:
        self._plan.changes.append(PathChange(path=path, how="removed", before=_entry(mine), mark=mine.mark))

    def _put(
        self, path: bytes, mine: PathState | None, new: Side, how: str, oid: str, size: int, *,
        like: PathState | None = None, base: Side | None = None,
    ) -> None:  # fmt: skip
        like = like or mine
        mode = _mode(like, base, new)
        executable = new.kind == "file" and (bool(mode & stat.S_IXUSR) if mode is not None else new.executable)
        after = FileVersion(kind=new.kind, oid=oid, size=size, executable=executable, mode=mode)
        before = _entry(mine) if mine is not None else None
        if mine is not None and after.is_at(mine):
            self._plan.same.append(path)
            return
        self._plan.changes.append(
            PathChange(path=path, how="merged" if how == "merged" else "written", before=before, after=after,
                   mark=mine.mark if mine is not None else ())
        )  # fmt: skip


def _is_target(contents: Contents, side: Side) -> bool:
    return not contents.has(side.oid) or b"\0" not in contents.read(side.oid)


def _entry(found: PathState) -> FileVersion:
    return FileVersion(
        kind="link" if found.kind == "link" else "file", oid=found.oid, size=found.size, executable=found.executable,
        mode=found.mode if found.kind == "file" else None,
    )  # fmt: skip


def _mode(mine: PathState | None, base: Side | None, new: Side) -> int | None:
    """Return the user's permission bits, with the executable bit of the change if the change includes it."""
    if new.kind == "link" or mine is None or mine.kind != "file":
        return new.mode
    if base is not None and base.mode is not None and base.mode == mine.mode and new.mode is not None:
        return new.mode
    if new.executable == mine.executable or (base is not None and base.executable == new.executable):
        return mine.mode & 0o777
    if new.executable:
        return (mine.mode | (mine.mode & 0o444) >> 2) & 0o777
    return mine.mode & 0o666
