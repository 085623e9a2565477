"""Previews: ports of a sandbox that people may look at, each by a URL of its own."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from skerry.client import preview_requests as requests
from skerry.client.preview_requests import PreviewList
from skerry.types import PreviewInfo

if TYPE_CHECKING:
    from skerry.client._async.sandbox import AsyncSandbox


class AsyncPreview:
    """One port by URL: `sandbox.expose(8000)`.

    `url` is where it is; a private one also needs `token`. `link` has both: a browser that opens it is let in from then
    on. A program sends the token as `X-Skerry-Preview-Token`.
    """

    def __init__(self, sandbox: AsyncSandbox, info: PreviewInfo) -> None:
        self._sandbox = sandbox
        self.info = info

    def __repr__(self) -> str:
        return f"<AsyncPreview {self.url}{' (public)' if self.public else ''}>"  # never the token

    @property
    def port(self) -> int:
        return self.info.port

    @property
    def url(self) -> str:
        return self.info.url

    @property
    def path_url(self) -> str:
        """The same by a path, for programs that can't look up names below localhost."""
        return self.info.path_url

    @property
    def token(self) -> str | None:
        """What opens it; None: it is public."""
        return self.info.token

    @property
    def link(self) -> str:
        """The URL with the token in it. Who has it can look."""
        return requests.link_of(self.info)

    @property
    def public(self) -> bool:
        return self.info.public

    @property
    def expires(self) -> float | None:
        """Until when, as a Unix time; None: until it is revoked, or its sandbox deleted."""
        return self.info.expires

    async def revoke(self) -> None:
        """Nobody gets in any more; who is in is put out."""
        await self._sandbox.client.done(requests.revoke(self._sandbox.id, self.port))


class AsyncPreviews:
    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def list(self) -> builtins.list[AsyncPreview]:
        """Those that are there, by port."""
        sandbox = self._sandbox
        answer = await sandbox.client.value(requests.previews(sandbox.id), PreviewList)
        return [AsyncPreview(sandbox, info) for info in answer.previews]
