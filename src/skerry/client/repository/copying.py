"""A repository as an archive: the files as they are on disk, and a `.git` made anew for it and each one within it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from skerry.client.gitignore import LIST, MOST_REPOSITORIES, without_repository
from skerry.client.host_git import Git
from skerry.client.packed import Sizes, Things
from skerry.client.packing import FLUSH, Archive, Watcher
from skerry.client.patterns import Patterns
from skerry.client.repository.finding import Place, read_plain, within
from skerry.client.repository.objects import ObjectPack
from skerry.client.repository.origin import origin_of
from skerry.client.repository.rules import Rules, is_text, merged, own_excludes, rules_of, user_excludes
from skerry.client.repository.settings import Settings
from skerry.client.repository.state import State, taken
from skerry.client.walking import DIRECTORY, Listing
from skerry.errors import InvalidRequest
from skerry.types import KNOWN_MOST, OBJECT_ID, BeginReview, Progress, Transfer

_ROOMS: Final = ("", "/objects", "/objects/pack", "/refs", "/refs/heads", "/refs/tags", "/info")
_AT_ONCE: Final = 2
_SILENT_S: Final = 10.0
_EVERYTHING: Final = Patterns(())


@dataclass
class _Part:
    """The tree's own repository, or one within it. Without a state it is a plain directory."""

    prefix: str  # '' or with a slash at its end
    place: Place
    scratch: str = ""
    state: State | None = None
    pack: ObjectPack | None = None
    ignore_files: list[str] = field(default_factory=list)


