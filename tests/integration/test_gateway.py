"""The gateway of a real sandbox: denials, their reports, and crashes of worker and server. No uplink
is needed: every connection is denied or stays on this host."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from support.server import Server, wait_until, words_of

from skerry import Network, Sandbox
from skerry.config import instance_of

CONNECT = """python3 - <<'END'
import socket
for where in {targets!r}:
    try:
        with socket.create_connection((where[0], where[1]), 10) as one:
            print(where[0], one.recv(100))
    except OSError as error:
        print(where[0], type(error).__name__)
END"""


def connect(*targets: tuple[str, int]) -> str:
    return CONNECT.format(targets=targets)


def worker_of(server: Server) -> int | None:
    """The pid of its network worker, once that takes messages."""
    assert server.process is not None
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    for child in children:
        words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        if b"skerry.network.worker" in words:
            return int(child)
    return None


def ready(server: Server, sandbox: Sandbox) -> bool:
    with server.http() as http:
        return bool(http.get(f"/v1/sandboxes/{sandbox.id}/network").json()["ready"])


@pytest.fixture
def sandbox(server: Server) -> Sandbox:
    sandbox = Sandbox(server=server.address).start()
    wait_until(lambda: ready(server, sandbox), "the worker")
    yield sandbox
    sandbox.delete()


def test_every_attempt_is_denied_at_once_and_listed_in_the_result(sandbox: Sandbox) -> None:
    targets = [("203.0.113.7", 443), ("169.254.169.254", 80), ("10.1.2.3", 5432), ("2001:db8::9", 22)]
    result = sandbox.run(connect(*targets))
    assert result.stdout.split("\n")[:-1] == [f"{host} ConnectionResetError" for host, _ in targets]
    assert [(attempt.host.strip("[]"), attempt.port, attempt.decision) for attempt in result.denied] == [
        (host, port, "denied") for host, port in targets
    ]
    assert {attempt.process for attempt in result.denied} == {result.id}
    assert result.hint is not None
    assert "203.0.113.7:443" in result.hint
    assert "--allow" in result.hint
    assert sandbox.run("true").denied == ()


def test_name_without_a_rule_does_not_resolve(sandbox: Sandbox) -> None:
    result = sandbox.run("getent hosts api.example.com")
    assert result.exit_code == 2
    assert {(attempt.kind, attempt.host) for attempt in result.denied} == {("name", "api.example.com")}
    assert result.hint is not None
    assert 'Network(allow=["api.example.com"])' in result.hint


def test_sandbox_resolves_its_host_name(sandbox: Sandbox) -> None:
    code = "import socket; print(*sorted({one[4][0] for one in socket.getaddrinfo(socket.gethostname(), 80)}))"
    result = sandbox.run(["python3", "-c", code])
    assert result.stdout == "127.0.0.1 ::1\n"
    assert sandbox.run("hostname -f").stdout == f"{sandbox.id}\n"
    assert result.denied == ()


def test_concurrent_commands_get_only_their_denials(sandbox: Sandbox) -> None:
    spawned = [sandbox.spawn(connect((f"203.0.113.{n}", 80))) for n in range(1, 9)]
    for n, process in enumerate(spawned, 1):
        assert [attempt.host for attempt in process.wait(timeout=30).denied] == [f"203.0.113.{n}"]


def test_attempts_of_leftover_processes_belong_to_their_command(sandbox: Sandbox, server: Server) -> None:
    sandbox.files.write("/tmp/late.sh", f"sleep 0.5\n{connect(('203.0.113.99', 80))}\n")
    result = sandbox.run("sh /tmp/late.sh >/dev/null 2>&1 &")
    assert sandbox.run("true").denied == ()
    found: list[dict[str, object]] = []

    def told() -> bool:
        with server.http() as http:
            text = http.get(f"/v1/sandboxes/{sandbox.id}/network/log").text
        found[:] = [line for line in map(json.loads, text.splitlines()) if line.get("host") == "203.0.113.99"]
        return bool(found)

    wait_until(told, "the attempt in the log")
    assert {line["process"] for line in found} == {result.id}


def test_session_command_gets_its_denials(sandbox: Sandbox) -> None:
    session = sandbox.session("one")
    assert [attempt.host for attempt in session.run(connect(("203.0.113.5", 80))).denied] == ["203.0.113.5"]
    assert session.run("true").denied == ()


def test_root_inside_is_denied_too(sandbox: Sandbox) -> None:
    sandbox.files.write("/tmp/try.sh", connect(("203.0.113.6", 25)))
    for result in (sandbox.run("sh /tmp/try.sh", user="root"), sandbox.run("sudo sh /tmp/try.sh")):
        assert result.stdout == "203.0.113.6 ConnectionResetError\n"
        assert [attempt.host for attempt in result.denied] == ["203.0.113.6"]


def test_udp_is_denied_and_loopback_is_private(sandbox: Sandbox) -> None:
    code = """python3 - <<'END'
