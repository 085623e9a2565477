"""The listener: accepts, finds the preview, admits, and lets exchanges run one after another on each connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable

import h11

from skerry.network.messages import Share
from skerry.network.worker.previews import headers, pages
from skerry.network.worker.previews.address import (
    TOKEN_HEADER,
    BadTarget,
    Names,
    Place,
    WrongHost,
    clean_location,
    cookies_without,
    foreign_origin,
    take_token,
)
from skerry.network.worker.previews.exchange import Client, ClientLeft, Exchange
from skerry.network.worker.previews.pages import Ended, Page
from skerry.network.worker.previews.shares import Shared, Shares
from skerry.network.worker.previews.upstream import BUFFER, HEAD_MOST, Dial

CONNECTIONS_MOST = 4096
OF_ONE_MOST = 256  # connections that look at one preview at once
HEAD_WITHIN_S = 15.0
KEEP_ALIVE_S = 75.0
SWEEP_S = 1.0
TELL_S = 1.0


class Previews:
    """`dial` connects to a port inside; `used` is told of a sandbox that has traffic, at most once a second."""

    def __init__(self, dial: Dial, used: Callable[[str], None]) -> None:
        self._shares = Shares(dial)
        self._use = Use(used)
        self._names = Names(())
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        # Those that have not said what they want yet, the longest-waiting first: when it gets crowded they go.
        self._waiting: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._sweeping: asyncio.Task[None] | None = None

    async def listen(self, listener: socket.socket, domains: tuple[str, ...], secure: tuple[str, ...] = ()) -> None:
        """Serve this listener. One from before is closed; who came by it stays."""
        for server in self._servers:
            server.close()
        self._names = Names(tuple(domain.lower() for domain in domains), tuple(domain.lower() for domain in secure))
        listener.setblocking(False)
        self._servers = [await asyncio.start_server(self._accept, sock=listener, limit=BUFFER)]
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep())

    def share(self, share: Share) -> None:
        self._shares.put(share)

    def unshare(self, sandbox: str, port: int) -> None:
        """From now on nobody gets in; whoever is in is put out."""
        self._shares.remove(sandbox, port)

    def put_out(self, sandbox: str) -> None:
        """Whoever is in; its previews stay: a call may wake it."""
        self._shares.put_out(sandbox)

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        self._shares.remove_all()
        tasks = [*self._connections, *([self._sweeping] if self._sweeping else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._shares.sweep()

    # -- one connection -----------------------------------------------------------------------------------------------

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= CONNECTIONS_MOST and not self._make_room():
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        task.add_done_callback(lambda _: self._waiting.pop(task, None))
        self._waiting[task] = writer

    def _make_room(self) -> bool:
        for task, writer in self._waiting.items():
            writer.transport.abort()
            task.cancel()
            del self._waiting[task]
            return True
        return False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client, within = Client(reader, writer, HEAD_MOST), HEAD_WITHIN_S
        try:
            while await self._one(client, within):
                client.http.start_next_cycle()
                within = KEEP_ALIVE_S
            if client.http.their_state in (h11.SEND_BODY, h11.ERROR):
                await client.hear_out()
        except (OSError, EOFError, ClientLeft, h11.ProtocolError):
            writer.transport.abort()
        finally:
            with contextlib.suppress(OSError):
                writer.close()

    async def _one(self, client: Client, within: float) -> bool:
        """One request; whether another may follow."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 -- a coroutine that runs is in one
        self._waiting[task] = client.writer
        wants_html = False
        try:
            request = await _head(client, within)
            if request is None:
                return False
            self._waiting.pop(task, None)
            client.method = request.method
            wants_html = "text/html" in (headers.value(request.headers, b"accept") or "")
            await self._answer(client, request)
        except Ended as ended:
            await _say(client, ended.page, wants_html)
            if ended.page.close:
                return False
        return client.http.our_state is h11.DONE and client.http.their_state is h11.DONE

    async def _answer(self, client: Client, request: h11.Request) -> None:
        local, peer = (_address(client.writer, which) for which in ("sockname", "peername"))
        received: headers.Headers = list(request.headers)
        place = self._place(request, received, local)
        target, tokens, link = _presented(place, received, request.method)
        shared = self._shares.admit(place.key, tokens)
        if shared is None:
            raise Ended(pages.NOTHING_HERE)
        if not target.startswith("/"):  # /-/8000-sb-… without a slash: relative links would lead astray
            await _redirect(client, f"{place.prefix}/{place.target}", ())
        elif link is not None:
            await _redirect(client, clean_location(target), _cookie(place, link) if shared.opened_by(link) else ())
        elif len(shared.open) >= OF_ONE_MOST:
            raise Ended(pages.TOO_MANY)
        else:
            await self._exchange(client, shared, place, peer, request, target)

    async def _exchange(
        self, client: Client, shared: Shared, place: Place, peer: str, request: h11.Request, target: str
    ) -> None:
        use = self._use.of(shared.terms.sandbox)
        exchange = Exchange(client, shared.upstreams, place, peer, use)
        shared.open.add(exchange)
        try:
            await exchange.run(request, target)
        finally:
            shared.open.discard(exchange)

    def _place(self, request: h11.Request, received: headers.Headers, local: str) -> Place:
        hosts = headers.values(received, b"host")
        try:
            if len(hosts) != 1:
                raise WrongHost
            place = self._names.place(hosts[0], request.target.decode("latin-1"), local)
        except WrongHost:
            raise Ended(pages.NOT_OURS) from None
        except BadTarget:
            raise Ended(pages.NOT_HTTP) from None
        chunked = headers.values(received, b"transfer-encoding")
        if chunked and (headers.values(received, b"content-length") or request.http_version != b"1.1"):
            raise Ended(pages.NOT_HTTP)  # two lengths: somebody between us may believe the other one
        if request.method in (b"CONNECT", b"TRACE"):
            raise Ended(pages.NOT_HTTP)
        return place


