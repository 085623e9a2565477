"""No request holds the event loop for long: every route gets its largest bodies while another caller is served."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.e2b import SETTINGS, STREAM, Account, Box
from support.large_bodies import bodies
from support.server import Server

from skerry import Sandbox
from skerry.errors import InvalidRequest
from skerry.mcp.transports.http import MAX_BODY
from skerry.mcp.transports.http import MAX_VALUES as MAX_MCP_VALUES
from skerry.server.app import ROUTES
from skerry.server.http.call import MAX_VALUES
from skerry.server.http.decode import decode_json
from skerry.server.http.route import Route
from skerry.server.routes.code import CODE_LIMIT
from skerry.server.wire.e2b.app import api_routes, code_routes, envd_routes
from skerry.server.wire.e2b.connect import MAX_MESSAGE
from skerry.server.wire.e2b.messages import envelope
from skerry.types import CodeRequest
from skerry.types.network import MAX_DETAILED_RULES, MAX_RULES
from skerry.types.review import MAX_IGNORE_LINES

RAW = 16 << 20  # of bodies that are streams
STEPS = 8  # the bound, in steps that cannot be avoided
MCP = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
HELLO = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}},
}  # fmt: skip
# Their valid bodies, which are small, would delete or read all images of the server.
ONLY_INVALID = {("POST", "/v1/images/prune"), ("POST", "/v1/images/verify")}
OPERATORS = SETTINGS  # E2B's protocols


def calibrate() -> float:
    """Return the CPU time of this machine for the largest unavoidable step: decoding the largest body of all routes."""
    body = b'{"code":"' + b'\\"' * (CODE_LIMIT // 2 - 20) + b'"}'
    times = []
    for _ in range(3):
        began = time.process_time()
        with contextlib.suppress(InvalidRequest):
            decode_json(body, CodeRequest)
        times.append(time.process_time() - began)
    return max(times)


class OtherCaller:
    """Sends one small request after another. Its latency is the CPU time of the event loop's thread from a request to
    its answer: what other callers cost it, without the time in which the machine does something else."""

    def __init__(self, server: Server) -> None:
        self.answers, self.latency_s = 0, 0.0
        self._server, self._stop = server, threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> OtherCaller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _ask(self) -> None:
        with self._server.http() as http:
            while not self._stop.wait(0.01):
                began = loop_time(self._server)
                assert http.get("/healthz").status_code == 200
                self.latency_s = max(self.latency_s, loop_time(self._server) - began)
                self.answers += 1


def loop_time(server: Server) -> float:
    """Return the CPU time of the server's main thread, which runs its event loop."""
    assert server.process is not None
    pid = server.process.pid
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def path_of(route: Route, sandbox: Sandbox) -> str:
    path = route.path.replace("{ref}", sandbox.id).replace("{process}", "p-aaaaaaaaaa")
    return path.replace("{approval}", "q-aaaaaaaaaa").replace("{hunk}", "h-0123456789abcdef").replace("{oid}", "0" * 40)


def bodies_of(route: Route) -> Iterator[bytes]:
    if route.takes_json:
        if (route.method, route.path) not in ONLY_INVALID:
            yield from bodies(route.body, route.limit - 100, MAX_VALUES)
        yield b"[" * (route.limit - 100)
    elif route.takes is not None:
        yield b"a" * RAW


