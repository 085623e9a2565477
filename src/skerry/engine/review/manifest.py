"""The manifest: the last known state of each file of a workspace, so that only changed files are read. Pure.

A file is known by its type, mode, size, inode and ctime, which no program can set. (Two changes within one tick of the
file clock would look alike: the keeper reads no file so soon after a change.)

It is saved next to the ledger now and then, with its commit: files that changed after that commit count as unknown."""

from __future__ import annotations

import os
import struct
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from skerry.keeper.tracking import TrackedEntry
from skerry.types.paths import refused

T = TypeVar("T")
UNKNOWN = b""
MAX_LISTED = 10_000  # of left-out paths, and of ignored ones
_META = struct.Struct("<IQQq")
_UNCARRIED = {
    "git": "a repository's own directory",
    "other": "neither a file nor a link nor a directory",
}


class _Saved(msgspec.Struct, frozen=True, array_like=True):
    version: int
    commit: str
    files: dict[bytes, bytes]
    left_out: dict[bytes, tuple[str, bool]]
    ignored: dict[bytes, bool]
    more: bool


_VERSION = 1
_decoder = msgspec.msgpack.Decoder(_Saved)


@dataclass
class Changes:
    """Differences between a scan and the manifest. `read`: files to read; `gone`: files that were removed."""

    read: list[TrackedEntry] = field(default_factory=list)
    links: list[TrackedEntry] = field(default_factory=list)
    gone: list[bytes] = field(default_factory=list)
    left_out: dict[bytes, str] = field(default_factory=dict)
    ignored: list[bytes] = field(default_factory=list)
    cleared: set[bytes] = field(default_factory=set)  # no longer left out or ignored, and nothing below them

    def __bool__(self) -> bool:
        return bool(self.read or self.links or self.gone)


class Manifest:
    """`files`: the last known state by path. `left_out`: the reason by path, and whether that was so from the start.
    `ignored`: by path, whether it existed from the start. `more`: either list is incomplete."""

    def __init__(self) -> None:
        self.files: dict[bytes, bytes] = {}
        self.left_out: dict[bytes, tuple[str, bool]] = {}
        self.ignored: dict[bytes, bool] = {}
        self.more = False
        self._below: dict[bytes, int] = {}  # directory to how many of the files are below it

    # -- comparing ----------------------------------------------------------------------------------------------------

    def compare(self, entries: Sequence[TrackedEntry], *, full: bool) -> Changes:
        """Compare a scan with the manifest. With `full`, paths without an entry are gone. Otherwise entries count in
        their order: where nothing or no directory exists any more, everything known below it is gone."""
        found, last = Changes(), dict[bytes, tuple[int, TrackedEntry]]()
        emptied: dict[bytes, int] = {}  # path to the number of its entry
        for at, entry in enumerate(entries):
            last[entry.path] = at, entry
            if not full and (entry.type == "gone" or (entry.type != "directory" and entry.path in self._below)):
                emptied[entry.path] = at
        for path, (at, entry) in last.items():
            if emptied and any(emptied.get(parent, -1) > at for parent in _parents(path)):
                if path in self.files:
                    found.gone.append(path)
            elif not entry.written and self.files.get(path, UNKNOWN) == _meta(entry):
                continue
            elif not _sort(entry, found) and path in self.files:
                found.gone.append(path)
        if full:
            found.gone += [path for path in self.files if path not in last]
            found.cleared = {*self.left_out, *self.ignored}
        else:
            found.cleared = set(last)
            if any(path in self._below for path in emptied):
                found.gone += [path for path in self.files if path not in last and _is_below(path, emptied)]
        return found

    @property
    def new_ignored(self) -> list[bytes]:
        return [path for path, first in self.ignored.items() if not first]

    # -- updating -----------------------------------------------------------------------------------------------------

    def put(self, path: bytes, entry: TrackedEntry | None) -> None:
        """It was read as this. None: it is there, and nothing is known of it."""
        if path not in self.files:
            for parent in _parents(path):
                self._below[parent] = self._below.get(parent, 0) + 1
        self.files[path] = UNKNOWN if entry is None else _meta(entry)

    def drop(self, path: bytes) -> None:
        if self.files.pop(path, None) is None:
            return
        for parent in _parents(path):
            self._below[parent] -= 1
            if not self._below[parent]:
                del self._below[parent]

    def list(self, found: Changes, *, first: bool) -> None:
        """Update the lists of left-out and ignored paths. `first`: the review starts with this scan. Other threads may
        be reading the lists: they are replaced, never changed."""
        left_out, ignored = _without(self.left_out, found.cleared), _without(self.ignored, found.cleared)
        for path, why in found.left_out.items():
            left_out[path] = why, first or self.left_out.get(path, ("", False))[1]
        for path in found.ignored:
            ignored[path] = first or self.ignored.get(path, False)
        self.more = len(left_out) > MAX_LISTED or len(ignored) > MAX_LISTED
        if self.more:
            left_out = dict(sorted(left_out.items())[:MAX_LISTED])
            ignored = dict(sorted(ignored.items(), key=lambda one: (not one[1], one[0]))[:MAX_LISTED])
        self.left_out, self.ignored = left_out, ignored

    # -- on disk ------------------------------------------------------------------------------------------------------

    def encode(self, commit: str) -> bytes:
        saved = _Saved(_VERSION, commit, self.files, self.left_out, self.ignored, self.more)
        return msgspec.msgpack.encode(saved)

    @classmethod
    def decode(cls, data: bytes) -> tuple[Manifest, str]:
        """Return the manifest and its commit. Raise ValueError for invalid data or another version."""
        saved = _decoder.decode(data)
        if saved.version != _VERSION:
            raise ValueError("a manifest of another version")
        manifest = cls()
        manifest.files, manifest.left_out, manifest.ignored = saved.files, saved.left_out, saved.ignored
        manifest.more = saved.more
        for path in saved.files:
            for parent in _parents(path):
                manifest._below[parent] = manifest._below.get(parent, 0) + 1
        return manifest, saved.commit


def save(file: Path, data: bytes) -> None:
    """Save atomically. After a power cut the file may be missing, and all files are read again."""
    fresh = file.with_name(f"{file.name}.new")
    try:
        fresh.write_bytes(data)
        os.replace(fresh, file)
    except OSError:
        with suppress(OSError):
            fresh.unlink()
        raise


def _sort(entry: TrackedEntry, found: Changes) -> bool:
    """Is it one for the ledger?"""
    if entry.type in ("gone", "directory"):
        return False
    if entry.type == "ignored":
        found.ignored.append(entry.path)
        return False
    why = _UNCARRIED.get(entry.type) or refused(entry.path, link=entry.type == "link")
    if why is not None:
        found.left_out[entry.path] = why
        return False
    (found.links if entry.type == "link" else found.read).append(entry)
    return True


def _meta(entry: TrackedEntry) -> bytes:
    link = 1 << 31 if entry.type == "link" else 0
    return _META.pack(entry.mode & 0x7FFFFFFF | link, entry.size, entry.inode, entry.ctime_ns)


def _parents(path: bytes) -> Iterator[bytes]:
    end = path.rfind(b"/")
    while end > 0:
        yield path[:end]
        end = path.rfind(b"/", 0, end)


def _is_below(path: bytes, directories: Container[bytes]) -> bool:
    return any(parent in directories for parent in _parents(path))


def _without(listed: dict[bytes, T], cleared: set[bytes]) -> dict[bytes, T]:
    return {path: value for path, value in listed.items() if path not in cleared and not _is_below(path, cleared)}
