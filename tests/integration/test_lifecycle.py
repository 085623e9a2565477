"""From create to gone: names, owners, quotas, idleness, the end of a life."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.server import Server, wait_until

from skerry import Client, Lifecycle, Sandbox
from skerry.errors import NotFound, QuotaExceeded, SandboxUnavailable


def gone(server: Server, ref: str) -> bool:
    with server.http() as http:
        return http.get(f"/v1/sandboxes/{ref}").status_code == 404


def test_end_of_with_deletes_an_unnamed_sandbox_and_keeps_a_named_one(server: Server) -> None:
    with Sandbox(server=server.address) as unnamed:
        pass
    with Sandbox(name="stays", server=server.address) as named:
        pass
    assert gone(server, unnamed.id)
    again = Sandbox.get("stays", server=server.address)
    assert again.id == named.id
    again.delete()


def test_use_before_creation_has_a_hint(server: Server) -> None:
    with pytest.raises(Exception, match=r"\.start\(\)"):
        Sandbox(server=server.address).run("true")


def test_list_filters_by_labels_and_state(server: Server) -> None:
    with Sandbox(labels={"team": "a"}, server=server.address) as one, Sandbox(server=server.address):
        found = Sandbox.list(labels={"team": "a"}, server=server.address)
        assert [sandbox.id for sandbox in found] == [one.id]
        assert Sandbox.list(labels={"team": "a"}, state="stopped", server=server.address) == []


def test_stopped_sandbox_keeps_its_files_and_the_next_call_starts_it(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox:
        sandbox.files.write("/workspace/note", "kept")
        sandbox.stop()
        assert sandbox.info().state == "stopped"
        assert sandbox.run("cat /workspace/note").stdout == "kept"
        assert sandbox.info().state == "running"


def test_call_without_auto_resume_reports_a_stopped_sandbox(server: Server) -> None:
    with Sandbox(lifecycle=Lifecycle(auto_resume=False), server=server.address) as sandbox:
        sandbox.stop()
        with pytest.raises(SandboxUnavailable, match="stopped"):
            sandbox.run("true")
        sandbox.resume()
        assert sandbox.run("true").ok


def test_paused_sandbox_is_frozen_and_a_call_resumes_it(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox:
        sandbox.run("(while true; do echo x >> /tmp/ticks; sleep 0.01; done) >/dev/null 2>&1 &")
        sandbox.pause()
        assert sandbox.info().state == "paused"
        assert sandbox.run("wc -l < /tmp/ticks").ok
        assert sandbox.info().state == "running"


def test_idle_unnamed_sandbox_is_deleted_and_a_named_one_is_stopped(server: Server) -> None:
    brief = Lifecycle(idle_timeout="1s")
    unnamed = Sandbox.create(lifecycle=brief, server=server.address)
    named = Sandbox.create(name="idler", lifecycle=brief, server=server.address)
    wait_until(lambda: gone(server, unnamed.id), "the unnamed one to be deleted")
    wait_until(lambda: named.info().state == "stopped", "the named one to be stopped")
    assert named.info().reason == "idle"
    named.delete()


def test_unattended_work_keeps_a_sandbox_from_being_idle(server: Server) -> None:
    with Sandbox(name="builder", lifecycle=Lifecycle(idle_timeout="1s"), server=server.address) as sandbox:
        sandbox.run("(sleep 3; touch /workspace/built) >/dev/null 2>&1 &")
        wait_until(lambda: sandbox.info().state == "stopped", "it to be idle in the end")
        assert sandbox.files.exists("/workspace/built")
        sandbox.delete()


def test_maximum_lifetime_deletes_an_unnamed_sandbox_and_stops_a_named_one(server: Server) -> None:
    unnamed = Sandbox.create(lifecycle=Lifecycle(max_lifetime="1s"), server=server.address)
    named = Sandbox.create(name="mortal", lifecycle=Lifecycle(max_lifetime="1s"), server=server.address)
    wait_until(lambda: gone(server, unnamed.id), "the unnamed one to be deleted")
    wait_until(lambda: named.info().state == "stopped", "the named one to be stopped")
    named.delete()


def test_keeper_ends_a_sandbox_without_a_server(own_server: Server) -> None:
    own_server.start()
    Sandbox.create(lifecycle=Lifecycle(max_lifetime="2s"), server=own_server.address)
    own_server.end(signal.SIGKILL)  # well before that: else the server itself would end it
    instance = Path(own_server.address).parent.name
    root = Path("/sys/fs/cgroup")  # v2 at the top, or each hierarchy in a separate directory
    cgroups = [p for depth in ("", "*/") for p in root.glob(f"{depth}skerry/{instance}/sb-*/cgroup.procs")]
    assert cgroups
    wait_until(lambda: not any(p.read_text().strip() for p in cgroups), "its processes to be gone")
    own_server.start()
    wait_until(lambda: Sandbox.list(server=own_server.address) == [], "the sandbox to be deleted")
    wait_until(lambda: own_server.leftovers() == [], "nothing to be left")
    own_server.end()


def test_cap_on_live_sandboxes_raises_quota_exceeded(own_server: Server) -> None:
    own_server.start(SKERRY_MAX_SANDBOXES="1")
    with Sandbox(server=own_server.address), pytest.raises(QuotaExceeded, match=r"max\.sandboxes"):
        Sandbox.create(server=own_server.address)
    with Sandbox(server=own_server.address):
        pass
    own_server.end()


def test_second_server_on_the_same_state_directory_is_rejected(server: Server) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "skerry", "serve"], env={**os.environ, "SKERRY_STATE_DIR": str(server.state_dir)},
        capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert second.returncode != 0
    assert "another server" in second.stderr
    assert f"`SKERRY_STATE_DIR={server.state_dir} skerry server stop` stops it" in second.stderr
    with server.http() as http:
        assert http.get("/healthz").status_code == 200


def test_two_state_directories_share_no_uid_range_and_no_cgroup(server: Server, own_server: Server) -> None:
    other = own_server.start()
    with Sandbox(server=server.address) as one, Sandbox(server=other.address) as two:
        maps = {sandbox.run("awk '{print $2}' /proc/self/uid_map").stdout for sandbox in (one, two)}
        assert len(maps) == 2
    other.end()


def test_deleted_sandbox_is_not_found(server: Server) -> None:
    sandbox = Sandbox.create(server=server.address)
    sandbox.delete()
    with pytest.raises(NotFound):
        Sandbox.get(sandbox.id, server=server.address)


def test_fifty_concurrent_creates_have_distinct_outputs(server: Server) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def one(number: int) -> str:
        with Sandbox(server=server.address) as sandbox:
            return sandbox.run(["hostname"]).stdout

    with ThreadPoolExecutor(50) as pool:
        assert len(set(pool.map(one, range(50)))) == 50


def test_unattended_process_keeps_its_sandbox_active_after_a_restart(
    own_server: Server,
) -> None:
    brief = Lifecycle(idle_timeout="1s", on_idle="stop")
    own_server.start()
    busy = Sandbox.create(lifecycle=brief, server=own_server.address)
    process = busy.spawn("read line")
    for how in (None, signal.SIGKILL):
        if how is not None:
            own_server.end(how)
            own_server.start()
        idle = Sandbox.create(lifecycle=brief, server=own_server.address)  # its turn comes after the busy one's would
        wait_until(lambda: idle.info().state == "stopped", "the idle one to be stopped")  # noqa: B023
        assert busy.info().state == "running"
    process.stdin.close()
    with Client(own_server.address) as client:

        def told() -> list[float]:
            ends = ("process.ended", "sandbox.stopped")
            return [event.at for event in client.events(sandbox=busy.id) if event.type in ends]

        wait_until(lambda: len(told()) == 2, "the end of the process to leave it idle")
        ended, stopped = told()
    assert stopped - ended >= 1, "idleness counts from the end"
    assert busy.info().reason == "idle"
