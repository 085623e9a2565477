"""What may leave a sandbox, from policy to packet: on the tests' own internet, which leads nowhere."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.calling import skerry
from serving import Server, wait_until
from world.world import World

from skerry import AsyncSandbox, Attempt, Client, Network, Question, Reply, Result, Sandbox

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


def test_what_is_named_is_reached_and_all_else_says_what_would_allow_it(client: Client, world: World) -> None:
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
        sandbox.review.begin()
        sandbox.run(f"curl -sS {API} > /workspace/got; curl -sS {FILES} > /dev/null")
        assert [entry.hosts for entry in sandbox.review.history()] == [(), ("api.example.test",)]


def test_a_program_gets_an_ordinary_error_at_once(client: Client) -> None:
    with Sandbox(network=Network(allow=["api.example.test"]), server=client) as sandbox:
        said = sandbox.run(f"curl -sS {FILES}")
        assert said.stdout == "skerry: no rule allows files.example.test:80\nhint: --allow files.example.test\n"
        tunnel = sandbox.run("curl -sS https://files.example.test/")
        assert (tunnel.exit_code, "403" in tunnel.stderr) == (56, True)
        straight = sandbox.run(f"curl -sS --noproxy '*' {FILES}")
        assert (straight.exit_code, straight.stderr) == (6, "curl: (6) Could not resolve host: files.example.test\n")
        assert [(one.kind, one.host) for one in straight.denied] == [("name", "files.example.test")]


def test_nothing_is_reached_without_a_word(client: Client) -> None:
    with Sandbox(server=client) as sandbox:
        for url in (API, "http://198.51.100.10/"):
            result = fetch(sandbox, url)
            assert not reached(result)
            assert result.denied


def test_a_policy_changes_while_the_sandbox_runs(client: Client) -> None:
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


def test_a_connection_that_is_no_longer_allowed_is_closed(client: Client) -> None:
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


def test_a_followed_log_tells_of_an_attempt_as_it_is_made(client: Client) -> None:
    with Sandbox(network=Network(allow=["api.example.test"]), server=client) as sandbox:
        found: list[Attempt] = []

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


def test_what_was_tried_is_learned_as_the_smallest_policy(client: Client) -> None:
    with Sandbox(network=Network(on_unknown="learn"), server=client) as sandbox:
        result = fetch(sandbox, API)
        assert reached(result)
        assert result.denied == ()
        fetch(sandbox, "http://files.example.test:8080/")
        assert not reached(fetch(sandbox, "http://metadata.example.test/"))
        assert "learn" in next(one for one in sandbox.network.log() if one.port == 80).why
        learned = sandbox.network.learn()
    assert learned == Network(allow=["api.example.test:80", "files.example.test:8080"])
    with Sandbox(network=learned, server=client) as sandbox:
        assert reached(fetch(sandbox, API))
        assert reached(fetch(sandbox, "http://files.example.test:8080/"))
        assert not reached(fetch(sandbox, FILES))


def test_a_run_that_learns_says_what_the_next_one_needs(world_server: Server, tmp_path: Path) -> None:
    words = ("run", "--network", "learn", "--", "bash", "-c", f"{CURL} {API}")
    done = skerry(*words, server=world_server.address, cwd=tmp_path)
    assert (done.stdout, done.stderr) == (b"200", b"learned: --allow api.example.test:80\n")
    again = skerry("run", "--allow", "api.example.test:80", *words[3:], server=world_server.address, cwd=tmp_path)
    assert (again.stdout, again.stderr) == (b"200", b"")


def test_a_callback_is_asked_about_what_no_rule_names(client: Client) -> None:
    asked: list[Question] = []

    def answer(question: Question) -> bool | Reply:
        asked.append(question)
        return Reply(allow=True, remember=True) if question.host == "api.example.test" else False

    with Sandbox(on_unknown=answer, server=client) as sandbox:
        result = fetch(sandbox, API)
        assert reached(result), result.stderr
        assert reached(fetch(sandbox, API))
        assert [(one.host, one.port) for one in asked] == [("api.example.test", 80)]
        assert sandbox.network.show().network.allow == ("api.example.test",)
        refused = fetch(sandbox, FILES)
        assert not reached(refused)
        assert "the answer was no" in refused.denied[-1].why
        threads = threading.active_count()
        sandbox.close()
        wait_until(lambda: threading.active_count() < threads, "the thread that answers to end")


def test_nobody_in_time_means_no_and_the_denial_says_so(client: Client) -> None:
    with Sandbox(network=Network(on_unknown="ask", ask_timeout="1s"), server=client) as sandbox:
        result = fetch(sandbox, API)
        assert not reached(result)
        assert "nobody answered within 1 s" in result.denied[-1].why


def test_questions_are_answered_from_another_program(client: Client, world_server: Server) -> None:
    with Sandbox(network=Network(on_unknown="ask"), server=client) as sandbox:
        process = sandbox.spawn(f"{CURL} {API}")
        with Client(world_server.address) as other:
            questions = Sandbox.get(sandbox.id, server=other).network.questions()
            question = next(iter(questions))
            assert (question.host, question.process) == ("api.example.test", process.id)
            sandbox.network.answer(question, True)
            questions.close()
        assert process.wait(20).stdout == "200"


HOOK = """
import http.server, json
class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        question = json.loads(self.rfile.read(int(self.headers["content-length"])))["question"]
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


