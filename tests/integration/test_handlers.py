"""Handlers from request to packet: rules, and decisions of a Python program, on the simulated internet."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from support.server import Server
from world.world import World

from skerry import AsyncSandbox, Client, Handler, HttpRequest, HttpResponse, Network, Sandbox

API, FILES = "http://api.example.test/", "http://files.example.test/"
CURL = "curl -sS --max-time 60"


@pytest.fixture(scope="module")
def client(world_server: Server) -> Iterator[Client]:
    with Client(world_server.address) as made:
        yield made


@pytest.fixture(autouse=True)
def _fresh(world: World) -> Iterator[None]:
    world.reset()
    yield
    assert world.strays() == []


def heads(world: World) -> str:
    return repr(world.calls())


def test_rules_change_redirect_answer_and_mirror_http_and_https(client: Client, world: World) -> None:
    handlers = [
        Handler(host="api.example.test/local", answer=HttpResponse(status=203, body=b"local")),
        Handler(host="api.example.test", set_headers={"X-Team": "blue"}, response_set_headers={"X-Seen": "yes"}),
        Handler(host="moved.example.test", redirect="files.example.test"),
    ]
    network = Network(
        allow=["api.example.test", "moved.example.test", "files.example.test"], handlers=handlers,
        mirror=["api.example.test"],
    )  # fmt: skip
    with Sandbox(network=network, server=client) as sandbox:
        for url in (f"{API}local", "https://api.example.test/local"):
            assert sandbox.run(f"{CURL} -w ' %{{http_code}}' {url}").stdout == "local 203", url
        assert world.calls() == []
        assert "x-seen: yes" in sandbox.run(f"{CURL} -i {API}").stdout.lower()
        assert "blue" in heads(world)
        assert sandbox.run(f"{CURL} -o /dev/null -w '%{{http_code}}' http://moved.example.test/").stdout == "200"
        assert "files.example.test" in heads(world)
        sandbox.network.remove_handlers("api.example.test", "api.example.test/local")
        info = sandbox.network.mirror()
        assert ([one.host for one in info.network.handlers], info.network.mirror) == (["moved.example.test"], ())
        sandbox.run(f"{CURL} {API}")
        exchanges = [step for step in sandbox.records.trace().steps if step.kind == "network.exchange"]
    assert [step.params["url"] for step in exchanges] == [f"{API}local", "https://api.example.test/local", API]
    assert exchanges[0].params["response_body"] == "local"
    assert exchanges[0].process is not None


def test_handler_that_redirects_does_not_open_the_new_host(client: Client) -> None:
    network = Network(allow=["api.example.test"], handlers=[Handler(host="*.test", redirect="files.example.test")])
    with Sandbox(network=network, server=client) as sandbox:
        result = sandbox.run(f"{CURL} -f {API}")
        assert not result.ok
        (denied,) = result.denied
        assert (denied.host, denied.hint) == ("files.example.test", "--allow files.example.test")
        assert "redirected from api.example.test:80" in denied.why


def test_python_program_handles_requests_and_responses(client: Client, world: World) -> None:
    seen: list[HttpRequest] = []

    def handler(request: HttpRequest) -> HttpRequest | HttpResponse | None:
        seen.append(request)
        if "/local" in request.url:
            return HttpResponse(status=200, headers={"X-Local": "1"}, body=(request.body or b"").upper())
        if "/moved" in request.url:
            return request.redirect_to("files.example.test")
        return request.with_header("X-Team", "green")

    def on_response(request: HttpRequest, response: HttpResponse) -> HttpResponse:
        return response.with_header("X-Status", str(response.status))

    network = Network(allow=["api.example.test", "files.example.test"])
    with Sandbox(network=network, server=client) as sandbox:
        with sandbox.network.handle("api.example.test", handler, on_response=on_response, bodies=True):
            result = sandbox.run(f"{CURL} -d hello {API}local")
            assert (result.stdout, seen[0].body, seen[0].process) == ("HELLO", b"hello", result.id)
            assert world.calls() == []
            assert "x-status: 200" in sandbox.run(f"{CURL} -i https://api.example.test/").stdout.lower()
            assert "green" in heads(world)
            assert sandbox.run(f"{CURL} {API}moved").ok
            assert "files.example.test" in heads(world)
            count = len(seen)
        assert sandbox.network.show().network.handlers == ()
        assert sandbox.run(f"{CURL} {API}").ok
        assert len(seen) == count


def test_handler_that_raises_or_returns_garbage_fails_the_request(client: Client, world: World) -> None:
    def broken(request: HttpRequest) -> HttpRequest | None:
        if "/raise" in request.url:
            raise RuntimeError("private details")
        if "/smuggle" in request.url:
            return replace(request, headers=(("Content-Length", "5"),))
        return "garbage"  # type: ignore[return-value]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Sandbox(network=Network(allow=["api.example.test"]), server=client) as sandbox:
            sandbox.network.handle("api.example.test", broken)
            for path, why in (("raise", "RuntimeError"), ("garbage", "TypeError"), ("smuggle", "InvalidRequest")):
                result = sandbox.run(f"{CURL} -w '%{{http_code}}' {API}{path}")
                assert result.stdout.endswith("502"), path
                assert "private details" not in result.stdout
                assert why in result.denied[0].why
    assert world.calls() == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("body", b"token=removed"), ("method", "HEAD"), ("url", API)],
)
def test_request_whose_changes_cannot_be_sent_fails(client: Client, world: World, field: str, value: object) -> None:
    """A handler that removes private parts of a body must not make the original leave."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Sandbox(network=Network(allow=["api.example.test"]), server=client) as sandbox:
            sandbox.network.handle("api.example.test", lambda request: replace(request, **{field: value}), bodies=True)
            result = sandbox.run(f"{CURL} -w '%{{http_code}}' -d token=private {API}private")
            assert result.stdout.endswith("502")
            assert "TypeError" in result.denied[0].why
    assert world.calls() == []


