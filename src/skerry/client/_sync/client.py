# Generated from client/_async/client.py by scripts/generate_sync.py. Do not edit.
"""One server: sends requests, tells failures, starts this host's own server where nobody listens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

import httpx

from skerry.client import backend_sync as backend
from skerry.client import code_requests, local, requests, review_requests
from skerry.client._sync.events import listen
from skerry.client._sync.images import Images
from skerry.client._sync.pool import Pool
from skerry.client._sync.tokens import Tokens
from skerry.client.address import check_token, resolve
from skerry.client.connection import NotConnected, http_request, speaking
from skerry.client.requests import Request
from skerry.client.responses import LanguageList, ReviewRefsList, decode, error_answer
from skerry.config import load
from skerry.errors import ServerUnreachable
from skerry.types import Event, LanguageInfo, PackRequest, ReviewRefs

T = TypeVar("T")


class Client:
    """A server, reached over a pool of connections. `Sandbox(server=client)` shares it between sandboxes."""

    def __init__(self, server: str | None = None, *, token: str | None = None) -> None:
        self.address = resolve(server, load(flags={"token": check_token(token)}))
        self.images = Images(self)
        self.pool = Pool(self)
        self.tokens = Tokens(self)
        self._transport: httpx.HTTPTransport | None = None

    def __repr__(self) -> str:
        return f"Client({str(self.address)!r})"

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. A later call opens new ones."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    def info(self) -> dict[str, Any]:
        """The server itself: version, pid, address, uptime, runtime, storage."""
        return self.value(requests.server(), dict[str, Any])

    def languages(self) -> list[LanguageInfo]:
        """Those that code can be run in, with the versions that can be asked for and the images that have them;
        `sandbox.code.languages()` tells what is there in a sandbox."""
        return (self.value(code_requests.languages(None), LanguageList)).languages

    def doctor(self) -> dict[str, Any]:
        """What the server's host can isolate, and what it lacks."""
        return self.value(requests.doctor(), dict[str, Any])

    def stop(self) -> None:
        """Ask the server to leave. Sandboxes live on."""
        self.done(requests.stop_server())

    def events(
        self,
        *,
        follow: bool = False,
        since: int | None = None,
        sandbox: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> Iterator[Event]:
        """What happened, oldest first: after event number `since`, of one sandbox, of one type (`"process.ended"`, or
        `"process"` for all of theirs). `follow` goes on as it happens, and takes a broken connection up again; without
        `since` it begins now."""
        return listen(self, requests.EventWish(follow, since, sandbox, type))

    def reviews(self, origin: str | None = None) -> list[ReviewRefs]:
        """What a git remote shows of your sandboxes' ledgers: all, or those that came from one place."""
        return (self.value(review_requests.refs(origin), ReviewRefsList)).reviews

    @contextmanager
    def review_pack(
        self, ref: str, wants: Sequence[str], haves: Sequence[str] = ()
    ) -> Iterator[Iterator[bytes]]:
        """The objects behind some of those refs, as a pack of git."""
        wish = PackRequest(wants=tuple(wants), haves=tuple(haves))
        with self.stream(review_requests.pack(ref, wish)) as pieces:
            yield pieces

    def value(self, request: Request, kind: type[T]) -> T:
        """Send, and give the answer as a value of that kind."""
        with self.answer(request) as response:
            return decode(response.read(), kind)

    def value_if_any(self, request: Request, kind: type[T]) -> T | None:
        """The same, where the answer may be that there is nothing yet."""
        with self.answer(request) as response:
            body = response.read()
            return None if response.status_code == 204 else decode(body, kind)

    def done(self, request: Request) -> None:
        """Send; the answer says nothing but that it was done."""
        with self.answer(request) as response:
            response.read()

    @contextmanager
    def stream(self, request: Request) -> Iterator[Iterator[bytes]]:
        """Send, and give the answer's bytes as they come."""
        with self.answer(request) as response:
            yield response.iter_raw()

    def upgraded(self, request: Request) -> httpx.Response:
        """Send a request for an upgrade. The connection belongs to the answer, and ends when that is closed."""
        response = self._send(request)
        if response.status_code == 101:
            return response
        try:
            with speaking(self.address):
                raise error_answer(response.status_code, response.read())
        finally:
            response.close()

    @contextmanager
    def answer(self, request: Request) -> Iterator[httpx.Response]:
        """Send, and give the answer before its content."""
        response = self._send(request)
        try:
            with speaking(self.address):
                if not response.is_success:
                    raise error_answer(response.status_code, response.read())
                yield response
        finally:
            response.close()

    def _send(self, request: Request) -> httpx.Response:
        try:
            return self._send_once(request)
        except ServerUnreachable as error:
            if not self._may_try_again(request, error):
                raise
        return self._send_once(request)

    def _may_try_again(self, request: Request, error: ServerUnreachable) -> bool:
        if isinstance(error, NotConnected):
            if not local.may_start(self.address):
                return False
            backend.in_thread(local.start, self.address)
            return True
        return request.repeatable

    def _send_once(self, request: Request) -> httpx.Response:
        if self._transport is None:
            self._transport = backend.open_transport(self.address)
        with speaking(self.address):
            return self._transport.handle_request(http_request(self.address, request))
