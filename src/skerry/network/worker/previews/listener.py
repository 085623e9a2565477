"""The preview listener: accepts connections, finds the preview, checks the token, and runs exchanges one after
another."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import socket
import time
from collections.abc import Callable

import h11

from skerry.network.messages import ListenPreviews, SharePreview
from skerry.network.worker.previews import headers, pages
from skerry.network.worker.previews.address import (
    TOKEN_HEADER,
    InvalidTarget,
    PreviewAddress,
    PreviewDomains,
    PreviewKey,
    UnknownPreviewHost,
    cookies_without,
    foreign_origin,
    same_host_location,
    take_token,
)
from skerry.network.worker.previews.connections import ConnectionTable
from skerry.network.worker.previews.exchange import OnUse, PreviewClient, PreviewClientGone, PreviewExchange
from skerry.network.worker.previews.pages import EndedWithPage, ErrorPage
from skerry.network.worker.previews.upstream import BUFFER_SIZE, MAX_HEAD, DialPort, UpstreamPool

_NO_TOKEN_HASH = "0" * 64


class PreviewState:
    """One preview and its settings. `open`: the exchanges in progress."""

    def __init__(self, message: SharePreview, dial: DialPort) -> None:
        self.settings = message
        self.upstreams = UpstreamPool(dial, message.sandbox, message.port)
        self.open: set[PreviewExchange] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def expired(self) -> bool:
        return self.settings.expires is not None and time.time() >= self.settings.expires

    def renew(self, message: SharePreview) -> None:
        """Change the settings. Disconnect clients that used an old token."""
        if message.token_hash is not None and message.token_hash != self.settings.token_hash:
            self.disconnect()
        self.settings = message

    def opens_with(self, token: str) -> bool:
        given = hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
        return self.settings.token_hash is not None and hmac.compare_digest(given, self.settings.token_hash)

    def watch(self, expired: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self.settings.expires is not None:
            left = max(0.0, self.settings.expires - time.time())
            again = (lambda: self.watch(expired)) if left > 3600 else expired
            self._timer = asyncio.get_running_loop().call_later(min(left, 3600.0), again)

    def disconnect(self) -> None:
        for exchange in list(self.open):
            exchange.end()
        self.upstreams.drop()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.disconnect()


class PreviewTable:
    def __init__(self, dial: DialPort) -> None:
        self._dial = dial
        self._previews: dict[tuple[str, int], PreviewState] = {}
        self._named: dict[tuple[str, str], PreviewState] = {}

    def put(self, message: SharePreview) -> None:
        key = (message.sandbox, message.port)
        preview = self._previews.get(key)
        if preview is None:
            preview = self._previews[key] = PreviewState(message, self._dial)
        else:
            self._drop_name(preview)
            preview.renew(message)
        if message.name is not None:
            self._named[message.sandbox, message.name] = preview
        preview.watch(lambda: self.remove(*key))

    def remove(self, sandbox: str, port: int) -> None:
        preview = self._previews.pop((sandbox, port), None)
        if preview is not None:
            self._drop_name(preview)
            preview.close()

    def _drop_name(self, preview: PreviewState) -> None:
        key = (preview.settings.sandbox, preview.settings.name or "")
        if self._named.get(key) is preview:
            del self._named[key]

    def _find(self, key: PreviewKey) -> PreviewState | None:
        sandbox, place = key
        if isinstance(place, int):
            return self._previews.get((sandbox, place))
        return self._named.get((sandbox, place))

    def disconnect(self, sandbox: str) -> None:
        for key, preview in self._previews.items():
            if key[0] == sandbox:
                preview.disconnect()

    def remove_all(self) -> None:
        for key in list(self._previews):
            self.remove(*key)

    def sweep(self) -> None:
        for preview in self._previews.values():
            preview.upstreams.sweep()
            for exchange in [one for one in preview.open if one.abandoned]:
                exchange.end()

    def admit(self, key: PreviewKey | None, tokens: list[str]) -> PreviewState | None:
        """Return the preview if it is public or one of these tokens opens it. A preview that does not exist takes the
        same time, so that a caller without a token cannot learn which exist."""
        preview = self._find(key) if key is not None else None
        if preview is not None and preview.expired:
            preview = None
        wanted = _NO_TOKEN_HASH if preview is None else preview.settings.token_hash
        if wanted is None:
            return preview
        given = [hashlib.sha256(token.encode("utf-8", "replace")).hexdigest() for token in (tokens or [""])[:8]]
        right = [hmac.compare_digest(one, wanted) for one in given]
        return preview if preview is not None and any(right) else None


MAX_CONNECTIONS = 4096
MAX_PER_PREVIEW = 256  # concurrent exchanges of one preview
HEAD_TIMEOUT_S = 15.0
KEEP_ALIVE_S = 75.0
SWEEP_S = 1.0
USAGE_REPORT_S = 1.0


class PreviewServer:
    """`dial` connects to a port inside; `used` is called for a sandbox with traffic and its bytes, at most once a
    second."""

    def __init__(self, dial: DialPort, used: Callable[[str, int, int], None]) -> None:
        self._previews = PreviewTable(dial)
        self._usage = UsageReporter(used)
        self._domains = PreviewDomains(())
        self._servers: list[asyncio.Server] = []
        self._connections = ConnectionTable()
        self._sweeping: asyncio.Task[None] | None = None

    async def listen(self, listener: socket.socket, message: ListenPreviews) -> None:
        """Serve this listener and close an earlier one; its connections stay."""
        for server in self._servers:
            server.close()
        self._domains = PreviewDomains(
            tuple(domain.lower() for domain in message.domains), tuple(domain.lower() for domain in message.secure)
        )
        self._connections.max_per_address = message.max_per_address
        listener.setblocking(False)
        self._servers = [await asyncio.start_server(self._accept, sock=listener, limit=BUFFER_SIZE)]
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep())

    def share(self, message: SharePreview) -> None:
        self._previews.put(message)

    def unshare(self, sandbox: str, port: int) -> None:
        """Remove a preview and close its connections."""
        self._previews.remove(sandbox, port)

    def disconnect(self, sandbox: str) -> None:
        """Close a sandbox's preview connections; the previews stay, and a request may resume the sandbox."""
        self._previews.disconnect(sandbox)

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        self._previews.remove_all()
        tasks = [*self._connections.tasks, *([self._sweeping] if self._sweeping else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._previews.sweep()

    # -- connections --------------------------------------------------------------------------------------------------

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._connections.make_room(writer, MAX_CONNECTIONS):
            writer.transport.abort()
            return
        self._connections.add(asyncio.ensure_future(self._serve(reader, writer)), writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client, timeout_s = PreviewClient(reader, writer, MAX_HEAD), HEAD_TIMEOUT_S
        try:
            while await self._serve_request(client, timeout_s):
                client.http.start_next_cycle()
                timeout_s = KEEP_ALIVE_S
            if client.http.their_state in (h11.SEND_BODY, h11.ERROR):
                await client.drain()
        except (OSError, EOFError, PreviewClientGone, h11.ProtocolError):
            writer.transport.abort()
        finally:
            with contextlib.suppress(OSError):
                writer.close()
            # A client that does not read would hold the connection until the last byte is sent.
            asyncio.get_running_loop().call_later(HEAD_TIMEOUT_S, writer.transport.abort)

    async def _serve_request(self, client: PreviewClient, timeout_s: float) -> bool:
        """Serve one request; return whether another may follow."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 -- a running coroutine is in a task
        self._connections.wait(task, client.writer)
        wants_html = False
        try:
            request = await _head(client, timeout_s)
            if request is None:
                return False
            self._connections.serve(task)
            client.method = request.method
            wants_html = "text/html" in (headers.value(request.headers, b"accept") or "")
            await self._answer(client, request)
        except EndedWithPage as ended:
            async with asyncio.timeout(HEAD_TIMEOUT_S):  # this client may have no token, and may not read
                await _send_page(client, ended.page, wants_html)
            if ended.page.close:
                return False
        return client.http.our_state is h11.DONE and client.http.their_state is h11.DONE

    async def _answer(self, client: PreviewClient, request: h11.Request) -> None:
        local, peer = (_address(client.writer, which) for which in ("sockname", "peername"))
        received: headers.Headers = list(request.headers)
        address = self._address_of(request, received, local)
        target, tokens, link_token = _presented_tokens(address, received, request.method)
        preview = self._previews.admit(address.key, tokens)
        if preview is None:
            raise EndedWithPage(pages.NOTHING_HERE)
        if not target.startswith("/"):  # /-/8000-sb-… without a slash: relative links would break
            await _redirect(client, f"{address.prefix}/{address.target}", ())
        elif link_token is not None:
            await _redirect(
                client,
                same_host_location(target),
                _cookie(address, link_token) if preview.opens_with(link_token) else (),
            )
        elif len(preview.open) >= MAX_PER_PREVIEW:
            raise EndedWithPage(pages.TOO_MANY)
        else:
            await self._exchange(client, preview, address, peer, request, target)

    async def _exchange(
        self,
        client: PreviewClient,
        preview: PreviewState,
        address: PreviewAddress,
        peer: str,
        request: h11.Request,
        target: str,
    ) -> None:
        use = self._usage.of(preview.settings.sandbox)
        exchange = PreviewExchange(client, preview.upstreams, address, peer, use)
        preview.open.add(exchange)
        try:
            await exchange.run(request, target)
        finally:
            preview.open.discard(exchange)

    def _address_of(self, request: h11.Request, received: headers.Headers, local: str) -> PreviewAddress:
        hosts = headers.values(received, b"host")
        try:
            if len(hosts) != 1:
                raise UnknownPreviewHost
            address = self._domains.resolve(hosts[0], request.target.decode("latin-1"), local)
        except UnknownPreviewHost:
            raise EndedWithPage(pages.NOT_OURS) from None
        except InvalidTarget:
            raise EndedWithPage(pages.NOT_HTTP) from None
        chunked = headers.values(received, b"transfer-encoding")
        if chunked and (headers.values(received, b"content-length") or request.http_version != b"1.1"):
            raise EndedWithPage(pages.NOT_HTTP)  # two lengths: a proxy in between may believe the other one
        if request.method in (b"CONNECT", b"TRACE"):
            raise EndedWithPage(pages.NOT_HTTP)
        return address


async def _head(client: PreviewClient, timeout_s: float) -> h11.Request | None:
    """Return the next request's head; None at the end."""
    begun = time.monotonic()
    try:
        async with asyncio.timeout(timeout_s):
            event = await client.event(None)
    except TimeoutError:
        if client.http.trailing_data[0] or time.monotonic() - begun < KEEP_ALIVE_S:
            raise EndedWithPage(pages.TOO_SLOW) from None
        return None
    except h11.RemoteProtocolError as error:
        raise EndedWithPage(pages.TOO_LARGE if error.error_status_hint == 431 else pages.NOT_HTTP) from None
    return event if isinstance(event, h11.Request) else None


def _presented_tokens(
    address: PreviewAddress, received: headers.Headers, method: bytes
) -> tuple[str, list[str], str | None]:
    """Return the target for the program inside, the presented tokens, and the token to set as a cookie. A cookie counts
    only for the preview's pages and for links to it: other sites must not act in the user's name."""
    target, given = take_token(address.target)
    tokens = headers.values(received, TOKEN_HEADER)
    if given is not None:
        tokens.append(given)
    if not address.prefix and not _is_cross_site(address, received, method):
        for line in headers.values(received, b"cookie"):
            tokens += cookies_without(line, address.cookie)[1]
    plain = method in (b"GET", b"HEAD") and not headers.asks_for_websocket(received)
    return target, tokens, given if plain and not address.prefix else None


def _is_cross_site(address: PreviewAddress, received: headers.Headers, method: bytes) -> bool:
    site = headers.value(received, b"sec-fetch-site")
    if site in ("cross-site", "same-site"):
        is_link = headers.value(received, b"sec-fetch-mode") == "navigate" and method in (b"GET", b"HEAD")
        return not is_link
    origin = headers.value(received, b"origin")
    return origin is not None and foreign_origin(origin, address)


def _cookie(address: PreviewAddress, token: str) -> tuple[tuple[str, str], ...]:
    secure = "; Secure" if address.secure else ""
    return (("Set-Cookie", f"{address.cookie}={token}; Path=/; HttpOnly; SameSite=Lax{secure}"),)


async def _redirect(client: PreviewClient, location: str, more: tuple[tuple[str, str], ...]) -> None:
    body = pages.FOR_PROGRAMS if more else b""  # a browser does not show it
    out = [("Location", location), ("Content-Type", "text/plain"), ("Content-Length", str(len(body))),
           ("Cache-Control", "no-store"), ("Referrer-Policy", "no-referrer"), *more]  # fmt: skip
    await client.send(h11.Response(status_code=303, headers=out, reason="See Other"))
    if body and client.method != b"HEAD":
        await client.send(h11.Data(data=body))
    await client.send(h11.EndOfMessage())
    await _read_end(client)


async def _send_page(client: PreviewClient, page: ErrorPage, wants_html: bool) -> None:
    if client.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        raise PreviewClientGone
    response, body = page.render(wants_html)
    await client.send(response)
    if client.method != b"HEAD":
        await client.send(h11.Data(data=body))
    await client.send(h11.EndOfMessage())
    await _read_end(client)


async def _read_end(client: PreviewClient) -> None:
    """Read a request's end if it has arrived; an unread body ends the connection instead."""
    with contextlib.suppress(TimeoutError, h11.RemoteProtocolError):
        while client.http.their_state is h11.SEND_BODY:
            if not isinstance(await client.event(0), h11.Data):
                return


def _address(writer: asyncio.StreamWriter, which: str) -> str:
    name = writer.get_extra_info(which)
    return str(name[0]) if isinstance(name, tuple) else ""


class UsageReporter:
    """Reports each sandbox's use and its bytes at most once a second, and always the last one."""

    def __init__(self, report: Callable[[str, int, int], None]) -> None:
        self._report = report
        self._last_report: dict[str, float] = {}
        self._pending: set[str] = set()
        self._bytes: dict[str, tuple[int, int]] = {}  # sent and received since the last report

    def of(self, sandbox: str) -> OnUse:
        return lambda sent, received: self._used(sandbox, sent, received)

    def _used(self, sandbox: str, sent: int, received: int) -> None:
        before = self._bytes.get(sandbox, (0, 0))
        self._bytes[sandbox] = before[0] + sent, before[1] + received
        if sandbox in self._pending:
            return
        wait = self._last_report.get(sandbox, -USAGE_REPORT_S) + USAGE_REPORT_S - time.monotonic()
        if wait <= 0:
            self._report_now(sandbox)
        else:
            self._pending.add(sandbox)
            asyncio.get_running_loop().call_later(wait, self._report_now, sandbox)

    def _report_now(self, sandbox: str) -> None:
        self._pending.discard(sandbox)
        self._last_report[sandbox] = time.monotonic()
        if len(self._last_report) > 4096:
            del self._last_report[next(iter(self._last_report))]
        self._report(sandbox, *self._bytes.pop(sandbox, (0, 0)))
