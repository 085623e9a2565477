"""What differs between two trees, as git's raw output tells it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

_KINDS: Final = {"A": "added", "D": "deleted", "M": "modified", "T": "modified", "R": "renamed"}
_NONE: Final = "000000"


@dataclass(frozen=True, kw_only=True)
class Delta:
    """One path. Modes as git has them, None: not there. `added`, `removed`: lines; of a `binary` one, None. A file
    that became a link is `modified`, with another mode."""

    path: bytes
    kind: Literal["added", "modified", "deleted", "renamed"]
    old_path: bytes | None = None
    old_mode: str | None = None
    new_mode: str | None = None
    old_oid: str | None = None
    new_oid: str | None = None
    old_size: int | None = None
    new_size: int | None = None
    added: int | None = None
    removed: int | None = None
    binary: bool = False


def parsed(out: bytes) -> list[Delta]:
    """Of `diff-tree -r -z --raw --numstat`: first all raw records, then the counts, in the same order."""
    fields = iter(out.split(b"\0"))
    deltas: list[Delta] = []
    counts: list[tuple[int | None, int | None]] = []
    for one in fields:
        if one.startswith(b":"):
            deltas.append(_raw(one, fields))
        elif one:
            counts.append(_counted(one, fields))
    if len(counts) != len(deltas):
        raise ValueError(f"{len(deltas)} paths, {len(counts)} counts")
    return [
        replace(delta, added=added, removed=removed, binary=added is None)
        for delta, (added, removed) in zip(deltas, counts, strict=True)
    ]


def sized(deltas: list[Delta], sizes: dict[str, int]) -> list[Delta]:
    return [
        replace(one, old_size=sizes.get(one.old_oid or ""), new_size=sizes.get(one.new_oid or "")) for one in deltas
    ]


def _raw(record: bytes, fields: Iterator[bytes]) -> Delta:
    old_mode, new_mode, old, new, status = record[1:].decode().split(" ")
    first = next(fields)
    path = next(fields) if status[0] in "RC" else first
    return Delta(
        path=path,
        kind=_KINDS[status[0]],  # type: ignore[arg-type]
        old_path=first if path != first else None,
        old_mode=None if old_mode == _NONE else old_mode,
        new_mode=None if new_mode == _NONE else new_mode,
        old_oid=None if old_mode == _NONE else old,
        new_oid=None if new_mode == _NONE else new,
    )


def _counted(record: bytes, fields: Iterator[bytes]) -> tuple[int | None, int | None]:
    added, removed, path = record.split(b"\t", 2)
    if not path:  # renamed: both names follow
        next(fields), next(fields)
    return (None, None) if added == b"-" else (int(added), int(removed))
