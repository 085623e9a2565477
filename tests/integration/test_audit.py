"""The audit log of a real server: actions, events inside of sandboxes, and a killed server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from mcp import Client as McpClient
from mcp.client.streamable_http import streamable_http_client
from support.mcp_clients import MODES, on_http
from support.server import Server, wait_until

from skerry import Limits, Network, Sandbox
from skerry.errors import SkerryError


def records(http: httpx2.Client, **query: Any) -> list[dict[str, Any]]:
    """Return all records of a filter, newest first."""
    found: list[dict[str, Any]] = []
    while True:
        page = http.get("/v1/audit", params=query).raise_for_status().json()
        found += page["records"]
        if page["next"] is None:
            return found
        query["before"] = page["next"]


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Any:
    limits, network = Limits(memory="128M"), Network(allow=["allowed.example"])
    with Sandbox(server=server.address, name="audited", limits=limits, network=network) as sandbox:
        yield sandbox


def test_creation_is_found_by_the_id_and_the_name(sandbox: Sandbox, http: httpx2.Client) -> None:
    created = records(http, sandbox=sandbox.id, type="sandbox.create")[0]
    assert created["sandbox"] == sandbox.id
    assert created["actor"] == f"uid:{os.geteuid()}"
    assert created["source"] == "unix"
    assert created["params"]["limits"] == {"memory": "128M"}
    assert created["params"]["network"] == {"allow": ["allowed.example"]}
    assert created["result"]["status"] == 201
    assert records(http, sandbox="audited", type="sandbox.create")[0]["seq"] == created["seq"]
    assert {record["type"] for record in records(http, sandbox=sandbox.id)} >= {"sandbox.running"}


def test_commands_files_and_code_are_recorded_once(sandbox: Sandbox, http: httpx2.Client) -> None:
    sandbox.run(["sh", "-c", "exit 3"])
    sandbox.files.write("notes.txt", "a secret of the caller")
    sandbox.files.read_text("notes.txt")
    sandbox.code.run("6 * 7")
    found = records(http, sandbox=sandbox.id)
    run, write, code = (
        next(record for record in found if record["type"] == kind)
        for kind in ("process.run", "file.write", "code.run")
    )  # fmt: skip
    assert run["params"]["cmd"] == ["sh", "-c", "exit 3"]
    assert run["result"]["details"]["exit_code"] == 3
    assert write["params"]["path"] == "notes.txt"
    assert "a secret" not in str(write)
    assert code["params"]["code"] == "6 * 7"
    assert code["result"]["details"]["exit_code"] == 0
    assert [record["type"] for record in found].count("file.write") == 1


def test_limits_and_network_decisions_are_recorded(sandbox: Sandbox, http: httpx2.Client) -> None:
    sandbox.run("python3 -c 'x = bytearray(1 << 29)'")
    sandbox.run("sleep 60", timeout=0.5)
    sandbox.run("python3 -c \"import socket; socket.create_connection(('denied.example', 443), 5)\"")

    def types() -> set[str]:
        return {record["type"] for record in records(http, sandbox=sandbox.id, actor="sandbox")}

    wait_until(lambda: {"limit.memory", "limit.timeout", "network.denied"} <= types(), "the events to be recorded")
    denied = records(http, sandbox=sandbox.id, type="network.denied")[0]
    assert denied["params"]["host"] == "denied.example"
    assert denied["owner"] == records(http, sandbox=sandbox.id, type="sandbox.create")[0]["owner"]


def test_reached_limit_is_an_event_once(server: Server, http: httpx2.Client) -> None:
    """Of commands, of code in a context, of a child whose parent goes on, and of a service that does not end."""
    eat = "python3 -c 'x = bytearray(1 << 29)'"
    with Sandbox(server=server.address, limits=Limits(memory="256M", disk="200M")) as sandbox:
        expected: list[str] = []

        def reached(limit: str) -> None:
            expected.append(f"limit.{limit}")
            wait_until(lambda: len(found()) >= len(expected), f"the event of the {limit}")
            assert found() == expected

        def found() -> list[str]:
            return [record["type"] for record in reversed(records(http, sandbox=sandbox.id, type="limit"))]

        assert sandbox.run(f"{eat}; true").ok
        reached("memory")
        assert sandbox.code.run("import time; time.sleep(600)", timeout=0.5).timed_out
        reached("timeout")
        assert sandbox.code.run(f"import os; os.system({eat!r})").ok
        reached("memory")
        assert not sandbox.run("exit 3").ok
        if "disk" in (sandbox.run("head -c 1G /dev/zero > /workspace/full").hint or ""):
            reached("disk")
        assert sandbox.run("rm -f /workspace/full").ok
        service = sandbox.spawn(f"{eat}; sleep 600")
        reached("memory")
        service.kill()
        steps = http.get(f"/v1/sandboxes/{sandbox.id}/trace").text
        assert re.findall(r'"kind":"(limit\.[a-z]+)"', steps) == expected


def test_output_that_imitates_a_record_is_none(sandbox: Sandbox, http: httpx2.Client) -> None:
    sandbox.run(["printf", '{"seq":1,"prev":"","at":1,"type":"token.create"}\\n'])
    assert not records(http, type="token.create")
    assert http.get("/v1/audit/verify").json()["ok"]


async def test_actor_of_an_mcp_tool_is_the_token(server: Server, http: httpx2.Client) -> None:
    token = http.post("/v1/tokens", json={"scope": "use", "owner": "agent"}).json()
    async with on_http(server, MODES[0], token["secret"]) as talk:
        await talk.call("create_sandbox")
    (record,) = records(http, owner="agent", type="sandbox.create")
    assert (record["actor"], record["source"]) == (token["id"], "mcp")
    http.delete(f"/v1/sandboxes/{record['sandbox']}").raise_for_status()


async def test_actor_of_an_mcp_tool_on_the_socket_is_the_user(server: Server, http: httpx2.Client) -> None:
    """The tool is a client of the server in the server itself; the record names the user that called it."""
    path, posts = server.address.removeprefix("unix://"), list[httpx2.Request]()

    async def note(request: httpx2.Request) -> None:
        posts.append(request)

    transport = httpx2.AsyncHTTPTransport(uds=path)
    async with httpx2.AsyncClient(transport=transport, timeout=60, event_hooks={"request": [note]}) as plain:
        there = streamable_http_client("http://localhost/mcp", http_client=plain)
        async with McpClient(there, mode=MODES[0], read_timeout_seconds=60) as client:
            assert not (await client.call_tool("create_sandbox", {})).is_error
    created = records(http, type="sandbox.create")[0]
    assert (created["actor"], created["source"]) == (f"uid:{os.geteuid()}", "mcp")

    call = next(post for post in posts if b'"tools/call"' in post.content)
    kept = {name: value for name, value in call.headers.items() if name.startswith(("mcp-", "accept", "content-type"))}
    headers = [word for name, value in kept.items() for word in ("-H", f"{name}: {value}")]
    command = ["curl", "-sS", "-m", "60", "--unix-socket", path, "http://localhost/mcp", *headers, "-d", "@-"]
    forged = ["-H", "skerry-actor: uid:0"]
    mode = os.stat(path).st_mode
    os.chmod(path, 0o666)
    try:
        for more in ([], forged):
            subprocess.run([*command, *more], input=call.content, user=12345, group=12345, extra_groups=[], check=True)
        direct = ["curl", "-sS", "-m", "60", "--unix-socket", path, "http://localhost/v1/sandboxes", "-H"]
        words = [*direct, "content-type: application/json", *forged, "-d", "{}"]
        subprocess.run(words, user=12345, group=12345, extra_groups=[], check=True)
    finally:
        os.chmod(path, mode & 0o777)
    made = records(http, type="sandbox.create", actor="uid:12345")
    assert [record["source"] for record in made] == ["unix", "mcp", "mcp"]  # newest first
    for record in (created, *made):
        http.delete(f"/v1/sandboxes/{record['sandbox']}")


def test_server_that_waits_for_every_record(own_server: Server) -> None:
    """With `audit.sync = "all"`, commands at once, code, files and streams share syncs, and each has its records."""
    own_server.start(SKERRY_AUDIT_SYNC="all")
    with Sandbox(server=own_server.address) as sandbox, ThreadPoolExecutor(8) as threads:
        outputs = list(threads.map(lambda n: sandbox.run(["echo", str(n)]).stdout, range(24)))
        assert outputs == [f"{n}\n" for n in range(24)]
        sandbox.files.write("notes.txt", "text")
        assert sandbox.code.run("6 * 7").ok
        process = sandbox.spawn(["cat"], stdin=True)
        process.stdin.write("line\n")
        process.stdin.close()
        assert process.wait().stdout == "line\n"
        with own_server.http() as http:
            found = records(http, sandbox=sandbox.id)
            ran = [record for record in found if record["params"].get("cmd", [""])[0] == "echo"]
            assert sorted(int(record["params"]["cmd"][1]) for record in ran) == list(range(24))
            assert all(record["result"]["details"]["exit_code"] == 0 for record in ran)
            assert {"file.write", "code.run", "process.stdin"} <= {record["type"] for record in found}
            report = http.get("/v1/audit/verify").json()
            assert report["ok"], report


def test_action_of_a_killed_server_is_recorded(own_server: Server) -> None:
    """The record is written before the effect, so it exists though no answer was sent."""
    sandbox = Sandbox.create(server=own_server.start().address)

    def run() -> None:
        try:
            sandbox.run("touch begun; sleep 300")
        except SkerryError:
            return

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: sandbox.files.exists("begun"), "the command to run")
    own_server.end(signal.SIGKILL)
    thread.join(60)
    own_server.start()
    with own_server.http() as http:
        found = records(http, sandbox=sandbox.id, type="process.run")
        assert [record["params"]["cmd"] for record in found] == ["touch begun; sleep 300"]
        assert found[0]["result"] is None
        report = http.get("/v1/audit/verify").json()
        assert report["ok"], report
    sandbox.delete()