def test_the_operators_webhook_is_asked(own_world_server: Server, world: World) -> None:
    with subprocess.Popen([*world.inside, sys.executable, "-c", HOOK], stdout=subprocess.PIPE, text=True) as hook:
        try:
            assert hook.stdout is not None
            url = f"http://127.0.0.1:{int(hook.stdout.readline())}/ask"
            own_world_server.start(SKERRY_NETWORK_ASK_URL=url)
            with Sandbox(network=Network(on_unknown="ask"), server=own_world_server.address) as sandbox:
                assert reached(fetch(sandbox, API))
                asked = json.loads(hook.stdout.readline())
                assert (asked["host"], asked["port"], asked["sandbox"]) == ("api.example.test", 80, sandbox.id)
                refused = fetch(sandbox, FILES)
                assert not reached(refused)
                assert "webhook said no" in refused.denied[-1].why
        finally:
            hook.kill()


def test_a_policy_outlives_its_server_and_a_stop(own_world_server: Server) -> None:
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


def test_the_operators_maximum_holds_whatever_a_policy_says(own_world_server: Server) -> None:
    server = own_world_server.start(SKERRY_MAX_NETWORK="api.example.test")
    with Sandbox(network=Network.open(), server=server.address) as sandbox:
        assert reached(fetch(sandbox, API))
        result = fetch(sandbox, FILES)
        assert not reached(result)
        assert "max.network" in result.denied[0].why


def test_the_command_line_tells_what_was_refused_once(world_server: Server, tmp_path: Path) -> None:
    command = f"{CURL} {API}; for i in 1 2 3; do {CURL} {FILES}; done"
    words = ("run", "--allow", "api.example.test", "--", "bash", "-c", command)
    done = skerry(*words, server=world_server.address, cwd=tmp_path)
    assert done.stdout.startswith(b"200")
    hints = [line for line in done.stderr.decode().splitlines() if line.startswith("hint:")]
    host = "files.example.test"
    assert hints == [f"hint: {host}:80 was refused: no rule allows {host}:80; --allow {host}"]


async def test_the_same_awaited(world_server: Server) -> None:
    async def answer(question: Question) -> bool:
        return question.host == "api.example.test"

    async with AsyncSandbox(on_unknown=answer, server=world_server.address) as sandbox:
        assert reached(await sandbox.run(f"{CURL} {API}"))
        assert not reached(await sandbox.run(f"{CURL} {FILES}"))
        await sandbox.network.set(Network(allow=["files.example.test"]))
        assert reached(await sandbox.run(f"{CURL} {FILES}"))
        hosts = [(one.host, one.decision) async for one in sandbox.network.log()]
        assert ("files.example.test", "denied") in hosts
        assert ("files.example.test", "allowed") in hosts
        assert (await sandbox.network.learn()).allow == ("api.example.test:80", "files.example.test:80")
