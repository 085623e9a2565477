"""Files of this host that a build step copies: found, hashed by content, sent as one archive.

Files are found through real paths and opened again from the directory by descriptors that follow no link, so that a
path that is swapped in between leads nowhere else.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final

from skerry.client.build.steps import Local
from skerry.client.host.archive_entry import PIECE, SPECIAL, EntryArchiver
from skerry.client.host.posix import DIRECTORY, FILE
from skerry.client.host.walk import Visitor, Walk
from skerry.client.transport.responses import error_frame
from skerry.codecs.frames import ERROR, EXIT, STDOUT, FrameDecoder
from skerry.codecs.tar import END, Entry, Reader, header, padding
from skerry.errors import InvalidRequest, SandboxUnavailable

_MAX_PATTERNS: Final = 10_000


class DockerIgnore:
    """An exclusion with the interface of `Patterns`, for a walk."""

    def __init__(self, lines: Iterable[str]) -> None:
        rules = [rule for line in lines if (rule := _rule(line)) is not None]
        if len(rules) > _MAX_PATTERNS:
            raise InvalidRequest(f".dockerignore: more than {_MAX_PATTERNS} patterns")
        self.texts = tuple(text for text, _ in rules)
        self._rules = [(_regex(text), back) for text, back in rules]
        self._back = [text for text, back in rules if back]

    def excludes(self, path: str, directory: bool) -> bool:
        """Return whether to exclude a path. A directory that may contain included files is entered."""
        return self.names(path) and not (directory and any(_below(text, path) for text in self._back))

    def names(self, path: str) -> bool:
        excluded = False
        for pattern, back in self._rules:
            if excluded == back and pattern.fullmatch(path):
                excluded = not back
        return excluded


def _rule(line: str) -> tuple[str, bool] | None:
    if line.startswith("#"):
        return None
    text = line.strip()
    back = text.startswith("!")
    text = text.removeprefix("!").strip()
    if not text:
        return None
    text = posixpath.normpath(text).lstrip("/")
    return None if text in ("", ".") else (text, back)


def _below(pattern: str, directory: str) -> bool:
    """Return whether a path below the directory may match: the pattern begins as the directory's path does."""
    for one, part in zip(pattern.split("/"), directory.split("/"), strict=False):
        if one == "**":
            return True
        if not re.fullmatch(segment(one), part, re.DOTALL):
            return False
    return True


def _regex(pattern: str) -> re.Pattern[str]:
    """Return a regular expression for the path and everything below it."""
    parts = pattern.split("/")
    regex = ""
    for at, part in enumerate(parts):
        last = at == len(parts) - 1
        if part == "**":
            regex += ".*" if last else "(?:[^/]+/)*"
        else:
            regex += segment(part) + ("" if last else "/")
    return re.compile(f"{regex}(?:/.*)?", re.DOTALL)


_SET: Final = re.compile(r"\[(\^?)((?:\\.|[^\]\\])+)\]")
_MEMBER: Final = re.compile(r"(\\?.)(?:-(\\?.))?", re.DOTALL)


def segment(pattern: str) -> str:
    r"""Return one name's pattern as a regular expression: `*`, `?`, `[a-z]`, `[^a-z]`, and `\` before a character."""
    regex = "".join(_pieces(pattern))
    try:
        re.compile(regex)
    except re.error as error:
        raise InvalidRequest(f"{pattern[:80]!r} is not a pattern: {error}") from None
    return regex


def _pieces(pattern: str) -> Iterator[str]:
    at = 0
    while at < len(pattern):
        char = pattern[at]
        match = _SET.match(pattern, at) if char == "[" else None
        if match is not None:
            yield f"[{match[1]}{_members(match[2])}]"
            at = match.end()
            continue
        if char == "\\" and at + 1 < len(pattern):
            at += 1
            yield re.escape(pattern[at])
        elif pattern.startswith("**", at):  # beside other characters it also matches slashes
            at += 1
            yield ".*"
        else:
            yield {"*": "[^/]*", "?": "[^/]"}.get(char) or re.escape(char)
        at += 1


def _members(inside: str) -> str:
    """Return the characters and ranges of a set, each taken literally."""
    found = ""
    for low, high in _MEMBER.findall(inside):
        found += re.escape(low[-1]) + (f"-{re.escape(high[-1])}" if high else "")
    return found


