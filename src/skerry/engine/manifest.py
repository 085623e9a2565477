"""What was last seen of each file of a workspace, so that only what differs is read. Pure.

A file is known by its type, mode, size, inode and ctime, which no program can set. (Two changes within one tick of the
clock that files have would look alike: the keeper reads no file so soon after a change.)

Saved beside the ledger, with the commit that it goes with, now and then: what changed after that commit counts as not
known."""

from __future__ import annotations

import os
import struct
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from skerry.keeper.tracking import Entry
from skerry.types.paths import refused

T = TypeVar("T")
UNKNOWN = b""
LISTED_MOST = 10_000  # of those left out, and of those ignored
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
class Found:
    """How a scan differs from what was known. `read`: files whose content is wanted; `gone`: files that were there."""

    read: list[Entry] = field(default_factory=list)
    links: list[Entry] = field(default_factory=list)
    gone: list[bytes] = field(default_factory=list)
    left_out: dict[bytes, str] = field(default_factory=dict)
    ignored: list[bytes] = field(default_factory=list)
    cleared: set[bytes] = field(default_factory=set)  # no longer left out or ignored, nor is what is below

    def __bool__(self) -> bool:
        return bool(self.read or self.links or self.gone)


class Manifest:
    """`files`: path to what was seen of it. `left_out`: path to why, and whether it was so from the beginning.
    `ignored`: path to whether it was there from the beginning. `more`: there is more of either than is listed."""

    def __init__(self) -> None:
        self.files: dict[bytes, bytes] = {}
        self.left_out: dict[bytes, tuple[str, bool]] = {}
        self.ignored: dict[bytes, bool] = {}
        self.more = False
        self._below: dict[bytes, int] = {}  # directory to how many of the files are below it

    # -- looking ------------------------------------------------------------------------------------------------------

    def compare(self, entries: Sequence[Entry], *, full: bool) -> Found:
        """With `full`, what is not among the entries is gone. Else they count in their order: where nothing is any
        more, or no directory, all goes that was told or known to be below."""
        found, last = Found(), dict[bytes, tuple[int, Entry]]()
        emptied: dict[bytes, int] = {}  # path to which entry said so
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

    # -- taking over --------------------------------------------------------------------------------------------------

    def put(self, path: bytes, entry: Entry | None) -> None:
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

    def list(self, found: Found, *, first: bool) -> None:
        """What is left out and ignored, as a scan shows it. `first`: so it was when the review began. Others may be
        reading the lists meanwhile: they are replaced, never written to."""
        left_out, ignored = _without(self.left_out, found.cleared), _without(self.ignored, found.cleared)
        for path, why in found.left_out.items():
            left_out[path] = why, first or self.left_out.get(path, ("", False))[1]
        for path in found.ignored:
            ignored[path] = first or self.ignored.get(path, False)
        self.more = len(left_out) > LISTED_MOST or len(ignored) > LISTED_MOST
        if self.more:
            left_out = dict(sorted(left_out.items())[:LISTED_MOST])
            ignored = dict(sorted(ignored.items(), key=lambda one: (not one[1], one[0]))[:LISTED_MOST])
        self.left_out, self.ignored = left_out, ignored

    # -- on disk ------------------------------------------------------------------------------------------------------

    def encode(self, commit: str) -> bytes:
        saved = _Saved(_VERSION, commit, self.files, self.left_out, self.ignored, self.more)
        return msgspec.msgpack.encode(saved)

    @classmethod
    def decode(cls, data: bytes) -> tuple[Manifest, str]:
        """With the commit that it goes with. Raises ValueError for what is none, or another version's."""
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
    """Whole or not at all; after a power cut it may be gone, and all is read again."""
    fresh = file.with_name(f"{file.name}.new")
    try:
        fresh.write_bytes(data)
        os.replace(fresh, file)
    except OSError:
        with suppress(OSError):
            fresh.unlink()
        raise


def _sort(entry: Entry, found: Found) -> bool:
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


def _meta(entry: Entry) -> bytes:
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
