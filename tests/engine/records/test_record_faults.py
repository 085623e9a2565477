"""Records of events that happen while no server runs, or whose server is killed before it has recorded them."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

from support.server import Server, wait_until

from skerry import Lifecycle, Limits, Sandbox

EAT = "python3 -c 'x = bytearray(1 << 29)'"


def records(server: Server, sandbox: str, kind: str) -> list[dict[str, Any]]:
    with server.http() as http:
        answer = http.get("/v1/audit", params={"sandbox": sandbox, "type": kind}).raise_for_status()
    found: list[dict[str, Any]] = answer.json()["records"]
    return found[::-1]


def inside(server: Server, sandbox: str, *command: str) -> bool:
    """Run a command in the sandbox's file system, without a server."""
    ((pid,),) = server.sql("SELECT pid FROM sandboxes WHERE id = ?", sandbox)
    return subprocess.run(["nsenter", "-t", str(pid), "-U", "-m", *command], check=False).returncode == 0


def test_limit_that_is_reached_while_no_server_runs_is_recorded_once(own_server: Server) -> None:
    """The counters that an earlier server reported are kept: its successor reports higher ones, once."""
    own_server.start()
    sandbox = Sandbox.create(server=own_server.address, limits=Limits(memory="128M"))
    assert not sandbox.run(EAT).ok
    stored = "SELECT memory FROM limit_counters WHERE sandbox = ?"
    wait_until(lambda: own_server.sql(stored, sandbox.id), "the first event")
    process = sandbox.spawn(f"until test -e /tmp/go; do sleep 0.05; done; {EAT}; touch /tmp/eaten")
    own_server.end(signal.SIGKILL)
    assert inside(own_server, sandbox.id, "touch", "/tmp/go")
    wait_until(lambda: inside(own_server, sandbox.id, "test", "-e", "/tmp/eaten"), "the limit to be reached")
    own_server.start()
    wait_until(lambda: len(records(own_server, sandbox.id, "limit.memory")) == 2, "the event of the successor")
    found = records(own_server, sandbox.id, "limit.memory")[1]["params"]
    assert found.get("process") in (process.id, None), "None: the meter was faster than the keeper's event"
    own_server.end()
    own_server.start()
    assert Sandbox.get(sandbox.id, server=own_server.address).run("true").ok
    assert len(records(own_server, sandbox.id, "limit.memory")) == 2
    sandbox.stop()
    sandbox.resume()  # new counters, which are lower
    assert not sandbox.run(EAT).ok
    wait_until(lambda: len(records(own_server, sandbox.id, "limit.memory")) == 3, "the event after a new start")
    sandbox.delete()


def test_state_that_the_server_changes_is_recorded_although_it_is_killed(own_server: Server) -> None:
    """An idle stop has no action of a caller: its event is committed, and the server dies before the audit log has it.
    The next server records it, once, in the audit log and in the trace."""
    fault = own_server.state_dir.parent / f"{own_server.state_dir.name}.fault"
    fault.write_text("")
    try:
        own_server.start(SKERRY_FAULT=str(fault))
        lifecycle = Lifecycle(idle_timeout="never", on_idle="stop")
        sandbox = Sandbox.create(name="idle", server=own_server.address, lifecycle=lifecycle)
        before = records(own_server, sandbox.id, "sandbox")
        assert {one["type"] for one in before} == {"sandbox.create", "sandbox.created", "sandbox.running"}
        fault.write_text("events.committed")
        sandbox.update(lifecycle=Lifecycle(idle_timeout=1))
        assert own_server.process is not None
        assert own_server.process.wait(60) == -signal.SIGKILL
        fault.write_text("")
        for _ in range(2):
            own_server.start(SKERRY_FAULT=str(fault))
            found = records(own_server, sandbox.id, "sandbox.stopped")
            assert [one["params"]["name"] for one in found] == ["idle"]
            assert found[0]["params"]["reason"] == "idle"
            assert found[0]["params"]["happened_at"] <= found[0]["at"]
            with own_server.http() as http:
                lines = http.get(f"/v1/sandboxes/{sandbox.id}/trace").text
                assert http.get("/v1/audit/verify").json()["ok"]
            assert lines.count('"kind":"sandbox.stopped"') == 1
            own_server.end()
        own_server.start()
        sandbox.delete()
    finally:
        fault.unlink()