class RepositoryCopy(Archive):
    """Of a place, as it is when this is made: what git has there is read, and packed, beside whatever the caller does
    until the first byte is asked for."""

    def __init__(self, place: Place, *, ignored: bool = False, progress: Watcher | None = None) -> None:
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

    def _add(self, prefix: str, place: Place) -> _Part:
        number = len(self._parted)
        if number >= MOST_REPOSITORIES:
            raise InvalidRequest(f"repo: there are more than {MOST_REPOSITORIES} repositories in it")
        part = _Part(prefix, place, f"{self._scratch.name}/{number}")
        if place.git_dir is not None:
            os.makedirs(f"{part.scratch}/pack")
            part.state = taken(place, part.scratch)
            busy = sum(one.pack is not None and not one.pack.wait(0) for one in self._parted.values())
            if busy < _AT_ONCE:
                part.pack = _pack(part)
        self._parted[prefix] = part
        return part

    def measure(self) -> None:
        """How much it is, for a bar: all packs are made for it, which takes as long as it takes. Whoever reads the
        archive is patient for a minute only."""
        if self._progress is not None:
            self._progress(Progress(stage="pack"))
            self._total = super()._measured()

    def _measured(self) -> int:
        return self._total

    def _parts(self, things: Things | Sizes) -> Iterator[bytes]:
        self._first.result()
        yield from Listing(things, _EVERYTHING).of(self._root, self._paths(things))
        if isinstance(things, Things):
            self._learn_rules()
        for part in self._parted.values():
            yield from self._git_directory(part, things)

    def _paths(self, things: Things | Sizes) -> Iterator[str]:
        pending = [""]
        for prefix in pending:
            part = self._parted[prefix]
            part.ignore_files = []
            for name in self._listed(part):
                path = prefix + name
                if name.endswith("/") or (part.state is not None and name in part.state.gitlinks):
                    path = path.removesuffix("/")
                    if self._enter(path, things):
                        pending.append(f"{path}/")
                    yield path
                else:
                    if name == ".gitignore" or name.endswith("/.gitignore"):
                        part.ignore_files.append(path)
                    yield path

    def _listed(self, part: _Part) -> Iterator[str]:
        words = LIST[:-1] if self._ignored else LIST
        return map(os.fsdecode, self._git_of(part).names(*words))

    def _git_of(self, part: _Part) -> Git:
        if part.state is not None:
            return part.state.git()
        plain = Git("repo", "-C", part.place.top)
        return without_repository(plain, f"{self._scratch.name}/none")

    def _enter(self, path: str, things: Things | Sizes) -> bool:
        """Whether there is a repository, or what looks like one, whose files are to be listed by themselves."""
        if f"{path}/" in self._parted:
            self._tell_refused(path, things)
            return True
        full = f"{self.place.top}/{path}"
        if not os.path.lexists(f"{full}/.git"):
            if os.path.isdir(full) and os.listdir(full):
                things.skip(path, "what is in it: git takes it for a submodule, and it is none")
            return False
        commons = [part.place.common_dir for part in self._parted.values() if part.place.common_dir]
        try:
            self._add(f"{path}/", within(self.place, os.path.realpath(full), commons))
        except InvalidRequest as error:
            self._refused[path] = f"its history: {error.message.removeprefix('repo: ')}"
            self._parted[f"{path}/"] = _Part(f"{path}/", Place(os.path.realpath(full)))
            self._tell_refused(path, things)
        return True

    def _tell_refused(self, path: str, things: Things | Sizes) -> None:
        if path in self._refused:
            things.skip(f"{path}/.git", self._refused[path])

    def _git_directory(self, part: _Part, things: Things | Sizes) -> Iterator[bytes]:
        if part.state is None:
            return
        where = f"{part.prefix}.git"
        part.pack = part.pack or _pack(part)
        while part.pack is not None and not part.pack.wait(_SILENT_S):
            yield from things.made(where)  # once more: a sign of life
            yield FLUSH
        packed = part.pack.names() if part.pack is not None else []
        for room in _ROOMS:
            yield from things.made(where + room)
        for name, content in part.state.files.items():
            yield from things.made(f"{where}/{name}", content)
        if part.state.index is not None:
            yield from _on_disk(things, part.scratch, "index", f"{where}/index")
        for name in packed:
            yield from _on_disk(things, f"{part.scratch}/pack", name, f"{where}/objects/pack/{name}")
        if isinstance(things, Things):
            self._git_files += len(part.state.files) + (part.state.index is not None) + len(packed)

    def told(self, moved: Transfer) -> Transfer:
        """The files of git itself don't count."""
        moved = super().told(moved)
        return replace(moved, files=max(0, moved.files - self._git_files))

    def _learn_rules(self) -> None:
        for part in self._parted.values():
            top, names = self.place.top, part.ignore_files
            files = [(os.path.dirname(name), read_plain(f"{top}/{name}") or b"") for name in names]
            settings = part.state.settings if part.state is not None else Settings.read(self._git_of(part))
            excludes = user_excludes(settings) + own_excludes(part.place)
            self._rules += rules_of(part.prefix.removesuffix("/"), excludes, files)
            if part.state is not None and part.state.index is not None:
                spite = part.state.git().names("ls-files", "-z", "--cached", "--ignored", "--exclude-standard")
                self._tracked += filter(is_text, (part.prefix + os.fsdecode(name) for name in spite))

    def _known(self) -> tuple[str, ...]:
        state = self._parted[""].state
        tips = dict.fromkeys(tip.decode() for tip in state.tips) if state is not None else ()
        return tuple(tip for tip in tips if OBJECT_ID.fullmatch(tip))[:KNOWN_MOST]

    def review(self, path: str) -> BeginReview:
        """What the server is told of it, once all of it is in `path`."""
        return BeginReview(
            path=path, origin=origin_of(self.place.top), head=self.head, ignore=merged(self._rules),
            tracked=tuple(self._tracked), known=self._known(),
        )  # fmt: skip


def _pack(part: _Part) -> ObjectPack | None:
    if part.state is None or not os.path.getsize(part.state.wanted):
        return None
    return ObjectPack(part.state, f"{part.scratch}/pack")


def _on_disk(things: Things | Sizes, directory: str, name: str, path: str) -> Iterator[bytes]:
    above = os.open(directory, DIRECTORY)
    try:
        yield from things.file(above, name, path)
    finally:
        os.close(above)
