"""The user's files as they are now: those that a copy of the repository would contain."""

from __future__ import annotations

import os
import stat
import struct
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from skerry.client.apply.tree import PathMoved, PathState, Tree
from skerry.client.host import gitignore
from skerry.client.host.git import HostGitFailed
from skerry.client.host.posix import open_root
from skerry.client.repository.archive import head_and_known
from skerry.client.repository.locate import RepositoryPlace
from skerry.errors import Conflict
from skerry.types import RepoCopy, TreeVersion, listing_of
from skerry.types.paths import refused

MAX_COMPARED: Final = 20_000  # files of a repository above which a quick comparison leaves them out
_TICK_S: Final = 2.0  # the coarsest time stamp of a file system


@dataclass(frozen=True)
class HostFile:
    """A file or link of the user. `mode` as in git."""

    mode: str
    oid: str
    size: int
    sha256: str

    def equals(self, version: TreeVersion | None) -> bool:
        if version is None or version.mode != self.mode:
            return False
        return version.sha256 == self.sha256 if version.sha256 is not None else version.oid == self.oid


@dataclass(frozen=True)
class HostFiles:
    """`files`: by path. `kept`: known paths that exist and are not listed, because they are ignored now or cannot be
    read. `head`, `known`: as for the start of a review. `read_at`: when reading began, in seconds since 1970."""

    files: dict[bytes, HostFile]
    kept: frozenset[bytes]
    head: str | None
    known: tuple[str, ...]
    read_at: float


def read_host_files(place: RepositoryPlace, known_paths: Collection[bytes]) -> HostFiles:
    """Read all files that a copy would contain."""
    read_at = time.time()
    head, known = head_and_known(place)
    files: dict[bytes, HostFile] = {}
    with Tree(place.top) as tree:
        for path in _listed(place):
            if refused(path) is None and (found := _read(tree, path)) is not None:
                files[path] = found
        kept = frozenset(path for path in known_paths if path not in files and _exists(tree, path))
    return HostFiles(files, kept, head, known, read_at)


def _listed(place: RepositoryPlace) -> Iterator[bytes]:
    root = open_root(place.top, "a copy of a repository")
    try:
        with gitignore.listed(root) as names:
            yield from map(os.fsencode, names)
    finally:
        os.close(root)


def _read(tree: Tree, path: bytes) -> HostFile | None:
    try:
        return host_file(tree.look(path))
    except PathMoved as error:
        raise Conflict(f"{os.fsdecode(path)}: {error.message}", hint="pull again") from None
    except PermissionError:
        return None


def host_file(found: PathState | None) -> HostFile | None:
    if found is None or found.kind not in ("file", "link"):
        return None
    mode = "120000" if found.kind == "link" else "100755" if found.executable else "100644"
    return HostFile(mode, found.oid, found.size, found.sha256)


def _exists(tree: Tree, path: bytes) -> bool:
    try:
        with tree.above(path) as (above, name):
            kind = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
    except PermissionError:
        return True
    except OSError:
        return False
    return stat.S_ISREG(kind) or stat.S_ISLNK(kind)


# -- quick comparison -------------------------------------------------------------------------------------------------


def commits_behind(place: RepositoryPlace, copied: str | None) -> int | None:
    """Return the number of commits since the copy; None if another history is checked out."""
    if place.git_dir is None:
        return 0
    git = place.git()
    try:
        head = git.output("rev-parse", "-q", "--verify", "HEAD^{commit}").decode().strip()
    except HostGitFailed:  # no commit yet
        return 0 if copied is None else None
    if head == copied or copied is None:
        return 0 if head == copied else None
    try:
        sides = git.output("rev-list", "--count", "--left-right", f"{copied}...{head}", "--").split()
    except HostGitFailed:  # the commit is gone
        return None
    gone, new = map(int, sides)
    return new if not gone else None


@dataclass(frozen=True)
class QuickListing:
    """The files that a copy would contain, by their status: `changed` since the copy, or gone and still tracked; and
    the `others`."""

    changed: frozenset[bytes]
    others: frozenset[bytes]

    def lacks(self, copy: RepoCopy, synced: dict[bytes, TreeVersion | None]) -> bool:
        """Return whether the copy contains other files than these. `synced`: those of `changed`."""
        known = (path for path in self.changed if synced.get(path) is not None)
        return copy.listing != listing_of((*self.others, *known))

    def differing(self, synced: dict[bytes, TreeVersion | None]) -> frozenset[bytes]:
        """Return `changed`, and the paths of only one side. `synced`: all files of the copy."""
        copied = {path for path, version in synced.items() if version is not None}
        return self.changed | (copied ^ self.others)


def quick_listing(place: RepositoryPlace, copy: RepoCopy) -> QuickListing | None:
    """List the files by their status, without reading them. None: there are too many for a quick comparison."""
    if copy.copied_at is None or _indexed(place) > MAX_COMPARED:
        return None
    since, changed, others = copy.copied_at - _TICK_S, set[bytes](), set[bytes]()
    for number, path in enumerate(_listed(place)):
        if number >= MAX_COMPARED:
            return None
        if refused(path) is not None:
            continue
        try:
            status = os.lstat(os.path.join(os.fsencode(place.top), path))
        except OSError:
            changed.add(path)
            continue
        if not stat.S_ISDIR(status.st_mode):
            (changed if status.st_ctime >= since else others).add(path)
    return QuickListing(frozenset(changed), frozenset(others))


def _indexed(place: RepositoryPlace) -> int:
    """Return the number of files in the index, from its header."""
    try:
        with open(f"{place.git_dir}/index", "rb") as file:
            header = file.read(12)
    except OSError:
        return 0
    return int(struct.unpack(">I", header[8:])[0]) if header[:4] == b"DIRC" and len(header) == 12 else 0


def edited(place: RepositoryPlace, paths: Collection[bytes], synced: dict[bytes, TreeVersion | None]) -> int:
    """Count the paths whose content differs from the copy."""
    number = 0
    with Tree(place.top) as tree:
        for path in paths:
            if refused(path) is not None:
                continue
            found = _read(tree, path)
            known = synced.get(path)
            number += not found.equals(known) if found is not None else known is not None and not _exists(tree, path)
    return number
