"""A real server stops and starts again; its sandboxes survive."""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from subprocess import TimeoutExpired
from typing import Any

import httpx2
import pytest
from support.server import Server, wait_until

from skerry.config import run_dir, socket_path

RUN = {"wait": "true"}


def run(http: httpx2.Client, box: str, cmd: Any) -> dict[str, Any]:
    answer = http.post(f"/v1/sandboxes/{box}/processes", params=RUN, json={"cmd": cmd})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_sandboxes_survive_a_server_restart(own_server: Server) -> None:
    own_server.start()
    with own_server.http() as http:
        box = http.post("/v1/sandboxes", json={}).json()["id"]
        pid = run(http, box, "sleep 1000 >/dev/null 2>&1 & echo $!")["stdout"].strip()
        assert http.post("/v1/server/stop").status_code == 202
    assert own_server.process is not None
    assert own_server.process.wait(30) == 0
    assert not socket_path(own_server.state_dir).exists()
    own_server.start()
    with own_server.http() as http:
        assert run(http, box, ["kill", "-0", pid])["exit_code"] == 0


def test_log_file_is_bounded_and_followed_after_its_rename(own_server: Server) -> None:
    """`server logs -f` reads on in the new file."""
    path = own_server.state_dir / "server.log"
    own_server.start("--log-file", str(path), SKERRY_SERVER_LOG_SIZE="4K")
    following = subprocess.Popen(
        [sys.executable, "-m", "skerry", "server", "logs", "-f", "-n", "1"], stdout=subprocess.PIPE,
        env={**os.environ, "SKERRY_STATE_DIR": str(own_server.state_dir)},
    )  # fmt: skip
    assert following.stdout is not None
    with ThreadPoolExecutor(1) as threads:
        try:
            with own_server.http() as http:
                http.get("/v1/sandboxes")
                following.stdout.readline()
                for number in range(100):
                    http.get(f"/v1/sandboxes/n{number}")
                last = http.get("/v1/sandboxes/last").headers["x-request-id"].encode()
            assert threads.submit(lambda: any(last in line for line in following.stdout or ())).result(60)
        finally:
            following.kill()
    following.communicate()
    sizes = {file.name: file.stat().st_size for file in own_server.state_dir.glob("server.log*")}
    assert set(sizes) == {"server.log", "server.log.1"}
    assert max(sizes.values()) <= 4096


def test_log_lines_have_the_ids_of_the_request_and_the_sandbox(own_server: Server) -> None:
    path = own_server.state_dir / "server.log"
    own_server.start("--log-file", str(path))
    with own_server.http() as http:
        created = http.post("/v1/sandboxes", json={"name": "logged"})
        box = created.json()["id"]
        shown = http.get("/v1/sandboxes/logged")
        ended = http.post("/v1/sandboxes/logged/stop")
        http.delete("/v1/sandboxes/logged").raise_for_status()
    own_server.end()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    by_request = {line["request_id"]: line for line in lines if line["event"] == "request"}
    for answer in (created, shown, ended):
        assert by_request[answer.headers["x-request-id"]]["sandbox"] == box


def test_second_server_on_the_same_state_is_rejected(server: Server) -> None:
    second = Server(server.state_dir)
    second.log = server.log.with_suffix(".second")
    second.start(wait=False)
    assert second.process is not None
    assert second.process.wait(30) != 0
    assert "another server" in second.tail()
    second.log.unlink()
    with server.http() as http:
        assert http.get("/healthz").status_code == 200


def test_server_waits_for_an_exiting_one(own_server: Server) -> None:
    """The old one's socket is gone and its lock is held: the new one takes over as soon as it has left."""
    own_server.start()
    old, done = own_server.process, threading.Event()
    with own_server.http() as http:
        box = http.post("/v1/sandboxes", json={}).json()["id"]
        thread = threading.Thread(target=lambda: (run(http, box, "sleep 1.2"), done.set()))
        thread.start()
        with own_server.http() as other:
            wait_until(lambda: "sleep" in other.get(f"/v1/sandboxes/{box}/processes").text, "the run")
        assert old is not None
        old.send_signal(signal.SIGTERM)
        wait_until(lambda: not socket_path(own_server.state_dir).exists(), "the old socket to go")
        own_server.start()
        thread.join(30)
    assert done.is_set()
    assert old.wait(30) == 0


def test_second_signal_forces_the_exit(own_server: Server) -> None:
    own_server.start()
    with own_server.http() as http:
        box = http.post("/v1/sandboxes", json={}).json()["id"]
        headers = {"Accept": "application/x-ndjson"}
        with http.stream(
            "POST", f"/v1/sandboxes/{box}/processes", params=RUN, json={"cmd": ["sleep", "1000"]}, headers=headers
        ) as answer:
            assert "started" in json.loads(next(answer.iter_lines()))
            assert own_server.process is not None
            own_server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not socket_path(own_server.state_dir).exists(), "the stop to begin")
            assert own_server.end(signal.SIGTERM) == 0
    own_server.start()
    with own_server.http() as http:
        wait_until(lambda: run(http, box, ["pgrep", "sleep"])["exit_code"] == 1, "the command to be gone")


def test_other_host_users_cannot_open_the_socket(server: Server) -> None:
    path = socket_path(server.state_dir)
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert stat.S_IMODE(run_dir(server.state_dir).lstat().st_mode) == 0o711


def test_idle_server_exits_without_sandboxes(own_server: Server) -> None:
    with own_server.start().http() as http:
        box = http.post("/v1/sandboxes", json={}).json()["id"]
    own_server.end()
    server = own_server.start("--idle-exit", "500ms")
    with pytest.raises(TimeoutExpired):
        server.process.wait(1.5)  # type: ignore[union-attr]
    with server.http() as http:
        assert http.delete(f"/v1/sandboxes/{box}").status_code == 204
    assert server.process is not None
    assert server.process.wait(30) == 0


def test_doctor_and_server_report_their_state(server: Server) -> None:
    with server.http() as http:
        report = http.get("/v1/doctor").json()
        info = http.get("/v1/server").json()
    assert {check["name"] for check in report["checks"]} >= {"root", "keeper", "image base"}
    assert server.process is not None
    assert info["pid"] == server.process.pid
    assert info["address"] == server.address
    assert info["state_dir"] == str(server.state_dir)


def test_server_without_file_descriptors_rejects_calls_and_fails_no_sandbox(own_server: Server) -> None:
    own_server.start()
    assert own_server.process is not None
    pid, clients = own_server.process.pid, [own_server.http() for _ in range(8)]
    box = clients[0].post("/v1/sandboxes", json={}).json()["id"]
    for http in clients:  # connected beforehand
        http.get(f"/v1/sandboxes/{box}").raise_for_status()
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (max(map(int, os.listdir(f"/proc/{pid}/fd"))) + 1, limits[1]))
    try:
        with ThreadPoolExecutor(len(clients)) as pool:
            sleep = {"cmd": ["sleep", "2"]}
            path = f"/v1/sandboxes/{box}/processes"
            answers = [pool.submit(http.post, path, params=RUN, json=sleep) for http in clients]
            statuses = {answer.result().status_code for answer in answers}
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    assert 429 in statuses, "the test means to use up all descriptors"
    assert statuses <= {200, 429}
    assert clients[0].get(f"/v1/sandboxes/{box}").json()["state"] == "running"
    assert run(clients[0], box, "echo there")["stdout"] == "there\n"
    for http in clients:
        http.close()
