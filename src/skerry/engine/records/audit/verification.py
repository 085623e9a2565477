"""Verification of the files of a log. It needs no server, and only the extra `audit`: `skerry audit verify FILE`
works on any machine."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skerry.engine.records.audit.chain import Checkpoint, Verifier, decode, key_id
from skerry.types import AuditReport

_READ: Final = 1 << 20


@dataclass(frozen=True)
class Segment:
    """A file of lines. `first`: the number of its first line; `at`: the time of that line."""

    first: int
    path: Path
    at: float


@dataclass(frozen=True)
class Place:
    """The location of a line: the first number of its segment, and the offset in that file."""

    segment: int
    offset: int


def list_segments(directory: Path) -> list[Segment]:
    """Return the segments in a directory, oldest first."""
    found = []
    for path in sorted(directory.glob("[0-9]*.jsonl")):
        with path.open("rb") as file:
            data = file.readline(64 << 10)
        at = 0.0
        with contextlib.suppress(ValueError):
            at = decode(data.rstrip(b"\n")).at
        found.append(Segment(int(path.stem), path, at))
    return found


def read_lines(path: Path, end: int | None = None) -> Iterator[bytes]:
    """Yield the complete lines of a file before `end` without their newlines."""
    with path.open("rb", buffering=_READ) as file:
        position = 0
        for data in file:
            position += len(data)
            if end is not None and position > end:
                return
            if data.endswith(b"\n"):
                yield data[:-1]


def read_keys(texts: Iterable[bytes]) -> dict[str, bytes]:
    """Return public keys by ID from texts with one key in base64 per line. Raise ValueError for anything else."""
    keys = {}
    for text in texts:
        for line in text.split():
            public = base64.b64decode(line, validate=True)
            if len(public) != 32:
                raise ValueError("not an Ed25519 public key in base64")
            keys[key_id(public)] = public
    return keys


def verify(
    files: list[Path], keys: dict[str, bytes], checkpoints: list[Checkpoint], *, end: Place | None = None
) -> AuditReport:
    """Verify the lines of files, in order: the segments of a log up to `end`, or one export. The last must be a
    seal."""
    verifier = Verifier(dict(keys), checkpoints)
    for path in files:
        last = end is not None and path.stem == f"{end.segment:016d}"
        with contextlib.suppress(FileNotFoundError):  # its records are missing then
            verifier.feed(read_lines(path, end.offset if last and end is not None else None), path.name)
    return verifier.finish(complete=True)
