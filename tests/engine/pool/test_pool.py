"""Ready sandboxes: a claim equals a cold create, only faster; no two callers get the same sandbox."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.debian_programs import program
from support.server import Server, wait_until

from skerry import (
    Client,
    InvalidRequest,
    Limits,
    Network,
    NotFound,
    Options,
    QuotaExceeded,
    Sandbox,
    SandboxUnavailable,
    Secret,
)
from skerry.types import PoolImage

MAX_SANDBOXES = 6
POOL = {
    "SKERRY_POOL_PER_IMAGE": "2", "SKERRY_POOL_IMAGES": "base", "SKERRY_POOL_MIN_FREE_MEMORY": "64M",
    "SKERRY_MAX_SANDBOXES": str(MAX_SANDBOXES),
}  # fmt: skip


@pytest.fixture(scope="module")
def server(make_server: Callable[[], Server]) -> Iterator[Server]:
    """Start a server with a pool."""
    made = make_server().start("--listen", "127.0.0.1:0", **POOL)
    yield made
    made.retire()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address) as client:
        filled(client)
        yield client


def shelf(client: Client, image: str = "base") -> PoolImage:
    nothing = PoolImage(image=image, size=0, ready=0)
    return next((one for one in client.pool.show().images if one.image == image), nothing)


def filled(client: Client, number: int = 2, image: str = "base") -> None:
    wait_until(lambda: shelf(client, image).ready == number, f"{number} ready sandboxes of {image}")


def ready(server: Server) -> dict[str, int]:
    """The ids of the ready ones, with their first processes."""
    return dict(server.sql("SELECT id, pid FROM sandboxes WHERE state = 'ready'"))  # type: ignore[arg-type]


def test_create_claims_a_ready_sandbox_and_the_pool_refills(server: Server, client: Client) -> None:
    hits, there = shelf(client).hits, ready(server)
    with Sandbox(server=client, labels={"a": "1"}) as sandbox:
        assert sandbox.id in there
        assert sandbox.run(["echo", "up"]).stdout == "up\n"
        assert shelf(client).hits == hits + 1
        filled(client)
        assert sandbox.id not in ready(server)


def test_claimed_sandbox_is_not_billed_for_its_time_in_the_pool(client: Client) -> None:
    filled(client)
    with Sandbox(server=client) as claimed:
        at = claimed.info().created_at
        first = claimed.usage()
        assert first.active_s < 5
        assert first.wall_s <= claimed.stats().at - at + 1
        assert first.cpu_s < claimed.stats().usage.cpu_s, "the start of the sandbox is not counted"


def test_claimed_reproducible_sandbox_has_the_fixed_values(client: Client) -> None:
    looks = "hostname; cat /etc/machine-id; env | sort"
    seen = []
    for pool in (True, False):
        hits = shelf(client).hits
        with Sandbox(server=client, options=Options(reproducible=True, use_pool=pool)) as sandbox:
            assert shelf(client).hits == hits + pool
            seen.append(sandbox.run(looks, check=True).stdout)
    assert seen[0] == seen[1]
    assert seen[0].startswith("skerry\n5ce44e5a9d0b4d6f8f1c2a7b3e60d914\n")


def test_claimed_sandbox_equals_a_cold_one(client: Client) -> None:
    looks = (
        "hostname; id; env | sort; ulimit -n; ulimit -u; df --output=size /dev/shm | tail -1;"
        "sed 's/.id=[0-9]*//g; s,/proc/self/fd/[0-9]*,fd,' /proc/mounts;"
        "grep -E '^(Cap|Seccomp|NoNew|Threads)' /proc/self/status; ls -AR /tmp /workspace /run;"
        "cat /etc/resolv.conf; git config --get user.name; sudo id -u;"
        "grep . /sys/fs/cgroup/*/*limit_in_bytes"
    )
    limits = Limits(cpus=0.5, memory="512M", pids=300, open_files=1000, disk="1G")
    seen = []
    for pool in (True, False):
        hits, options = shelf(client).hits, Options(use_pool=pool, git_name="Ada")
        with Sandbox(
            server=client, name="same", env={"A": "1", "HOME": None}, limits=limits, options=options
        ) as sandbox:
            info = sandbox.info()
            assert info.started_at is not None
            assert info.ends_at == info.started_at + 86400
            assert info.isolation is not None
            isolation = {**info.isolation.details, "uid_range": None}
            seen.append(
                (sandbox.run(looks).stdout.splitlines(), info.limits, info.isolation.guarantees, isolation, info.env)
            )
            assert shelf(client).hits == hits + pool
            events = [event.type for event in client.events(sandbox=sandbox.id)]
            assert events[:2] == ["sandbox.created", "sandbox.running"]
            sandbox.delete()
    for claimed, cold in zip(*seen, strict=True):
        assert claimed == cold


def test_policy_and_secrets_hold_before_the_first_command(client: Client) -> None:
    network = Network(allow=("a.example", "b.example/only"))
    secret = Secret("TOKEN", hosts=("c.example",), value="the-value")
    hits = shelf(client).hits
    with Sandbox(server=client, network=network, secrets=[secret], options=Options(sudo=False)) as sandbox:
        assert shelf(client).hits == hits + 1
        first = sandbox.run(
            "getent hosts a.example c.example | wc -l; getent hosts d.example; echo $TOKEN | cut -c1-14;"
            "grep -c 'BEGIN CERT' /run/skerry/ca.pem; ls /run/skerry/bin"
        )
        two, placeholder, certificates, programs = first.stdout.split()
        assert (two, placeholder, programs) == ("2", "skerry-secret-", "skerry-keeper")
        assert int(certificates) > 1
        assert [one.host for one in first.denied] == ["d.example"]


def test_ready_sandbox_is_neither_listed_nor_reachable(server: Server, client: Client) -> None:
    there = ready(server)
    assert len(there) == 2
    assert not there.keys() & {one.id for one in Sandbox.list(server=client)}
    for sandbox in there:
        with pytest.raises(NotFound):
            Sandbox.get(sandbox, server=client)
        assert list(client.events(sandbox=sandbox)) == []
        with server.http() as http:
            assert http.delete(f"/v1/sandboxes/{sandbox}").status_code == 404
    assert client.info()["sandboxes"] == 0


def test_claimed_sandbox_has_no_traces_of_another_owner(server: Server, client: Client) -> None:
    url, trace = client.info()["addresses"][1], "ann-was-here"
    ann, bob = (Client(url, token=client.tokens.create(owner=owner).secret) for owner in ("ann", "bob"))
    with ann, bob:
        network, secret = Network(allow=("a.example", "b.example/x")), Secret("ANN", hosts=("c.example",), value=trace)
        with Sandbox(server=ann, env={"A": trace}, network=network, secrets=[secret], labels={"a": trace}) as hers:
            left = " ".join(
                f"{place}/{trace}" for place in ("/tmp", "/dev/shm", "/workspace", "/etc", "/var/lib/skerry")
            )
            assert hers.run(f"echo {trace} | tee {left} >> /etc/passwd; getent hosts d.example", user="root").denied
        filled(client)
        with Sandbox(server=bob, name="mine") as his:
            assert his.id != hers.id
            places = "/tmp /dev/shm /run /workspace /etc /var/lib"
            seen = his.run(f"hostname; env; ps ax; ls -R {places}; grep -rs ann-was[-] {places}", user="root")
            assert trace not in seen.stdout
            assert "ca.pem" not in seen.stdout
            assert list(his.network.log()) == []
            assert {event.sandbox for event in bob.events()} == {his.id}
        his.delete()
    assert shelf(client).hits >= 2


def test_concurrent_claims_get_different_sandboxes(client: Client) -> None:
    with ThreadPoolExecutor(MAX_SANDBOXES) as threads:
        made = list(threads.map(lambda n: Sandbox.create(server=client, labels={"n": str(n)}), range(MAX_SANDBOXES)))
        said = list(threads.map(lambda sandbox: sandbox.run(["hostname"]).stdout.strip(), made))
    assert said == [sandbox.id for sandbox in made]
    assert len(set(said)) == MAX_SANDBOXES
    assert [sandbox.labels["n"] for sandbox in made] == list("012345")
    for sandbox in made:
        sandbox.delete()


def test_one_key_claims_once(server: Server, client: Client) -> None:
    def create(_: int) -> str:
        with server.http() as http:
            answer = http.post("/v1/sandboxes", json={"labels": {"k": "1"}}, headers={"Idempotency-Key": "claimed"})
            return str(answer.json()["id"])

    with ThreadPoolExecutor(4) as threads:
        ids = set(threads.map(create, range(4)))
    assert len(ids) == 1
    Sandbox.get(ids.pop(), server=client).delete()


def test_failed_claim_falls_back_to_a_cold_create(server: Server, client: Client) -> None:
    """The image's user is gone from two ready sandboxes: their keepers reject the configuration."""
    broken = ready(server)
    for pid in broken.values():
        Path(f"/proc/{pid}/root/etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    with Sandbox(server=client, name="whole", env={"A": "1"}) as sandbox:
        assert sandbox.id not in broken
        assert sandbox.run(["whoami"]).stdout == "user\n"
        wait_until(lambda: len(broken.keys() - ready(server).keys()) == 1, "the broken one to be deleted")
    sandbox.delete()
    for one in broken:
        assert list(client.events(sandbox=one)) == []
    client.pool.drain()
    assert client.pool.show().paused == "drained"
    assert ready(server) == {}
    client.pool.set("base", 2)


def test_path_of_a_volume_that_is_a_link_fails_without_a_cold_create(server: Server, client: Client) -> None:
    volume, hits, before = client.volumes.create("data", "64M"), shelf(client).hits, list(client.events())
    with pytest.raises(InvalidRequest, match="not a real directory"):
        Sandbox(server=client, volumes={"/var/run/data": "data"}).start()
    assert shelf(client).hits == hits + 1
    assert list(client.events()) == before
    volume.delete()
    filled(client)


def test_bucket_that_cannot_be_listed_uses_up_no_ready_sandbox(
    make_server: Callable[[], Server], tmp_path: Path
) -> None:
    settings = tmp_path / "config.toml"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings.write_text(f'[buckets.silent]\nurl = "http://127.0.0.1:{silent.getsockname()[1]}"\ntimeout = "1s"\n')
        path = f"{Path(program('rclone')).parent}:{os.environ['PATH']}"
        server = make_server().start(**POOL, SKERRY_CONFIG=str(settings), PATH=path)
        with Client(server.address) as client:
            filled(client)
            there = ready(server)
            with pytest.raises(SandboxUnavailable, match="can't be listed"):
                Sandbox(server=client, volumes={"/data": "s3://data"}).start()
            assert ready(server) == there
        server.retire()


def test_claimed_sandbox_has_its_volumes(client: Client) -> None:
    volume, hits = client.volumes.create("data", "64M"), shelf(client).hits
    with Sandbox(server=client, volumes={"/srv/data": "data", "/ro": "data:ro"}) as sandbox:
        assert shelf(client).hits == hits + 1
        sandbox.run("echo kept > /srv/data/note", check=True)
        assert sandbox.run("cat /ro/note; touch /ro/more").stdout == "kept\n"
        assert not sandbox.run("ls /ro/more").ok
        shown = sandbox.run("grep -c ' /srv/data rw,nosuid,nodev,.*idmapped' /proc/self/mountinfo").stdout
        assert shown == "1\n"
    volume.delete()
    filled(client)


def test_options_that_cannot_be_set_late_need_a_cold_create(client: Client) -> None:
    there = shelf(client)
    for options, limits in (
        (Options(use_pool=False), Limits()),
        (Options(runtime="runc"), Limits()),
        (Options(waive_guarantees=("no_swap",)), Limits()),
        (Options(), Limits(open_files=100_000)),
    ):
        with Sandbox(server=client, options=options, limits=limits) as sandbox:
            assert sandbox.run(["echo", "up"]).stdout == "up\n"
    assert shelf(client).hits == there.hits


def test_ready_sandbox_whose_keeper_dies_is_replaced(server: Server, client: Client) -> None:
    victim = next(iter(ready(server)))
    for group in Path("/sys/fs/cgroup").glob(f"**/{victim}/cgroup.kill"):
        group.write_text("1")
    wait_until(lambda: victim not in ready(server) and len(ready(server)) == 2, "another in its place")


def test_snapshot_has_ready_sandboxes_until_it_is_deleted(server: Server, client: Client) -> None:
    with Sandbox(server=client) as sandbox:
        sandbox.files.write("/workspace/note", "kept")
        snapshot = sandbox.snapshot()
    for _ in range(2):
        with Sandbox(image=snapshot, server=client) as sandbox:
            assert sandbox.files.read_text("/workspace/note") == "kept"
    filled(client, image=snapshot.id)
    with Sandbox(image=snapshot, server=client) as sandbox:
        assert sandbox.files.read_text("/workspace/note") == "kept"
    assert shelf(client, snapshot.id).hits >= 1
    snapshot.delete()
    assert shelf(client, snapshot.id) == PoolImage(image=snapshot.id, size=0, ready=0)
    with pytest.raises(NotFound):
        Sandbox.create(image=snapshot.id, server=client)


def test_ready_sandboxes_make_room_for_requested_ones(server: Server, client: Client) -> None:
    with ThreadPoolExecutor(MAX_SANDBOXES) as threads:
        cold = list(
            threads.map(lambda _: Sandbox.create(server=client, options=Options(use_pool=False)), range(MAX_SANDBOXES))
        )
    wait_until(lambda: ready(server) == {}, "the ready ones to make room")
    assert client.pool.show().paused == "max.sandboxes is reached"
    with pytest.raises(QuotaExceeded):
        Sandbox.create(server=client)
    cold.pop().delete()
    wait_until(lambda: len(ready(server)) == 1, "a ready one where there is room again")
    assert Sandbox.create(server=client).run(["echo", "up"]).stdout == "up\n"
    server.remove_all()


def test_next_server_removes_ready_sandboxes_of_a_killed_one(server: Server, client: Client) -> None:
    left = ready(server)
    server.end(signal.SIGKILL)
    server.start(**{**POOL, "SKERRY_POOL_MIN_FREE_MEMORY": "100T"})
    assert len(left) == 2
    assert server.sql("SELECT id FROM sandboxes") == []
    assert server.leftovers() == []
    with Client(server.address) as again:
        assert "of memory left" in (again.pool.show().paused or "")
