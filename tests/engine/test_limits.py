"""Other limits for a sandbox that is there: they hold at once, or are refused whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from serving import Server

from skerry import Limits, Sandbox
from skerry.errors import Conflict, QuotaExceeded

pytestmark = pytest.mark.vm
BEFORE = Limits(cpus=1.0, memory="256M", disk="64M", pids=128, open_files=1024)


@pytest.fixture(scope="module")
def box(server: Server) -> Iterator[Sandbox]:
    with Sandbox(limits=BEFORE, server=server.address) as sandbox:
        yield sandbox


@pytest.fixture
def as_before(box: Sandbox) -> Sandbox:
    box.resume()
    box.update(limits=without_disk(BEFORE))
    return box


def held(box: Sandbox) -> Limits:
    """What really holds, as the inside sees it; half of the memory is that of /dev/shm."""
    groups = "/sys/fs/cgroup"
    lines = box.run(
        f"cat {groups}/cpu/cpu.cfs_quota_us {groups}/cpu.max 2>/dev/null | head -1;"
        f"cat {groups}/memory/memory.limit_in_bytes {groups}/memory.max 2>/dev/null | head -1;"
        f"cat {groups}/pids/pids.max {groups}/pids.max 2>/dev/null | head -1;"
        "ulimit -n; df -B1 --output=size /dev/shm | tail -1"
    ).stdout.split("\n")
    memory = int(lines[1])
    assert int(lines[4]) * 2 == memory
    return Limits(
        cpus=int(lines[0].split()[0]) / 100_000, memory=f"{memory >> 20}M", pids=int(lines[2]), open_files=int(lines[3])
    )


def fits(box: Sandbox, megabytes: int) -> bool:
    return box.run(f"dd if=/dev/zero of=/workspace/fill bs=1M count={megabytes} conv=fsync 2>/dev/null").ok


def without_disk(limits: Limits) -> Limits:
    return replace(limits, disk=None)


def test_they_go_up_and_down_under_a_running_sandbox(as_before: Sandbox) -> None:
    box = as_before
    process = box.spawn("read line; ulimit -n")
    assert held(box) == without_disk(BEFORE)
    for wished in (
        Limits(cpus=0.5, memory="128M", pids=96, open_files=256),
        Limits(cpus=1.5, memory="512M", pids=200, open_files=1000),
    ):
        box.update(limits=wished)
        assert held(box) == wished
        assert box.info().limits == replace(wished, disk="64M")
        isolation = box.info().isolation
        assert isolation is not None
        assert isolation.details["open_files"] == wished.open_files
    process.stdin.write("\n")
    assert process.wait(10).stdout == "1024\n", "what runs keeps what it began with"


def test_the_disk_goes_up_and_down_under_a_running_sandbox(server: Server, as_before: Sandbox) -> None:
    if not (server.state_dir / "pool.img").exists():
        pytest.skip("the storage driver here is not btrfs: a disk can't become smaller")
    assert not fits(as_before, 80)
    as_before.update(limits=Limits(disk="128M"))
    assert fits(as_before, 80)
    with pytest.raises(Conflict, match="disk"):
        as_before.update(limits=Limits(disk="64M"))
    assert as_before.info().limits.disk == "128M"
    as_before.run("rm /workspace/fill; sync")
    as_before.update(limits=Limits(disk="64M"))
    assert not fits(as_before, 80)
    as_before.run("rm -f /workspace/fill; sync")


def test_a_disk_shrinks_to_what_the_sandbox_has_now_whatever_its_snapshots_hold(server: Server) -> None:
    if not (server.state_dir / "pool.img").exists():
        pytest.skip("the storage driver here is not btrfs: a disk can't become smaller")
    with Sandbox(limits=Limits(disk="64M"), server=server.address) as sandbox:
        assert fits(sandbox, 48)
        snapshot = sandbox.snapshot()
        with pytest.raises(Conflict, match="disk"):
            sandbox.update(limits=Limits(disk="32M"))
        sandbox.run("rm /workspace/fill; sync")
        sandbox.update(limits=Limits(disk="32M"))
        assert not fits(sandbox, 40)
        sandbox.run("rm /workspace/fill; sync")
        assert fits(sandbox, 24)
    snapshot.delete()


def test_shrinking_below_use_is_refused_and_changes_nothing(as_before: Sandbox) -> None:
    box = as_before
    hoard = box.spawn(["python3", "-c", "b = bytearray(100 << 20); print(1, flush=True); input()"])
    hoard.wait_for_output("1", timeout=30)
    crowd = box.spawn("for i in $(seq 70); do sleep 1000 & done; echo up; wait")
    crowd.wait_for_output("up", timeout=30)
    box.run("head -c 30M /dev/zero > /dev/shm/full")
    refusals = (({"memory": "64M"}, "memory"), ({"memory": "48M"}, "/dev/shm"), ({"pids": 64}, "processes"))
    for less, word in refusals:
        with pytest.raises(Conflict, match=word) as refusal:
            box.update(limits=Limits(cpus=0.5, open_files=512, **less), labels={"a": "1"})  # type: ignore[arg-type]
        assert refusal.value.details["limit"] in less
        assert box.info().limits == BEFORE
        assert box.info().labels == {}
        assert held(box) == without_disk(BEFORE)
    for process in (hoard, crowd):
        process.kill()
    box.run("rm /dev/shm/full")
    box.update(limits=Limits(memory="64M", pids=64))
    assert held(box) == replace(without_disk(BEFORE), memory="64M", pids=64)


def test_what_is_only_cached_is_not_in_the_way(as_before: Sandbox) -> None:
    as_before.run("head -c 50M /dev/zero > /workspace/cached; cat /workspace/cached > /dev/null")
    as_before.update(limits=Limits(memory="32M"))
    assert as_before.run("echo here").stdout == "here\n"
    as_before.run("rm /workspace/cached")


def test_nobody_gets_more_than_the_maximum(as_before: Sandbox) -> None:
    for more, word in ((Limits(cpus=4096), "cpus"), (Limits(memory="900T"), "memory"), (Limits(pids=40000), "pids")):
        with pytest.raises(QuotaExceeded, match=word):
            as_before.update(limits=more)
    assert as_before.info().limits == BEFORE


def test_open_files_go_above_what_it_began_with_only_while_it_is_stopped(as_before: Sandbox) -> None:
    with pytest.raises(Conflict, match="stop it first"):
        as_before.update(limits=Limits(open_files=4096))
    as_before.stop()
    as_before.update(limits=Limits(open_files=4096))
    assert as_before.run("ulimit -n").stdout == "4096\n"


@pytest.mark.parametrize("state", ["paused", "stopped"])
def test_they_hold_when_one_wakes_that_was_changed_asleep(as_before: Sandbox, state: str) -> None:
    box = as_before
    box.pause() if state == "paused" else box.stop()
    box.update(limits=Limits(cpus=0.75, memory="192M", disk="96M", pids=100, open_files=700))
    assert box.info().state == state
    assert held(box) == Limits(cpus=0.75, memory="192M", pids=100, open_files=700)
    assert fits(box, 80)
    assert not fits(box, 100)
    box.run("rm /workspace/fill; sync")
