"""`skerry worker claude` of docs/guides/worker.md in the tests' internet: the real SDK, the API's real host name over
TLS, scripted agents."""

from __future__ import annotations

import base64
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cli import environment, skerry
from support.pages import ROOT, blocks
from support.server import Server, wait_until
from world.managed_agents import ENVIRONMENT, KEY, token_of
from world.world import World

from skerry import Client, Process, Sandbox
from skerry.client.agents.claude_worker import session_token
from skerry.client.agents.worker import LABEL_SESSION, sandbox_name
from skerry.types import NAME

Json = dict[str, Any]
# Its first answer needs a sandbox, which takes a moment on a busy machine.
WAIT_S = 60


class Worker:
    """A `skerry worker claude` on the host side of the world. Its events are read from its output."""

    def __init__(self, server: Server, world: World, place: Path, *words: str, **env: str) -> None:
        given = {
            "ANTHROPIC_ENVIRONMENT_ID": ENVIRONMENT, "ANTHROPIC_ENVIRONMENT_KEY": KEY, "HOME": str(place),
            "XDG_CONFIG_HOME": str(place / ".config"), "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt",
            "ANTHROPIC_API_KEY": "sk-ant-of-the-user", "SKERRY_SERVER": server.address, **env,
        }  # fmt: skip
        self.out, self.err = place / "worker.out", place / "worker.err"
        program = (sys.executable, "-m", "skerry", "worker", "claude", "--json", "--max-idle", "1s", *words)
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [*world.inside, *program],
                env=environment(**given), stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=place,
            )  # fmt: skip

    def events(self) -> list[Json]:
        lines = self.out.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def kinds(self, session: str) -> list[str]:
        return [event["kind"] for event in self.events() if event["session"] == session]

    def waits_for(self, session: str | None, kind: str) -> Json:
        found: list[Json] = []

        def seen() -> bool:
            assert self.process.poll() is None or self.err.read_text() == "", self.err.read_text()
            found[:] = [one for one in self.events() if (one["session"], one["kind"]) == (session, kind)]
            return bool(found)

        wait_until(seen, f"{kind} of {session}: {self.events()}", WAIT_S)
        return found[0]

    def ends(self, timeout: float = WAIT_S) -> int:
        return self.process.wait(timeout)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Api:
    """The tests' side of the scripted API."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __call__(self, name: str, *arguments: Any) -> Any:
        return self._world.far("agents", name, *arguments)

    def add(self, session: str, *steps: Json, **more: Any) -> str:
        return str(self("add", session, list(steps), more))

    def results(self, session: str) -> list[tuple[bool, str]]:
        events = self("report")["events"][session]
        return [
            (event["is_error"], "".join(part["text"] for part in event["content"]))
            for event in events
            if event["type"] == "user.tool_result"
        ]

    def work(self, work: str) -> Json:
        return dict(self("report")["works"][work])

    def waits_for_results(self, session: str, count: int) -> None:
        wait_until(lambda: len(self.results(session)) >= count, f"{count} results of {session}", WAIT_S)


def bash(command: str) -> Json:
    return {"name": "bash", "input": {"command": command}}


@pytest.fixture
def api(world: World) -> Api:
    world.reset()
    return Api(world)


Start = Callable[..., Worker]


@pytest.fixture
def start(worker_server: Server, world: World, tmp_path: Path) -> Iterator[Start]:
    started: list[Worker] = []

    def start(*words: str, **env: str) -> Worker:
        place = tmp_path / f"worker{len(started)}"
        place.mkdir()
        started.append(Worker(worker_server, world, place, *words, **env))
        return started[-1]

    yield start
    for worker in started:
        worker.kill()
    worker_server.remove_all()


@pytest.fixture
def client(worker_server: Server) -> Iterator[Client]:
    with Client(worker_server.address) as client:
        yield client


def found_inside(sandbox: Sandbox, text: str) -> bool:
    """Search the variables and arguments of all processes, and all files outside of the image."""
    search = (
        "{ cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; "
        "find /root /home /workspace /tmp /run /etc /mnt /var/tmp -type f -exec cat {} +; } 2>/dev/null"
    )
    return sandbox.run(["bash", "-c", f"exec 3<&0; {search} | grep -q -a -F -f /dev/fd/3"], user="root", stdin=text).ok


def test_session_runs_tools_with_skills_and_memory_in_its_sandbox(
    start: Start, api: Api, client: Client, world: World
) -> None:
    work = api.add(
        "sesn_One",
        {"name": "write", "input": {"file_path": "note.txt", "content": "one\n"}},
        {"name": "edit", "input": {"file_path": "note.txt", "old_string": "one", "new_string": "two"}},
        bash("cat note.txt; pwd; whoami; cat skills/greet/SKILL.md; cat /mnt/memory/team/likes.md"),
        bash("echo green > /mnt/memory/team/likes.md; echo new > /mnt/memory/team/more.md"),
        bash("exit 7"),
        skills={"skill_1": {"name": "greet", "files": {"SKILL.md": "say hello\n"}}},
        memory={"team": {"/likes.md": "blue\n"}},
    )
    worker = start("--once")
    assert worker.ends() == 0, worker.err.read_text()
    assert worker.kinds("sesn_One") == ["started", "ended"]

    results = api.results("sesn_One")
    assert [error for error, _ in results] == [False, False, False, False, True], results
    assert results[2][1] == "two\n/workspace\nuser\nsay hello\nblue"
    report = api("report")
    assert (report["works"][work]["state"], report["works"][work]["heartbeats"] > 0) == ("stopped", True)
    assert report["memory"] == {"team": {"/likes.md": "green\n", "/more.md": "new\n"}}

    (sandbox,) = Sandbox.list(server=client)
    assert sandbox.name is not None
    assert sandbox.name.startswith("claude-sesn-one-")
    assert sandbox.files.read_text("/workspace/note.txt") == "two\n"
    assert not sandbox.files.exists("/mnt/memory/team")
    assert world.strays() == []


def test_environment_key_and_token_stay_outside_of_the_sandbox(
    start: Start, api: Api, client: Client, worker_server: Server
) -> None:
    api.add("sesn_Secret", bash("env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'"), held=True)
    worker = start()
    api.waits_for_results("sesn_Secret", 1)
    (sandbox,) = Sandbox.list(server=client)
    sandbox.files.write("/tmp/control", "the-control-value")
    assert found_inside(sandbox, "the-control-value")
    for secret in (KEY, token_of("sesn_Secret"), "sk-ant-of-the-user"):
        assert not found_inside(sandbox, secret)
        assert secret not in api.results("sesn_Secret")[0][1]
        assert secret not in json.dumps(worker.events()) + worker.err.read_text()
        shown = skerry("show", str(sandbox.name), "--json", server=worker_server.address).stdout.decode()
        assert secret not in shown
    # the environment's key only claimed and stopped; everything else was done with the session's token
    requests = api("report")["requests"]
    with_key = {request["path"].rpartition("/")[2] for request in requests if request["by"] == "environment"}
    assert with_key == {"poll", "ack"}
    assert {request["by"] for request in requests} == {"environment", "sesn_Secret"}
    assert {request["key"] for request in requests} == {None}


def run_of(sandbox: Sandbox) -> Process:
    (found,) = [one for one in sandbox.processes.list() if one.id.startswith("worker-") and one.state == "running"]
    return found


def calls_by(api: Api, session: str, method: str, path: str) -> list[Json]:
    requests = api("report")["requests"]
    return [one for one in requests if (one["by"], one["method"]) == (session, method) and one["path"].endswith(path)]


def test_sessions_run_at_once_in_sandboxes_of_their_own(start: Start, api: Api, client: Client) -> None:
    works = [api.add(name, bash(f"echo {name} > who; ls"), held=True) for name in ("sesn_A", "sesn_a")]
    waiting = api.add("sesn_C", bash("ls"))
    worker = start("--max-sessions", "2")
    for name in ("sesn_A", "sesn_a"):
        api.waits_for_results(name, 1)
        assert api.results(name) == [(False, "who")]
    assert api.work(waiting)["state"] == "queued"
    assert len({sandbox.name for sandbox in Sandbox.list(server=client)}) == 2
    api("release", "sesn_a")
    worker.waits_for("sesn_a", "ended")
    worker.waits_for("sesn_C", "ended")
    assert [api.work(work)["state"] for work in works] == ["active", "stopped"]


def test_later_item_of_a_session_continues_in_its_sandbox(start: Start, api: Api, client: Client) -> None:
    api.add("sesn_Two", bash("echo kept > file"))
    assert start("--once").ends() == 0
    (sandbox,) = Sandbox.list(server=client)
    sandbox.stop()
    api.add("sesn_Two", bash("cat file"))
    assert start("--once").ends() == 0
    assert api.results("sesn_Two") == [(False, "(no output)"), (False, "kept")]
    assert [one.id for one in Sandbox.list(server=client)] == [sandbox.id]


def test_later_item_keeps_the_secrets_of_presets(start: Start, api: Api, client: Client) -> None:
    words, pip = ("--once", "--preset", "pip"), {"PIP_INDEX_URL": "https://me:a-password@index.example.test/simple"}
    for _ in range(2):
        api.add("sesn_Pip", bash("pip config get global.index-url; echo $PIP_INDEX_URL"))
        worker = start(*words, **pip)
        assert worker.ends() == 0, worker.err.read_text()
        (sandbox,) = Sandbox.list(server=client)
        assert len(sandbox.cached_info.secrets) == 2
    assert "a-password" not in str(api.results("sesn_Pip"))


def test_killed_worker_loses_no_session_and_the_next_one_waits_for_it(start: Start, api: Api, client: Client) -> None:
    work = api.add("sesn_Long", bash("echo once >> log; cat log"), held=True)
    first = start()
    api.waits_for_results("sesn_Long", 1)
    first.kill()
    run = run_of(Sandbox.list(server=client)[0])
    second = start()
    assert second.waits_for("sesn_Long", "adopted")["work"] == work
    api("release", "sesn_Long")
    second.waits_for("sesn_Long", "ended")
    assert second.kinds("sesn_Long") == ["adopted", "ended"]
    assert api.results("sesn_Long") == [(False, "once")]
    assert api.work(work)["state"] == "stopped"
    assert run.id not in {one.id for one in Sandbox.list(server=client)[0].processes.list()}


def test_restart_of_the_server_interrupts_no_session(start: Start, api: Api, worker_server: Server) -> None:
    work = api.add("sesn_Server", bash("true"), held=True)
    worker = start()
    api.waits_for_results("sesn_Server", 1)
    worker_server.end(signal.SIGKILL)
    worker_server.start()
    api("release", "sesn_Server")
    worker.waits_for("sesn_Server", "ended")
    assert worker.kinds("sesn_Server") == ["started", "ended"]
    assert api.work(work)["state"] == "stopped"


def test_item_is_released_if_the_server_is_gone(start: Start, api: Api, worker_server: Server) -> None:
    worker = start()
    wait_until(lambda: calls_by(api, "environment", "GET", "/poll") != [], "a poll", WAIT_S)
    worker_server.end()
    try:
        work = api.add("sesn_Gone", bash("true"))
        assert worker.ends() == 125
        assert worker.kinds("sesn_Gone") == ["released"]
        assert json.loads(worker.err.read_text())["error"]["code"] == "server_unreachable"
        assert api.work(work)["state"] == "starting"  # its lease expires
    finally:
        worker_server.start()


def test_run_that_died_without_a_worker_is_stopped_by_the_next_one(start: Start, api: Api, client: Client) -> None:
    work = api.add("sesn_Dead", bash("true"), held=True)
    first = start()
    api.waits_for_results("sesn_Dead", 1)
    first.kill()
    run_of(Sandbox.list(server=client)[0]).kill()
    second = start()
    second.waits_for("sesn_Dead", "failed")
    assert api.work(work)["state"] == "stopped"
    assert calls_by(api, "environment", "POST", f"{work}/stop")


def test_item_of_a_killed_run_is_stopped_and_its_memory_set_aside(start: Start, api: Api, client: Client) -> None:
    work = api.add("sesn_Kill", bash("echo mine > /mnt/memory/team/own.md"), held=True, memory={"team": {}})
    worker = start()
    api.waits_for_results("sesn_Kill", 1)
    (sandbox,) = Sandbox.list(server=client)
    run_of(sandbox).kill()
    assert "the run ended by" in worker.waits_for("sesn_Kill", "failed")["reason"]
    stopped = api.work(work)
    assert (stopped["state"], stopped["forced"]) == ("stopped", True)
    assert "the run ended by" in stopped["metadata"]["skerry_reason"]

    again = api.add("sesn_Kill", bash("cat unsaved-memory-*/team/own.md"))
    worker.waits_for("sesn_Kill", "ended")
    assert api.results("sesn_Kill")[-1] == (False, "mine")
    assert api.work(again)["state"] == "stopped"


@pytest.mark.parametrize("paused", [False, True])
def test_item_that_is_handed_out_again_ends_its_earlier_run(
    paused: bool, start: Start, api: Api, client: Client
) -> None:
    work = api.add("sesn_Lease", bash("echo once >> log; cat log"), held=True)
    worker = start()
    api.waits_for_results("sesn_Lease", 1)
    (sandbox,) = Sandbox.list(server=client)
    earlier = run_of(sandbox).id
    if paused:
        sandbox.pause()
    api("expire", work)
    wait_until(lambda: worker.kinds("sesn_Lease").count("started") == 2, "a second run", WAIT_S)
    assert run_of(sandbox).id != earlier
    api("release", "sesn_Lease")
    worker.waits_for("sesn_Lease", "ended")
    assert worker.kinds("sesn_Lease") == ["started", "started", "ended"]
    assert api.results("sesn_Lease") == [(False, "once")]
    assert not calls_by(api, "environment", "POST", f"{work}/stop")


def test_item_that_another_worker_has_is_left_to_it(start: Start, api: Api) -> None:
    work = api.add("sesn_Lost", bash("true"), held=True, ttl_s=4)
    worker = start()
    api.waits_for_results("sesn_Lost", 1)
    api("take", work)
    worker.waits_for("sesn_Lost", "ended")
    assert api.work(work)["state"] == "starting"
    assert [one for one in api("report")["requests"] if one["path"].endswith("/stop")] == []


def test_run_that_cannot_mount_memory_fails_with_the_cause(start: Start, api: Api) -> None:
    work = api.add("sesn_Mount", bash("true"), memory={"../../etc/team": {}})
    worker = start("--once")
    assert worker.ends() == 1
    (_, failed) = worker.events()
    assert failed["kind"] == "failed"
    assert failed["reason"].startswith("SessionMemoryError: memory store mount_path is not a clean absolute path")
    assert api.work(work)["state"] == "stopped"
    assert api.results("sesn_Mount") == []


def test_failing_sandbox_stops_its_item_with_the_reason(start: Start, api: Api, client: Client) -> None:
    name = sandbox_name("claude", "sesn_Taken")
    Sandbox.create(name=name, server=client)  # another one, without the labels
    work = api.add("sesn_Taken", bash("true"))
    worker = start("--once")
    assert worker.ends() == 1
    (event,) = worker.events()
    assert (event["kind"], name in event["reason"]) == ("failed", True)
    stopped = api.work(work)
    assert (stopped["state"], name in stopped["metadata"]["skerry_reason"]) == ("stopped", True)
    assert api.results("sesn_Taken") == []


@pytest.mark.parametrize(
    ("session", "more"), [("sesn_Old", {"secret": False}), ("sesn/../x", {}), ("sesn_Check", {"kind": "healthcheck"})]
)
def test_item_that_cannot_be_isolated_is_stopped(
    session: str, more: Json, start: Start, api: Api, client: Client
) -> None:
    work = api.add(session, bash("true"), **more)
    assert start("--once").ends() == 0
    assert api.work(work)["state"] == "stopped"
    assert Sandbox.list(server=client) == []


CALLS = """
import json, urllib.error, urllib.request
def call(path, method="GET", **headers):
    request = urllib.request.Request("https://api.anthropic.com" + path, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
print(json.dumps([
    call("/v1/environments/env_World/work/poll", authorization="Bearer of-an-attacker"),
    call("/v1/sessions/sesn_Other", authorization="Bearer of-an-attacker"),
    call("/v1/files", "POST", **{"x-api-key": "sk-ant-of-an-attacker"}),
    call("/v1/messages", "POST", authorization="Bearer of-an-attacker"),
    call("/v1/sessions/sesn_Net/../sesn_Other"),
    call("/v1/sessions/sesn_Net", **{"x-api-key": "sk-ant-of-an-attacker", "authorization": "Bearer of-an-attacker"}),
]))
"""


def test_session_reaches_only_its_own_paths_of_the_api(start: Start, api: Api, client: Client, world: World) -> None:
    api.add("sesn_Other", bash("true"), held=True)
    api.add(
        "sesn_Net",
        {"name": "write", "input": {"file_path": "calls.py", "content": CALLS}},
        bash("python3 calls.py"),
        bash("curl -sS -m 20 https://evil.test/ || echo closed"),
        bash("curl -sS -m 20 -o /dev/null -w '%{http_code}' http://api.example.test/"),
    )
    worker = start("--allow", "api.example.test")
    worker.waits_for("sesn_Net", "ended")
    results = api.results("sesn_Net")
    assert results[1] == (False, "[403, 403, 403, 403, 403, 200]")
    assert "closed" in results[2][1]
    assert results[3] == (False, "200")
    requests = api("report")["requests"]
    assert {request["key"] for request in requests} == {None}  # the attacker's key never arrives
    assert {request["by"] for request in requests} == {"environment", "sesn_Net", "sesn_Other"}
    assert not [one for one in requests if one["by"] == "sesn_Net" and "sesn_Other" in one["path"]]
    assert world.strays() == []


def test_sigterm_drains_and_claims_nothing_more(start: Start, api: Api) -> None:
    work = api.add("sesn_Drain", bash("true"), held=True)
    worker = start()
    api.waits_for_results("sesn_Drain", 1)
    worker.process.send_signal(signal.SIGTERM)
    worker.waits_for(None, "draining")
    later = api.add("sesn_Later", bash("true"))
    api("release", "sesn_Drain")
    assert worker.ends() == 0
    assert worker.kinds("sesn_Drain") == ["started", "ended"]
    assert (api.work(work)["state"], api.work(later)["state"]) == ("stopped", "queued")


def test_worker_ends_although_the_api_is_out_of_reach(start: Start, api: Api) -> None:
    worker = start(ANTHROPIC_BASE_URL="https://gone.example.test")
    assert "poll failed" in worker.waits_for(None, "warning")["reason"]
    worker.process.send_signal(signal.SIGTERM)
    assert worker.ends() == 0


def test_second_signal_saves_memory_and_stops_running_items(start: Start, api: Api) -> None:
    work = api.add("sesn_End", bash("echo new > /mnt/memory/team/own.md"), held=True, memory={"team": {}})
    worker = start()
    api.waits_for_results("sesn_End", 1)
    worker.process.send_signal(signal.SIGTERM)
    worker.waits_for(None, "draining")
    worker.process.send_signal(signal.SIGTERM)
    assert worker.ends() == 0
    assert worker.kinds("sesn_End") == ["started", "failed"]
    assert api.work(work)["state"] == "stopped"
    assert api("report")["memory"] == {"team": {"/own.md": "new\n"}}


def test_third_signal_ends_without_waiting(start: Start, api: Api, client: Client) -> None:
    api.add("sesn_Slow", bash("trap '' TERM; touch begun; sleep 600"))  # the SDK waits for a tool
    worker = start()
    worker.waits_for("sesn_Slow", "started")
    (sandbox,) = Sandbox.list(server=client)
    wait_until(lambda: sandbox.files.exists("/workspace/begun"), "the tool", WAIT_S)
    for kind in ("draining", "interrupting"):
        worker.process.send_signal(signal.SIGINT)
        worker.waits_for(None, kind)
    worker.process.send_signal(signal.SIGINT)
    assert worker.ends() == 130
    assert worker.err.read_text() == ""
    assert run_of(sandbox).state == "running"


def test_sandbox_of_an_ended_session_is_deleted(start: Start, api: Api, client: Client) -> None:
    for session in ("sesn_Ended", "sesn_Stays"):
        api.add(session, bash("true"))
    assert start("--once").ends() == 0
    assert len(Sandbox.list(server=client)) == 2
    api("terminate", "sesn_Ended")
    worker = start("--once")
    assert worker.ends() == 0
    assert [(one["kind"], one["session"]) for one in worker.events()] == [("deleted", "sesn_Ended")]
    assert [one.labels[LABEL_SESSION] for one in Sandbox.list(server=client)] == ["sesn_Stays"]
    wait_until(lambda: start("--once", "--keep", "1s").ends() == 0 and not Sandbox.list(server=client), "old", WAIT_S)


def test_wrong_key_is_a_clear_error_without_the_key(start: Start, api: Api) -> None:
    worker = start(ANTHROPIC_ENVIRONMENT_KEY="sk-wrong-key")
    assert worker.ends() == 2
    error = json.loads(worker.err.read_text())["error"]
    assert error["code"] == "permission_denied"
    assert "rejected the environment's key" in error["message"]
    assert "ANTHROPIC_ENVIRONMENT_KEY" in error["hint"]
    assert "sk-wrong-key" not in worker.err.read_text()


def test_key_comes_from_the_store(start: Start, api: Api, tmp_path: Path) -> None:
    settings = {"XDG_CONFIG_HOME": str(tmp_path / "settings")}
    done = skerry("secret", "set", "claude-environment", "--in", "file", stdin=KEY.encode(), **settings)
    assert done.returncode == 0, done.stderr
    api.add("sesn_Store", bash("true"))
    worker = start("--once", ANTHROPIC_ENVIRONMENT_KEY="", **settings)
    assert worker.ends() == 0, worker.err.read_text()
    assert worker.kinds("sesn_Store") == ["started", "ended"]


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"ANTHROPIC_ENVIRONMENT_KEY": ""}, "the environment's key is missing"),
        ({"ANTHROPIC_BASE_URL": "http://api.anthropic.com"}, "ANTHROPIC_BASE_URL"),
        ({"ANTHROPIC_ENVIRONMENT_ID": "../env"}, "is not an ID"),
    ],
)
def test_wrong_settings_are_clear_errors(env: dict[str, str], said: str, start: Start, api: Api) -> None:
    worker = start(**env)
    assert worker.ends() == 2
    assert said in json.loads(worker.err.read_text())["error"]["message"]


COMMANDS = [
    line.partition("  #")[0]
    for block in blocks(ROOT / "docs/guides/worker.md")
    if block.why == "tests/agents/test_worker.py"
    for line in block.text.splitlines()
    if line.startswith("skerry worker ")
]


def test_commands_of_the_guide_need_only_a_key(tmp_path: Path) -> None:
    assert len(COMMANDS) == 2
    for command in COMMANDS:
        settings = {"XDG_CONFIG_HOME": str(tmp_path), "ANTHROPIC_ENVIRONMENT_KEY": ""}
        done = skerry(*shlex.split(command)[1:], cwd=tmp_path, **settings)
        assert (done.returncode, b"the environment's key is missing" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("text", [None, "", "!!!", "e30", "W10", "eyJzZXNzaW9uc190b2tlbiI6IDF9", "A" * (1 << 17)])
def test_secret_without_a_token_has_none(text: str | None) -> None:
    assert session_token(text) is None


def test_token_with_a_line_break_is_rejected() -> None:
    text = base64.urlsafe_b64encode(json.dumps({"sessions_token": "a\r\nx: y"}).encode()).decode()
    assert session_token(text) is None


def test_sandbox_names_of_sessions_differ() -> None:
    names = {sandbox_name("claude", session) for session in ("sesn_A", "sesn_a", "sesn-a", "s" * 128)}
    assert len(names) == 4
    assert all(NAME.fullmatch(name) for name in names)
