"""One server: sends requests, tells failures, starts this host's own server where nobody listens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, TypeVar

import httpx

from skerry.client import backend_async as backend
from skerry.client import code_requests, local, requests, review_requests
from skerry.client._async.events import listen
from skerry.client._async.images import AsyncImages
from skerry.client._async.pool import AsyncPool
from skerry.client._async.tokens import AsyncTokens
from skerry.client.address import check_token, resolve
from skerry.client.connection import NotConnected, http_request, speaking
from skerry.client.requests import Request
from skerry.client.responses import LanguageList, ReviewRefsList, decode, error_answer
from skerry.config import load
from skerry.errors import ServerUnreachable
from skerry.types import Event, LanguageInfo, PackRequest, ReviewRefs

T = TypeVar("T")


class AsyncClient:
    """A server, reached over a pool of connections. `AsyncSandbox(server=client)` shares it between sandboxes."""

    def __init__(self, server: str | None = None, *, token: str | None = None) -> None:
        self.address = resolve(server, load(flags={"token": check_token(token)}))
        self.images = AsyncImages(self)
        self.pool = AsyncPool(self)
        self.tokens = AsyncTokens(self)
        self._transport: httpx.AsyncHTTPTransport | None = None

    def __repr__(self) -> str:
        return f"AsyncClient({str(self.address)!r})"

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections. A later call opens new ones."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    async def info(self) -> dict[str, Any]:
        """The server itself: version, pid, address, uptime, runtime, storage."""
        return await self.value(requests.server(), dict[str, Any])

    async def languages(self) -> list[LanguageInfo]:
        """Those that code can be run in, with the versions that can be asked for and the images that have them;
        `sandbox.code.languages()` tells what is there in a sandbox."""
        return (await self.value(code_requests.languages(None), LanguageList)).languages

    async def doctor(self) -> dict[str, Any]:
        """What the server's host can isolate, and what it lacks."""
        return await self.value(requests.doctor(), dict[str, Any])

    async def stop(self) -> None:
        """Ask the server to leave. Sandboxes live on."""
        await self.done(requests.stop_server())

    def events(
        self,
        *,
        follow: bool = False,
        since: int | None = None,
        sandbox: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> AsyncIterator[Event]:
        """What happened, oldest first: after event number `since`, of one sandbox, of one type (`"process.ended"`, or
        `"process"` for all of theirs). `follow` goes on as it happens, and takes a broken connection up again; without
        `since` it begins now."""
        return listen(self, requests.EventWish(follow, since, sandbox, type))

    async def reviews(self, origin: str | None = None) -> list[ReviewRefs]:
        """What a git remote shows of your sandboxes' ledgers: all, or those that came from one place."""
        return (await self.value(review_requests.refs(origin), ReviewRefsList)).reviews

    @asynccontextmanager
    async def review_pack(
        self, ref: str, wants: Sequence[str], haves: Sequence[str] = ()
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The objects behind some of those refs, as a pack of git."""
        wish = PackRequest(wants=tuple(wants), haves=tuple(haves))
        async with self.stream(review_requests.pack(ref, wish)) as pieces:
            yield pieces

    async def value(self, request: Request, kind: type[T]) -> T:
        """Send, and give the answer as a value of that kind."""
        async with self.answer(request) as response:
            return decode(await response.aread(), kind)

    async def value_if_any(self, request: Request, kind: type[T]) -> T | None:
        """The same, where the answer may be that there is nothing yet."""
        async with self.answer(request) as response:
            body = await response.aread()
            return None if response.status_code == 204 else decode(body, kind)

    async def done(self, request: Request) -> None:
        """Send; the answer says nothing but that it was done."""
        async with self.answer(request) as response:
            await response.aread()

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send, and give the answer's bytes as they come."""
        async with self.answer(request) as response:
            yield response.aiter_raw()

    async def upgraded(self, request: Request) -> httpx.Response:
        """Send a request for an upgrade. The connection belongs to the answer, and ends when that is closed."""
        response = await self._send(request)
        if response.status_code == 101:
            return response
        try:
            with speaking(self.address):
                raise error_answer(response.status_code, await response.aread())
        finally:
            await response.aclose()

    @asynccontextmanager
    async def answer(self, request: Request) -> AsyncIterator[httpx.Response]:
        """Send, and give the answer before its content."""
        response = await self._send(request)
        try:
            with speaking(self.address):
                if not response.is_success:
                    raise error_answer(response.status_code, await response.aread())
                yield response
        finally:
            await response.aclose()

    async def _send(self, request: Request) -> httpx.Response:
        try:
            return await self._send_once(request)
        except ServerUnreachable as error:
            if not await self._may_try_again(request, error):
                raise
        return await self._send_once(request)

    async def _may_try_again(self, request: Request, error: ServerUnreachable) -> bool:
        if isinstance(error, NotConnected):
            if not local.may_start(self.address):
                return False
            await backend.in_thread(local.start, self.address)
            return True
        return request.repeatable

    async def _send_once(self, request: Request) -> httpx.Response:
        if self._transport is None:
            self._transport = backend.open_transport(self.address)
        with speaking(self.address):
            return await self._transport.handle_async_request(http_request(self.address, request))
