# Generated from client/_async/client.py by scripts/generate_sync.py. Do not edit.
"""One server: sends requests, tells failures, starts this host's own server where nobody listens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

import httpx

from skerry.client import backend_sync as backend
from skerry.client import local, requests
from skerry.client._sync.images import Images
from skerry.client._sync.tokens import Tokens
from skerry.client.address import check_token, resolve
from skerry.client.connection import NotConnected, speaking, timeouts
from skerry.client.requests import Request
from skerry.client.responses import decode, error_answer
from skerry.config import load
from skerry.errors import ServerUnreachable

T = TypeVar("T")


class Client:
    """A server, reached over a pool of connections. `Sandbox(server=client)` shares it between sandboxes."""

    def __init__(self, server: str | None = None, *, token: str | None = None) -> None:
        self.address = resolve(server, load(flags={"token": check_token(token)}))
        self.images = Images(self)
        self.tokens = Tokens(self)
        self._http: httpx.Client | None = None

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
        http, self._http = self._http, None
        if http is not None:
            http.close()

    def info(self) -> dict[str, Any]:
        """The server itself: version, pid, address, uptime, runtime, storage."""
        return self.value(requests.server(), dict[str, Any])

    def doctor(self) -> dict[str, Any]:
        """What the server's host can isolate, and what it lacks."""
        return self.value(requests.doctor(), dict[str, Any])

    def stop(self) -> None:
        """Ask the server to leave. Sandboxes live on."""
        self.done(requests.stop_server())

    def value(self, request: Request, kind: type[T]) -> T:
        """Send, and give the answer as a value of that kind."""
        response = self._send(request, stream=False)
        return decode(response.content, kind)

    def done(self, request: Request) -> None:
        """Send; the answer says nothing but that it was done."""
        self._send(request, stream=False)

    @contextmanager
    def stream(self, request: Request) -> Iterator[Iterator[bytes]]:
        """Send, and give the answer's bytes as they come."""
        response = self._send(request, stream=True)
        try:
            with speaking(self.address):
                yield response.iter_raw()
        finally:
            response.close()

    def _send(self, request: Request, *, stream: bool) -> httpx.Response:
        try:
            return self._send_once(request, stream=stream)
        except ServerUnreachable as error:
            if not self._may_try_again(request, error):
                raise
        return self._send_once(request, stream=stream)

    def _may_try_again(self, request: Request, error: ServerUnreachable) -> bool:
        if isinstance(error, NotConnected):
            if not local.may_start(self.address):
                return False
            backend.in_thread(local.start, self.address)
            return True
        return request.repeatable

    def _send_once(self, request: Request, *, stream: bool) -> httpx.Response:
        if self._http is None:
            self._http = backend.open_http(self.address)
        built = self._http.build_request(
            request.method,
            request.path,
            params=request.params,
            content=request.content,
            headers=request.headers(),
            timeout=timeouts(request),
        )
        with speaking(self.address):
            response = self._http.send(built, stream=stream)
            if response.is_success:
                return response
            try:
                raise error_answer(response.status_code, response.read())
            finally:
                response.close()
