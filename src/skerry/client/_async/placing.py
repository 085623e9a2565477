"""COPY: files of this host, of the recipe itself or of another stage, into a build's sandbox."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from skerry.client import backend_async as backend
from skerry.client import file_requests as requests
from skerry.client.building import sources
from skerry.client.building.archives import Passing, compression
from skerry.client.building.plan import Placing
from skerry.client.building.steps import Inline, Local
from skerry.errors import Conflict, FileMissing, InvalidRequest
from skerry.types import FileInfo, Transfer

if TYPE_CHECKING:
    from skerry.client._async.building import AsyncBuilder
    from skerry.client._async.sandbox import AsyncSandbox

Names = list[tuple[str, bool]]


class AsyncPlacer:
    def __init__(self, builder: AsyncBuilder, sandbox: AsyncSandbox, placing: Placing) -> None:
        self._builder = builder
        self._sandbox = sandbox
        self._placing = placing

    async def place(self) -> None:
        if self._placing.stage is not None:
            await self._from_stage()
            return
        matches = await backend.in_thread(self._found)
        if self._placing.unpack:
            matches = [match for match in matches if not await self._unpacked(match)]
        inline = [source for source in self._placing.sources if isinstance(source, Inline)]
        alone = len(matches) + len(inline) == 1 and not any(match.is_directory for match in matches)
        root, name = await self._where(alone)
        if matches or inline:
            await self._prepare(root)
        for source in inline:
            data = sources.inline_archive(name or source.name, source.content.encode())
            await self._send(root, iter([data]))
            await self._dress(root, [(name or source.name, False)])
        if matches:
            archive = sources.Archive(matches, name=name, parents=self._placing.parents)
            await self._send(root, archive)
            await self._dress(root, archive.names)
        await backend.in_thread(self._check)

    @property
    def _locals(self) -> list[Local]:
        return [source for source in self._placing.sources if isinstance(source, Local)]

    def _found(self) -> list[sources.Match]:
        return [match for source in self._locals for match in sources.found(source)]

    def _check(self) -> None:
        """The step's key says what was there before: it has to be what was sent."""
        if self._locals and sources.digest(self._locals, parents=self._placing.parents) != self._placing.content:
            raise Conflict("the files changed while they were copied", hint="build again")

    async def _where(self, alone: bool) -> tuple[str, str | None]:
        """The directory that takes everything in, and, for a single file, its name there."""
        target = self._placing.target
        if not alone or self._placing.parents or target.endswith("/") or await self._is_directory(target):
            return target, None
        return posixpath.dirname(target), posixpath.basename(target)

    async def _look(self, path: str) -> FileInfo | None:
        try:
            return await self._sandbox.files.stat(path, follow=True, user="root")
        except FileMissing:
            return None

    async def _is_directory(self, path: str) -> bool:
        found = await self._look(path)
        return found is not None and found.type == "directory"

    async def _prepare(self, root: str) -> None:
        """A directory that is made for it is its owner's too."""
        if await self._look(root) is None:
            await self._sandbox.files.mkdir(root, user="root")
            await self._dress(
                posixpath.dirname(root.rstrip("/")) or "/", [(posixpath.basename(root.rstrip("/")), True)]
            )

    async def _send(self, root: str, archive: backend.AnySource) -> None:
        sandbox = self._sandbox
        request = requests.upload_tree(sandbox.id, root, backend.chunks(archive), "root")
        await sandbox.client.value(request, Transfer)

    async def _dress(self, root: str, names: Names) -> None:
        """Owners and modes, as asked for; a link has no mode of its own."""
        paths = [posixpath.join(root, name) for name, _ in names]
        if self._placing.owner is not None:
            await self._on_each(["chown", "-h", "--", _owner(self._placing.owner)], paths)
        if self._placing.mode is not None:
            plain = [path for path, (_, is_link) in zip(paths, names, strict=True) if not is_link]
            await self._on_each(["chmod", "--", f"{self._placing.mode:o}"], plain)

    async def _on_each(self, words: list[str], paths: list[str]) -> None:
        if not paths:
            return
        listed = b"\0".join(path.encode("utf-8", "surrogateescape") for path in paths)
        result = await self._sandbox.run(["xargs", "-0", *words], user="root", cwd="/", stdin=listed)
        if not result.ok:
            raise InvalidRequest(f"{' '.join(words)}: {result.stderr.strip()[-1000:] or 'it failed'}")

    async def _unpacked(self, match: sources.Match) -> bool:
        """An archive, unpacked into the target by the image's own tar; what is none is copied."""
        file, flag = await backend.in_thread(compression, match)
        if file is None:
            return False
        with file:
            await self._prepare(self._placing.target)
            words = ["tar", "-x", *flag, "-f", "-", "-C", self._placing.target]
            result = await self._sandbox.run(words, user="root", cwd="/", stdin=file, timeout=None)
        if not result.ok:
            raise InvalidRequest(f"{match.way}: tar: {result.stderr.strip()[-1000:] or 'it failed'}")
        return True

    async def _from_stage(self) -> None:
        """Straight from the other's sandbox into this one, never on this host's disk."""
        plan = self._placing.stage
        if plan is None:
            return
        async with self._builder.of_stage(plan, await self._builder.made(plan)) as stage:
            paths = [path for source in self._placing.sources for path in await _matching(stage, str(source))]
            found = [(path, await stage.files.stat(path, follow=True, user="root")) for path in paths]
            alone = len(found) == 1 and found[0][1].type != "directory"
            root, name = await self._where(alone)
            await self._prepare(root)
            for path, info in found:
                if info.type == "directory":
                    await self._tree(stage, path, root)
                else:
                    await self._file(stage, path, info, root, name or posixpath.basename(path))

    async def _tree(self, stage: AsyncSandbox, path: str, root: str) -> None:
        passing = Passing()
        request = requests.download_tree(stage.id, path, (), "root")
        async with stage.client.stream(request) as chunks:
            await self._send(root, _passed(chunks, passing))
        await self._dress(root, passing.names)

    async def _file(self, stage: AsyncSandbox, path: str, info: FileInfo, root: str, name: str) -> None:
        content = stage.files.stream(path, user="root")
        await self._sandbox.files.write(posixpath.join(root, name), content, mode=info.mode & 0o777, user="root")
        await self._dress(root, [(name, False)])


async def _passed(chunks: AsyncIterator[bytes], passing: Passing) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        for piece in passing.feed(chunk):
            yield piece
    passing.finish()


async def _matching(stage: AsyncSandbox, path: str) -> list[str]:
    if not any(char in path for char in "*?["):
        return [path]
    names = sorted(info.path for info in await stage.files.glob(path, path="/", user="root"))
    if not names:
        raise InvalidRequest(f"{path}: there is no such file in that stage")
    return names


def _owner(owner: str) -> str:
    """Its own group, where none is named."""
    user, colon, group = owner.partition(":")
    if colon and group:
        return owner
    return f"{user}:{user}" if user.isdecimal() else f"{user}:"