_WILD: Final = re.compile(r"[*?\[]")
_MAX_MATCHES: Final = 100_000
_MAGIC: Final = ((b"\x1f\x8b", "-z"), (b"BZh", "-j"), (b"\xfd7zXZ\0", "-J"))
_TAR: Final = slice(257, 262)


def local_source(path: str | os.PathLike[str], *, directory: str | None = None) -> Local:
    """Resolve a caller's path or pattern from the working directory: it may lie anywhere."""
    whole = os.path.abspath(os.path.join(directory or os.getcwd(), os.fspath(path)))
    parts = whole.split("/")
    wild = next((at for at, part in enumerate(parts) if _WILD.search(part)), None)
    if wild is None or os.path.lexists(whole):
        return Local(os.path.dirname(whole), os.path.basename(whole) or ".")
    return Local("/".join(parts[:wild]) or "/", "/".join(parts[wild:]))


@dataclass(frozen=True)
class SourceMatch:
    """A file or directory that a source names. `way`: its path from the source's directory, `real`: the same without
    links."""

    source: Local
    way: str
    real: str
    is_directory: bool

    @property
    def name(self) -> str:
        return posixpath.basename(self.way)


def find_matches(source: Local) -> list[SourceMatch]:
    """Return the matches sorted by name. No match is an error."""
    pattern = posixpath.normpath(source.pattern).lstrip("/") or "."
    if source.contained and pattern.split("/")[0] == "..":
        raise InvalidRequest(f"{source.pattern}: outside of {source.directory}", hint=_CONTEXT)
    ignore = DockerIgnore(source.ignore)
    matches = [match for way in _ways(source.directory, pattern) if (match := _match(source, way, ignore)) is not None]
    if not matches:
        ignored = " that .dockerignore does not exclude" if source.ignore else ""
        raise InvalidRequest(f"{source.pattern}: not found in {source.directory}{ignored}")
    return matches


_CONTEXT: Final = "only files in the context directory can be copied"


def _ways(directory: str, pattern: str) -> list[str]:
    if os.path.lexists(os.path.join(directory, pattern)):
        return [pattern]
    if not _WILD.search(pattern):
        return []
    ways = [""]
    for part in pattern.split("/"):
        ways = [below for way in ways for below in _step(directory, way, part)]
        if len(ways) > _MAX_MATCHES:
            raise InvalidRequest(f"{pattern}: more than {_MAX_MATCHES:,} files match")
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


def _match(source: Local, way: str, ignore: DockerIgnore) -> SourceMatch | None:
    root = os.path.realpath(source.directory)
    whole = os.path.realpath(os.path.join(root, way))
    inside = os.path.commonpath((root, whole)) == root
    if source.contained and not inside:
        raise InvalidRequest(f"{way}: a link to a path outside of {source.directory}", hint=_CONTEXT)
    try:
        mode = os.stat(whole).st_mode
    except OSError as error:
        raise InvalidRequest(f"{way}: {error.strerror}") from None
    is_directory = stat.S_ISDIR(mode)
    if way != "." and ignore.texts and ignore.excludes(way, is_directory):
        return None
    if not is_directory and not stat.S_ISREG(mode):
        raise InvalidRequest(f"{way}: {SPECIAL}")
    if not inside:  # a caller's link to another place
        source = Local(os.path.dirname(whole), source.pattern)
        return SourceMatch(source, way, os.path.basename(whole), is_directory)
    return SourceMatch(source, way, os.path.relpath(whole, root), is_directory)


def _opened(match: SourceMatch) -> tuple[int, str]:
    """Return the directory of a match and its name there; for a directory, itself and "."."""
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


def open_match(match: SourceMatch) -> BinaryIO:
    """Open a matched file for reading."""
    at, name = _opened(match)
    try:
        return os.fdopen(os.open(name, FILE, dir_fd=at), "rb")
    except OSError as error:
        raise InvalidRequest(f"{match.way}: {error.strerror}") from error
    finally:
        os.close(at)


