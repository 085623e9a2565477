"""Attacks by clients that send many requests and read nothing: each open response costs the server memory."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import httpx2
import pytest
from attacks.test_exhaustion import peak_memory
from support.server import Server

from skerry import Limits, Sandbox

VIEWERS = 530
LOUD = "yes a-long-line | head -c 2000000; exec sleep 1000"
MAX_VIEWERS = 512


@pytest.fixture(scope="module")
def limited_server(make_server: Callable[[], Server]) -> Iterator[Server]:
    made = make_server().start("--listen", "127.0.0.1:0")
    yield made
    made.retire()


@pytest.fixture
def stage(limited_server: Server) -> Iterator[tuple[str, str, str]]:
    """The address, the token and the sandbox for requests."""
    with limited_server.http() as admin:
        url = admin.get("/v1/server").json()["addresses"][1]
        secret = admin.post("/v1/tokens", json={"scope": "use", "owner": "eve"}).json()["secret"]
    with httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {secret}"}, timeout=60) as http:
        sandbox = http.post("/v1/sandboxes", json={"limits": {"memory": "1G"}}).json()["id"]
        yield url, secret, sandbox
        http.delete(f"/v1/sandboxes/{sandbox}").raise_for_status()


def ask(stack: ExitStack, url: str, head: str) -> socket.socket:
    address = httpx2.URL(url)
    line = stack.enter_context(socket.create_connection((address.host, address.port or 80), timeout=30))
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.sendall(head.encode())
    return line


def test_number_of_viewers_that_do_not_read_is_bounded(limited_server: Server, stage: tuple[str, str, str]) -> None:
    url, secret, sandbox = stage
    start = {"Authorization": f"Bearer {secret}"}
    loud = httpx2.post(f"{url}/v1/sandboxes/{sandbox}/processes", headers=start, json={"cmd": LOUD}, timeout=60)
    path = f"/v1/sandboxes/{sandbox}/processes/{loud.json()['id']}/output?follow=true"
    fields = f"Host: localhost\r\nAuthorization: Bearer {secret}\r\nAccept: application/vnd.skerry.frames"
    head = f"GET {path} HTTP/1.1\r\n{fields}\r\n\r\n"
    before = peak_memory(limited_server)
    with Sandbox(server=limited_server.address, limits=Limits(memory="256M")) as other, ExitStack() as stack:
        lines = [ask(stack, url, head) for _ in range(VIEWERS)]
        answers = [line.recv(12) for line in lines]
        assert set(answers) == {b"HTTP/1.1 200", b"HTTP/1.1 429"}
        assert answers.count(b"HTTP/1.1 200") == MAX_VIEWERS
        assert peak_memory(limited_server) - before < MAX_VIEWERS << 20
        assert other.run(["echo", "well"]).stdout == "well\n"
    assert httpx2.get(f"{url}/v1/sandboxes/{sandbox}", headers=start, timeout=60).status_code in (200, 429)
