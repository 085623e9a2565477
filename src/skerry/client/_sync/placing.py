# Generated from client/_async/placing.py by scripts/generate_sync.py. Do not edit.
"""COPY: files of this host, of the recipe itself or of another stage, into a build's sandbox."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import TYPE_CHECKING

from skerry.client import backend_sync as backend
from skerry.client import file_requests as requests
from skerry.client.building import sources
from skerry.client.building.archives import Passing, compression
from skerry.client.building.plan import Placing
from skerry.client.building.steps import Inline, Local
from skerry.errors import Conflict, FileMissing, InvalidRequest
from skerry.types import FileInfo, Transfer

if TYPE_CHECKING:
    from skerry.client._sync.building import Builder
    from skerry.client._sync.sandbox import Sandbox

Names = list[tuple[str, bool]]


class Placer:
    def __init__(self, builder: Builder, sandbox: Sandbox, placing: Placing) -> None:
        self._builder = builder
        self._sandbox = sandbox
        self._placing = placing

    def place(self) -> None:
        if self._placing.stage is not None:
            self._from_stage()
            return
        matches = backend.in_thread(self._found)
        if self._placing.unpack:
            matches = [match for match in matches if not self._unpacked(match)]
        inline = [source for source in self._placing.sources if isinstance(source, Inline)]
        alone = len(matches) + len(inline) == 1 and not any(match.is_directory for match in matches)
        root, name = self._where(alone)
        if matches or inline:
            self._prepare(root)
        for source in inline:
            data = sources.inline_archive(name or source.name, source.content.encode())
            self._send(root, iter([data]))
            self._dress(root, [(name or source.name, False)])
        if matches:
            archive = sources.Archive(matches, name=name, parents=self._placing.parents)
            self._send(root, archive)
            self._dress(root, archive.names)
        backend.in_thread(self._check)

    @property
    def _locals(self) -> list[Local]:
        return [source for source in self._placing.sources if isinstance(source, Local)]

    def _found(self) -> list[sources.Match]:
        return [match for source in self._locals for match in sources.found(source)]

    def _check(self) -> None:
        """The step's key says what was there before: it has to be what was sent."""
        if self._locals and sources.digest(self._locals, parents=self._placing.parents) != self._placing.content:
            raise Conflict("the files changed while they were copied", hint="build again")

    def _where(self, alone: bool) -> tuple[str, str | None]:
        """The directory that takes everything in, and, for a single file, its name there."""
        target = self._placing.target
        if not alone or self._placing.parents or target.endswith("/") or self._is_directory(target):
            return target, None
        return posixpath.dirname(target), posixpath.basename(target)

    def _look(self, path: str) -> FileInfo | None:
        try:
            return self._sandbox.files.stat(path, follow=True, user="root")
        except FileMissing:
            return None

    def _is_directory(self, path: str) -> bool:
        found = self._look(path)
        return found is not None and found.type == "directory"

    def _prepare(self, root: str) -> None:
        """A directory that is made for it is its owner's too."""
        if self._look(root) is None:
            self._sandbox.files.mkdir(root, user="root")
            self._dress(
                posixpath.dirname(root.rstrip("/")) or "/", [(posixpath.basename(root.rstrip("/")), True)]
            )

    def _send(self, root: str, archive: backend.AnySource) -> None:
        sandbox = self._sandbox
        request = requests.upload_tree(sandbox.id, root, backend.chunks(archive), "root")
        sandbox.client.value(request, Transfer)

    def _dress(self, root: str, names: Names) -> None:
        """Owners and modes, as asked for; a link has no mode of its own."""
        paths = [posixpath.join(root, name) for name, _ in names]
        if self._placing.owner is not None:
            self._on_each(["chown", "-h", "--", _owner(self._placing.owner)], paths)
        if self._placing.mode is not None:
            plain = [path for path, (_, is_link) in zip(paths, names, strict=True) if not is_link]
            self._on_each(["chmod", "--", f"{self._placing.mode:o}"], plain)

    def _on_each(self, words: list[str], paths: list[str]) -> None:
        if not paths:
            return
        listed = b"\0".join(path.encode("utf-8", "surrogateescape") for path in paths)
        result = self._sandbox.run(["xargs", "-0", *words], user="root", cwd="/", stdin=listed)
        if not result.ok:
            raise InvalidRequest(f"{' '.join(words)}: {result.stderr.strip()[-1000:] or 'it failed'}")

    def _unpacked(self, match: sources.Match) -> bool:
        """An archive, unpacked into the target by the image's own tar; what is none is copied."""
        file, flag = backend.in_thread(compression, match)
        if file is None:
            return False
        with file:
            self._prepare(self._placing.target)
            words = ["tar", "-x", *flag, "-f", "-", "-C", self._placing.target]
            result = self._sandbox.run(words, user="root", cwd="/", stdin=file, timeout=None)
        if not result.ok:
            raise InvalidRequest(f"{match.way}: tar: {result.stderr.strip()[-1000:] or 'it failed'}")
        return True

    def _from_stage(self) -> None:
        """Straight from the other's sandbox into this one, never on this host's disk."""
        plan = self._placing.stage
        if plan is None:
            return
        with self._builder.of_stage(plan, self._builder.made(plan)) as stage:
            paths = [path for source in self._placing.sources for path in _matching(stage, str(source))]
            found = [(path, stage.files.stat(path, follow=True, user="root")) for path in paths]
            alone = len(found) == 1 and found[0][1].type != "directory"
            root, name = self._where(alone)
            self._prepare(root)
            for path, info in found:
                if info.type == "directory":
                    self._tree(stage, path, root)
                else:
                    self._file(stage, path, info, root, name or posixpath.basename(path))

    def _tree(self, stage: Sandbox, path: str, root: str) -> None:
        passing = Passing()
        request = requests.download_tree(stage.id, path, (), "root")
        with stage.client.stream(request) as chunks:
            self._send(root, _passed(chunks, passing))
        self._dress(root, passing.names)

    def _file(self, stage: Sandbox, path: str, info: FileInfo, root: str, name: str) -> None:
        content = stage.files.stream(path, user="root")
        self._sandbox.files.write(posixpath.join(root, name), content, mode=info.mode & 0o777, user="root")
        self._dress(root, [(name, False)])


def _passed(chunks: Iterator[bytes], passing: Passing) -> Iterator[bytes]:
    for chunk in chunks:
        for piece in passing.feed(chunk):
            yield piece
    passing.finish()


def _matching(stage: Sandbox, path: str) -> list[str]:
    if not any(char in path for char in "*?["):
        return [path]
    names = sorted(info.path for info in stage.files.glob(path, path="/", user="root"))
    if not names:
        raise InvalidRequest(f"{path}: there is no such file in that stage")
    return names


def _owner(owner: str) -> str:
    """Its own group, where none is named."""
    user, colon, group = owner.partition(":")
    if colon and group:
        return owner
    return f"{user}:{user}" if user.isdecimal() else f"{user}:"