@dataclass(frozen=True)
class _Below:
    """A .dockerignore relative to a directory below its own."""

    ignore: DockerIgnore
    way: str

    @property
    def texts(self) -> tuple[str, ...]:
        return self.ignore.texts

    def excludes(self, path: str, directory: bool) -> bool:
        return self.ignore.excludes(path if self.way == "." else f"{self.way}/{path}", directory)


class _Under:
    """Adds a prefix to the paths that a visitor sees."""

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


def _visit(matches: Sequence[SourceMatch], visitor: Visitor, name: str | None, parents: bool) -> Iterator[bytes]:
    sent: set[str] = set()
    for match in matches:
        if parents:
            yield from _above(match, visitor, sent)
        at, base = _opened(match)
        try:
            if match.is_directory:
                under = _Under(visitor, match.way) if parents and match.way != "." else visitor
                yield from Walk(under, _Below(DockerIgnore(match.source.ignore), match.way)).below(at)
            else:
                yield from visitor.file(at, base, name or (match.way if parents else match.name))
        finally:
            os.close(at)


def _above(match: SourceMatch, visitor: Visitor, sent: set[str]) -> Iterator[bytes]:
    """Visit the directories above a match, and the match itself if it is a directory."""
    parts = match.way.split("/") if match.way != "." else []
    for depth in range(1, len(parts) + match.is_directory):
        way = "/".join(parts[:depth])
        if way not in sent:
            sent.add(way)
            yield from visitor.directory(way, os.stat(os.path.join(match.source.directory, way)))


class _Digests:
    """Hashes everything that a copy keeps of a file: path, kind, mode, content. Times are left out because a checkout
    changes them."""

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
            descriptor = os.open(name, FILE, dir_fd=above)
        except OSError as error:
            self.skip(path, error)
            return iter(())
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                return iter(())
            return self._line("f", path, mode, hashlib.file_digest(file, "sha256").digest())


def digest(sources: Sequence[Local], *, parents: bool = False) -> str:
    """Return a digest of all files to copy. Blocks: it reads every byte."""
    seen = _Digests()
    whole = hashlib.sha256()
    for source in sources:
        matches = find_matches(source)
        for _ in _visit(matches, seen, None, parents):
            pass
        # which sources are directories affects the targets
        whole.update(repr([(match.way, match.is_directory) for match in matches]).encode("utf-8", "surrogateescape"))
    for line in sorted(set(seen.lines)):
        whole.update(line + b"\n")
    return whole.hexdigest()


class _Named(EntryArchiver):
    """Records the archived names, to set owners and modes afterwards."""

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


class SourceArchive:
    """An archive of matches, as an iterator that can be used once; then `names` lists its entries and whether each is a
    link. `name`: the name of a single file in it."""

    def __init__(self, matches: Sequence[SourceMatch], *, name: str | None = None, parents: bool = False) -> None:
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
    """Return an archive of one file from the recipe."""
    return header(Entry(os.fsencode(name), "file", 0o644, len(content), 0)) + content + padding(len(content)) + END


class ArchiveRelay:
    """Extracts a directory's archive from frames while passing it on. `names`: its entries, and whether each is a
    link."""

    def __init__(self) -> None:
        self.names: list[tuple[str, bool]] = []
        self._frames = FrameDecoder()
        self._reader = Reader()
        self._ended = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        for kind, payload in self._frames.feed(chunk):
            if kind == ERROR:
                raise error_frame(payload)
            if kind == EXIT:
                self._ended = True
            elif kind == STDOUT:
                for one in self._reader.feed(payload):
                    if isinstance(one, Entry) and one.name:
                        self.names.append((os.fsdecode(one.name), one.kind == "link"))
                yield payload

    def finish(self) -> None:
        """Raise unless the archive is complete."""
        if not self._ended:
            raise SandboxUnavailable("the archive of the other stage ended early", hint="build again")


def compression(match: SourceMatch) -> tuple[BinaryIO | None, tuple[str, ...]]:
    """Open a file if it is an archive, with tar's option for its compression; return None otherwise."""
    if match.is_directory:
        return None, ()
    file = open_match(match)
    head = file.read(512)
    file.seek(0)
    for magic, option in _MAGIC:
        if head.startswith(magic):
            return file, (option,)
    if head[_TAR] == b"ustar":
        return file, ()
    file.close()
    return None, ()