async def _head(client: Client, within: float) -> h11.Request | None:
    """The next request's head; None: there will be none."""
    begun = time.monotonic()
    try:
        async with asyncio.timeout(within):
            event = await client.event(None)
    except TimeoutError:
        if client.http.trailing_data[0] or time.monotonic() - begun < KEEP_ALIVE_S:
            raise Ended(pages.TOO_SLOW) from None
        return None
    except h11.RemoteProtocolError as error:
        raise Ended(pages.TOO_LARGE if error.error_status_hint == 431 else pages.NOT_HTTP) from None
    return event if isinstance(event, h11.Request) else None


def _presented(place: Place, received: headers.Headers, method: bytes) -> tuple[str, list[str], str | None]:
    """What goes inside, the tokens that came along, and the one that is to become a cookie. A cookie counts only for
    the preview's own pages and for links to it: others must not make a browser act in its user's name."""
    target, given = take_token(place.target)
    tokens = headers.values(received, TOKEN_HEADER)
    if given is not None:
        tokens.append(given)
    if not place.prefix and not _from_elsewhere(place, received, method):
        for line in headers.values(received, b"cookie"):
            tokens += cookies_without(line, place.cookie)[1]
    plain = method in (b"GET", b"HEAD") and not headers.asks_for_websocket(received)
    return target, tokens, given if plain and not place.prefix else None


def _from_elsewhere(place: Place, received: headers.Headers, method: bytes) -> bool:
    site = headers.value(received, b"sec-fetch-site")
    if site in ("cross-site", "same-site"):
        is_link = headers.value(received, b"sec-fetch-mode") == "navigate" and method in (b"GET", b"HEAD")
        return not is_link
    origin = headers.value(received, b"origin")
    return origin is not None and foreign_origin(origin, place)


def _cookie(place: Place, token: str) -> tuple[tuple[str, str], ...]:
    secure = "; Secure" if place.secure else ""
    return (("Set-Cookie", f"{place.cookie}={token}; Path=/; HttpOnly; SameSite=Lax{secure}"),)


async def _redirect(client: Client, location: str, more: tuple[tuple[str, str], ...]) -> None:
    body = pages.FOR_PROGRAMS if more else b""  # a browser shows it to nobody
    out = [("Location", location), ("Content-Type", "text/plain"), ("Content-Length", str(len(body))),
           ("Cache-Control", "no-store"), ("Referrer-Policy", "no-referrer"), *more]  # fmt: skip
    await client.send(h11.Response(status_code=303, headers=out, reason="See Other"))
    if body and client.method != b"HEAD":
        await client.send(h11.Data(data=body))
    await client.send(h11.EndOfMessage())
    await _take_rest(client)


async def _say(client: Client, page: Page, wants_html: bool) -> None:
    if client.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        raise ClientLeft
    response, body = page.render(wants_html)
    await client.send(response)
    if client.method != b"HEAD":
        await client.send(h11.Data(data=body))
    await client.send(h11.EndOfMessage())
    await _take_rest(client)


async def _take_rest(client: Client) -> None:
    """A request's end, if it has come already; a body that nobody wants ends the connection instead."""
    with contextlib.suppress(TimeoutError, h11.RemoteProtocolError):
        while client.http.their_state is h11.SEND_BODY:
            if not isinstance(await client.event(0), h11.Data):
                return


def _address(writer: asyncio.StreamWriter, which: str) -> str:
    name = writer.get_extra_info(which)
    return str(name[0]) if isinstance(name, tuple) else ""


class Use:
    """Tells of each sandbox's use at most once a second, and of the last one too."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._told: dict[str, float] = {}
        self._due: set[str] = set()

    def of(self, sandbox: str) -> Callable[[], None]:
        return lambda: self._used(sandbox)

    def _used(self, sandbox: str) -> None:
        if sandbox in self._due:
            return
        wait = self._told.get(sandbox, -TELL_S) + TELL_S - time.monotonic()
        if wait <= 0:
            self._now(sandbox)
        else:
            self._due.add(sandbox)
            asyncio.get_running_loop().call_later(wait, self._now, sandbox)

    def _now(self, sandbox: str) -> None:
        self._due.discard(sandbox)
        self._told[sandbox] = time.monotonic()
        if len(self._told) > 4096:
            del self._told[next(iter(self._told))]
        self._tell(sandbox)
