"""A repository as an archive: the files as they are on disk, and a new `.git` for it and each repository in it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import IO, Final

from msgspec.structs import replace

from skerry.client.host.archive_entry import EntryArchiver, EntryCounter
from skerry.client.host.git import HostGit, HostGitFailed
from skerry.client.host.gitignore import LIST, MAX_REPOSITORIES, without_repository
from skerry.client.host.pack import FLUSH, DirectoryArchive, Watcher
from skerry.client.host.patterns import Patterns
from skerry.client.host.posix import DIRECTORY
from skerry.client.host.walk import NamedWalk
from skerry.client.repository.ignore_rules import (
    Rules,
    excludes_file,
    is_text,
    merged,
    own_excludes,
    rules_of,
    user_excludes,
)
from skerry.client.repository.locate import RepositoryPlace, inner_repository, read_plain
from skerry.client.repository.origin import origin_of
from skerry.client.repository.settings import OUR_REMOTE, GitSettings, config
from skerry.errors import InvalidRequest
from skerry.types import MAX_KNOWN, OBJECT_ID, BeginReview, Progress, TransferResult

_KINDS: Final = ("refs/heads", "refs/tags", "refs/remotes", "refs/notes", "refs/replace")
_OTHERS: Final = f"refs/remotes/{OUR_REMOTE}/".encode()  # of other sandboxes
_COMMITS: Final = (b"refs/heads/", b"refs/remotes/")  # git allows no tag objects there
_OBJECT: Final = re.compile(rb"[0-9a-f]{40}|[0-9a-f]{64}")
_MAX_SIZE: Final = 1 << 20
_MAX_SHALLOW: Final = 64 << 20
_GITLINK: Final = b"160000"
_ATTRIBUTES: Final = b".gitattributes"
# Files of a merge or a rebase in progress: each contains a commit, a list or a message.
_HEADS: Final = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD")
_WORDS: Final = ("MERGE_MSG", "MERGE_MODE", "SQUASH_MSG")
_UNDER_WAY: Final = ("rebase-merge", "rebase-apply", "sequencer")
_NOT_OF_IT: Final = ("autostash", "gpg_sign_opt")
_MAX_STEPS: Final = 10_000
_SMALL: Final = 1 << 20
_NO_FILTER: Final = (b"unspecified", b"unset", b"set", b"")
_INDEX_WORD: Final = 0xFFFFFFFF  # an index has 32 bits for each number
_ENTRY: Final = re.compile(
    rb"\d{6} ([0-9a-f]{40,64}) 0\t([^\0]+)\0  ctime: (\d+):\d+\n  mtime: (\d+):\d+\n"
    rb"  dev: \d+\tino: (\d+)\n  uid: (\d+)\tgid: (\d+)\n  size: (\d+)\tflags: [0-9a-f]+\n"
)


@dataclass(frozen=True)
class RepositoryState:
    """`files`: the files of the new `.git`, by name. `index`: the copy of the index, on disk. `tips`: the objects that
    refs name. `wanted`: a file with the names of all objects that the pack must reach. `gitlinks`: the paths of
    submodules."""

    place: RepositoryPlace
    settings: GitSettings
    head: str | None
    files: dict[str, bytes]
    index: str | None
    tips: tuple[bytes, ...]
    wanted: str
    gitlinks: frozenset[str]

    def git(self, **env: str) -> HostGit:
        """Return git with the copied index and only the user's excludes file."""
        git = self.place.git(**({"GIT_INDEX_FILE": self.index} if self.index else {}), **env)
        return git.with_words("-c", f"core.excludesFile={excludes_file(self.settings)}")


