"""Metering of real sandboxes: every figure against the kernel's own counters, across each change of state."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.cli import skerry
from support.server import Server, wait_until

from skerry import Client, Sandbox
from skerry.config import run_dir
from skerry.types import Usage

LOAD = "python3 -c 'x = sum(i * i for i in range(6_000_000))'"  # about half a second of CPU time
TIMED = "python3 -c 'import time; x = sum(i * i for i in range(6_000_000)); print(time.process_time())'"
OPERATORS = """
[prices]
cpu_hour = 3600.0
memory_gb_hour = 0.01
disk_gb_month = 0.1
network_gb = 0.5
currency = "EUR"
"""


def kernel_cpu_s(server: Server, sandbox: str) -> float:
    """Return the CPU time of a sandbox as its cgroup counts it."""
    place = f"skerry/{run_dir(server.state_dir).name}/{sandbox}"
    for file in Path("/sys/fs/cgroup").glob(f"*/{place}/cpuacct.usage"):
        return int(file.read_text()) / 1e9
    mounts = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
    file = next(mount / place / "cpu.stat" for mount in mounts if (mount / place / "cpu.stat").exists())
    return int(file.read_text().split()[1]) / 1e6


def test_cpu_is_within_two_percent_of_the_kernel(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox:
        sandbox.run("true")
        first, counter = sandbox.usage().cpu_s, kernel_cpu_s(server, sandbox.id)
        result = sandbox.run(f"exec {TIMED}")
        kernel = kernel_cpu_s(server, sandbox.id) - counter
        used, later = sandbox.usage().cpu_s - first, kernel_cpu_s(server, sandbox.id) - counter
        assert kernel * 0.98 <= used <= later * 1.02
        own = float(result.stdout)  # as the kernel counts it for the program's own process
        assert own * 0.98 <= result.usage.cpu_s <= used * 1.02, "the rest is the keeper's"
        assert result.usage.cost == result.cost == pytest.approx(result.usage.cpu_s, rel=0.01)
        assert result.usage.currency == "EUR"


def test_show_has_the_cost_in_the_currency_of_the_prices(sandbox: Sandbox, server: Server) -> None:
    sandbox.run(LOAD)
    before = sandbox.usage().cost
    shown = skerry("show", sandbox.id, server=server.address).stdout.decode()
    after = sandbox.usage().cost
    (amount,) = re.findall(r"^cost +([0-9.]+) EUR$", shown, re.MULTILINE)
    assert before is not None
    assert after is not None
    assert 0.1 < before - 1e-4 <= float(amount) <= after + 1e-4
    given = json.loads(skerry("show", sandbox.id, "--json", server=server.address).stdout)["usage"]
    assert given["cost"] >= after
    assert given["currency"] == "EUR"


def test_cpu_of_children_that_a_command_does_not_wait_for(sandbox: Sandbox) -> None:
    """The kernel adds the CPU time of a child to that of its parent only if the parent waits for it."""
    program = (
        "import os, signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "r, w = os.pipe()\n"
        "if os.fork() == 0:\n  os.close(r); sum(i * i for i in range(6_000_000)); os._exit(0)\n"
        "os.close(w); os.read(r, 1)"
    )
    result = sandbox.run(["python3", "-c", program])
    assert result.usage.cpu_s > sandbox.run(LOAD).usage.cpu_s / 2
    assert sandbox.run("true").usage.cpu_s < result.usage.cpu_s / 2


def test_memory_and_disk_are_metered(sandbox: Sandbox, server: Server) -> None:
    hold = "x = bytearray(200 << 20); open('/tmp/f', 'wb').write(bytes(x[:50 << 20])); import os; os.sync(); input()"
    before = sandbox.usage()
    process = sandbox.spawn(["python3", "-c", hold], stdin=True)
    wait_until(lambda: (sandbox.usage().memory or 0) > 150 << 20, "the program to hold its memory")
    held = sandbox.usage()
    wait_until(lambda: sandbox.usage().wall_s > held.wall_s + 1, "a second to pass")
    after = sandbox.usage()
    seconds = after.wall_s - held.wall_s
    assert after.memory_byte_s - held.memory_byte_s > seconds * (150 << 20)
    assert after.active_s - held.active_s > seconds / 2
    assert (after.memory_peak or 0) > 200 << 20
    process.stdin.close()
    used = process.wait().usage
    assert used.memory_byte_s > seconds * (150 << 20)
    wait_until(lambda: (sandbox.usage().disk or 0) > 50 << 20, "the file to count")
    assert sandbox.usage().disk_byte_s > before.disk_byte_s


def test_no_usage_while_paused_or_stopped(server: Server) -> None:
    sandbox = Sandbox.create(name="rester", server=server.address)
    sandbox.spawn("while :; do :; done")
    wait_until(lambda: sandbox.usage().cpu_s > 0.1, "the loop to run")
    sandbox.pause()
    paused = settled(sandbox)
    resting = settled(sandbox)
    assert resting.cpu_s == pytest.approx(paused.cpu_s, abs=0.01)
    assert (resting.wall_s, resting.active_s) == (paused.wall_s, paused.active_s)
    assert resting.memory_byte_s > paused.memory_byte_s
    sandbox.resume()
    wait_until(lambda: sandbox.usage().cpu_s > paused.cpu_s + 0.1, "the loop to go on")
    running = sandbox.usage()
    sandbox.stop()
    stopped = settled(sandbox)
    assert stopped.cpu_s >= running.cpu_s
    later = settled(sandbox)
    assert (later.cpu_s, later.wall_s, later.memory_byte_s) == (stopped.cpu_s, stopped.wall_s, stopped.memory_byte_s)
    sandbox.run(LOAD)  # resumes it
    again = sandbox.usage()
    assert again.cpu_s > stopped.cpu_s + 0.05
    assert again.wall_s > stopped.wall_s
    sandbox.delete()


def settled(sandbox: Sandbox) -> Usage:
    """Return the usage after at least one more sample."""
    sandbox.usage()
    return sandbox.usage()


def test_fork_starts_at_zero(sandbox: Sandbox, client: Client) -> None:
    sandbox.run(LOAD)
    (fork,) = sandbox.fork()
    assert fork.usage().cpu_s < sandbox.usage().cpu_s / 2
    assert sandbox.usage().cpu_s > 0.1
    fork.run(LOAD)
    assert fork.usage().cpu_s > 0.1
    fork.delete()
    rows = {row.key: row for row in client.usage().rows}
    assert rows[fork.id].usage.cpu_s > 0.1


def test_usage_survives_deletion_and_other_owners_do_not_find_it(server: Server, client: Client) -> None:
    with Sandbox(name="short", labels={"task": 'a, "b"\n=c'}, server=server.address) as sandbox:
        sandbox.run(LOAD)
        sandbox.run("true")
        before = sandbox.usage()
        sandbox.delete()
    with server.http() as http:
        found = http.get(f"/v1/sandboxes/{sandbox.id}/usage").json()
        assert found["cpu_s"] >= before.cpu_s
        assert found["cost"] == pytest.approx(found["cpu_s"], rel=0.01)
        token = http.post("/v1/tokens", json={"scope": "use", "owner": "other"}).json()["secret"]
        other = {"Authorization": f"Bearer {token}"}
        assert http.get(f"/v1/sandboxes/{sandbox.id}/usage", headers=other).status_code == 404
        assert http.get(f"/v1/usage?sandbox={sandbox.id}", headers=other).status_code == 404
        own = http.post("/v1/sandboxes", json={}, headers=other).json()["id"]
        http.delete(f"/v1/sandboxes/{own}", headers=other).raise_for_status()
        assert [row["key"] for row in http.get("/v1/usage?owner=other", headers=other).json()["rows"]] == [own]
        refused = http.get("/v1/usage?owner=local", headers=other)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")
        assert [row["key"] for row in http.get("/v1/usage?owner=other").json()["rows"]] == [own]
        assert http.get("/v1/usage?by=nothing").status_code == 400
        assert http.get("/v1/usage?since=2026-02-31").status_code == 400
    rows = {row.key: row for row in client.usage("label:task", since="1d").rows}
    assert rows['a, "b"\n=c'].usage.cpu_s == pytest.approx(found["cpu_s"])
    assert client.usage("sandbox", label='task=a, "b"\n=c').rows[0].name == "short"
    assert client.usage("actor").rows[0].key == "uid:0"
    assert client.usage("image").rows[0].key == "base"
    assert sorted(row.key for row in client.usage("owner").rows) == ["local", "other"]
    report = client.usage("day")
    assert sum(row.usage.cpu_s for row in report.rows) == pytest.approx(report.total.cpu_s)
    assert client.usage(until="2020-01-01").sandboxes == 0


def test_killed_server_loses_no_usage_of_running_sandboxes(own_server: Server) -> None:
    own_server.start()
    sandbox = Sandbox.create(server=own_server.address)
    sandbox.run("true")
    first, counter = sandbox.usage().cpu_s, kernel_cpu_s(own_server, sandbox.id)
    gone = Sandbox.create(server=own_server.address)
    gone.run(LOAD)
    used = gone.usage().cpu_s
    gone.delete()
    sandbox.spawn("while :; do :; done")
    with Client(own_server.address) as client:
        client.usage()  # stores the figures
    own_server.end(signal.SIGKILL)
    before = kernel_cpu_s(own_server, sandbox.id)
    wait_until(lambda: kernel_cpu_s(own_server, sandbox.id) > before + 0.2, "work without a server")
    own_server.start()
    wait_until(lambda: sandbox.info().state == "running", "its adoption")
    kernel = kernel_cpu_s(own_server, sandbox.id) - counter
    after = sandbox.usage()
    assert kernel * 0.98 <= after.cpu_s - first <= (kernel_cpu_s(own_server, sandbox.id) - counter) * 1.02
    assert after.active_s > after.cpu_s * 0.5, "processes that ran without a server count as active"
    assert after.wall_s >= after.active_s
    with Client(own_server.address) as client:
        rows = {row.key: row.usage.cpu_s for row in client.usage().rows}
    assert rows[gone.id] >= used
    sandbox.delete()


def test_sandbox_that_died_without_a_server_is_billed_by_its_cgroup(own_server: Server) -> None:
    own_server.start()
    sandbox = Sandbox.create(name="dies", server=own_server.address)
    sandbox.run("true")
    first, counter = sandbox.usage().cpu_s, kernel_cpu_s(own_server, sandbox.id)
    sandbox.spawn(f"{LOAD}; touch /tmp/done; sleep 600")
    wait_until(lambda: sandbox.files.exists("/tmp/done"), "the load to end")
    with Client(own_server.address) as client:
        client.usage()
    (pid,) = own_server.sql("SELECT pid FROM sandboxes WHERE id = ?", sandbox.id)[0]
    own_server.end(signal.SIGKILL)
    used = kernel_cpu_s(own_server, sandbox.id) - counter
    os.kill(pid, signal.SIGKILL)
    own_server.start()
    wait_until(lambda: sandbox.info().state == "stopped", "it to be found dead")
    assert used * 0.98 <= sandbox.usage().cpu_s - first <= used * 1.5, "the end of its processes takes time too"
    sandbox.delete()


def test_damaged_record_of_usage_is_set_aside(own_server: Server) -> None:
    (own_server.state_dir / "usage.db").write_bytes(b"not a database" * 1000)
    own_server.start()
    assert list(own_server.state_dir.glob("usage.db.damaged-*"))
    with closing(sqlite3.connect(own_server.state_dir / "usage.db")) as database:
        assert database.execute("SELECT count(*) FROM sandboxes").fetchone() == (0,)
