"""Ready sandboxes: a claim gives what a cold create gives, only sooner; none is ever two people's."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from serving import Server, wait_until

from skerry import Client, Limits, Network, NotFound, Options, QuotaExceeded, Sandbox, Secret
from skerry.types import PoolImage

MOST = 6
POOL = {
    "SKERRY_POOL_SIZE": "2", "SKERRY_POOL_IMAGES": "base", "SKERRY_POOL_MEMORY": "64M",
    "SKERRY_MAX_SANDBOXES": str(MOST),
}  # fmt: skip


@pytest.fixture(scope="module")
def house(make_server: Callable[[], Server]) -> Iterator[Server]:
    made = make_server().start("--listen", "127.0.0.1:0", **POOL)
    yield made
    made.retire()


@pytest.fixture
def client(house: Server) -> Iterator[Client]:
    with Client(house.address) as client:
        filled(client)
        yield client


def shelf(client: Client, image: str = "base") -> PoolImage:
    nothing = PoolImage(image=image, wanted=0, ready=0)
    return next((one for one in client.pool.show().images if one.image == image), nothing)


def filled(client: Client, number: int = 2, image: str = "base") -> None:
    wait_until(lambda: shelf(client, image).ready == number, f"{number} ready sandboxes of {image}")


def ready(house: Server) -> dict[str, int]:
    """The ids of the ready ones, with their first processes."""
    return dict(house.sql("SELECT id, pid FROM sandboxes WHERE state = 'ready'"))  # type: ignore[arg-type]


def test_a_create_finds_a_ready_sandbox_and_another_takes_its_place(house: Server, client: Client) -> None:
    hits, there = shelf(client).hits, ready(house)
    with Sandbox(server=client, labels={"a": "1"}) as sandbox:
        assert sandbox.id in there
        assert sandbox.run(["echo", "up"]).stdout == "up\n"
        assert shelf(client).hits == hits + 1
        filled(client)
        assert sandbox.id not in ready(house)


def test_a_claimed_sandbox_is_as_a_cold_one(client: Client) -> None:
    looks = (
        "hostname; id; env | sort; ulimit -n; ulimit -u; df --output=size /dev/shm | tail -1;"
        "sed s/.id=[0-9]*//g /proc/mounts;"
        "grep -E '^(Cap|Seccomp|NoNew|Threads)' /proc/self/status; ls -AR /tmp /workspace /run;"
        "cat /etc/resolv.conf; git config --get user.name; sudo id -u;"
        "grep . /sys/fs/cgroup/*/*limit_in_bytes"
    )
    limits = Limits(cpus=0.5, memory="512M", pids=300, open_files=1000, disk="1G")
    seen = []
    for pool in (True, False):
        hits, options = shelf(client).hits, Options(pool=pool, git_name="Ada")
        with Sandbox(server=client, name="same", env={"A": "1", "HOME": None}, limits=limits, options=options) as box:
            info = box.info()
            assert info.started_at is not None
            assert info.ends_at == info.started_at + 86400
            assert info.isolation is not None
            isolation = {**info.isolation.details, "uid_range": None}
            seen.append(
                (box.run(looks).stdout.splitlines(), info.limits, info.isolation.guarantees, isolation, info.env)
            )
            assert shelf(client).hits == hits + pool
            events = [event.type for event in client.events(sandbox=box.id)]
            assert events[:2] == ["sandbox.created", "sandbox.running"]
            box.delete()
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


def test_nobody_sees_or_reaches_a_ready_sandbox(house: Server, client: Client) -> None:
    there = ready(house)
    assert len(there) == 2
    assert not there.keys() & {one.id for one in Sandbox.list(server=client)}
    for sandbox in there:
        with pytest.raises(NotFound):
            Sandbox.get(sandbox, server=client)
        assert list(client.events(sandbox=sandbox)) == []
        with house.http() as http:
            assert http.delete(f"/v1/sandboxes/{sandbox}").status_code == 404
    assert client.info()["sandboxes"] == 0


def test_nothing_of_one_owner_is_in_what_another_claims(house: Server, client: Client) -> None:
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


def test_claims_at_once_never_get_the_same_one(client: Client) -> None:
    with ThreadPoolExecutor(MOST) as threads:
        made = list(threads.map(lambda n: Sandbox.create(server=client, labels={"n": str(n)}), range(MOST)))
        said = list(threads.map(lambda box: box.run(["hostname"]).stdout.strip(), made))
    assert said == [box.id for box in made]
    assert len(set(said)) == MOST
    assert [box.labels["n"] for box in made] == list("012345")
    for box in made:
        box.delete()


def test_one_key_claims_once(house: Server, client: Client) -> None:
    def create(_: int) -> str:
        with house.http() as http:
            answer = http.post("/v1/sandboxes", json={"labels": {"k": "1"}}, headers={"Idempotency-Key": "claimed"})
            return str(answer.json()["id"])

    with ThreadPoolExecutor(4) as threads:
        ids = set(threads.map(create, range(4)))
    assert len(ids) == 1
    Sandbox.get(ids.pop(), server=client).delete()


def test_a_claim_that_fails_half_way_is_made_cold(house: Server, client: Client) -> None:
    """The image's user is gone from two ready ones: their keepers refuse what they are told."""
    broken = ready(house)
    for pid in broken.values():
        Path(f"/proc/{pid}/root/etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    with Sandbox(server=client, name="whole", env={"A": "1"}) as sandbox:
        assert sandbox.id not in broken
        assert sandbox.run(["whoami"]).stdout == "user\n"
        wait_until(lambda: len(broken.keys() - ready(house).keys()) == 1, "the broken one to be deleted")
    sandbox.delete()
    for one in broken:
        assert list(client.events(sandbox=one)) == []
    client.pool.drain()
    assert client.pool.show().paused == "drained"
    assert ready(house) == {}
    client.pool.set("base", 2)


def test_what_can_not_be_set_late_is_made_cold(client: Client) -> None:
    there = shelf(client)
    for options, limits in (
        (Options(pool=False), Limits()),
        (Options(runtime="runc"), Limits()),
        (Options(waive=("no_swap",)), Limits()),
        (Options(), Limits(open_files=100_000)),
    ):
        with Sandbox(server=client, options=options, limits=limits) as sandbox:
            assert sandbox.run(["echo", "up"]).stdout == "up\n"
    assert shelf(client).hits == there.hits


def test_a_first_process_that_dies_is_replaced(house: Server, client: Client) -> None:
    victim = next(iter(ready(house)))
    for group in Path("/sys/fs/cgroup").glob(f"**/{victim}/cgroup.kill"):
        group.write_text("1")
    wait_until(lambda: victim not in ready(house) and len(ready(house)) == 2, "another in its place")


def test_a_snapshot_has_ready_ones_until_it_is_deleted(house: Server, client: Client) -> None:
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
    assert shelf(client, snapshot.id) == PoolImage(image=snapshot.id, wanted=0, ready=0)
    with pytest.raises(NotFound):
        Sandbox.create(image=snapshot.id, server=client)


def test_ready_ones_make_room(house: Server, client: Client) -> None:
    with ThreadPoolExecutor(MOST) as threads:
        cold = list(threads.map(lambda _: Sandbox.create(server=client, options=Options(pool=False)), range(MOST)))
    wait_until(lambda: ready(house) == {}, "the ready ones to make room")
    assert client.pool.show().paused == "max.sandboxes is reached"
    with pytest.raises(QuotaExceeded):
        Sandbox.create(server=client)
    cold.pop().delete()
    wait_until(lambda: len(ready(house)) == 1, "a ready one where there is room again")
    assert Sandbox.create(server=client).run(["echo", "up"]).stdout == "up\n"
    house.remove_all()


def test_the_next_server_removes_what_one_that_was_killed_had_ready(house: Server, client: Client) -> None:
    left = ready(house)
    house.end(signal.SIGKILL)
    house.start(**{**POOL, "SKERRY_POOL_MEMORY": "100T"})
    assert len(left) == 2
    assert house.sql("SELECT id FROM sandboxes") == []
    assert house.leftovers() == []
    with Client(house.address) as again:
        assert "of memory left" in (again.pool.show().paused or "")