def test_handler_that_hangs_fails_the_request_in_time(client: Client, world: World) -> None:
    done = threading.Event()

    def hang(request: HttpRequest) -> None:
        done.wait(60)

    with Sandbox(network=Network(allow=["api.example.test"]), server=client) as sandbox:
        sandbox.network.handle("api.example.test", hang, timeout=0.3)
        result = sandbox.run(f"{CURL} -w '%{{http_code}}' {API}")
        done.set()
    assert result.stdout.endswith("502")
    assert "no answer within 0.3 s" in result.denied[0].why
    assert world.calls() == []


def test_requests_fail_while_the_program_of_a_handler_is_gone(
    client: Client, world_server: Server, world: World
) -> None:
    """The handler stays in the policy: without it, requests would pass unchanged."""
    with Sandbox(network=Network(allow=["api.example.test"]), server=client) as sandbox:
        with Client(world_server.address) as other:
            gone = Sandbox.get(sandbox.id, server=other)
            gone.network.handle("api.example.test", lambda request: None, timeout=1)
            assert sandbox.run(f"{CURL} -f {API}").ok
            gone.close()
        world.reset()
        result = sandbox.run(f"{CURL} -w '%{{http_code}}' {API}")
        assert result.stdout.endswith("502")
        assert "its client is not connected" in result.denied[0].why
        assert world.calls() == []
        sandbox.network.remove_handlers("api.example.test")
        assert sandbox.run(f"{CURL} -f {API}").ok


KILLED = """
import sys, time
from skerry import Sandbox
sandbox = Sandbox.get(sys.argv[1], server=sys.argv[2])
def handler(request):
    print("called", flush=True)
    time.sleep(600)
sandbox.network.handle("api.example.test", handler, timeout=120)
print("ready", flush=True)
time.sleep(600)
"""


def test_request_fails_at_once_when_the_program_of_its_handler_is_killed(
    client: Client, world_server: Server, world: World
) -> None:
    with Sandbox(network=Network(allow=["api.example.test"]), server=client) as sandbox:
        argv = [sys.executable, "-c", KILLED, sandbox.id, world_server.address]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == "ready\n"
            request = sandbox.spawn(f"{CURL} -w '%{{http_code}}' {API}")
            assert program.stdout.readline() == "called\n"
            program.kill()
            result = request.wait(60)
        assert result.stdout.endswith("502")
        assert "its client disconnected" in result.denied[0].why
    assert world.calls() == []


async def test_async_program_handles_requests(world_server: Server) -> None:
    async def handler(request: HttpRequest) -> HttpResponse:
        return HttpResponse(body=request.method.encode())

    network = Network(allow=["api.example.test"])
    async with AsyncSandbox(network=network, server=world_server.address) as sandbox:
        async with await sandbox.network.handle("api.example.test", handler):
            assert (await sandbox.run(f"{CURL} {API}")).stdout == "GET"
        assert (await sandbox.network.show()).network.handlers == ()


async def test_async_handler_that_hangs_is_cancelled_and_decides_the_next_request(world_server: Server) -> None:
    async def handler(request: HttpRequest) -> HttpResponse:
        if "/hang" in request.url:
            await asyncio.Event().wait()
        return HttpResponse(body=b"decided")

    network = Network(allow=["api.example.test"])
    async with AsyncSandbox(network=network, server=world_server.address) as sandbox:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            await sandbox.network.handle("api.example.test", handler, timeout=3)
            assert (await sandbox.run(f"{CURL} -w '%{{http_code}}' {API}hang")).stdout.endswith("502")
            assert (await sandbox.run(f"{CURL} {API}")).stdout == "decided"


def test_handlers_of_other_owners_are_not_found(client: Client, world_server: Server) -> None:
    token = client.tokens.create(scope="use", owner="ann")
    with Sandbox(network=Network(allow=["api.example.test"]), server=client) as sandbox, world_server.http() as http:
        sandbox.network.add_handlers(Handler(host="api.example.test", callback="request"))
        headers = {"Authorization": f"Bearer {token.secret}"}
        where = f"/v1/sandboxes/{sandbox.id}/network/handlers"
        assert http.get(where, params={"host": "api.example.test"}, headers=headers).status_code == 404
        assert http.post(f"{where}/h-aaaaaaaaaa", json={}, headers=headers).status_code == 404
        assert http.post(f"{where}/h-aaaaaaaaaa", json={}).status_code == 404
        assert http.get(where, params={"host": "files.example.test"}).status_code == 400
