"""The files of this host that a step copies: found, told apart by their content, sent as one archive.

Found through real paths, and opened again from the directory by descriptors that follow no link: what is swapped
meanwhile leads nowhere else.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final

from skerry.client.building.ignore import Ignore, segment
from skerry.client.building.steps import Local
from skerry.client.packed import PIECE, SPECIAL, Things
from skerry.client.tar import END, Entry, header, padding
from skerry.client.walking import DIRECTORY, Visitor, Walk
from skerry.errors import InvalidRequest

_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WILD: Final = re.compile(r"[*?\[]")
_MOST: Final = 100_000


def local(path: str | os.PathLike[str], *, directory: str | None = None) -> Local:
    """What a caller's path or pattern means, from the working directory: it may lie anywhere."""
    whole = os.path.abspath(os.path.join(directory or os.getcwd(), os.fspath(path)))
    parts = whole.split("/")
    wild = next((at for at, part in enumerate(parts) if _WILD.search(part)), None)
    if wild is None or os.path.lexists(whole):
        return Local(os.path.dirname(whole), os.path.basename(whole) or ".")
    return Local("/".join(parts[:wild]) or "/", "/".join(parts[wild:]))


@dataclass(frozen=True)
class Match:
    """A file or directory that a source means. `way` leads to it from the source's directory, `real` from there too,
    without any link on it."""

    source: Local
    way: str
    real: str
    is_directory: bool

    @property
    def name(self) -> str:
        return posixpath.basename(self.way)


def found(source: Local) -> list[Match]:
    """In the order of their names. None at all is an error."""
    pattern = posixpath.normpath(source.pattern).lstrip("/") or "."
    if source.contained and pattern.split("/")[0] == "..":
        raise InvalidRequest(f"{source.pattern}: it leads out of {source.directory}", hint=_CONTEXT)
    ignore = Ignore(source.ignore)
    matches = [match for way in _ways(source.directory, pattern) if (match := _match(source, way, ignore)) is not None]
    if not matches:
        ignored = " that .dockerignore does not exclude" if source.ignore else ""
        raise InvalidRequest(f"{source.pattern}: there is no such file in {source.directory}{ignored}")
    return matches


_CONTEXT: Final = "only what lies in the context's directory can be copied"


def _ways(directory: str, pattern: str) -> list[str]:
    if os.path.lexists(os.path.join(directory, pattern)):
        return [pattern]
    if not _WILD.search(pattern):
        return []
    ways = [""]
    for part in pattern.split("/"):
        ways = [below for way in ways for below in _step(directory, way, part)]
        if len(ways) > _MOST:
            raise InvalidRequest(f"{pattern}: more than {_MOST:,} files are meant")
    return sorted(set(ways))


def _step(directory: str, way: str, part: str) -> Iterator[str]:
    if part == "**":
        yield way
    elif not _WILD.search(part):
        if os.path.lexists(os.path.join(directory, way, part)):
            yield posixpath.join(way, part)
        return
    wanted = re.compile(segment(part), re.DOTALL)
    try:
        with os.scandir(os.path.join(directory, way)) as entries:
            names = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    except (NotADirectoryError, FileNotFoundError):
        return
    for name, is_directory in names:
        below = posixpath.join(way, name)
        if part == "**":
            if is_directory:
                yield from _step(directory, below, part)
        elif wanted.fullmatch(name):
            yield below


def _match(source: Local, way: str, ignore: Ignore) -> Match | None:
    root = os.path.realpath(source.directory)
    whole = os.path.realpath(os.path.join(root, way))
    inside = os.path.commonpath((root, whole)) == root
    if source.contained and not inside:
        raise InvalidRequest(f"{way}: a link that leads out of {source.directory}", hint=_CONTEXT)
    try:
        mode = os.stat(whole).st_mode
    except OSError as error:
        raise InvalidRequest(f"{way}: {error.strerror}") from None
    is_directory = stat.S_ISDIR(mode)
    if way != "." and ignore.texts and ignore.excludes(way, is_directory):
        return None
    if not is_directory and not stat.S_ISREG(mode):
        raise InvalidRequest(f"{way}: {SPECIAL}")
    if not inside:  # a caller's own link to elsewhere
        source = Local(os.path.dirname(whole), source.pattern)
        return Match(source, way, os.path.basename(whole), is_directory)
    return Match(source, way, os.path.relpath(whole, root), is_directory)


def _opened(match: Match) -> tuple[int, str]:
    """The directory that it lies in, and its name there; of a directory itself, and "."."""
    at = os.open(os.path.realpath(match.source.directory), DIRECTORY)
    parts = [part for part in match.real.split("/") if part != "."]
    try:
        for part in parts if match.is_directory else parts[:-1]:
            below = os.open(part, DIRECTORY, dir_fd=at)
            os.close(at)
            at = below
    except OSError as error:
        os.close(at)
        raise InvalidRequest(f"{match.way}: {error.strerror}") from error
    return at, "." if match.is_directory else parts[-1]


def open_match(match: Match) -> BinaryIO:
    """A file that was found, to be read."""
    at, name = _opened(match)
    try:
        return os.fdopen(os.open(name, _FILE, dir_fd=at), "rb")
    except OSError as error:
        raise InvalidRequest(f"{match.way}: {error.strerror}") from error
    finally:
        os.close(at)


