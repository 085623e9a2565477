"""Files that a filter changed on their way out of git, as git LFS does: on disk is the content, in git a pointer to it.

The copy has no filters, and would call each of them modified. Those that are not modified here are marked in its index,
so that git inside does not look at them (`--assume-unchanged`). No filter is run for it: a file is not modified if all
is as git noted it when it last looked."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from skerry.client.host_git import Git
from skerry.client.repository.finding import Place, read_plain

_SMALL: Final = 1 << 20
_NONE: Final = (b"unspecified", b"unset", b"set", b"")
_WORD: Final = 0xFFFFFFFF  # an index has 32 bits for each number
_ENTRY: Final = re.compile(
    rb"\d{6} ([0-9a-f]{40,64}) 0\t([^\0]+)\0  ctime: (\d+):\d+\n  mtime: (\d+):\d+\n"
    rb"  dev: \d+\tino: (\d+)\n  uid: (\d+)\tgid: (\d+)\n  size: (\d+)\tflags: [0-9a-f]+\n"
)


@dataclass(frozen=True)
class _Noted:
    oid: bytes
    name: bytes
    numbers: tuple[int, ...]  # ctime, mtime, inode, uid, gid, size


def unmodified(place: Place, git: Git, attributes: Iterable[str]) -> list[bytes]:
    """Those to be marked, of the index that `git` sees. `attributes`: its files of attributes."""
    paths = (f"{place.common_dir}/info/attributes", *(f"{place.top}/{name}" for name in attributes))
    if not any(b"filter" in (read_plain(path) or b"") for path in paths):
        return []
    filtered, written = set(_filtered(git)), os.stat(f"{place.git_dir}/index").st_mtime_ns
    return [one.name for one in _noted(git) if one.name in filtered and _is_unmodified(place, one, written)]


def _filtered(git: Git) -> Iterator[bytes]:
    names = git.pieces("ls-files", "-z", "--cached")
    fields = git.said("check-attr", "--stdin", "-z", "filter", given=names).split(b"\0")
    for name, value in zip(fields[::3], fields[2::3], strict=False):
        if value not in _NONE:
            yield name


def _noted(git: Git) -> Iterator[_Noted]:
    """What is in conflict is not among them."""
    for match in _ENTRY.finditer(git.said("ls-files", "--stage", "--debug", "-z")):
        yield _Noted(match[1], match[2], tuple(map(int, match.groups()[2:])))


def _is_unmodified(place: Place, noted: _Noted, written: int) -> bool:
    """`written`: when git last looked, in nanoseconds; what was changed after that may have the same second."""
    path = f"{place.top}/{os.fsdecode(noted.name)}"
    try:
        found = os.lstat(path)
    except OSError:
        return False
    numbers = int(found.st_ctime), int(found.st_mtime), found.st_ino, found.st_uid, found.st_gid, found.st_size
    if not stat.S_ISREG(found.st_mode) or found.st_ctime_ns > written:
        return False
    return tuple(number & _WORD for number in numbers) == noted.numbers and not _is_as_in_git(path, noted.oid)


def _is_as_in_git(path: str, oid: bytes) -> bool:
    """A pointer that was not followed, say: git inside sees for itself what becomes of it."""
    data = read_plain(path, _SMALL)
    if data is None:
        return False
    name = hashlib.new("sha1" if len(oid) == 40 else "sha256", usedforsecurity=False)
    name.update(b"blob %d\0%b" % (len(data), data))
    return name.hexdigest().encode() == oid