import socket
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.settimeout(5)
one.connect(("203.0.113.1", 443))
one.send(b"x")
try:
    one.recv(1)
except OSError as error:
    print(type(error).__name__)
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
server.accept()[0].sendall(b"own")
print(client.recv(3))
END"""
    assert sandbox.run(code).stdout == "ConnectionRefusedError\nb'own'\n"


def test_resolver_and_proxy_variables_are_set_and_can_be_overridden(server: Server) -> None:
    with Sandbox(server=server.address, env={"HTTPS_PROXY": "http://mine.example:1", "http_proxy": None}) as sandbox:
        assert sandbox.run("cat /etc/resolv.conf").stdout == "nameserver 198.18.0.1\noptions timeout:1 attempts:5\n"
        shown = sandbox.run("echo $https_proxy $HTTPS_PROXY ${http_proxy-unset} $NO_PROXY").stdout
        assert shown == "http://198.18.0.2:3128 http://mine.example:1 unset localhost,127.0.0.0/8,127.0.0.1,::1\n"


def test_resolv_conf_of_the_user_is_not_changed(server: Server) -> None:
    with Sandbox(server=server.address, name="own-resolver") as sandbox:
        sandbox.run("echo nameserver 192.0.2.1 > /etc/resolv.conf", user="root", check=True)
        sandbox.stop()
        sandbox.resume()
        assert sandbox.run("cat /etc/resolv.conf").stdout == "nameserver 192.0.2.1\n"
        assert sandbox.run("getent hosts api.example.com").denied[0].host == "api.example.com"  # and is asked in vain
        sandbox.run("ln -sf ../run/systemd/resolve/stub-resolv.conf /etc/resolv.conf", user="root", check=True)
        sandbox.stop()
        sandbox.resume()
        assert sandbox.run("cat /etc/resolv.conf").stdout.startswith("nameserver 198.18.0.1\n")


def test_gateway_survives_a_pause(sandbox: Sandbox) -> None:
    sandbox.pause()
    sandbox.resume()
    assert [attempt.host for attempt in sandbox.run(connect(("203.0.113.7", 80))).denied] == ["203.0.113.7"]


def test_killed_worker_is_replaced_and_nothing_leaks_meanwhile(own_server: Server) -> None:
    own_server.start()
    with Sandbox(server=own_server.address) as sandbox:
        wait_until(lambda: ready(own_server, sandbox), "the worker")
        for round_ in range(3):
            before = worker_of(own_server)
            assert before is not None
            os.kill(before, signal.SIGKILL)
            result = sandbox.run(connect((f"203.0.113.{round_}", 80)))
            assert result.stdout == f"203.0.113.{round_} ConnectionResetError\n"
            wait_until(lambda: ready(own_server, sandbox), "the worker")
            assert worker_of(own_server) not in (None, before)
            result = sandbox.run(connect(("198.51.100.7", 80)))
            assert [attempt.host for attempt in result.denied] == ["198.51.100.7"]


def test_connection_that_a_hung_worker_resets_is_explained(own_server: Server) -> None:
    listen = "import socket; s = socket.create_server(('127.0.0.1', 5432)); a = []\nwhile True:\n"
    listen += "    a.append(s.accept()[0])\n    a[-1].send(b'x')"
    ask = "import socket; a = socket.create_connection(('db', 5432)); a.recv(1); print('open', flush=True); a.recv(1)"
    own_server.start()
    with (
        Sandbox(server=own_server.address) as database,
        Sandbox(server=own_server.address, network=Network(peers={"db": database})) as sandbox,
    ):
        database.spawn(["python3", "-c", listen])
        database.wait_for_port(5432)
        process = sandbox.spawn(["python3", "-c", ask])
        process.wait_for_output("open", timeout=60)
        worker = worker_of(own_server)
        assert worker is not None
        wait_until(lambda: any(not attempt.ended for attempt in sandbox.network.log()), "the report of the connection")
        os.kill(worker, signal.SIGSTOP)
        result = process.wait(timeout=60)
        assert "ConnectionResetError" in result.stderr
        assert "db:5432 was disconnected: the network worker hung and is replaced; try again" in (result.hint or "")
        (attempt,) = (one for one in sandbox.network.log() if one.kind == "connection")
        assert (attempt.ended, attempt.decision) == (True, "allowed")
        assert "the network worker hung" in (attempt.hint or "")
    text = own_server.tail()
    assert f'"worker":{worker}' in text.split("the network worker hangs")[1].split("\n")[0]


def test_create_does_not_wait_for_a_worker(own_server: Server) -> None:
    own_server.start()
    for _ in range(3):
        pid = worker_of(own_server)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        with Sandbox(server=own_server.address) as sandbox:
            assert sandbox.run("echo up").stdout == "up\n"


SQUAT = """
import socket, sys, threading
def port():
    for line in open("/proc/net/tcp6").readlines()[1:]:
        words = line.split()
        if words[3] == "0A":
            yield int(words[1].rsplit(":", 1)[1], 16)
