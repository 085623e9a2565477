"""`on_start` commands and readiness in real sandboxes: at each start and resume, in forks, after a killed server."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from support.server import Server, wait_until

from skerry import Lifecycle, Options, Sandbox
from skerry.errors import InvalidRequest, SandboxUnavailable

SERVE = "echo start >> /workspace/starts; exec python3 -m http.server 8000"
WEB = Lifecycle(on_start=(SERVE,), ready="http://localhost:8000/starts", ready_timeout="5m")
COUNT = Lifecycle(on_start=("echo start >> /workspace/starts; exec sleep 600",), ready="test -s /workspace/starts")


def starts(sandbox: Sandbox) -> int:
    return sandbox.files.read_text("/workspace/starts").count("start")


def serves(sandbox: Sandbox) -> bool:
    return sandbox.run(["curl", "-fs", "http://localhost:8000/starts"]).ok


def events(server: Server, sandbox: str, word: str) -> int:
    with server.http() as http:
        lines = http.get("/v1/events", params={"sandbox": sandbox, "since": "0"}).text
    return lines.count(f'"{word}"')


def test_commands_start_at_each_start_and_the_sandbox_is_ready(server: Server) -> None:
    with Sandbox(lifecycle=WEB, server=server.address) as sandbox:
        assert serves(sandbox)
        (process,) = [one for one in sandbox.processes.list() if one.id == "on-start-0"]
        assert process.status == "running"
        sandbox.stop()
        sandbox.resume()
        assert serves(sandbox)
        sandbox.stop()
        assert serves(sandbox), "a call that starts it waits too"
        assert starts(sandbox) == 3
        assert events(server, sandbox.id, "sandbox.ready") == 3
        assert sandbox.info().lifecycle.on_start == (SERVE,)


def test_command_that_runs_through_a_pause_is_not_started_twice(server: Server) -> None:
    once = "echo once >> /workspace/once"
    lifecycle = Lifecycle(on_start=(*(COUNT.on_start or ()), once), ready="test -s /workspace/once")
    with Sandbox(lifecycle=lifecycle, server=server.address) as sandbox:
        process = sandbox.processes.get("on-start-0").pid
        sandbox.pause()
        sandbox.resume()
        assert (sandbox.processes.get("on-start-0").pid, starts(sandbox)) == (process, 1)
        wait_until(lambda: sandbox.files.read_text("/workspace/once") == "once\nonce\n", "the command that had ended")


@pytest.mark.parametrize("ready", [8000, "test -s /workspace/starts"], ids=["port", "command"])
def test_fork_and_rollback_start_the_commands(server: Server, ready: str | int) -> None:
    lifecycle = Lifecycle(on_start=(SERVE,), ready=ready, ready_timeout="5m")
    with Sandbox(lifecycle=lifecycle, server=server.address) as sandbox:
        snapshot = sandbox.snapshot()
        (fork,) = sandbox.fork()
        assert starts(fork) == 2
        sandbox.rollback(snapshot)
        assert starts(sandbox) == 2
        fork.delete()
    snapshot.delete()


def test_pooled_sandbox_starts_the_commands(server: Server) -> None:
    with Sandbox(lifecycle=COUNT, server=server.address) as one:
        assert starts(one) == 1
    with Sandbox(lifecycle=COUNT, options=Options(use_pool=False), server=server.address) as other:
        assert starts(other) == 1


def test_sandbox_that_is_not_ready_is_not_created(server: Server) -> None:
    before = {sandbox.id for sandbox in Sandbox.list(server=server.address)}
    with pytest.raises(SandboxUnavailable, match=r"exit code 3.*deep trouble"):
        Sandbox.create(lifecycle=Lifecycle(on_start=("echo deep trouble; exit 3",), ready=9), server=server.address)
    with pytest.raises(SandboxUnavailable, match=r"not ready in time: port 9"):
        Sandbox.create(lifecycle=Lifecycle(on_start=("sleep 600",), ready=9, ready_timeout=1), server=server.address)
    with pytest.raises(SandboxUnavailable, match=r"not ready in time: `false`"):
        Sandbox.create(lifecycle=Lifecycle(ready="false", ready_timeout=1), server=server.address)
    assert {sandbox.id for sandbox in Sandbox.list(server=server.address)} <= before


def test_start_that_fails_keeps_the_files_and_can_be_corrected(server: Server) -> None:
    lifecycle = Lifecycle(on_start=("test -e /workspace/ok || exit 4",), ready="test -e /workspace/ok")
    sandbox = Sandbox.create(server=server.address)
    try:
        sandbox.files.write("/workspace/ok", "")
        sandbox.update(lifecycle=lifecycle)  # the first commands of a running sandbox start at once
        assert sandbox.processes.get("on-start-0").id
        sandbox.files.remove("/workspace/ok")
        sandbox.stop()
        with pytest.raises(SandboxUnavailable, match="exit code 4"):
            sandbox.run("true")
        assert sandbox.info().state == "failed"
        sandbox.update(lifecycle=Lifecycle(on_start=(), ready=""))
        sandbox.resume()
        assert sandbox.run("true").ok
        assert sandbox.info().lifecycle.on_start is None
    finally:
        sandbox.delete()


def test_stop_during_a_start_is_not_delayed(server: Server) -> None:
    sandbox = Sandbox.create(server=server.address)
    try:
        sandbox.stop()
        sandbox.update(lifecycle=Lifecycle(on_start=("sleep 600",), ready=9, ready_timeout="1h"))
        raised: list[BaseException] = []

        def resume() -> None:
            try:
                sandbox.resume()
            except SandboxUnavailable as error:
                raised.append(error)

        thread = threading.Thread(target=resume)
        thread.start()
        second = Sandbox.get(sandbox.id, server=server.address)
        wait_until(
            lambda: second.info().state == "running" and any(one.id == "on-start-0" for one in second.processes.list()),
            "the start; lists and output are available before it is ready",
        )
        second.stop()
        thread.join(60)
        assert not thread.is_alive()
        assert second.info().state == "stopped"
    finally:
        sandbox.delete()


def test_command_does_not_keep_the_sandbox_from_being_idle(server: Server) -> None:
    lifecycle = Lifecycle(on_start=COUNT.on_start, ready=COUNT.ready, idle_timeout=1, on_idle="stop")
    with Sandbox(lifecycle=lifecycle, server=server.address) as sandbox:
        wait_until(lambda: sandbox.info().state == "stopped", "the idle stop", 60)
        assert starts(sandbox) == 2


@pytest.mark.parametrize(
    "wrong",
    [{"ready": 0}, {"ready": 70000}, {"ready": "http://example.com:80/"}, {"ready": "http://localhost:99999/"},
     {"on_start": ("",)}, {"on_start": "npm start"}, {"on_start": ("x",) * 17}, {"ready_timeout": "2h"}],
)  # fmt: skip
def test_invalid_start_is_rejected(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        Lifecycle(**wrong)  # type: ignore[arg-type]


def test_id_of_a_start_command_is_reserved(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidRequest, match="not allowed"):
        sandbox.spawn("true", id="on-start-0")


def test_commands_begin_after_the_repository_is_there(server: Server, tmp_path: Path) -> None:
    git = ("git", "-c", "user.name=t", "-c", "user.email=t@example.com", "-C", str(tmp_path))
    (tmp_path / "app.txt").write_text("1")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "one")):
        subprocess.run([*git, *words], check=True)
    lifecycle = Lifecycle(on_start=("cat app.txt > /tmp/seen || exit 1",), ready="test -s /tmp/seen")
    sandbox = Sandbox.create(repo=str(tmp_path), lifecycle=lifecycle, name="with-repo", server=server.address)
    try:
        assert sandbox.run("cat /tmp/seen").stdout == "1"
        sandbox.files.write("app.txt", "2")
        sandbox.review.changes()
        sandbox.delete()
        sandbox = Sandbox.undelete("with-repo", server=server.address)
        assert sandbox.run("cat /tmp/seen").stdout == "2", "they begin after the files are back"
    finally:
        sandbox.delete(force=True, purge=True)


# -- kills of the server ----------------------------------------------------------------------------------------------


BODY = {"lifecycle": {"on_start": list(COUNT.on_start or ()), "ready": COUNT.ready}, "options": {"use_pool": False}}


def dies(server: Server, point: str, work: Callable[[httpx2.Client], object]) -> None:
    server.start(SKERRY_FAULT=point)
    with server.http() as http, pytest.raises(httpx2.TransportError):
        work(http)
    assert server.process is not None
    assert server.process.wait(60) == -signal.SIGKILL
    server.start()


@pytest.mark.parametrize("point", ["start.record", "startup.command", "startup.ready"])
def test_start_continues_after_a_killed_server(own_server: Server, point: str) -> None:
    """The same request, sent again, returns the sandbox once it is ready; its commands were started once."""
    key = {"Idempotency-Key": point}
    dies(own_server, point, lambda http: http.post("/v1/sandboxes", json=BODY, headers=key, timeout=60))
    with own_server.http() as http:
        made = http.post("/v1/sandboxes", json=BODY, headers=key, timeout=60)
        assert made.status_code in (200, 201), made.text
        assert len(http.get("/v1/sandboxes").json()["sandboxes"]) == 1
    sandbox = Sandbox.get(made.json()["id"], server=own_server.address)
    assert starts(sandbox) == 1
    sandbox.delete()


def test_resume_continues_after_a_killed_server(own_server: Server) -> None:
    own_server.start()
    sandbox = Sandbox.create(name="again", lifecycle=COUNT, server=own_server.address)
    sandbox.stop()
    own_server.end()
    dies(own_server, "startup.command", lambda http: http.post("/v1/sandboxes/again/resume", timeout=60))
    assert starts(sandbox) == 2
    assert events(own_server, sandbox.id, "sandbox.ready") == 2
    sandbox.delete()
