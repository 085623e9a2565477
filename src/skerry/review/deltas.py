"""What differs between two trees, as git's raw output tells it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

Pair = tuple[str | None, str | None]
"""A content before and after."""
Counts = tuple[int, int] | None
"""Lines added and removed; None: binary."""
_KINDS: Final = {"A": "added", "D": "deleted", "M": "modified", "T": "modified", "R": "renamed"}
_NONE: Final = "000000"


@dataclass(frozen=True, kw_only=True)
class Delta:
    """One path. Modes as git has them, None: not there. `added`, `removed`: lines; of a `binary` one, None. A file
    that became a link is `modified`, with another mode. `binary`: not to be had as lines, also because comparing them
    would take too long."""

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

    @property
    def pair(self) -> Pair:
        return self.old_oid, self.new_oid


def parsed(out: bytes) -> list[Delta]:
    """Of `diff-tree -r -z --raw`, with neither lines nor sizes."""
    fields = iter(out.split(b"\0"))
    return [_raw(one, fields) for one in fields if one]


def logged(out: bytes, mark: bytes) -> Iterator[tuple[bytes, bytes, list[Delta]]]:
    """Of `log -z --raw` whose format is the mark, a commit and its message, with a NUL before and after each."""
    fields = iter(out.split(b"\0"))
    commit = message = b""
    deltas: list[Delta] = []
    for one in map(bytes.strip, fields):
        if one == mark:
            if commit:
                yield commit, message, deltas
            commit, message, deltas = next(fields), next(fields), []
        elif one.startswith(b":"):
            deltas.append(_raw(one, fields))
    if commit:
        yield commit, message, deltas


def counted(out: bytes) -> dict[int, Counts]:
    """Of `--numstat -z`, with numbers for names; None: binary."""
    found: dict[int, Counts] = {}
    for record in out.split(b"\0")[:-1]:
        added, removed, name = record.split(b"\t", 2)
        found[int(name)] = None if added == b"-" else (int(added), int(removed))
    return found


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
