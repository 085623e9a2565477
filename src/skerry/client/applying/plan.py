"""What is to be done to each path, three-way, and what stands in the way. Looks at the tree, and changes nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from skerry.client.applying.content import MERGE_MOST, Contents
from skerry.client.applying.directories import Directories
from skerry.client.applying.merge import is_binary, merge
from skerry.client.applying.record import Change, Entry
from skerry.client.applying.tree import Moved, Seen, Tree
from skerry.client.harmless import harmless
from skerry.errors import Conflict
from skerry.types.paths import refused

WAYS = {"file": "a file", "link": "a link", "directory": "a directory", "other": "something that is no file"}
SHOWN = 20


def shown(path: bytes) -> str:
    return harmless(path.decode("utf-8", "backslashreplace"))


@dataclass(frozen=True)
class Side:
    """One version of a file or link; `size` where it is known. `sha256`: it may also be the file of that hash."""

    kind: Literal["file", "link"]
    oid: str
    size: int = 0
    executable: bool = False
    mode: int | None = None
    sha256: str | None = None

    def is_at(self, found: Seen | None) -> bool:
        if found is None or found.kind != self.kind or found.executable != self.executable:
            return False
        return found.oid == self.oid or (self.sha256 is not None and found.sha256 == self.sha256)


@dataclass(frozen=True)
class Wish:
    """From `base` to `new`; None: not there. `source`: where `base` stood, if not at `path`."""

    path: bytes
    base: Side | None
    new: Side | None
    source: bytes | None = None


@dataclass(frozen=True)
class Trouble:
    """Why a path can't be done. `lines`: of the user's file, first and last; last < first where they are gone."""

    path: bytes
    reason: str
    lines: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        spans = [f"{a}" if b <= a else f"{a}-{b}" for a, b in self.lines]
        where = f": line{'s' if len(spans) > 1 or '-' in spans[0] else ''} {', '.join(spans[:SHOWN])}" if spans else ""
        return f"{shown(self.path)}{where}: {self.reason}"


@dataclass
class Plan:
    changes: list[Change] = field(default_factory=list)
    same: list[bytes] = field(default_factory=list)
    made: list[bytes] = field(default_factory=list)
    removed: list[tuple[bytes, int]] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)

    def check(self, what: str = "apply") -> None:
        refuse(self.troubles, what)


def refuse(troubles: Sequence[Trouble], what: str) -> None:
    if not troubles:
        return
    paths = sorted({trouble.path for trouble in troubles})
    told = [str(trouble) for trouble in troubles]
    more = [f"and {len(told) - SHOWN} more"] if len(told) > SHOWN else []
    count = f"{len(paths)} paths stand" if len(paths) > 1 else "1 path stands"
    raise Conflict(
        "\n  ".join([f"{count} in the way of this {what}; nothing was written", *told[:SHOWN], *more]),
        hint="commit, move or undo what is there, or leave those paths out",
        details={
            "conflicts": [
                {"path": os.fsdecode(t.path), "reason": t.reason, "lines": [list(span) for span in t.lines]}
                for t in troubles
            ]
        },
    )


def impossible(wish: Wish, protected: Iterable[bytes]) -> str | None:
    """Why it can't land, in whatever tree."""
    for path in (wish.path, wish.path if wish.source is None else wish.source):
        if (why := refused(path, link=wish.new is not None and wish.new.kind == "link")) is not None:
            return f"{why}; it can't land anywhere"
        if any(path == one or path.startswith(one + b"/") for one in protected):
            return "it would touch the repository's own files; it can't land here"
    return None


