"""Network policies from request to packet, on the simulated internet, which has no uplink."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import skerry
from support.server import Server, wait_until
from world.world import World

from skerry import (
    Approval,
    ApprovalRequest,
    AsyncSandbox,
    Budget,
    BudgetExceeded,
    Client,
    Network,
    Result,
    Sandbox,
)
from skerry.results import NetworkAttempt

CURL = "curl -sS --max-time 20 -o /dev/null -w '%{http_code}'"
API, FILES = "http://api.example.test/", "http://files.example.test/"


@pytest.fixture(scope="module")
def client(world_server: Server) -> Iterator[Client]:
    with Client(world_server.address) as made:
        yield made


@pytest.fixture(autouse=True)
def _fresh(world: World) -> Iterator[None]:
    world.reset()
    yield
    assert world.strays() == []


def reached(result: Result) -> bool:
    return result.ok and result.stdout == "200"


def fetch(sandbox: Sandbox, url: str) -> Result:
    return sandbox.run(f"{CURL} {url}")


def test_allowed_host_is_reached_and_denials_name_the_missing_rule(client: Client, world: World) -> None:
    with Sandbox(network=Network(allow=["api.example.test"]), server=client) as sandbox:
        result = fetch(sandbox, API)
        assert reached(result), result.stderr
        assert result.denied == ()
        sandbox.files.write("/workspace/ca.pem", world.certificate)
        assert reached(sandbox.run(f"{CURL} https://api.example.test/ --cacert ca.pem"))
        result = fetch(sandbox, FILES)
        (denied,) = result.denied
        assert (denied.host, denied.port, denied.decision) == ("files.example.test", 80, "denied")
        assert (denied.process, denied.method, denied.path) == (result.id, "GET", "/")
        assert denied.why == "no rule allows files.example.test:80"
        assert denied.hint == "--allow files.example.test"
        assert denied.hint in (result.hint or "")
        sandbox.review.start()
        sandbox.run(f"curl -sS {API} > /workspace/got; curl -sS {FILES} > /dev/null")
        assert [entry.hosts for entry in sandbox.review.history()] == [(), ("api.example.test",)]


def test_traffic_is_metered_by_command_and_survives_deletion(client: Client) -> None:
    with Sandbox(network=Network(allow=["api.example.test"]), server=client) as sandbox:
        sandbox.run("true")
        upload = sandbox.run(f"head -c 300000 /dev/zero | curl -sS --data-binary @- -o /dev/null {API}")
        assert upload.ok, upload.stderr
        assert 300_000 <= upload.usage.sent < 330_000
        assert upload.usage.received > 0
        assert sandbox.run("true").usage.sent == 0
        sandbox.spawn(f"head -c 200000 /dev/zero | curl -sS --data-binary @- -o /dev/null {API}; sleep 600")
        wait_until(lambda: sandbox.usage().sent >= 500_000, "the second upload")
        used = sandbox.usage()
        sandbox.delete()
    (row,) = client.usage("sandbox", sandbox=sandbox.id).rows
    assert (row.usage.sent, row.usage.received) >= (used.sent, used.received)


def test_denied_program_gets_a_common_error_at_once(client: Client) -> None:
    with Sandbox(network=Network(allow=["api.example.test"]), server=client) as sandbox:
        said = sandbox.run(f"curl -sS {FILES}")
        assert said.stdout == "skerry: no rule allows files.example.test:80\nhint: --allow files.example.test\n"
        tunnel = sandbox.run("curl -sS https://files.example.test/")
        assert (tunnel.exit_code, "403" in tunnel.stderr) == (56, True)
        straight = sandbox.run(f"curl -sS --noproxy '*' {FILES}")
        assert (straight.exit_code, straight.stderr) == (6, "curl: (6) Could not resolve host: files.example.test\n")
        assert [(one.kind, one.host) for one in straight.denied] == [("name", "files.example.test")]


def test_sandbox_without_a_policy_reaches_nothing(client: Client) -> None:
    with Sandbox(server=client) as sandbox:
        for url in (API, "http://198.51.100.10/"):
            result = fetch(sandbox, url)
            assert not reached(result)
            assert result.denied


def test_policy_can_change_while_the_sandbox_runs(client: Client) -> None:
    with Sandbox(server=client) as sandbox:
        assert not reached(fetch(sandbox, API))
        assert sandbox.network.allow("api.example.test").network.allow == ("api.example.test",)
        assert reached(fetch(sandbox, API))
        sandbox.network.deny("api.example.test")
        assert not reached(fetch(sandbox, API))
        info = sandbox.network.set(Network(allow=["files.example.test"]))
        assert (info.network.allow, info.ready) == (("files.example.test",), True)
        assert reached(fetch(sandbox, FILES))
        assert not reached(fetch(sandbox, API))


def test_connection_that_is_no_longer_allowed_is_closed(client: Client) -> None:
    code = (
        "import socket; s = socket.create_connection(('api.example.test', 7)); s.sendall(b'x'); s.recv(1);"
        "print('talking', flush=True)\n"
        "try: print('end', s.recv(1))\n"
        "except OSError as error: print('end', error)"
    )
    with Sandbox(network=Network(allow=["api.example.test:7"]), server=client) as sandbox:
        process = sandbox.spawn(["python3", "-c", code])
        process.wait_for_output("talking")
        wait_until(lambda: sandbox.network.show().open_connections == 1, "the connection to be counted")
        sandbox.network.deny("api.example.test")
        assert "end" in process.wait(20).stdout


def test_every_attempt_is_in_the_log(client: Client) -> None:
    with Sandbox(network=Network(allow=["api.example.test", "api.example.test:7"]), server=client) as sandbox:
        result = fetch(sandbox, f"{API}path?query")
        refused = fetch(sandbox, FILES)
        echoed = sandbox.run("exec 3<>/dev/tcp/api.example.test/7 && echo hello >&3 && head -1 <&3")
        assert echoed.stdout == "hello\n"
        wait_until(lambda: all(one.ended for one in sandbox.network.log()), "the connection's end to be told")
        tried = list(sandbox.network.log())
        (request,) = [one for one in tried if one.process == result.id]
        assert (request.kind, request.method, request.path, request.decision) == ("request", "GET", "/path", "allowed")
        assert (request.host, request.port, request.address) == ("api.example.test", 80, "198.51.100.10")
        assert request.rule == "api.example.test"
        assert request.sent > 0
        assert request.received > 0
        (connection,) = [one for one in tried if one.process == echoed.id]
        assert (connection.kind, connection.port, connection.rule) == ("connection", 7, "api.example.test:7")
        assert (connection.sent, connection.received) == (6, 6)
        denied = list(sandbox.network.log(denied=True))
        assert [(one.host, one.process) for one in denied] == [("files.example.test", refused.id)]
        assert [one.seq for one in tried] == sorted(one.seq for one in tried)
        assert list(sandbox.network.log(limit=1)) == tried[-1:]
        assert list(sandbox.network.log(since=tried[-1].seq)) == []
        wait_until(lambda: sandbox.network.show().received > 6, "what went through to be counted")


def test_followed_log_reports_attempts_live(client: Client) -> None:
    with Sandbox(network=Network(allow=["api.example.test"]), server=client) as sandbox:
        found: list[NetworkAttempt] = []

        def follow() -> None:
            for attempt in sandbox.network.log(follow=True):
                found.append(attempt)
                if attempt.host == "files.example.test":
                    return

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        fetch(sandbox, API)
        wait_until(lambda: any(one.host == "api.example.test" for one in found), "the first attempt")
        fetch(sandbox, FILES)
        thread.join(20)
        assert not thread.is_alive()


def test_attempts_are_learned_as_the_smallest_policy(client: Client) -> None:
    with Sandbox(network=Network(on_unknown="learn"), server=client) as sandbox:
        result = fetch(sandbox, API)
        assert reached(result)
        assert result.denied == ()
        fetch(sandbox, "http://files.example.test:8080/")
        assert not reached(fetch(sandbox, "http://metadata.example.test/"))
        assert "learn" in next(one for one in sandbox.network.log() if one.port == 80).why
        learned = sandbox.network.suggest()
    assert learned == Network(allow=["api.example.test:80", "files.example.test:8080"])
    with Sandbox(network=learned, server=client) as sandbox:
        assert reached(fetch(sandbox, API))
        assert reached(fetch(sandbox, "http://files.example.test:8080/"))
        assert not reached(fetch(sandbox, FILES))


def test_learning_run_reports_the_policy_for_the_next_one(world_server: Server, tmp_path: Path) -> None:
    words = ("run", "--network", "learn", "--", "bash", "-c", f"{CURL} {API}")
    done = skerry(*words, server=world_server.address, cwd=tmp_path)
    assert (done.stdout, done.stderr) == (b"200", b"learned: --allow api.example.test:80\n")
    again = skerry("run", "--allow", "api.example.test:80", *words[3:], server=world_server.address, cwd=tmp_path)
    assert (again.stdout, again.stderr) == (b"200", b"")


def test_callback_approves_destinations_without_a_rule(client: Client) -> None:
    asked: list[ApprovalRequest] = []

    def answer(question: ApprovalRequest) -> bool | Approval:
        asked.append(question)
        return Approval(allow=True, remember=True) if question.host == "api.example.test" else False

    with Sandbox(on_unknown=answer, server=client) as sandbox:
        result = fetch(sandbox, API)
        assert reached(result), result.stderr
        assert reached(fetch(sandbox, API))
        assert [(one.host, one.port) for one in asked] == [("api.example.test", 80)]
        assert sandbox.network.show().network.allow == ("api.example.test",)
        refused = fetch(sandbox, FILES)
        assert not reached(refused)
        assert "the approval request was denied" in refused.denied[-1].why
        threads = threading.active_count()
        sandbox.close()
        wait_until(lambda: threading.active_count() < threads, "the thread that answers to end")


def test_unanswered_approval_request_is_denied_with_the_reason(client: Client) -> None:
    with Sandbox(network=Network(on_unknown="ask", approval_timeout="1s"), server=client) as sandbox:
        result = fetch(sandbox, API)
        assert not reached(result)
        assert "no answer within 1 s" in result.denied[-1].why


def test_approval_requests_are_answered_from_another_program(client: Client, world_server: Server) -> None:
    with Sandbox(network=Network(on_unknown="ask"), server=client) as sandbox:
        process = sandbox.spawn(f"{CURL} {API}")
        with Client(world_server.address) as other:
            questions = Sandbox.get(sandbox.id, server=other).network.approvals()
            question = next(iter(questions))
            assert (question.host, question.process) == ("api.example.test", process.id)
            sandbox.network.answer(question, True)
            questions.close()
        assert process.wait(20).stdout == "200"


HOOK = """
import http.server, json
class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        question = json.loads(self.rfile.read(int(self.headers["content-length"])))["approval_request"]
        print(json.dumps(question), flush=True)
        body = json.dumps({"allow": question["host"] == "api.example.test"}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Hook)
