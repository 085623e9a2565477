"""Terminals from a browser: WebSockets that carry a ticket or a token as a protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx2
import pytest
from support.server import Server
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

from skerry import Client, Sandbox

ORIGIN = "https://page.example.test"


@dataclass
class Place:
    admin: httpx2.Client
    url: str
    token: dict[str, str]
    sandbox: Sandbox
    process: str

    def view(self, *protocols: str, ref: str | None = None, origin: str = ORIGIN) -> ClientConnection:
        """Connect as a browser does."""
        address = self.url.replace("http://", "ws://")
        path = f"/v1/sandboxes/{ref or self.sandbox.id}/processes/{self.process}/terminal"
        offered = [Subprotocol(one) for one in ("skerry", *protocols)]
        return connect(address + path, subprotocols=offered, origin=Origin(origin), compression=None)

    def refusal(self, *protocols: str, ref: str | None = None, origin: str = ORIGIN) -> int:
        with pytest.raises(InvalidStatus) as caught:
            self.view(*protocols, ref=ref, origin=origin)
        return caught.value.response.status_code


@pytest.fixture(scope="module")
def place(make_server: Callable[[], Server]) -> Iterator[Place]:
    server = make_server().start("--listen", "127.0.0.1:0", SKERRY_SERVER_ALLOWED_ORIGINS=ORIGIN)
    with server.http() as admin:
        url = admin.get("/v1/server").json()["addresses"][1]
        token = admin.post("/v1/tokens", json={"scope": "use", "owner": "ann"}).json()
        with Client(url, token=token["secret"]) as client, Sandbox(server=client, name="browsed") as sandbox:
            process = sandbox.spawn(["cat"], pty=True)
            yield Place(admin, url, token, sandbox, process.id)
            process.kill()
            sandbox.delete()
    server.retire()


def works(viewer: ClientConnection) -> None:
    with viewer:
        assert viewer.subprotocol == "skerry"
        assert '"started"' in str(viewer.recv(timeout=60))
        viewer.send(b"hello\n")
        shown = b""
        while b"hello" not in shown:
            message = viewer.recv(timeout=60)
            shown += message if isinstance(message, bytes) else b""


def test_ticket_opens_one_terminal_once(place: Place) -> None:
    ticket = place.sandbox.terminal_ticket()
    works(place.view(ticket.protocols[1]))
    assert place.refusal(ticket.protocols[1]) == 401
    by_name = place.sandbox.terminal_ticket()
    works(place.view(by_name.protocols[1], ref="browsed"))


def test_ticket_is_not_valid_elsewhere(place: Place) -> None:
    for ref in ("sb-aaaaaaaaaa", "other"):
        assert place.refusal(place.sandbox.terminal_ticket().protocols[1], ref=ref) == 401
    ticket = place.sandbox.terminal_ticket().protocols[1]
    headers = {"Sec-WebSocket-Protocol": ticket}
    assert httpx2.get(f"{place.url}/v1/sandboxes", headers=headers).status_code == 401
    assert place.refusal(ticket) == 401, "it was used up"
    assert place.refusal("skerry.ticket.") == 401
    assert place.refusal("skerry.ticket.x") == 401
    assert place.refusal() == 401


def test_foreign_origin_cannot_use_a_ticket(place: Place) -> None:
    assert place.refusal(place.sandbox.terminal_ticket().protocols[1], origin="https://evil.example.test") == 403


def test_token_as_a_protocol(place: Place) -> None:
    works(place.view(f"skerry.token.{place.token['secret']}"))
    assert place.refusal(f"skerry.token.skt_{'a' * 40}") == 401


def test_ticket_of_a_revoked_token_is_invalid(place: Place) -> None:
    made = place.admin.post("/v1/tokens", json={"scope": "use", "owner": "ann"}).json()
    with Client(place.url, token=made["secret"]) as client:
        ticket = Sandbox.get("browsed", server=client).terminal_ticket()
    place.admin.delete(f"/v1/tokens/{made['id']}").raise_for_status()
    assert place.refusal(ticket.protocols[1]) == 401