def read_state(place: RepositoryPlace, scratch: str) -> RepositoryState:
    """Return the current state. `scratch`: an empty directory of Skerry, for the copy of the index."""
    index = _index(place, scratch)
    git = place.git(**({"GIT_INDEX_FILE": index} if index else {}))
    settings = GitSettings.read(git)
    refs, symbolic = _refs(git)
    head, text = _head(git, refs)
    files = {
        "HEAD": text,
        "packed-refs": _packed(git, refs),
        "config": config(settings, place.object_format),
        **symbolic,
    }
    files |= dict(_under_way(place)) | dict(_info(place, settings))
    if place.shallow and (shallow := read_plain(f"{place.common_dir}/shallow", _MAX_SHALLOW)):
        files["shallow"] = shallow
    tips, wanted = (*refs.values(), *([head] if head else ()), *_unfinished(files)), f"{scratch}/wanted"
    with open(wanted, "wb") as file:
        file.writelines(oid + b"\n" for oid in dict.fromkeys(tips))
        gitlinks, attributes = _indexed(git, file if not settings.partial else None) if index else (frozenset(), [])
    if index is not None and (marked := unmodified(place, git, attributes)):
        given = (name + b"\0" for name in marked)
        _writing(place, scratch).output("update-index", "--assume-unchanged", "-z", "--stdin", given=given)
    return RepositoryState(place, settings, head.decode() if head else None, files, index, tips, wanted, gitlinks)


def head_and_known(place: RepositoryPlace) -> tuple[str | None, tuple[str, ...]]:
    """Return the commit of HEAD, if any, and the commits of the branches and tags."""
    if place.git_dir is None:
        return None, ()
    refs, _ = _refs(place.git())
    head, _ = _head(place.git(), refs)
    tips = dict.fromkeys(oid.decode() for oid in (*refs.values(), *([head] if head else ())))
    return head.decode() if head else None, tuple(oid for oid in tips if OBJECT_ID.fullmatch(oid))[:MAX_KNOWN]


def _unfinished(files: dict[str, bytes]) -> Iterator[bytes]:
    """Return the commits that a merge or rebase in progress needs."""
    for name in (*_HEADS, "rebase-merge/orig-head", "rebase-apply/orig-head", "rebase-merge/onto", "rebase-apply/onto"):
        yield from (line for line in files.get(name, b"").split() if _OBJECT.fullmatch(line))


