"""Attacks by those who ask much and read nothing: each open answer costs the server memory, and it is everybody's."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import httpx
import pytest
from attacks.test_exhaustion import peak_memory
from serving import Server

from skerry import Limits, Sandbox

VIEWERS = 530
LOUD = "yes a-long-line | head -c 2000000; exec sleep 1000"
MOST = 512


@pytest.fixture(scope="module")
def theatre(make_server: Callable[[], Server]) -> Iterator[Server]:
    made = make_server().start("--listen", "127.0.0.1:0")
    yield made
    made.retire()


@pytest.fixture
def stage(theatre: Server) -> Iterator[tuple[str, str, str]]:
    """Where to ask, how, and whom."""
    with theatre.http() as admin:
        url = admin.get("/v1/server").json()["addresses"][1]
        secret = admin.post("/v1/tokens", json={"scope": "use", "owner": "eve"}).json()["secret"]
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {secret}"}, timeout=60) as http:
        box = http.post("/v1/sandboxes", json={"limits": {"memory": "1G"}}).json()["id"]
        yield url, secret, box
        http.delete(f"/v1/sandboxes/{box}").raise_for_status()


def ask(stack: ExitStack, url: str, head: str) -> socket.socket:
    address = httpx.URL(url)
    line = stack.enter_context(socket.create_connection((address.host, address.port or 80), timeout=30))
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.sendall(head.encode())
    return line


def test_who_asks_much_and_reads_nothing_is_refused_in_time(theatre: Server, stage: tuple[str, str, str]) -> None:
    url, secret, box = stage
    start = {"Authorization": f"Bearer {secret}"}
    loud = httpx.post(f"{url}/v1/sandboxes/{box}/processes", headers=start, json={"cmd": LOUD}, timeout=60)
    path = f"/v1/sandboxes/{box}/processes/{loud.json()['id']}/output?follow=true"
    fields = f"Host: localhost\r\nAuthorization: Bearer {secret}\r\nAccept: application/vnd.skerry.frames"
    head = f"GET {path} HTTP/1.1\r\n{fields}\r\n\r\n"
    before = peak_memory(theatre)
    with Sandbox(server=theatre.address, limits=Limits(memory="256M")) as other, ExitStack() as stack:
        lines = [ask(stack, url, head) for _ in range(VIEWERS)]
        answers = [line.recv(12) for line in lines]
        assert set(answers) == {b"HTTP/1.1 200", b"HTTP/1.1 429"}
        assert answers.count(b"HTTP/1.1 200") == MOST
        assert peak_memory(theatre) - before < MOST << 20
        assert other.run(["echo", "well"]).stdout == "well\n"
    assert httpx.get(f"{url}/v1/sandboxes/{box}", headers=start, timeout=60).status_code in (200, 429)
