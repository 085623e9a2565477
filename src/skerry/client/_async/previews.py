"""Previews: ports of a sandbox, each with a URL."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from skerry.client.transport.requests import previews as requests
from skerry.errors import NotFound
from skerry.types import PreviewInfo, PreviewList

if TYPE_CHECKING:
    from skerry.client._async.sandbox import AsyncSandbox


class AsyncPreview:
    """One port with a URL: `sandbox.expose(8000)`.

    `url` is its address; a private one also needs `token`. `link` contains both: a browser that opens it keeps access.
    A program sends the token as `X-Skerry-Preview-Token`.
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
    def name(self) -> str | None:
        return self.info.name

    @property
    def url(self) -> str:
        return self.info.url

    @property
    def path_url(self) -> str:
        """The URL with a path instead of a host name, for programs that cannot resolve names below localhost."""
        return self.info.path_url

    @property
    def token(self) -> str | None:
        """The access token; None if it is public."""
        return self.info.token

    @property
    def link(self) -> str:
        """The URL with the token. It gives access to its holder."""
        return requests.link_of(self.info)

    @property
    def public(self) -> bool:
        return self.info.public

    @property
    def expires(self) -> float | None:
        """The end as a Unix time; None: until it is revoked, or its sandbox is deleted."""
        return self.info.expires

    async def revoke(self) -> None:
        """Revoke the preview and close its open connections."""
        await self._sandbox.client.request(requests.revoke(self._sandbox.id, self.port))


class AsyncPreviews:
    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def list(self) -> builtins.list[AsyncPreview]:
        """Return the previews, sorted by port."""
        sandbox = self._sandbox
        answer = await sandbox.client.request_json(requests.previews(sandbox.id), PreviewList)
        return [AsyncPreview(sandbox, info) for info in answer.previews]

    async def get(self, place: int | str) -> AsyncPreview:
        """Return the preview of a port, or the one with a name. Raise NotFound if it does not exist."""
        found = [preview.info for preview in await self.list()]
        return AsyncPreview(self._sandbox, requests.find_preview(found, self._sandbox.id, place))

    async def check_token(self, place: int | str, token: str) -> bool:
        """Return whether this token opens the preview now, for a program that receives it from its own users. A public
        preview accepts every token; one that is revoked or expired accepts none."""
        try:
            preview = await self.get(place)
        except NotFound:
            return False
        return requests.opens(preview.info, token)