known = set()
while True:
    try:
        seen = set(port())
    except OSError:
        continue
    if seen and not known:
        print("watching", flush=True)
    known |= seen
    for one in known - seen:
        try:
            mine = socket.create_server(("::", one), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError:
            continue
        print("squatting", one, flush=True)
        while True:
            taken = mine.accept()[0]
            taken.sendall(b"squatter")
            taken.close()
"""


def is_listened_in(server: Server, sandbox: Sandbox) -> bool:
    """Whether anything in it listens on a port."""
    ((pid,),) = server.sql("SELECT pid FROM sandboxes WHERE id = ?", sandbox.id)
    table = Path(f"/proc/{pid}/net/tcp6").read_text().splitlines()[1:]
    return any(line.split()[3] == "0A" for line in table)


def test_restarted_server_uses_a_fresh_port_and_a_squatter_gets_nothing(own_server: Server) -> None:
    own_server.start()
    sandbox = Sandbox(server=own_server.address, name="squatted").start()
    wait_until(lambda: ready(own_server, sandbox), "the worker")
    sandbox.files.write("/tmp/squat.py", SQUAT)
    squatter = sandbox.spawn(["python3", "/tmp/squat.py"], user="root")
    squatter.wait_for_output("watching", timeout=20)
    worker = worker_of(own_server)
    own_server.end(signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{worker}").exists(), "the worker to be gone")
    wait_until(lambda: is_listened_in(own_server, sandbox), "the squatter")  # only the kernel can answer
    own_server.start()
    wait_until(lambda: ready(own_server, sandbox), "the worker")
    assert "squatting" in squatter.output().text
    result = sandbox.run(connect(("203.0.113.7", 80), ("2001:db8::7", 80)))
    assert result.stdout == "203.0.113.7 ConnectionResetError\n2001:db8::7 ConnectionResetError\n"
    assert [attempt.host.strip("[]") for attempt in result.denied] == ["203.0.113.7", "2001:db8::7"]
    sandbox.delete()


def test_worker_of_a_killed_server_ends_with_it(own_server: Server) -> None:
    own_server.start()
    pid = worker_of(own_server)
    assert pid is not None
    own_server.end(signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the worker to be gone")
    own_server.start()


def test_attempts_survive_a_server_restart(own_server: Server) -> None:
    own_server.start()
    sandbox = Sandbox(server=own_server.address).start()
    wait_until(lambda: ready(own_server, sandbox), "the worker")
    process = sandbox.spawn(connect(("203.0.113.7", 80)))
    assert process.wait(timeout=30).denied
    wait_until(lambda: own_server.sql("SELECT 1 FROM attempts WHERE sandbox = ?", sandbox.id), "the attempt on disk")
    own_server.end(signal.SIGKILL)
    own_server.start()
    with own_server.http() as http:
        lines = http.get(f"/v1/sandboxes/{sandbox.id}/network/log").text.splitlines()
    assert [json.loads(line)["host"] for line in lines] == ["203.0.113.7"]
    assert [attempt.host for attempt in sandbox.processes.get(process.id).wait(timeout=30).denied] == ["203.0.113.7"]
    sandbox.delete()
    assert own_server.sql("SELECT count(*) FROM attempts")[0][0] == 0
    assert not (own_server.state_dir / "names" / sandbox.id).exists()


def test_fake_ips_survive_worker_and_server_crashes(own_server: Server) -> None:
    own_server.start()
    sandbox = Sandbox(server=own_server.address, network=Network(allow=("*.example",))).start()
    wait_until(lambda: ready(own_server, sandbox), "the worker")
    names = [f"n{n}.example" for n in range(20)]
    # A look-up waits for the next worker. On a busy machine that takes longer than the 5 s of a sandbox's resolv.conf.
    patient = "export RES_OPTIONS='timeout:5 attempts:5'; "
    look = f"{patient}for name in {' '.join(names)}; do getent ahostsv4 $name | head -1; done"
    before = sandbox.run(look).stdout
    assert len(set(before.split()[::3])) == len(names)
    worker = worker_of(own_server)
    assert worker is not None
    os.kill(worker, signal.SIGKILL)
    assert sandbox.run(look).stdout == before
    own_server.end(signal.SIGKILL)
    own_server.start()
    shuffled = look.replace(names[0], "new.example").replace(names[1], names[0]).replace("new.example", names[1])
    assert sorted(sandbox.run(shuffled).stdout.splitlines()) == sorted(before.splitlines())
    sandbox.delete()


def test_half_open_connection_flood_does_not_block_the_server_or_others(server: Server, sandbox: Sandbox) -> None:
    flood = """python3 - <<'END'
import socket, time
held, end = [], time.time() + 3
while time.time() < end:
    one = socket.socket()
    one.setblocking(False)
    try:
        one.connect(("198.18.0.2", 3128))
    except BlockingIOError:
        held.append(one)
    except OSError:
        pass
    if len(held) > 3000:
        held.clear()
print("done")
END"""
    process = sandbox.spawn(flood)
    with Sandbox(server=server.address) as other:
        for n in range(5):
            assert [a.host for a in other.run(connect((f"203.0.113.{n}", 80))).denied] == [f"203.0.113.{n}"]
    assert process.wait(timeout=60).stdout == "done\n"
    assert sandbox.run("echo alive").stdout == "alive\n"


def test_worker_has_a_separate_uid_and_no_privileges(server: Server, sandbox: Sandbox) -> None:
    pid = worker_of(server)
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    what = {line.split(":")[0]: line.split(":")[1].split() for line in lines}
    name = f"{instance_of(server.state_dir)} worker"
    (held,) = [int(path.name) for path in Path("/run/skerry/ranges").iterdir() if words_of(path) == name.split()]
    uid = 0x70000000 + held * 65536
    assert what["Uid"] == [str(uid)] * 4
    assert what["Groups"] == []
    assert (what["NoNewPrivs"], what["CapEff"], what["CapBnd"]) == (["1"], ["0" * 16], ["0" * 16])
