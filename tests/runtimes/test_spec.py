"""The whole spec against a golden file: a change of the isolation is visible to a reviewer."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.containers import CONFIG, HOST

from skerry.runtimes import bpf, seccomp, spec
from skerry.types import Limits

GOLDEN = Path(__file__).parent / "golden.json"


def test_the_spec_equals_the_golden_file() -> None:
    """After a wanted change: SKERRY_GOLDEN=write pytest tests/runtimes/test_spec.py, and read the diff."""
    text = json.dumps(spec.build(CONFIG, HOST), indent=1) + "\n"
    if os.environ.get("SKERRY_GOLDEN") == "write":
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_open_files_is_limited_by_the_hosts_hard_limit() -> None:
    assert spec.open_files(CONFIG.limits, HOST) == 20_000
    assert spec.open_files(Limits(open_files=100), HOST) == 100
    assert spec.open_files(CONFIG.limits, replace(HOST, open_files=1 << 20)) == 65_536


def test_no_cpu_quota_is_in_the_spec() -> None:
    assert "cpu" not in spec.build(CONFIG, HOST)["linux"]["resources"]


def test_swap_is_zero_by_any_available_means() -> None:
    memory = {
        kind: spec.build(CONFIG, replace(HOST, swap=kind))["linux"]["resources"]["memory"]
        for kind in ("limit", "swappiness", "none")
    }
    assert memory["limit"] == {"limit": 2 << 30, "swap": 2 << 30}
    assert memory["swappiness"] == {"limit": 2 << 30, "swappiness": 0}
    assert memory["none"] == {"limit": 2 << 30}


def test_a_compiled_filter_replaces_the_profile() -> None:
    made = spec.build(CONFIG, replace(HOST, bpf="AAAA"))
    assert made["annotations"] == {bpf.ANNOTATION: "AAAA"}
    assert "seccomp" not in made["linux"]


def test_the_compiled_profile_is_accepted_by_the_kernel() -> None:
    program = bpf.compiled(seccomp.profile(os.uname().machine))
    if program is None:
        pytest.skip("libseccomp.so.2 is not installed")
    assert 100 * 8 < len(program) * 3 // 4 < 4096 * 8


def test_boot_id_is_mounted_where_the_runtime_allows_it() -> None:
    made = spec.build(CONFIG, replace(HOST, boot_id=True))["mounts"]
    assert made[:-1] == spec.build(CONFIG, HOST)["mounts"]
    assert made[-1]["destination"] == "/proc/sys/kernel/random/boot_id"
    assert {"bind", "ro", "nosuid", "nodev", "noexec"} == set(made[-1]["options"])


def test_forbidden_capabilities_are_absent() -> None:
    assert not [name for name in spec.CAPABILITIES if name.startswith(("CAP_SYS_", "CAP_NET_RAW", "CAP_NET_ADMIN"))]
    assert "CAP_MKNOD" not in spec.CAPABILITIES


def test_sockets_do_not_linger_if_fds_cannot_be_refused() -> None:
    profile = spec.build(CONFIG, replace(HOST, linger=False))["linux"]["seccomp"]["syscalls"]
    rules = [rule for rule in profile if rule["names"] == ["setsockopt"]]
    assert all("args" in rule for rule in rules)
    refusals = [rule for rule in rules if rule["action"] == "SCMP_ACT_ERRNO"]
    assert [1, 13] in [[arg["valueTwo"] for arg in rule["args"]] for rule in refusals]
    allowed = [rule["args"] for rule in rules if rule["action"] == "SCMP_ACT_ALLOW"]
    assert not [args for args in allowed if all(_matches(arg, (0, 1, 13)) for arg in args)]
    assert [args for args in allowed if all(_matches(arg, (0, 1, 9)) for arg in args)]


def _matches(arg: dict[str, int], call: tuple[int, ...]) -> bool:
    return call[arg["index"]] & arg["value"] == arg["valueTwo"]