def policies() -> Iterator[bytes]:
    detailed = [f"GET a{n}.example.com:443/p@10.0.0.1" for n in range(2 * MAX_RULES)]
    plain = [f"a{n}.example.com" for n in range(2 * MAX_RULES)]
    for rules, maximum in ((detailed, MAX_DETAILED_RULES), (plain, MAX_RULES)):
        for count in (maximum, 2 * maximum, len(rules)):
            yield json.dumps({"allow": rules[: count // 2], "inspect": plain[: count - count // 2]}).encode()
    yield b"{}"


def reviews() -> Iterator[bytes]:
    for count in (10 * MAX_IGNORE_LINES, MAX_IGNORE_LINES):
        lines = [f"a{n}*b*c/{'x' * 30}" for n in range(count)]
        yield json.dumps({"path": "/workspace", "ignore": [["", lines]], "tracked": lines[:100]}).encode()


def messages() -> Iterator[bytes]:
    def tool(name: str, arguments: Any) -> bytes:
        params = {"name": name, "arguments": arguments}
        message = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params}
        return json.dumps(message, separators=(",", ":")).encode()

    for count in (MAX_MCP_VALUES - 100, 400_000):
        yield tool("run", {"command": [1] * count})
        yield tool("run", {"command": "true", "env": {f"k{n}": 1 for n in range(count)}})
        yield tool("run", {f"k{n}": 1 for n in range(count)})
        yield tool("run", {"command": "true", "env": json.dumps([1] * count)})
        yield json.dumps([{"jsonrpc": "2.0", "id": n, "method": "ping"} for n in range(count // 3)]).encode()
    yield tool("write_file", {"path": "/tmp/a", "content": "a," * (MAX_BODY // 2 - 1000)})
    yield b"[" * MAX_BODY
    yield b'{"a":' * (MAX_MCP_VALUES - 1)


def jobs(session: str) -> list[tuple[Route, Iterator[bytes], dict[str, str]]]:
    """Return the routes with their bodies and headers."""
    found = []
    for route in ROUTES:
        if route.path != "/mcp":
            kind = route.takes or "application/json"
            found.append((route, bodies_of(route), {"Content-Type": kind, "Accept": "*/*"}))
    by_path = {(route.method, route.path): route for route in ROUTES}
    own = {"Content-Type": "application/json"}
    network, review = by_path["PUT", "/v1/sandboxes/{ref}/network"], by_path["POST", "/v1/sandboxes/{ref}/review"]
    found += [(network, policies(), own), (review, reviews(), own)]
    return [*found, (by_path["POST", "/mcp"], messages(), {**MCP, "Mcp-Session-Id": session})]


def e2b_messages() -> Iterator[bytes]:
    """For Connect, where a message is text or protobuf."""
    for count in (MAX_VALUES // 2 - 100, 400_000):
        yield json.dumps({"process": {"cmd": "true", "args": ["a"] * count}}).encode()
        yield json.dumps({"process": {"cmd": "true", "envs": {f"k{n}": "v" for n in range(count)}}}).encode()
    yield b'{"path":"' + b'\\"' * (MAX_MESSAGE // 2 - 100) + b'"}'
    yield b"[" * (MAX_MESSAGE - 100)
    yield b'{"a":' * (MAX_VALUES - 1)


def e2b_jobs(box: Box) -> Iterator[tuple[str, str, bytes, dict[str, str]]]:
    """Yield the method, path, body and headers of requests in E2B's protocols."""
    nothing: Any = None  # the table needs no services
    text = {"Content-Type": "application/json"}
    code = {**box.headers(49999), "E2B-Traffic-Access-Token": box.made["trafficAccessToken"]}
    tables = [
        (api_routes(None, nothing, nothing, nothing), {"X-API-Key": box.account.key}),
        (envd_routes(nothing, nothing), box.headers()), (code_routes(nothing), code),
    ]  # fmt: skip
    for routes, login in tables:
        for route in routes:
            path = re.sub(r"\{\w+\}", box.id if "{ref}" in route.path else "none", route.path)
            if route.takes_json:
                yield from ((route.method, path, body, {**login, **text}) for body in bodies_of(route))
    for method in ("process.Process/Start", "process.Process/SendInput", "filesystem.Filesystem/MakeDir"):
        for body in e2b_messages():
            stream = method.endswith("Start")
            kind = {"Content-Type": STREAM} if stream else text
            yield "POST", f"/{method}", envelope(body) if stream else body, {**box.headers(), **kind}
            if not stream:
                yield "POST", f"/{method}", body, {**box.headers(), "Content-Type": "application/proto"}


@pytest.mark.timeout(1200)
def test_largest_body_of_every_route_leaves_the_loop_to_other_callers(server: Server, sandbox: Sandbox) -> None:
    """The bound is CPU time, relative to that of decoding the largest body of all. It is generous, since the CPU time
    of the same work varies with the machine's load; a body of unbounded cost exceeds it many times over."""
    bound = STEPS * calibrate()
    with OtherCaller(server) as other, server.http() as http:
        http.timeout = httpx2.Timeout(300)
        session = http.post("/mcp", json=HELLO, headers=MCP).headers["Mcp-Session-Id"]
        for route, made, headers in jobs(session):
            for body in made:
                answer = http.request(route.method, path_of(route, sandbox), content=body, headers=headers)
                assert answer.status_code < 500, (route.path, answer.text)
                busy = http.get("/v1/server").json()["longest_busy_s"]
                assert busy <= bound, (route.path, body[:80], blocked(server))
    assert other.answers > 100
    assert other.latency_s <= bound


@pytest.mark.timeout(1200)
def test_largest_messages_of_e2b_leave_the_loop_to_other_callers(server: Server) -> None:
    """The longest step before this test counts too."""
    with server.http() as http:
        before = http.get("/v1/server").json()["longest_busy_s"]
    bound = max(STEPS * calibrate(), before)
    account = Account(server, "ann")
    with OtherCaller(server) as other, account.http, server.http() as http:
        http.timeout = httpx2.Timeout(300)
        box = account.create()
        for method, path, body, headers in e2b_jobs(box):
            answer = http.request(method, path, content=body, headers=headers)
            assert answer.status_code < 500, (path, answer.text)
            busy = http.get("/v1/server").json()["longest_busy_s"]
            assert busy <= bound, (path, body[:80], blocked(server))
        account.api("DELETE", f"/sandboxes/{box.id}")
    assert other.latency_s <= bound


def blocked(server: Server) -> list[str]:
    return [line for line in server.log.read_text().splitlines() if "event loop was blocked" in line][-5:]
