"""Sandboxes that reach one another by name: of one owner, by policy, through the same door as everything else."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator

import pytest
from support.server import Server, wait_until

from skerry import InvalidRequest, Lifecycle, Network, NotFound, Sandbox

# A program that sends first, like databases; then it echoes its input.
DATABASE = """
import socket, sys, threading
def each(c):
    with c:
        c.sendall(b"ready\\n")
        while data := c.recv(65536): c.sendall(data)
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    c, _ = listener.accept()
    threading.Thread(target=each, args=(c,), daemon=True).start()
"""
CLIENT = """
import socket, sys
c = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20)
f = c.makefile("rwb", 0)
assert f.readline() == b"ready\\n", "not ready"
f.write(b"select\\n")
print(f.readline().decode().strip())
"""


def serve_inside(sandbox: Sandbox, *ports: int) -> None:
    sandbox.files.write("/workspace/database.py", DATABASE)
    for port in ports:
        sandbox.spawn(["python3", "database.py", str(port)])
    for port in ports:
        sandbox.wait_for_port(port)


def query(sandbox: Sandbox, name: str = "db", port: int = 5432) -> str:
    """Return the output of the client, or the error that ended it."""
    sandbox.files.write("/workspace/client.py", CLIENT)
    done = sandbox.run(["python3", "client.py", name, str(port)], timeout=60)
    return done.stdout.strip() or done.stderr.strip().rpartition("\n")[2]


@pytest.fixture(scope="module")
def database(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address) as sandbox:
        serve_inside(sandbox, 5432, 5433)
        yield sandbox


@pytest.fixture
def app(server: Server, database: Sandbox) -> Iterator[Sandbox]:
    network = Network(peers={"db": database}, deny=("db:5433",))
    with Sandbox(server=server.address, network=network) as sandbox:
        yield sandbox


def test_peer_is_reached_by_its_name(app: Sandbox) -> None:
    assert query(app) == "select"
    assert query(app) == "select"


def test_deny_of_a_peer_port_wins(app: Sandbox) -> None:
    assert re.match(r"ConnectionResetError|AssertionError", query(app, port=5433))
    done = app.run(["python3", "client.py", "db", "5433"], timeout=60)
    assert [(one.host, one.port, one.decision) for one in done.denied if one.kind == "connection"] == [
        ("db", 5433, "denied")
    ]


def test_peer_connections_are_in_the_log(app: Sandbox) -> None:
    query(app)
    found = [one for one in app.network.log() if one.kind == "connection" and one.host == "db" and one.port == 5432]
    assert found
    assert found[0].decision == "allowed"
    assert "peer" in found[0].why


def test_peer_connection_is_one_way(app: Sandbox, database: Sandbox) -> None:
    serve_inside(app, 5432)
    for name in ("app", app.id, "db"):
        assert "rror" in query(database, name)


def test_sandbox_without_peers_reaches_none(server: Server, database: Sandbox) -> None:
    with Sandbox(server=server.address, network=Network.open()) as other:
        for name in ("db", database.id):
            assert "rror" in query(other, name)


def test_sandbox_that_was_not_created_cannot_be_a_peer() -> None:
    with pytest.raises(InvalidRequest, match="has not been created"):
        Network(peers={"db": Sandbox()})
    with pytest.raises(InvalidRequest, match="not a sandbox"):
        Network(peers={"db": 5432})


def test_closed_peer_port_is_connection_refused(app: Sandbox) -> None:
    assert "Connection" in query(app, port=5999)


def test_gateway_of_a_peer_is_not_reachable(app: Sandbox, database: Sandbox) -> None:
    """The gateway of the peer listens on its loopback too: direct connections to it get nothing."""
    listing = database.run("awk '$4 == \"0A\" {print $2}' /proc/net/tcp /proc/net/tcp6").stdout.split()
    doors = {int(line.rpartition(":")[2], 16) for line in listing} - {5432, 5433}
    assert doors
    for port in doors:
        assert re.match(r"ConnectionResetError|AssertionError", query(app, port=port))


def test_peer_of_another_owner_is_not_found(server: Server, database: Sandbox) -> None:
    with server.http() as http:
        token = http.post("/v1/tokens", json={"scope": "use", "owner": "trudy"}).json()["secret"]
        network = {"peers": {"db": database.id}}
        answer = http.post("/v1/sandboxes", headers={"Authorization": f"Bearer {token}"}, json={"network": network})
        assert answer.status_code == 404
        made = http.post("/v1/sandboxes", headers={"Authorization": f"Bearer {token}"}, json={}).json()["id"]
        path = f"/v1/sandboxes/{made}/network"
        answer = http.put(path, headers={"Authorization": f"Bearer {token}"}, json=network)
        assert answer.status_code == 404
        # Not even an admin makes one's sandbox the peer of another's.
        assert http.put(path, json=network).status_code == 404
        http.delete(f"/v1/sandboxes/{made}").raise_for_status()
    with pytest.raises(NotFound):
        Sandbox.create(server=server.address, network=Network(peers={"db": "sb-aaaaaaaaaa"}))


def test_peer_can_be_added_and_removed_while_running(server: Server, database: Sandbox) -> None:
    with Sandbox(server=server.address) as sandbox:
        assert "rror" in query(sandbox)
        sandbox.network.set(Network(peers={"db": database.id}))
        assert query(sandbox) == "select"
        sandbox.files.write(
            "/workspace/hold.py", CLIENT.replace("print(f", 'print("in", flush=True); f.readline(); print(f')
        )
        holding = sandbox.spawn(["python3", "hold.py", "db", "5432"])
        holding.wait_for_output("in", timeout=30)
        sandbox.network.set(Network())
        holding.wait(timeout=30)  # its connection was closed
        assert "rror" in query(sandbox)


def test_stopped_peer_is_resumed_and_a_deleted_one_refuses(server: Server) -> None:
    peer = Sandbox.create(server=server.address, name=f"peer-{os.getpid()}")
    with Sandbox(server=server.address, network=Network(peers={"db": peer.id})) as sandbox:
        serve_inside(peer, 5432)
        assert query(sandbox) == "select"
        peer.stop()
        assert "Connection" in query(sandbox)  # awake, and nothing listens there any more
        wait_until(lambda: peer.info().state == "running", "the peer to be woken")
        serve_inside(peer, 5432)
        assert query(sandbox) == "select"
        peer.delete()
        assert "rror" in query(sandbox)


def test_peer_without_auto_resume_refuses_while_asleep(server: Server) -> None:
    with Sandbox(server=server.address, lifecycle=Lifecycle(auto_resume=False)) as peer:
        serve_inside(peer, 5432)
        with Sandbox(server=server.address, network=Network(peers={"db": peer.id})) as sandbox:
            assert query(sandbox) == "select"
            peer.pause()
            assert "rror" in query(sandbox)
            peer.resume()
            assert query(sandbox) == "select"


def test_http_between_peers_keeps_the_host_name(server: Server) -> None:
    with Sandbox(server=server.address) as web:
        web.spawn(["python3", "-m", "http.server", "8000"])
        web.wait_for_port(8000)
        with Sandbox(server=server.address, network=Network(peers={"web": web.id})) as sandbox:
            got = sandbox.run("curl -sS -o /dev/null -w '%{http_code}' http://web:8000/", timeout=60)
            assert (got.stdout, got.stderr) == ("200", "")


def test_peers_survive_a_server_crash(own_server: Server) -> None:
    own_server.start()
    with Sandbox(server=own_server.address) as peer:
        serve_inside(peer, 5432)
        sandbox = Sandbox.create(server=own_server.address, network=Network(peers={"db": peer.id}))
        assert query(sandbox) == "select"
        own_server.end(signal.SIGKILL)
        own_server.start()
        wait_until(lambda: query(sandbox) == "select", "the peer to be reached again")
        sandbox.delete()
