"""Picking a runtime, the doctor's checks, uid ranges, hierarchies."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from runtimes.walls import BASE, HOST, WALL, make_wall

from skerry.errors import HostUnsupported, InvalidRequest, QuotaExceeded
from skerry.runtimes import Wall, checks, guarantees, pick, pick_runtime, ranges
from skerry.runtimes.cgroups import NEEDED, Cgroups
from skerry.runtimes.checks import mended
from skerry.runtimes.hierarchies import OWN_V2, Hierarchies, mounted, root_for
from skerry.runtimes.oci import OciRuntime
from skerry.runtimes.userns import UserNamespaces


def test_a_runtime_that_does_not_exist_is_refused_by_name(run_dir: Path) -> None:
    with pytest.raises(InvalidRequest, match="'docker'"):
        pick_runtime(run_dir, "docker")


def test_a_forced_runtime_that_is_not_installed_is_an_error_not_another_one(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pick, "_PATH", "/nonexistent")
    with pytest.raises(HostUnsupported, match="crun was not found"):
        pick_runtime(run_dir, "crun")
    with pytest.raises(HostUnsupported, match="crun or runc was not found"):
        pick_runtime(run_dir)


def test_a_runtime_whose_program_does_not_answer_is_not_used(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "crun").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "crun").chmod(0o755)
    monkeypatch.setattr(pick, "_PATH", str(tmp_path))
    with pytest.raises(HostUnsupported, match="does not answer"):
        pick_runtime(run_dir, "crun")


def test_an_old_kernel_is_refused(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pick, "kernel", lambda: (5, 15))
    with pytest.raises(HostUnsupported, match="too old"):
        pick_runtime(run_dir)


def test_the_runtime_that_is_picked_says_what_it_guarantees(runtime: OciRuntime, wall: Wall) -> None:
    shown = runtime.isolation(wall)
    assert shown.runtime == runtime.name
    assert shown.runtime_version == runtime.version()
    assert {"user_namespace", "seccomp", "no_new_privileges", "memory_limit"} <= set(shown.guarantees)
    assert shown.waived == ()
    assert shown.details["open_files"] == 1024


def test_a_guarantee_that_the_host_lacks_is_an_error_until_it_is_waived_by_name() -> None:
    weak = replace(HOST, swap="swappiness")
    with pytest.raises(HostUnsupported, match="no_swap"):
        guarantees.check(WALL, weak)
    waived = replace(WALL, waive=frozenset({"no_swap", "disk_limit"}))
    guarantees.check(waived, weak)
    shown = guarantees.isolation(waived, weak, "runc", "1", "v1")
    assert shown.waived == ("no_swap",)
    assert "no_swap" not in shown.guarantees
    guarantees.check(WALL, HOST)
    assert "no_swap" in guarantees.isolation(waived, HOST, "runc", "1", "v1").guarantees


def test_every_check_has_a_detail_and_what_fails_has_a_fix() -> None:
    found = checks()
    assert len({check.name for check in found}) == len(found)
    assert all(check.detail for check in found)
    assert all(check.fix for check in found if check.ok is False)
    assert {check.name: check.ok for check in found}["idmapped overlay"] is True


def test_a_backported_version_is_unknown_rather_than_mended() -> None:
    assert not mended("runc", "1.1.5+ds1")
    assert not mended("runc", "1.1.15")
    assert not mended("runc", "1.4.2")
    assert mended("runc", "1.3.6")
    assert mended("runc", "1.4.3")
    assert mended("runc", "2.0")


def test_ranges_are_taken_lowest_first_and_given_back(tmp_path: Path) -> None:
    register = tmp_path / "ranges"
    one, two = (ranges.take("instance01", f"sb-aaaaaaaaa{n}", register) for n in "ab")
    assert (one, two) == (ranges.FIRST, ranges.FIRST + 65536)
    assert ranges.held("instance01", register) == {"sb-aaaaaaaaaa": one, "sb-aaaaaaaaab": two}
    assert ranges.held("instance02", register) == {}
    ranges.give_back(one, register)
    ranges.give_back(one, register)
    assert ranges.take("instance02", "sb-cccccccccc", register) == one


def test_a_range_is_never_given_to_two(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        taken = list(pool.map(lambda n: ranges.take("instance01", f"sb-{n:010d}", tmp_path / "r"), range(200)))
    assert len(set(taken)) == 200
    assert len(ranges.held("instance01", tmp_path / "r")) == 200


def test_ranges_of_the_hosts_own_users_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subuid = tmp_path / "subuid"
    subuid.write_text(f"alice:{ranges.FIRST + 100}:65536\nbroken line\nbob:x:y\n")
    monkeypatch.setattr(ranges, "_SUBORDINATE", (subuid,))
    assert ranges.take("instance01", "sb-aaaaaaaaaa", tmp_path / "r") == ranges.FIRST + 2 * 65536


def test_when_all_ranges_are_held_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "COUNT", 2)
    for n in "ab":
        ranges.take("instance01", f"sb-aaaaaaaaa{n}", tmp_path / "r")
    with pytest.raises(QuotaExceeded):
        ranges.take("instance01", "sb-aaaaaaaaac", tmp_path / "r")


def test_sweeping_gives_back_what_no_sandbox_holds_and_nothing_of_another_instance(tmp_path: Path) -> None:
    register = tmp_path / "r"
    for instance, sandbox in (("one", "sb-aaaaaaaaaa"), ("one", "sb-bbbbbbbbbb"), ("two", "sb-cccccccccc")):
        ranges.take(instance, sandbox, register)
    assert ranges.sweep("one", {"sb-aaaaaaaaaa"}, register) == ["sb-bbbbbbbbbb"]
    assert set(ranges.held("one", register)) == {"sb-aaaaaaaaaa"}
    assert set(ranges.held("two", register)) == {"sb-cccccccccc"}


def test_a_number_that_is_no_ranges_first_id_is_refused(tmp_path: Path) -> None:
    for base in (0, ranges.FIRST + 1, ranges.FIRST - 65536, ranges.FIRST + ranges.COUNT * 65536):
        with pytest.raises(ValueError, match="first id"):
            ranges.give_back(base, tmp_path)


def test_the_mode_is_told_from_what_is_mounted() -> None:
    v1 = {"memory": Path("/sys/fs/cgroup/memory")}
    assert Hierarchies({}, Path("/sys/fs/cgroup")).mode == "v2"
    assert Hierarchies(v1, Path("/sys/fs/cgroup/unified")).mode == "hybrid"
    assert Hierarchies(v1, OWN_V2).mode == Hierarchies(v1, None).mode == "v1"
    assert mounted().mode in ("v1", "hybrid", "v2")


def test_without_a_subgroup_of_a_delegated_unit_the_root_is_at_the_top() -> None:
    assert root_for("instance01", mounted()) == "/skerry/instance01"


def test_below_a_delegated_unit_whose_server_is_in_a_subgroup_sandboxes_belong_to_the_unit() -> None:
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


async def test_starting_and_clearing_leaks_no_fd(runtime: OciRuntime, wall: Wall) -> None:
    counts = []
    for _ in range(3):
        await runtime.start(wall)
        await runtime.clear("sb-aaaaaaaaaa")
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[0] == counts[1] == counts[2]


async def test_many_at_once_all_start(runtime: OciRuntime, layer: Path, tmp_path: Path, probe: Path) -> None:
    walls = [
        make_wall(runtime, layer, tmp_path / f"u{n}", probe, f"sb-{'abcdefghijklmnopqrst'[n] * 10}", BASE + n * 65536)
        for n in range(20)
    ]
    inits = await asyncio.gather(*(runtime.start(wall) for wall in walls))
    try:
        assert len({init.pid for init in inits}) == 20
        assert all(runtime.alive(init) for init in inits)
        assert runtime.ids() == {wall.id for wall in walls}
    finally:
        await asyncio.gather(*(runtime.clear(wall.id) for wall in walls))
    assert runtime.ids() == set()


def _children() -> str:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


def test_a_state_directory_that_is_not_there_yet_is_examined_where_it_will_be(tmp_path: Path) -> None:
    found = {check.name: check for check in checks(tmp_path / "not" / "yet")}
    assert found["idmapped overlay"].ok is True
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_sudo_started_can_still_build_walls() -> None:
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
