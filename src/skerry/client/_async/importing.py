"""A repository of this host, or of a URL, in a new sandbox's /workspace."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from skerry.client import backend_async as backend
from skerry.client import file_requests, review_requests
from skerry.client.repository.copying import RepositoryCopy
from skerry.client.repository.finding import find
from skerry.client.repository.rules import MOST, MOST_FILES, is_text, merged, rules_of
from skerry.client.repository.source import Imported, Repo
from skerry.errors import FileFailure, FileMissing
from skerry.types import WORKSPACE, BeginReview, Transfer

if TYPE_CHECKING:
    from skerry.client._async.sandbox import AsyncSandbox


class AsyncImport:
    """Opened before there is a sandbox: what is wrong is said first, and git packs while the sandbox is made."""

    def __init__(self, repo: Repo, copy: RepositoryCopy | None) -> None:
        self._repo, self._copy = repo, copy

    @classmethod
    async def open(cls, repo: Repo) -> AsyncImport:
        if repo.url is not None:
            return cls(repo, None)
        place = await backend.in_thread(find, repo.source)
        copy = await backend.in_thread(RepositoryCopy, place, ignored=repo.ignored, progress=repo.progress)
        return cls(repo, copy)

    async def bring(self, sandbox: AsyncSandbox) -> Imported:
        if self._copy is None:
            return await self._clone(sandbox, self._repo.url or "")
        await _make_room(sandbox)
        await backend.in_thread(self._copy.measure)
        request = file_requests.upload_tree(sandbox.id, WORKSPACE, backend.chunks(self._copy), None)
        moved = self._copy.told(await sandbox.client.value(request, Transfer))
        if self._repo.review:
            await sandbox.client.done(review_requests.begin(sandbox.id, self._copy.review(WORKSPACE)))
        place = self._copy.place
        return Imported(place.top, place.given, self._copy.repositories, moved)

    async def _clone(self, sandbox: AsyncSandbox, url: str) -> Imported:
        await _make_room(sandbox)
        await sandbox.git.clone(url, WORKSPACE, timeout=None)
        if self._repo.review:
            await sandbox.client.done(review_requests.begin(sandbox.id, await _of_clone(sandbox)))
        return Imported(None, None, 1, None)

    async def aclose(self) -> None:
        if self._copy is not None:
            await backend.in_thread(self._copy.close)


async def _make_room(sandbox: AsyncSandbox) -> None:
    """An image may have no such directory, or a repository of its own in it; a runtime makes it as root's."""
    files = sandbox.files
    try:
        with suppress(FileMissing):
            await files.remove(f"{WORKSPACE}/.git", recursive=True, user="root")
        root = (await files.stat(WORKSPACE)).uid == 0
    except FileMissing:
        await files.mkdir(WORKSPACE, user="root")
        root = True
    if root and (who := (await sandbox.run(["id", "-u"], cwd="/", check=True)).stdout.strip()) != "0":
        await files.chown(WORKSPACE, int(who), user="root")


async def _of_clone(sandbox: AsyncSandbox) -> BeginReview:
    """What a review leaves out of a clone, as the clone itself says."""
    files = []
    for name in await _names(sandbox, "--", ":(glob)**/.gitignore"):
        with suppress(FileFailure):
            files.append((name.rpartition("/")[0], await sandbox.files.read_bytes(f"{WORKSPACE}/{name}", length=MOST)))
    tracked = await _names(sandbox, "--cached", "--ignored", "--exclude-standard")
    head = (await sandbox.run(["git", "rev-parse", "-q", "--verify", "HEAD"], cwd=WORKSPACE)).stdout.strip()
    return BeginReview(
        path=WORKSPACE, head=head or None, ignore=merged(rules_of("", b"", files)), tracked=tuple(tracked)
    )


async def _names(sandbox: AsyncSandbox, *words: str) -> list[str]:
    listed = await sandbox.run(["git", "ls-files", "-z", *words], cwd=WORKSPACE, check=True)
    names = listed.stdout_bytes.split(b"\0")[:-1] if not listed.truncated else []
    return [name for one in names[:MOST_FILES] if is_text(name := os.fsdecode(one))]
