"""HTTP and HTTPS as found on the internet. Input is kept byte by byte: a smuggled request shows in the received bytes,
not in this server's reading of them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import ssl
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import h11
from websockets.frames import Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from world import managed_agents, model_apis, oauth, places
from world.git import backend
from world.models import completion

_KEPT, _MAX_CALLS = 64 << 10, 5_000
_MAX_BODY = 64 << 20
Reply = tuple[int, list[tuple[str, str]], bytes]


@dataclass
class Call:
    """A connection as the far side saw it. `raw`: its first bytes, as latin-1."""

    address: str
    port: int
    sni: str | None
    raw: str = ""
    requests: list[str] = field(default_factory=list)


class Web:
    def __init__(self, sites: Path) -> None:
        self.sites = {
            address: sites / name
            for address, name in (
                (places.INDEX, "index"),
                (places.NPM, "npm"),
                (places.APT, "apt"),
                (places.GIT, "git"),
            )
        }
        self.calls: list[Call] = []
        self.agents = managed_agents.ManagedAgents()
        self.oauth = oauth.OauthServer()

    def told(self) -> list[dict[str, object]]:
        return [asdict(call) for call in self.calls]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address, port = writer.get_extra_info("sockname")[:2]
        tls = writer.get_extra_info("ssl_object")
        call = Call(address.removeprefix("::ffff:"), port, getattr(tls, "asked_for", None))
        if len(self.calls) < _MAX_CALLS:
            self.calls.append(call)
        with contextlib.suppress(ConnectionError, h11.ProtocolError, ssl.SSLError, TimeoutError):
            await _Conversation(self, call, reader, writer).hold()
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError, TimeoutError):
            await asyncio.wait_for(writer.wait_closed(), 5)


class _Conversation:
    def __init__(self, web: Web, call: Call, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.web, self.call, self.reader, self.writer = web, call, reader, writer
        self.http = h11.Connection(h11.SERVER)

    async def hold(self) -> None:
        while True:
            request, body = await self._request()
            if request is None:
                return
            target = request.target.decode("latin-1")
            self.call.requests.append(f"{request.method.decode()} {target}")
            if self.call.address == places.MODELS:
                url = urlsplit(target)
                if url.path.startswith(managed_agents.PREFIXES):
                    over = await self._managed(request, url.path, url.query, body)
                else:
                    over = await self._model(request, url.path, body)
                if over:
                    return
                continue
            if any(name == b"upgrade" for name, _ in request.headers):
                await self._websocket(dict(request.headers))
                return
            if not await self._special(urlsplit(target)):
                self._send(*await self._reply(request, target, body))
            await self.writer.drain()
            if self.http.our_state is h11.MUST_CLOSE:
                return
            self.http.start_next_cycle()

    async def _request(self) -> tuple[h11.Request | None, bytes]:
        request, body = None, bytearray()
        while True:
            event = self.http.next_event()
            if event is h11.NEED_DATA:
                if self.http.they_are_waiting_for_100_continue:
                    self.writer.write(self.http.send(h11.InformationalResponse(status_code=100, headers=[])))
                self.http.receive_data(await self._read())
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += event.data
                assert len(body) < _MAX_BODY
            elif isinstance(event, h11.EndOfMessage):
                return request, bytes(body)
            else:
                return None, b""

    async def _read(self) -> bytes:
        data = await self.reader.read(65536)
        room = _KEPT - len(self.call.raw)
        self.call.raw += data[:room].decode("latin-1")
        return data

    def _send(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        if not any(name.lower() == "content-length" for name, _ in headers):
            headers = [*headers, ("content-length", str(len(body)))]
        events = [h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()]
        for event in events if self.http.their_state is not h11.ERROR else ():
            self.writer.write(self.http.send(event) or b"")

    async def _reply(self, request: h11.Request, target: str, body: bytes) -> Reply:
        if self.call.address == places.OAUTH:
            headers = {name.decode().lower(): value.decode("latin-1") for name, value in request.headers}
            method = request.method.decode()
            return self.web.oauth.answer(headers.get("host", ""), method, target, headers, body)
        if site := self.web.sites.get(self.call.address):
            if site.name == "git":
                return await backend(site, request, target, body)
            return _file(site, urlsplit(target).path)
        if request.method == b"POST" and (said := completion(urlsplit(target).path, body)) is not None:
            return 200, [("content-type", "application/json")], json.dumps(said).encode()
        if (b"host", b"httpbin.org") in request.headers:  # as the public service answers on /headers
            sent = {name.decode().title(): value.decode("latin-1") for name, value in request.headers}
            return 200, [("content-type", "application/json")], json.dumps({"headers": sent}, indent=2).encode()
        return 200, [("content-type", "application/json")], json.dumps(self._echo(request, target, body)).encode()

    def _echo(self, request: h11.Request, target: str, body: bytes) -> dict[str, object]:
        return {
            "method": request.method.decode(),
            "target": target,
            "headers": {name.decode(): value.decode("latin-1") for name, value in request.headers},
            "body": body[:65536].decode("latin-1"),
            "length": len(body),
            "address": self.call.address,
            "port": self.call.port,
            "sni": self.call.sni,
        }

    async def _special(self, target: object) -> bool:
        path, query = target.path, parse_qs(target.query)  # type: ignore[attr-defined]
        if path == "/redirect":
            self._send(302, [("location", query["to"][0])], b"")
        elif path.startswith("/bytes/"):
            await self._stream(int(path.removeprefix("/bytes/")))
        elif path == "/slow":
            self.writer.write(self.http.send(h11.Response(status_code=200, headers=[("content-length", "100")])) or b"")
            for _ in range(100):
                self.writer.write(self.http.send(h11.Data(data=b".")) or b"")
                await self.writer.drain()
                await asyncio.sleep(0.2)
            self.writer.write(self.http.send(h11.EndOfMessage()) or b"")
        else:
            return False
        return True

    async def _stream(self, length: int) -> None:
        headers = [("content-length", str(length)), ("content-type", "application/octet-stream")]
        self.writer.write(self.http.send(h11.Response(status_code=200, headers=headers)) or b"")
        while length > 0:
            self.writer.write(self.http.send(h11.Data(data=bytes(min(length, 65536)))) or b"")
            await self.writer.drain()
            length -= 65536
        self.writer.write(self.http.send(h11.EndOfMessage()) or b"")

    async def _model(self, request: h11.Request, path: str, body: bytes) -> bool:
        """Answer as the API of a model. Return True if the connection is over."""
        headers = {name.decode().lower(): value.decode("latin-1") for name, value in request.headers}
        if not model_apis.authorized(headers):
            self._send(401, [("content-type", "application/json")], b'{"error": {"message": "not the real key"}}')
        elif "websocket" in headers.get("upgrade", ""):
            self.writer.write(_accepted(headers.get("sec-websocket-key", "").encode()))
            await self._model_socket()
            return True
        elif (said := model_apis.answer(request.method.decode(), path, body)) is None:
            self._send(404, [("content-type", "application/json")], b'{"error": {"message": "not found"}}')
        else:
            kind, pieces = said
            head = h11.Response(status_code=200, headers=[("content-type", kind), ("transfer-encoding", "chunked")])
            self.writer.write(self.http.send(head) or b"")
            for piece in pieces:
                self.writer.write(self.http.send(h11.Data(data=piece)) or b"")
                await self.writer.drain()
            self.writer.write(self.http.send(h11.EndOfMessage()) or b"")
        await self.writer.drain()
        if self.http.our_state is h11.MUST_CLOSE:
            return True
        self.http.start_next_cycle()
        return False

    async def _managed(self, request: h11.Request, path: str, query: str, body: bytes) -> bool:
        """Answer as the API of managed agents. Return True if the connection is over."""
        agents = self.web.agents
        headers = {name.decode().lower(): value.decode("latin-1") for name, value in request.headers}
        session = agents.following(path, headers)
        if session is not None:
            await self._events(session)
            return True
        status, kind, content = agents.answer(request.method.decode(), path, query, headers, body)
        self._send(status, [("content-type", kind)], content)
        await self.writer.drain()
        if self.http.our_state is h11.MUST_CLOSE:
            return True
        self.http.start_next_cycle()
        return False

    async def _events(self, session: managed_agents.Session) -> None:
        """Send the events of a session from now on, until the client leaves."""
        head = [("content-type", "text/event-stream"), ("transfer-encoding", "chunked")]
        self.writer.write(self.http.send(h11.Response(status_code=200, headers=head)) or b"")
        sent, left = len(session.events), asyncio.create_task(self.reader.read(1))
        try:
            while not left.done():
                changed = asyncio.create_task(self.web.agents.changed.wait())
                for event in session.events[sent:]:
                    data = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
                    self.writer.write(self.http.send(h11.Data(data=data)) or b"")
                sent = len(session.events)
                await self.writer.drain()
                await asyncio.wait({left, changed}, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
        finally:
            left.cancel()

    async def _model_socket(self) -> None:
        """Answer each message, a request of the responses API, with its events."""
        protocol = ServerProtocol(state=State.OPEN)
        protocol.receive_data(self.http.trailing_data[0])
        text = b""
        while True:
            for frame in protocol.events_received():
                if frame.opcode is Opcode.CLOSE:
                    return
                if frame.opcode not in (Opcode.TEXT, Opcode.CONT):
                    continue
                text += frame.data
                if frame.fin:
                    request, text = json.loads(text), b""
                    self.call.requests.append(f"WS {request.get('type')}")
                    for event in model_apis.responses(request) if request.get("type") == "response.create" else ():
                        protocol.send_text(json.dumps(event).encode())
            for data in protocol.data_to_send():
                self.writer.write(data)
            await self.writer.drain()
            data = await self._read()
            if not data:
                return
            protocol.receive_data(data)

    async def _websocket(self, headers: dict[bytes, bytes]) -> None:
        """Accepts any upgrade, and sends all bytes back: also a client's frames, still masked."""
        self.writer.write(_accepted(headers.get(b"sec-websocket-key", b"")))
        data = self.http.trailing_data[0]
        while data := data or await self._read():
            self.writer.write(data)
            await self.writer.drain()
            data = b""


def _accepted(key: bytes) -> bytes:
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        b"sec-websocket-accept: %s\r\n\r\n" % accept
    )


def _file(site: Path, path: str) -> Reply:
    file = (site / path.lstrip("/")).resolve()
    file = file / "index.html" if file.is_dir() else file
    if not file.is_relative_to(site.resolve()) or not file.is_file():
        return 404, [], b"there is no such thing here"
    kinds = {".html": "text/html", ".json": "application/json"}
    return 200, [("content-type", kinds.get(file.suffix, "application/octet-stream"))], file.read_bytes()


def context(place: Path) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(place / "server.pem", place / "server.key")
    made.set_alpn_protocols(["http/1.1"])

    def note(tls: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        tls.asked_for = name  # type: ignore[attr-defined]

    made.sni_callback = note  # type: ignore[assignment]
    return made
