"""The body of a pull: its head, the planned files, and their contents, read from the user's files as they are sent."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from skerry.client.apply.content import Hasher
from skerry.client.apply.plan import MAX_SHOWN, Problem
from skerry.client.apply.tree import Tree
from skerry.client.repository.host_files import HostFiles
from skerry.client.repository.pull_plan import PlannedPull, PullPlan, Versions
from skerry.errors import Conflict
from skerry.types import PULL_GROUP, PullContent, PullHead, TreeHead

_encode = msgspec.json.Encoder().encode


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
    """Iterate once for the bytes."""

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