print(server.server_port, flush=True)
server.serve_forever()
"""


def test_webhook_of_the_operator_is_called(own_world_server: Server, world: World) -> None:
    with subprocess.Popen([*world.inside, sys.executable, "-c", HOOK], stdout=subprocess.PIPE, text=True) as hook:
        try:
            assert hook.stdout is not None
            url = f"http://127.0.0.1:{int(hook.stdout.readline())}/ask"
            own_world_server.start(SKERRY_NETWORK_APPROVAL_WEBHOOK=url)
            with Sandbox(network=Network(on_unknown="ask"), server=own_world_server.address) as sandbox:
                assert reached(fetch(sandbox, API))
                asked = json.loads(hook.stdout.readline())
                assert (asked["host"], asked["port"], asked["sandbox"]) == ("api.example.test", 80, sandbox.id)
                refused = fetch(sandbox, FILES)
                assert not reached(refused)
                assert "webhook said no" in refused.denied[-1].why
        finally:
            hook.kill()


def test_policy_survives_a_server_restart_and_a_stop(own_world_server: Server) -> None:
    server = own_world_server.start()
    sandbox = Sandbox.create(server=server.address)
    try:
        sandbox.network.allow("api.example.test")
        server.end()
        server.start()
        assert reached(fetch(sandbox, API))
        sandbox.stop()
        sandbox.network.allow("files.example.test")
        assert reached(fetch(sandbox, FILES))
        assert any(one.host == "api.example.test" for one in sandbox.network.log())
    finally:
        sandbox.delete()


def test_operators_maximum_overrides_a_policy(own_world_server: Server) -> None:
    server = own_world_server.start(SKERRY_MAX_NETWORK="api.example.test")
    with Sandbox(network=Network.open(), server=server.address) as sandbox:
        assert reached(fetch(sandbox, API))
        result = fetch(sandbox, FILES)
        assert not reached(result)
        assert "max.network" in result.denied[0].why


def test_command_line_prints_each_denial_once(world_server: Server, tmp_path: Path) -> None:
    command = f"{CURL} {API}; for i in 1 2 3; do {CURL} {FILES}; done"
    words = ("run", "--allow", "api.example.test", "--", "bash", "-c", command)
    done = skerry(*words, server=world_server.address, cwd=tmp_path)
    assert done.stdout.startswith(b"200")
    hints = [line for line in done.stderr.decode().splitlines() if line.startswith("hint:")]
    host = "files.example.test"
    assert hints == [f"hint: {host}:80 was denied: no rule allows {host}:80; --allow {host}"]


async def test_async_client_does_the_same(world_server: Server) -> None:
    async def answer(question: ApprovalRequest) -> bool:
        return question.host == "api.example.test"

    async with AsyncSandbox(on_unknown=answer, server=world_server.address) as sandbox:
        assert reached(await sandbox.run(f"{CURL} {API}"))
        assert not reached(await sandbox.run(f"{CURL} {FILES}"))
        await sandbox.network.set(Network(allow=["files.example.test"]))
        assert reached(await sandbox.run(f"{CURL} {FILES}"))
        hosts = [(one.host, one.decision) async for one in sandbox.network.log()]
        assert ("files.example.test", "denied") in hosts
        assert ("files.example.test", "allowed") in hosts
        assert (await sandbox.network.suggest()).allow == ("api.example.test:80", "files.example.test:80")


def test_traffic_uses_up_a_budget(client: Client) -> None:
    """Bytes in both directions count, those of a deleted sandbox too."""
    code = (
        "import socket\ns = socket.create_connection(('api.example.test', 7))\n"
        "while True:\n    s.sendall(b'x' * 4096)\n    left = 4096\n    while left: left -= len(s.recv(left))"
    )
    network, budget = Network(allow=["api.example.test:7"]), client.budgets.set(Budget(network="64K"), label="task=net")
    try:
        with Sandbox(network=network, labels={"task": "net"}, server=client) as sandbox:
            with pytest.raises(BudgetExceeded, match="network traffic") as caught:
                sandbox.run(["python3", "-c", code], timeout=300)
            used = caught.value.details["used"]
            assert used >= 64 << 10
        (left,) = [one for one in client.budgets.list() if one.id == budget.id]
        assert left.used.network >= used
    finally:
        client.budgets.remove(budget.id)
