"""A repository of this host, or of a URL, in a new sandbox's /workspace."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from skerry.client import backend_async as backend
from skerry.client import file_requests
from skerry.client.repository.copying import RepositoryCopy
from skerry.client.repository.finding import find
from skerry.client.repository.source import Imported, Repo
from skerry.errors import FileMissing
from skerry.types import WORKSPACE, Transfer

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
        with suppress(FileMissing):
            await sandbox.files.remove(f"{WORKSPACE}/.git", recursive=True)  # an image may have had one
        request = file_requests.upload_tree(sandbox.id, WORKSPACE, backend.chunks(self._copy), None)
        moved = self._copy.told(await sandbox.client.value(request, Transfer))
        place = self._copy.place
        return Imported(place.top, place.given, self._copy.repositories, moved)

    async def _clone(self, sandbox: AsyncSandbox, url: str) -> Imported:
        await sandbox.git.clone(url, WORKSPACE, timeout=None)
        return Imported(None, None, 1, None)

    async def aclose(self) -> None:
        if self._copy is not None:
            await backend.in_thread(self._copy.close)
