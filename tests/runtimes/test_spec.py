"""The whole spec against a golden file: a change of the wall is a change that a reviewer sees."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from runtimes.walls import HOST, WALL

from skerry.runtimes import bpf, seccomp, spec
from skerry.types import Limits

GOLDEN = Path(__file__).parent / "golden.json"


def test_the_spec_is_the_golden_one() -> None:
    """After a wanted change: SKERRY_GOLDEN=write pytest tests/runtimes/test_spec.py, and read the diff."""
    text = json.dumps(spec.build(WALL, HOST), indent=1) + "\n"
    if os.environ.get("SKERRY_GOLDEN") == "write":
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_open_files_is_the_lesser_of_the_wish_and_the_hosts_hard_limit() -> None:
    assert spec.open_files(WALL.limits, HOST) == 20_000
    assert spec.open_files(Limits(open_files=100), HOST) == 100
    assert spec.open_files(WALL.limits, replace(HOST, open_files=1 << 20)) == 65_536


def test_no_cpu_quota_is_in_the_spec() -> None:
    assert "cpu" not in spec.build(WALL, HOST)["linux"]["resources"]


def test_swap_is_kept_at_nothing_in_whatever_way_the_host_has() -> None:
    memory = {
        kind: spec.build(WALL, replace(HOST, swap=kind))["linux"]["resources"]["memory"]
        for kind in ("limit", "swappiness", "none")
    }
    assert memory["limit"] == {"limit": 2 << 30, "swap": 2 << 30}
    assert memory["swappiness"] == {"limit": 2 << 30, "swappiness": 0}
    assert memory["none"] == {"limit": 2 << 30}


def test_a_ready_made_filter_stands_in_for_the_profile() -> None:
    made = spec.build(WALL, replace(HOST, bpf="AAAA"))
    assert made["annotations"] == {bpf.ANNOTATION: "AAAA"}
    assert "seccomp" not in made["linux"]


def test_the_profile_compiles_to_a_program_that_the_kernel_takes() -> None:
    program = bpf.compiled(seccomp.profile(os.uname().machine))
    if program is None:
        pytest.skip("libseccomp.so.2 is not installed")
    assert 100 * 8 < len(program) * 3 // 4 < 4096 * 8


def test_what_the_design_forbids_is_not_among_the_capabilities() -> None:
    assert not [name for name in spec.CAPABILITIES if name.startswith(("CAP_SYS_", "CAP_NET_RAW", "CAP_NET_ADMIN"))]
    assert "CAP_MKNOD" not in spec.CAPABILITIES


def test_where_fds_can_not_be_refused_no_socket_lingers() -> None:
    profile = spec.build(WALL, replace(HOST, linger=False))["linux"]["seccomp"]["syscalls"]
    rules = [rule for rule in profile if rule["names"] == ["setsockopt"]]
    assert all("args" in rule for rule in rules)
    (refusal,) = [rule for rule in rules if rule["action"] == "SCMP_ACT_ERRNO"]
    assert [arg["value"] for arg in refusal["args"]] == [1, 13]
