"""Other limits for a sandbox that is there: they hold at once, or are refused whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from support.server import Server

from skerry import Limits, Sandbox
from skerry.errors import Conflict, QuotaExceeded

pytestmark = pytest.mark.vm
BEFORE = Limits(cpus=1.0, memory="256M", disk="64M", pids=128, open_files=1024)


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    with Sandbox(limits=BEFORE, server=server.address) as sandbox:
        yield sandbox


@pytest.fixture
def as_before(sandbox: Sandbox) -> Sandbox:
    sandbox.resume()
    sandbox.update(limits=without_disk(BEFORE))
    return sandbox


def held(sandbox: Sandbox) -> Limits:
    """Return the effective limits as seen from inside; /dev/shm has half of the memory."""
    groups = "/sys/fs/cgroup"
    lines = sandbox.run(
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


def fits(sandbox: Sandbox, megabytes: int) -> bool:
    return sandbox.run(f"dd if=/dev/zero of=/workspace/fill bs=1M count={megabytes} conv=fsync 2>/dev/null").ok


def without_disk(limits: Limits) -> Limits:
    return replace(limits, disk=None)


def test_limits_of_a_running_sandbox_can_be_raised_and_lowered(as_before: Sandbox) -> None:
    sandbox = as_before
    process = sandbox.spawn("read line; ulimit -n")
    assert held(sandbox) == without_disk(BEFORE)
    for wished in (
        Limits(cpus=0.5, memory="128M", pids=96, open_files=256),
        Limits(cpus=1.5, memory="512M", pids=200, open_files=1000),
    ):
        sandbox.update(limits=wished)
        assert held(sandbox) == wished
        assert sandbox.info().limits == replace(wished, disk="64M")
        isolation = sandbox.info().isolation
        assert isolation is not None
        assert isolation.details["open_files"] == wished.open_files
    process.stdin.write("\n")
    assert process.wait(60).stdout == "1024\n", "what runs keeps what it began with"


def test_disk_of_a_running_sandbox_can_be_raised_and_lowered(server: Server, as_before: Sandbox) -> None:
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


def test_disk_limit_can_shrink_to_current_use_despite_snapshots(server: Server) -> None:
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


def test_shrinking_below_use_is_rejected_and_changes_nothing(as_before: Sandbox) -> None:
    sandbox = as_before
    hoard = sandbox.spawn(["python3", "-c", "b = bytearray(100 << 20); print(1, flush=True); input()"])
    hoard.wait_for_output("1", timeout=30)
    crowd = sandbox.spawn("for i in $(seq 70); do sleep 1000 & done; echo up; wait")
    crowd.wait_for_output("up", timeout=30)
    sandbox.run("head -c 30M /dev/zero > /dev/shm/full")
    refusals = (({"memory": "64M"}, "memory"), ({"memory": "48M"}, "/dev/shm"), ({"pids": 64}, "processes"))
    for less, word in refusals:
        with pytest.raises(Conflict, match=word) as refusal:
            sandbox.update(limits=Limits(cpus=0.5, open_files=512, **less), labels={"a": "1"})  # type: ignore[arg-type]
        assert refusal.value.details["limit"] in less
        assert sandbox.info().limits == BEFORE
        assert sandbox.info().labels == {}
        assert held(sandbox) == without_disk(BEFORE)
    for process in (hoard, crowd):
        process.kill()
    sandbox.run("rm /dev/shm/full")
    sandbox.update(limits=Limits(memory="64M", pids=64))
    assert held(sandbox) == replace(without_disk(BEFORE), memory="64M", pids=64)


def test_page_cache_does_not_prevent_a_lower_limit(as_before: Sandbox) -> None:
    as_before.run("head -c 50M /dev/zero > /workspace/cached; cat /workspace/cached > /dev/null")
    as_before.update(limits=Limits(memory="32M"))
    assert as_before.run("echo here").stdout == "here\n"
    as_before.run("rm /workspace/cached")


def test_limits_above_the_maximum_are_rejected(as_before: Sandbox) -> None:
    for more, word in ((Limits(cpus=4096), "cpus"), (Limits(memory="900T"), "memory"), (Limits(pids=40000), "pids")):
        with pytest.raises(QuotaExceeded, match=word):
            as_before.update(limits=more)
    assert as_before.info().limits == BEFORE


def test_open_files_limit_can_be_raised_only_while_stopped(as_before: Sandbox) -> None:
    with pytest.raises(Conflict, match="stop it first"):
        as_before.update(limits=Limits(open_files=4096))
    as_before.stop()
    as_before.update(limits=Limits(open_files=4096))
    assert as_before.run("ulimit -n").stdout == "4096\n"


@pytest.mark.parametrize("state", ["paused", "stopped"])
def test_limits_changed_while_asleep_apply_after_resume(as_before: Sandbox, state: str) -> None:
    sandbox = as_before
    sandbox.pause() if state == "paused" else sandbox.stop()
    sandbox.update(limits=Limits(cpus=0.75, memory="192M", disk="96M", pids=100, open_files=700))
    assert sandbox.info().state == state
    assert held(sandbox) == Limits(cpus=0.75, memory="192M", pids=100, open_files=700)
    assert fits(sandbox, 80)
    assert not fits(sandbox, 100)
    sandbox.run("rm /workspace/fill; sync")