@dataclass(frozen=True)
class _Below:
    """A .dockerignore as seen from a directory below its own."""

    ignore: Ignore
    way: str

    @property
    def texts(self) -> tuple[str, ...]:
        return self.ignore.texts

    def excludes(self, path: str, directory: bool) -> bool:
        return self.ignore.excludes(path if self.way == "." else f"{self.way}/{path}", directory)


class _Under:
    """Whoever visits sees the things below a directory of the archive."""

    def __init__(self, visitor: Visitor, above: str) -> None:
        self._visitor = visitor
        self._above = above

    def skip(self, path: str, reason: str | OSError) -> None:
        self._visitor.skip(path, reason)

    def directory(self, path: str, found: os.stat_result) -> Iterator[bytes]:
        return self._visitor.directory(posixpath.join(self._above, path), found)

    def link(self, above: int, name: str, path: str) -> Iterator[bytes]:
        return self._visitor.link(above, name, posixpath.join(self._above, path))

    def file(self, above: int, name: str, path: str) -> Iterator[bytes]:
        return self._visitor.file(above, name, posixpath.join(self._above, path))


def _visit(matches: Sequence[Match], visitor: Visitor, name: str | None, parents: bool) -> Iterator[bytes]:
    sent: set[str] = set()
    for match in matches:
        if parents:
            yield from _above(match, visitor, sent)
        at, base = _opened(match)
        try:
            if match.is_directory:
                under = _Under(visitor, match.way) if parents and match.way != "." else visitor
                yield from Walk(under, _Below(Ignore(match.source.ignore), match.way)).below(at)
            else:
                yield from visitor.file(at, base, name or (match.way if parents else match.name))
        finally:
            os.close(at)


def _above(match: Match, visitor: Visitor, sent: set[str]) -> Iterator[bytes]:
    """The directories on the way to it, and itself if it is one."""
    parts = match.way.split("/") if match.way != "." else []
    for depth in range(1, len(parts) + match.is_directory):
        way = "/".join(parts[:depth])
        if way not in sent:
            sent.add(way)
            yield from visitor.directory(way, os.stat(os.path.join(match.source.directory, way)))


class _Digests:
    """Everything that a copy keeps of a file: path, kind, mode, content. Not its time, as a checkout changes that."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def skip(self, path: str, reason: str | OSError) -> None:
        if reason != SPECIAL:
            raise InvalidRequest(f"{path}: {getattr(reason, 'strerror', None) or reason}")

    def _line(self, kind: str, path: str, mode: int, content: bytes) -> Iterator[bytes]:
        facts = (kind.encode(), os.fsencode(path), b"%o" % (mode & 0o777), content)
        self.lines.append(b"\0".join(b"%d:%s" % (len(fact), fact) for fact in facts))
        return iter(())

    def directory(self, path: str, found: os.stat_result) -> Iterator[bytes]:
        return self._line("d", path, found.st_mode, b"")

    def link(self, above: int, name: str, path: str) -> Iterator[bytes]:
        return self._line("l", path, 0o777, os.fsencode(os.readlink(name, dir_fd=above)))

    def file(self, above: int, name: str, path: str) -> Iterator[bytes]:
        try:
            descriptor = os.open(name, _FILE, dir_fd=above)
        except OSError as error:
            self.skip(path, error)
            return iter(())
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                return iter(())
            return self._line("f", path, mode, hashlib.file_digest(file, "sha256").digest())


def digest(sources: Sequence[Local], *, parents: bool = False) -> str:
    """Of all that would be copied. Blocks: every byte is read."""
    seen = _Digests()
    whole = hashlib.sha256()
    for source in sources:
        matches = found(source)
        for _ in _visit(matches, seen, None, parents):
            pass
        # which of them are directories changes what lands where
        whole.update(repr([(match.way, match.is_directory) for match in matches]).encode("utf-8", "surrogateescape"))
    for line in sorted(set(seen.lines)):
        whole.update(line + b"\n")
    return whole.hexdigest()


class _Named(Things):
    """Remembers what went out, to give it owners and modes afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[tuple[str, bool]] = []

    def directory(self, path: str, found: os.stat_result) -> Iterator[bytes]:
        self.names.append((path, False))
        return super().directory(path, found)

    def link(self, above: int, name: str, path: str) -> Iterator[bytes]:
        self.names.append((path, True))
        return super().link(above, name, path)

    def file(self, above: int, name: str, path: str) -> Iterator[bytes]:
        self.names.append((path, False))
        return super().file(above, name, path)


class Archive:
    """Iterate, once, for the bytes of an archive of these; `names` are then what was in it, and whether each is a link.
    `name`: the one file's own name in it."""

    def __init__(self, matches: Sequence[Match], *, name: str | None = None, parents: bool = False) -> None:
        self._matches = matches
        self._name = name
        self._parents = parents
        self._things = _Named()

    @property
    def names(self) -> list[tuple[str, bool]]:
        return self._things.names

    def __iter__(self) -> Iterator[bytes]:
        out = bytearray()
        for data in _visit(self._matches, self._things, self._name, self._parents):
            out += data
            if len(out) >= PIECE:
                yield bytes(out)
                out.clear()
        for left in self._things.skipped:
            if left.reason != SPECIAL:
                raise InvalidRequest(f"{left.path}: {left.reason}")
        yield bytes(out) + END


def inline_archive(name: str, content: bytes) -> bytes:
    """One file that stands in the recipe."""
    return header(Entry(os.fsencode(name), "file", 0o644, len(content), 0)) + content + padding(len(content)) + END