def _index(place: RepositoryPlace, scratch: str) -> str | None:
    """Copy the index as one file, without cached data about this host's file system."""
    try:
        descriptor = os.open(f"{place.git_dir}/index", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    copy = f"{scratch}/index"
    with open(descriptor, "rb") as source, open(copy, "wb") as target:
        shutil.copyfileobj(source, target)
    plain = ("--no-split-index", "--no-untracked-cache", "--no-fsmonitor", "--force-write-index")
    _writing(place, scratch).output("update-index", *plain)
    return copy


def _writing(place: RepositoryPlace, scratch: str) -> HostGit:
    """Return git for writing the copy of the index. It has an empty working tree: with the real one, git would compare
    files (those with a future timestamp, for example) and run their filters."""
    empty = f"{scratch}/empty"
    os.makedirs(empty, exist_ok=True)
    where = ("-C", empty, f"--git-dir={place.git_dir}", f"--work-tree={empty}")
    settings = ("-c", "core.splitIndex=false", "-c", "index.sparse=false")
    return HostGit("repo", *where, *settings, env={"GIT_INDEX_FILE": f"{scratch}/index"})


def _indexed(git: HostGit, blobs: IO[bytes] | None) -> tuple[frozenset[str], list[str]]:
    """Return the paths of submodules and attribute files. Blobs of a partial clone may be missing: git finds out
    which."""
    gitlinks, attributes = [], []
    for entry in git.names("ls-files", "--stage", "-z"):
        facts, _, name = entry.partition(b"\t")
        mode, oid, _ = facts.split(b" ")
        if mode == _GITLINK:
            gitlinks.append(os.fsdecode(name))
        elif blobs is not None:
            blobs.write(oid + b"\n")
        if name.endswith(_ATTRIBUTES):
            attributes.append(os.fsdecode(name))
    return frozenset(gitlinks), attributes


def _refs(git: HostGit) -> tuple[dict[bytes, bytes], dict[str, bytes]]:
    """Return the refs with their objects, and symbolic refs as files."""
    refs, symbolic = {}, {}
    for line in git.output("for-each-ref", "--format=%(objectname) %(refname) %(symref)", *_KINDS).splitlines():
        oid, name, target = line.split(b" ")
        if name.startswith(_OTHERS) or not _OBJECT.fullmatch(oid):
            continue
        if target:
            symbolic[os.fsdecode(name)] = b"ref: " + target + b"\n"
        else:
            refs[name] = oid
    return refs, symbolic


def _packed(git: HostGit, refs: dict[bytes, bytes]) -> bytes:
    """Return the refs in one file, like `git pack-refs`: the object of a tag object follows the tag. Other readers than
    git need the header that says so."""
    tagged = dict.fromkeys(oid for name, oid in refs.items() if not name.startswith(_COMMITS))
    asked = b"".join(oid + b"^{}\n" for oid in tagged)
    found = git.output("cat-file", "--batch-check=%(objectname)", given=(asked,)).splitlines() if asked else []
    peeled = {oid: target for oid, target in zip(tagged, found, strict=True) if _OBJECT.fullmatch(target)}
    lines = [b"# pack-refs with: peeled fully-peeled sorted \n"]
    for name, oid in sorted(refs.items()):
        lines.append(b"%s %s\n" % (oid, name))
        if (target := peeled.get(oid, oid)) != oid:
            lines.append(b"^%s\n" % target)
    return b"".join(lines)


def _head(git: HostGit, refs: dict[bytes, bytes]) -> tuple[bytes | None, bytes]:
    """Return the commit of HEAD, None if it has none yet, and the file."""
    try:
        name = git.output("symbolic-ref", "-q", "HEAD").removesuffix(b"\n")
    except HostGitFailed as error:
        if error.exit_code != 1:
            raise
        commit = git.output("rev-parse", "--verify", "HEAD^{commit}").strip()
        return commit, commit + b"\n"
    return refs.get(name), b"ref: " + name + b"\n"


def _under_way(place: RepositoryPlace) -> Iterator[tuple[str, bytes]]:
    for name in (*_HEADS, *_WORDS):
        if (data := read_plain(f"{place.git_dir}/{name}", _MAX_SIZE)) is not None:
            yield name, data
    for directory in _UNDER_WAY:
        path = f"{place.git_dir}/{directory}"
        if os.path.islink(path) or not os.path.isdir(path):
            continue
        for name in sorted(os.listdir(path))[:_MAX_STEPS]:
            if name not in _NOT_OF_IT and (data := read_plain(f"{path}/{name}", _MAX_SIZE)) is not None:
                yield f"{directory}/{name}", data


def _info(place: RepositoryPlace, settings: GitSettings) -> Iterator[tuple[str, bytes]]:
    exclude = user_excludes(settings) + own_excludes(place)
    if exclude:
        yield "info/exclude", exclude
    if attributes := read_plain(f"{place.common_dir}/info/attributes", _MAX_SIZE):
        yield "info/attributes", attributes
    if sparse := read_plain(f"{place.git_dir}/info/sparse-checkout", _MAX_SIZE):
        yield "info/sparse-checkout", sparse


@dataclass(frozen=True)
class _IndexedFile:
    oid: bytes
    name: bytes
    numbers: tuple[int, ...]  # ctime, mtime, inode, uid, gid, size


def unmodified(place: RepositoryPlace, git: HostGit, attributes: Iterable[str]) -> list[bytes]:
    """Return the names to mark `--assume-unchanged` in the index that `git` sees. `attributes`: its attribute files.

    A filter changes files on their way out of git, as git LFS does: on disk is the content, in git a pointer to it.
    The copy has no filters and would report each such file as modified. Files that are unmodified here are marked in
    its index, so that git inside does not look at them. No filter is run for this: a file is unmodified if everything
    is as git recorded it when git last looked."""
    paths = (f"{place.common_dir}/info/attributes", *(f"{place.top}/{name}" for name in attributes))
    if not any(b"filter" in (read_plain(path) or b"") for path in paths):
        return []
    filtered, written = set(_filtered(git)), os.stat(f"{place.git_dir}/index").st_mtime_ns
    return [one.name for one in _noted(git) if one.name in filtered and _is_unmodified(place, one, written)]


def _filtered(git: HostGit) -> Iterator[bytes]:
    names = git.pieces("ls-files", "-z", "--cached")
    fields = git.output("check-attr", "--stdin", "-z", "filter", given=names).split(b"\0")
    for name, value in zip(fields[::3], fields[2::3], strict=False):
        if value not in _NO_FILTER:
            yield name


def _noted(git: HostGit) -> Iterator[_IndexedFile]:
    """Yield the entries that git recorded; entries in conflict are left out."""
    for match in _ENTRY.finditer(git.output("ls-files", "--stage", "--debug", "-z")):
        yield _IndexedFile(match[1], match[2], tuple(map(int, match.groups()[2:])))


def _is_unmodified(place: RepositoryPlace, noted: _IndexedFile, written: int) -> bool:
    """Return whether a file is unmodified. `written`: the time of git's last look, in nanoseconds; a later change may
    fall into the same second."""
    path = f"{place.top}/{os.fsdecode(noted.name)}"
    try:
        found = os.lstat(path)
    except OSError:
        return False
    numbers = int(found.st_ctime), int(found.st_mtime), found.st_ino, found.st_uid, found.st_gid, found.st_size
    if not stat.S_ISREG(found.st_mode) or found.st_ctime_ns > written:
        return False
    return tuple(number & _INDEX_WORD for number in numbers) == noted.numbers and not _is_as_in_git(path, noted.oid)


def _is_as_in_git(path: str, oid: bytes) -> bool:
    """Return whether the file on disk equals the object, as an LFS pointer that was not resolved: git inside handles
    it."""
    data = read_plain(path, _SMALL)
    if data is None:
        return False
    name = hashlib.new("sha1" if len(oid) == 40 else "sha256", usedforsecurity=False)
    name.update(b"blob %d\0%b" % (len(data), data))
    return name.hexdigest().encode() == oid


# No search for new deltas, and fast compression: the pack is read once, on the same machine.
_PACK_OBJECTS: Final = ("pack-objects", "-q", "--revs", "--window=0", "--compression=1", "--delta-base-offset")
_WITH_GAPS: Final = ("--indexed-objects", "--missing=allow-promisor")
_PACK_SETTINGS: Final = ("-c", "pack.packSizeLimit=0", "-c", "core.bigFileThreshold=32m")
_ROOMS: Final = ("", "/objects", "/objects/pack", "/refs", "/refs/heads", "/refs/tags", "/info")
_AT_ONCE: Final = 2
_SILENT_S: Final = 10.0
_EVERYTHING: Final = Patterns(())


class ObjectPack:
    """Packs all objects that a state reaches, in a git process that runs in parallel. `scratch`: a directory of Skerry
    that receives the pack. The pack is on disk because an archive needs its size first; `TMPDIR` selects the place.

    git writes a pack to a temporary file in its object directory and renames it. The object directory of this git is in
    `scratch` too, and borrows the objects of the repository: nothing is written there, and it may be read-only or on
    another file system.
    """

    def __init__(self, state: RepositoryState, scratch: str) -> None:
        self.directory = directory = f"{scratch}/objects/pack"
        os.makedirs(directory)
        self._partial = state.settings.partial
        self._git = state.git(**_borrowing(state.place, f"{scratch}/objects")).with_words(*_PACK_SETTINGS)
        self._name: bytes | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        more = _WITH_GAPS if self._partial else ()
        words = (*_PACK_OBJECTS, *more, f"{directory}/pack")
        with open(state.wanted, "rb") as wanted:
            self._process = self._git.start(*words, given=wanted, errors=self._errors)

    def wait(self, seconds: float) -> bool:
        """Wait for at most that long; return whether it has ended."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def names(self) -> list[str]:
        """Return the names of the complete files."""
        name, code = self._said().strip(), self._process.wait()
        if code:
            raise self._git.failed(self._errors, code)
        if self._partial:  # git then ignores missing objects
            with open(f"{self.directory}/pack-{name.decode()}.promisor", "ab"):
                pass
        return sorted(os.listdir(self.directory))

    def _said(self) -> bytes:
        if self._name is None:
            assert self._process.stdout is not None  # noqa: S101
            with self._process.stdout as stdout:
                self._name = stdout.read()
        return self._name

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._said()
        self._process.wait()
        self._errors.close()


@dataclass
class _Part:
    """The repository of the tree, or one inside it. Without a state it is a plain directory."""

    prefix: str  # '' or ends with a slash
    place: RepositoryPlace
    scratch: str = ""
    state: RepositoryState | None = None
    pack: ObjectPack | None = None
    ignore_files: list[str] = field(default_factory=list)


class RepositoryCopy(DirectoryArchive):
    """An archive of a place at the time of construction. The content of git is read and packed in the background until
    the first byte is read."""

    def __init__(self, place: RepositoryPlace, *, ignored: bool = False, progress: Watcher | None = None) -> None:
        super().__init__(place.top, progress)
        self.place = place
        self._ignored = ignored
        self._scratch = tempfile.TemporaryDirectory(prefix="skerry-import-")
        self._parted: dict[str, _Part] = {}
        self._refused: dict[str, str] = {}
        self._rules: list[Rules] = []
        self._tracked: list[str] = []
        self._git_files = 0
        self._total = 0
        self._read_at = time.time()
        beside = ThreadPoolExecutor(1, "skerry-import")
        self._first = beside.submit(self._add, "", place)
        beside.shutdown(wait=False)

    @property
    def head(self) -> str | None:
        state = self._first.result().state
        return state.head if state else None

    @property
    def repositories(self) -> int:
        return sum(part.state is not None for part in self._parted.values())

    def _release(self) -> None:
        super()._release()
        self._first.exception()
        for part in self._parted.values():
            if part.pack is not None:
                part.pack.close()
        self._scratch.cleanup()

    def _add(self, prefix: str, place: RepositoryPlace) -> _Part:
        number = len(self._parted)
        if number >= MAX_REPOSITORIES:
            raise InvalidRequest(f"repo: more than {MAX_REPOSITORIES} repositories in it")
        part = _Part(prefix, place, f"{self._scratch.name}/{number}")
        if place.git_dir is not None:
            os.makedirs(part.scratch)
            part.state = read_state(place, part.scratch)
            busy = sum(one.pack is not None and not one.pack.wait(0) for one in self._parted.values())
            if busy < _AT_ONCE:
                part.pack = _pack(part)
        self._parted[prefix] = part
        return part

    def measure(self) -> None:
        """Compute the total size for a progress bar. All packs are completed first, however long that takes; the reader
        of the archive waits for a minute only."""
        if self._progress is not None:
            self._progress(Progress(stage="pack"))
            self._total = super()._measured()

    def _measured(self) -> int:
        return self._total

    def _parts(self, archiver: EntryArchiver | EntryCounter) -> Iterator[bytes]:
        self._first.result()
        yield from NamedWalk(archiver, _EVERYTHING).of(self._root, self._paths(archiver))
        if isinstance(archiver, EntryArchiver):
            self._learn_rules()
        for part in self._parted.values():
            yield from self._git_directory(part, archiver)

    def _paths(self, archiver: EntryArchiver | EntryCounter) -> Iterator[str]:
        pending = [""]
        for prefix in pending:
            part = self._parted[prefix]
            part.ignore_files = []
            for name in self._listed(part):
                path = prefix + name
                if name.endswith("/") or (part.state is not None and name in part.state.gitlinks):
                    path = path.removesuffix("/")
                    if self._enter(path, archiver):
                        pending.append(f"{path}/")
                    yield path
                else:
                    if name == ".gitignore" or name.endswith("/.gitignore"):
                        part.ignore_files.append(path)
                    yield path

    def _listed(self, part: _Part) -> Iterator[str]:
        words = LIST[:-1] if self._ignored else LIST
        return map(os.fsdecode, self._git_of(part).names(*words))

    def _git_of(self, part: _Part) -> HostGit:
        if part.state is not None:
            return part.state.git()
        plain = HostGit("repo", "-C", part.place.top)
        return without_repository(plain, f"{self._scratch.name}/none")

    def _enter(self, path: str, archiver: EntryArchiver | EntryCounter) -> bool:
        """Return whether a repository is there, or a directory that resembles one, whose files must be listed
        separately."""
        if f"{path}/" in self._parted:
            self._tell_refused(path, archiver)
            return True
        full = f"{self.place.top}/{path}"
        if not os.path.lexists(f"{full}/.git"):
            if os.path.isdir(full) and os.listdir(full):
                archiver.skip(path, "its content: git lists it as a submodule, but it is not a repository")
            return False
        commons = [part.place.common_dir for part in self._parted.values() if part.place.common_dir]
        try:
            self._add(f"{path}/", inner_repository(self.place, os.path.realpath(full), commons))
        except InvalidRequest as error:
            self._refused[path] = f"its history: {error.message.removeprefix('repo: ')}"
            self._parted[f"{path}/"] = _Part(f"{path}/", RepositoryPlace(os.path.realpath(full)))
            self._tell_refused(path, archiver)
        return True

    def _tell_refused(self, path: str, archiver: EntryArchiver | EntryCounter) -> None:
        if path in self._refused:
            archiver.skip(f"{path}/.git", self._refused[path])

    def _git_directory(self, part: _Part, archiver: EntryArchiver | EntryCounter) -> Iterator[bytes]:
        if part.state is None:
            return
        where = f"{part.prefix}.git"
        part.pack = part.pack or _pack(part)
        while part.pack is not None and not part.pack.wait(_SILENT_S):
            yield from archiver.made(where)  # again, as a sign of progress
            yield FLUSH
        packed = part.pack.names() if part.pack is not None else []
        for room in _ROOMS:
            yield from archiver.made(where + room)
        for name, content in part.state.files.items():
            yield from archiver.made(f"{where}/{name}", content)
        if part.state.index is not None:
            yield from _on_disk(archiver, part.scratch, "index", f"{where}/index")
        for name in packed:
            yield from _on_disk(archiver, f"{part.scratch}/objects/pack", name, f"{where}/objects/pack/{name}")
        if isinstance(archiver, EntryArchiver):
            self._git_files += len(part.state.files) + (part.state.index is not None) + len(packed)

    def with_skipped(self, moved: TransferResult) -> TransferResult:
        """Return the transfer without the files of git."""
        moved = super().with_skipped(moved)
        return replace(moved, files=max(0, moved.files - self._git_files))

    def _learn_rules(self) -> None:
        for part in self._parted.values():
            top, names = self.place.top, part.ignore_files
            files = [(os.path.dirname(name), read_plain(f"{top}/{name}") or b"") for name in names]
            settings = part.state.settings if part.state is not None else GitSettings.read(self._git_of(part))
            excludes = user_excludes(settings) + own_excludes(part.place)
            self._rules += rules_of(part.prefix.removesuffix("/"), excludes, files)
            if part.state is not None and part.state.index is not None:
                spite = part.state.git().names("ls-files", "-z", "--cached", "--ignored", "--exclude-standard")
                self._tracked += filter(is_text, (part.prefix + os.fsdecode(name) for name in spite))

    def _known(self) -> tuple[str, ...]:
        state = self._parted[""].state
        tips = dict.fromkeys(tip.decode() for tip in state.tips) if state is not None else ()
        return tuple(tip for tip in tips if OBJECT_ID.fullmatch(tip))[:MAX_KNOWN]

    def review(self, path: str, exclude: tuple[str, ...] = ()) -> BeginReview:
        """Return the request that starts the review, once the copy is in `path`."""
        return BeginReview(
            path=path, origin=origin_of(self.place.top), head=self.head, ignore=merged(self._rules),
            tracked=tuple(self._tracked), known=self._known(), exclude=exclude,
            copied_at=self._read_at,
        )  # fmt: skip


def _pack(part: _Part) -> ObjectPack | None:
    if part.state is None or not os.path.getsize(part.state.wanted):
        return None
    return ObjectPack(part.state, part.scratch)


def _borrowing(place: RepositoryPlace, objects: str) -> dict[str, str]:
    """Return the environment in which git writes objects to `objects` and also finds those of the repository."""
    quoted = f"{place.common_dir}/objects".replace("\\", "\\\\").replace('"', '\\"')
    return {"GIT_OBJECT_DIRECTORY": objects, "GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{quoted}"'}


def _on_disk(archiver: EntryArchiver | EntryCounter, directory: str, name: str, path: str) -> Iterator[bytes]:
    above = os.open(directory, DIRECTORY)
    try:
        yield from archiver.file(above, name, path)
    finally:
        os.close(above)