class Planner:
    """Two passes: `survey` says which contents are needed, `plan` uses them."""

    def __init__(self, tree: Tree, wishes: Sequence[Wish], protected: Iterable[bytes] = ()) -> None:
        self._tree = tree
        self._wishes = wishes
        self._protected = tuple(protected)
        self._seen: dict[bytes, Seen | None] = {}
        self._gone: set[bytes] = set()
        self._plan = Plan()

    def survey(self) -> set[str]:
        """Objects whose contents the plan needs."""
        needed = set()
        for wish in self._wishes:
            self._look(wish.path)
            mine = self._look(wish.source or wish.path)
            if wish.new is not None and (wish.source is not None or not wish.new.is_at(mine)):
                needed.add(wish.new.oid)
                if wish.base is not None and not wish.base.sha256 and mine is not None and not wish.base.is_at(mine):
                    needed.add(wish.base.oid)
        return needed

    def plan(self, contents: Contents) -> Plan:
        self._gone = {wish.source or wish.path for wish in self._wishes if wish.new is None or wish.source is not None}
        for wish in self._wishes:
            try:
                reason = impossible(wish, self._protected) or self._one(wish, contents)
            except Moved as error:
                reason = error.message
            except OSError as error:
                reason = f"it can't be read: {error.strerror}"
            if isinstance(reason, str):
                self._trouble(wish.path, reason)
        changes = self._plan.changes
        directories = Directories(self._tree, self._fresh, changes)
        self._plan.removed, self._plan.made = directories.removed(), directories.made()
        for path, reason in directories.troubles():
            self._trouble(path, reason)
        return self._plan

    def _look(self, path: bytes) -> Seen | None:
        if path not in self._seen:
            try:
                self._seen[path] = None if refused(path) else self._tree.look(path)
            except (OSError, Moved):
                return None  # looked at again, and told, when it is planned
        return self._seen[path]

    def _trouble(self, path: bytes, reason: str, lines: tuple[tuple[int, int], ...] = ()) -> None:
        self._plan.troubles.append(Trouble(path, reason, lines))

    def _one(self, wish: Wish, contents: Contents) -> str | None:
        source = wish.source or wish.path
        if wish.new is not None and wish.new.kind == "link" and not _is_target(contents, wish.new):
            return "it is a link to nowhere"
        mine, there = self._fresh(source), self._fresh(wish.path)
        if wish.source is not None and mine is None and wish.new is not None and wish.new.is_at(there):
            self._plan.same += [source, wish.path]
            return None
        if wish.source is None and (
            wish.new is None if mine is None else wish.new is not None and wish.new.is_at(mine)
        ):
            self._plan.same.append(wish.path)
            return None
        if wish.base is None:
            return self._added(wish, mine)
        if mine is None:
            return self._missing(source)
        if mine.kind not in ("file", "link"):
            return f"it is {WAYS[mine.kind]} here"
        if mine.kind == "file" and not mine.mode & stat.S_IWUSR:
            return "it is read-only here"
        if wish.new is None:
            return self._deleted(wish, mine)
        return self._changed(wish, wish.base, wish.new, mine, there, contents)

    def _fresh(self, path: bytes) -> Seen | None:
        if path not in self._seen:
            self._seen[path] = self._tree.look(path)
        return self._seen[path]

    def _missing(self, path: bytes) -> str:
        blocked = self._obstacle(path)
        return blocked or "it was removed or renamed here"

    def _obstacle(self, path: bytes) -> str | None:
        """What stands where a directory is needed, unless it is to go."""
        parts = path.split(b"/")
        for count in range(1, len(parts)):
            above = b"/".join(parts[:count])
            found = self._fresh(above)
            if found is None:
                return None
            if found.kind != "directory":
                if above in self._gone:
                    return None
                return f"{shown(above)} is {WAYS[found.kind]} here, and nothing is written through it"
        return None

    def _added(self, wish: Wish, mine: Seen | None) -> str | None:
        new = wish.new
        if new is None:
            return None
        if mine is not None and mine.kind == new.kind == "file" and mine.oid == new.oid:  # only executable or not
            self._put(wish.path, mine, new, "merged", new.oid, mine.size)
            return None
        if mine is not None and mine.kind != "directory":  # that may be empty once all is gone that is to go
            return "there is another one of that name here"
        if (blocked := self._obstacle(wish.path)) is not None:
            return blocked
        self._put(wish.path, None, new, "written", new.oid, new.size)
        return None

    def _deleted(self, wish: Wish, mine: Seen) -> str | None:
        if wish.base is None or not wish.base.is_at(mine):
            return "it is to be deleted, and was changed here"
        self._drop(wish.path, mine)
        return None

    def _changed(
        self, wish: Wish, base: Side, new: Side, mine: Seen, there: Seen | None, contents: Contents
    ) -> str | None:
        if wish.source is not None and there is not None:
            return "there is another one of that name here"
        if wish.source is not None and (blocked := self._obstacle(wish.path)) is not None:
            return blocked
        oid, size, how = new.oid, new.size, "written"
        unchanged = mine.kind == base.kind and (mine.oid == base.oid or (base.sha256 and mine.sha256 == base.sha256))
        if new.kind != base.kind and not base.is_at(mine):
            return "it was changed here too"
        if new.kind == base.kind == "file" and (new.oid == base.oid or mine.oid == new.oid) and mine.kind == "file":
            oid, size, how = mine.oid, mine.size, "written" if unchanged else "merged"
            contents.keep_own(mine.oid, mine.size, self._tree.pieces(wish.source or wish.path))
        elif not unchanged:
            if not mine.kind == base.kind == new.kind == "file":
                return "it was changed here too"
            merged = self._merged(wish, base, new, mine, contents)
            if merged is None:
                return None
            if isinstance(merged, str):
                return merged
            oid, size, how = contents.add(merged), len(merged), "merged"
        if wish.source is not None:
            self._drop(wish.source, mine)
            self._put(wish.path, None, new, how, oid, size, like=mine, base=base)
            return None
        self._put(wish.path, mine, new, how, oid, size, like=mine, base=base)
        return None

    def _merged(self, wish: Wish, base: Side, new: Side, mine: Seen, contents: Contents) -> bytes | str | None:
        if base.sha256 or max(mine.size, contents.size(base.oid), contents.size(new.oid)) > MERGE_MOST:
            return "it was changed here too, and is too large to merge"
        contents.keep_own(mine.oid, mine.size, self._tree.pieces(wish.source or wish.path))
        ours, old, theirs = contents.read(mine.oid), contents.read(base.oid), contents.read(new.oid)
        if is_binary(ours) or is_binary(old) or is_binary(theirs):
            return "it was changed here too, and is binary"
        merged = merge(ours, old, theirs)
        if merged.conflicts:
            self._trouble(wish.source or wish.path, "changed here too", merged.conflicts)
            return None
        return merged.data

    def _drop(self, path: bytes, mine: Seen) -> None:
        self._plan.changes.append(Change(path=path, how="removed", before=_entry(mine), mark=mine.mark))

    def _put(
        self, path: bytes, mine: Seen | None, new: Side, how: str, oid: str, size: int, *,
        like: Seen | None = None, base: Side | None = None,
    ) -> None:  # fmt: skip
        like = like or mine
        mode = _mode(like, base, new)
        executable = new.kind == "file" and (bool(mode & stat.S_IXUSR) if mode is not None else new.executable)
        after = Entry(kind=new.kind, oid=oid, size=size, executable=executable, mode=mode)
        before = _entry(mine) if mine is not None else None
        if mine is not None and after.is_at(mine):
            self._plan.same.append(path)
            return
        self._plan.changes.append(
            Change(path=path, how="merged" if how == "merged" else "written", before=before, after=after,
                   mark=mine.mark if mine is not None else ())
        )  # fmt: skip


def _is_target(contents: Contents, side: Side) -> bool:
    return not contents.has(side.oid) or b"\0" not in contents.read(side.oid)


def _entry(found: Seen) -> Entry:
    return Entry(
        kind="link" if found.kind == "link" else "file", oid=found.oid, size=found.size, executable=found.executable,
        mode=found.mode if found.kind == "file" else None,
    )  # fmt: skip


def _mode(mine: Seen | None, base: Side | None, new: Side) -> int | None:
    """The user's own permission bits, but for the one that git keeps, where that is part of the change."""
    if new.kind == "link" or mine is None or mine.kind != "file":
        return new.mode
    if base is not None and base.mode is not None and base.mode == mine.mode and new.mode is not None:
        return new.mode
    if new.executable == mine.executable or (base is not None and base.executable == new.executable):
        return mine.mode & 0o777
    if new.executable:
        return (mine.mode | (mine.mode & 0o444) >> 2) & 0o777
    return mine.mode & 0o666
