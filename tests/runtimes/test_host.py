"""Picking a runtime, the doctor's checks, uid ranges, hierarchies."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from support.containers import BASE, CONFIG, HOST, make_config

from skerry.errors import HostUnsupported, InvalidRequest, QuotaExceeded
from skerry.runtimes import ContainerConfig, checks, guarantees, pick, pick_runtime, ranges
from skerry.runtimes.cgroups import NEEDED, Cgroups
from skerry.runtimes.checks import mended
from skerry.runtimes.hierarchies import OWN_V2, Hierarchies, mounted, root_for
from skerry.runtimes.oci import OciRuntime
from skerry.runtimes.userns import UserNamespaces

NS_GET_OWNER_UID = 0xB704


def test_an_unknown_runtime_is_rejected_by_name(run_dir: Path) -> None:
    with pytest.raises(InvalidRequest, match="'docker'"):
        pick_runtime(run_dir, "docker")


def test_a_requested_runtime_that_is_missing_is_an_error(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pick, "_PATH", "/nonexistent")
    with pytest.raises(HostUnsupported, match="crun was not found"):
        pick_runtime(run_dir, "crun")
    with pytest.raises(HostUnsupported, match="crun or runc was not found"):
        pick_runtime(run_dir)


def test_a_broken_runtime_program_is_not_used(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "crun").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "crun").chmod(0o755)
    monkeypatch.setattr(pick, "_PATH", str(tmp_path))
    with pytest.raises(HostUnsupported, match="does not answer"):
        pick_runtime(run_dir, "crun")


def test_an_old_kernel_is_rejected(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pick, "kernel", lambda: (5, 15))
    with pytest.raises(HostUnsupported, match="too old"):
        pick_runtime(run_dir)


def test_the_chosen_runtime_reports_its_guarantees(runtime: OciRuntime, config: ContainerConfig) -> None:
    shown = runtime.isolation(config)
    assert shown.runtime == runtime.name
    assert shown.runtime_version == runtime.version()
    assert {"user_namespace", "seccomp", "no_new_privileges", "memory_limit"} <= set(shown.guarantees)
    assert shown.waived == ()
    assert shown.details["open_files"] == 1024


def test_a_missing_guarantee_is_an_error_unless_waived_by_name() -> None:
    weak = replace(HOST, swap="swappiness")
    with pytest.raises(HostUnsupported, match="no_swap"):
        guarantees.check(CONFIG, weak)
    waived = replace(CONFIG, waive_guarantees=frozenset({"no_swap", "disk_limit"}))
    guarantees.check(waived, weak)
    shown = guarantees.isolation(waived, weak, "runc", "1", "v1")
    assert shown.waived == ("no_swap",)
    assert "no_swap" not in shown.guarantees
    guarantees.check(CONFIG, HOST)
    assert "no_swap" in guarantees.isolation(waived, HOST, "runc", "1", "v1").guarantees


def test_every_check_has_a_detail_and_every_failure_a_fix() -> None:
    found = checks()
    assert len({check.name for check in found}) == len(found)
    assert all(check.detail for check in found)
    assert all(check.fix for check in found if check.ok is False)
    assert {check.name: check.ok for check in found}["idmapped overlay"] is True


def test_a_backported_version_is_not_known_to_be_fixed() -> None:
    assert not mended("runc", "1.1.5+ds1")
    assert not mended("runc", "1.1.15")
    assert not mended("runc", "1.4.2")
    assert mended("runc", "1.3.6")
    assert mended("runc", "1.4.3")
    assert mended("runc", "2.0")


def test_ranges_are_taken_lowest_first_and_released(tmp_path: Path) -> None:
    register = tmp_path / "ranges"
    one, two = (ranges.take("instance01", f"sb-aaaaaaaaa{n}", register) for n in "ab")
    assert (one, two) == (ranges.FIRST, ranges.FIRST + 65536)
    assert ranges.held("instance01", register) == {"sb-aaaaaaaaaa": one, "sb-aaaaaaaaab": two}
    assert ranges.held("instance02", register) == {}
    ranges.give_back(one, register)
    ranges.give_back(one, register)
    assert ranges.take("instance02", "sb-cccccccccc", register) == one


def test_a_range_has_one_holder(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        taken = list(pool.map(lambda n: ranges.take("instance01", f"sb-{n:010d}", tmp_path / "r"), range(200)))
    assert len(set(taken)) == 200
    assert len(ranges.held("instance01", tmp_path / "r")) == 200


def test_ranges_of_host_users_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subuid = tmp_path / "subuid"
    subuid.write_text(f"alice:{ranges.FIRST + 100}:65536\nbroken line\nbob:x:y\n")
    monkeypatch.setattr(ranges, "_SUBORDINATE", (subuid,))
    assert ranges.take("instance01", "sb-aaaaaaaaaa", tmp_path / "r") == ranges.FIRST + 2 * 65536


def test_no_free_range_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "COUNT", 2)
    for n in "ab":
        ranges.take("instance01", f"sb-aaaaaaaaa{n}", tmp_path / "r")
    with pytest.raises(QuotaExceeded):
        ranges.take("instance01", "sb-aaaaaaaaac", tmp_path / "r")


def test_sweep_releases_only_unused_ranges_of_its_instance(tmp_path: Path) -> None:
    register = tmp_path / "r"
    for instance, sandbox in (("one", "sb-aaaaaaaaaa"), ("one", "sb-bbbbbbbbbb"), ("two", "sb-cccccccccc")):
        ranges.take(instance, sandbox, register)
    assert ranges.sweep("one", {"sb-aaaaaaaaaa"}, register) == ["sb-bbbbbbbbbb"]
    assert set(ranges.held("one", register)) == {"sb-aaaaaaaaaa"}
    assert set(ranges.held("two", register)) == {"sb-cccccccccc"}


def test_an_id_that_is_not_the_first_of_a_range_is_rejected(tmp_path: Path) -> None:
    for base in (0, ranges.FIRST + 1, ranges.FIRST - 65536, ranges.FIRST + ranges.COUNT * 65536):
        with pytest.raises(ValueError, match="first ID"):
            ranges.give_back(base, tmp_path)


def test_the_cgroup_mode_follows_from_the_mounts() -> None:
    v1 = {"memory": Path("/sys/fs/cgroup/memory")}
    assert Hierarchies({}, Path("/sys/fs/cgroup")).mode == "v2"
    assert Hierarchies(v1, Path("/sys/fs/cgroup/unified")).mode == "hybrid"
    assert Hierarchies(v1, OWN_V2).mode == Hierarchies(v1, None).mode == "v1"
    assert mounted().mode in ("v1", "hybrid", "v2")


def test_without_a_subgroup_of_a_delegated_unit_the_root_is_at_the_top() -> None:
    assert root_for("instance01", mounted()) == "/skerry/instance01"


def test_below_a_delegated_unit_with_a_subgroup_the_root_is_in_the_unit() -> None:
    found = mounted()
    if found.mode != "v2" or found.v2 is None:
        pytest.skip("needs pure cgroup v2")
    unit = found.v2 / "skerry-test-unit"
    (unit / "server").mkdir(parents=True)
    try:
        os.setxattr(unit, "user.delegate", b"1")
        ask = "from skerry.runtimes.hierarchies import *; print(root_for('instance01', mounted()))"
        script = f'echo $$ > {unit}/server/cgroup.procs; exec {sys.executable} -c "{ask}"'
        answer = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, timeout=60).stdout
        assert answer == "/skerry-test-unit/skerry/instance01\n"
        cgroups = Cgroups(answer.strip(), found)
        cgroups.prepare()
        assert set(NEEDED) <= set((cgroups.v2(".") / "cgroup.controllers").read_text().split())
        cgroups.remove_root()
        (unit / "skerry").rmdir()
    finally:
        (unit / "server").rmdir()
        unit.rmdir()


def test_user_namespaces_are_made_once_and_leave_no_process_and_no_fd() -> None:
    fds, children = len(os.listdir("/proc/self/fd")), _children()
    namespaces = UserNamespaces()
    one, two = namespaces.fd(ranges.FIRST), namespaces.fd(ranges.FIRST)
    assert os.fstat(one).st_ino == os.fstat(two).st_ino
    for fd in (one, two):
        os.close(fd)
    namespaces.close()
    assert len(os.listdir("/proc/self/fd")) == fds
    assert _children() == children


def test_a_sandboxs_namespace_belongs_to_its_range_and_no_thread_keeps_the_ids() -> None:
    before = _identities()
    namespaces = UserNamespaces(owned=True)
    fd = namespaces.fd(ranges.FIRST)
    try:
        (owner,) = struct.unpack("I", fcntl.ioctl(fd, NS_GET_OWNER_UID, struct.pack("I", 0)))
        assert owner == ranges.FIRST
        argv = ["nsenter", f"--user=/proc/{os.getpid()}/fd/{fd}", "--preserve-credentials", "cat", "/proc/self/uid_map"]
        shown = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout
        assert shown.split() == ["0", str(ranges.FIRST), "65536"]
    finally:
        os.close(fd)
        namespaces.close()
    assert _identities() == before


def _identities() -> set[tuple[str, ...]]:
    """Return the IDs, capabilities and blocked signals of every thread, and whether the process is dumpable."""
    found = set()
    for status in Path("/proc/self/task").glob("*/status"):
        lines = status.read_text().splitlines()
        found.add(tuple(line for line in lines if line.startswith(("Uid:", "Gid:", "CapEff:", "SigBlk:"))))
    found.add((str(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)),))  # PR_GET_DUMPABLE
    return found


async def test_starting_and_clearing_leaks_no_fd(runtime: OciRuntime, config: ContainerConfig) -> None:
    counts = []
    for _ in range(3):
        await runtime.start(config)
        await runtime.clear("sb-aaaaaaaaaa")
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[0] == counts[1] == counts[2]


async def test_many_concurrent_starts_succeed(runtime: OciRuntime, layer: Path, tmp_path: Path, probe: Path) -> None:
    walls = [
        make_config(runtime, layer, tmp_path / f"u{n}", probe, f"sb-{'abcdefghijklmnopqrst'[n] * 10}", BASE + n * 65536)
        for n in range(20)
    ]
    inits = await asyncio.gather(*(runtime.start(config) for config in walls))
    try:
        assert len({init.pid for init in inits}) == 20
        assert all(runtime.alive(init) for init in inits)
        assert runtime.ids() == {config.id for config in walls}
    finally:
        await asyncio.gather(*(runtime.clear(config.id) for config in walls))
    assert runtime.ids() == set()


def _children() -> str:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


def test_a_missing_state_directory_is_checked_at_its_future_place(tmp_path: Path) -> None:
    found = {check.name: check for check in checks(tmp_path / "not" / "yet")}
    assert found["idmapped overlay"].ok is True
    assert list(tmp_path.iterdir()) == []


def test_a_server_started_by_sudo_can_start_containers() -> None:
    """sudo leaves a hard limit of no cores at all."""
    script = (
        "import resource, sys; from pathlib import Path\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "from skerry.runtimes import oci\n"
        "pipes = Path('/proc/sys/kernel/core_pattern').read_text().startswith('|')\n"
        "core = oci._core()\n"
        "assert core == resource.getrlimit(resource.RLIMIT_CORE)[1] and (core == 1 or not pipes)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
