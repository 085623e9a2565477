"""System calls that a sandbox must not have, made by a static program without a C library in between."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from skerry import Sandbox

PROBE = Path(__file__).parent / "probe"
# The kernel's error for a missing permission, the filter's two errors, and the end of a thread that used another ABI.
REFUSED = {"EPERM", "ENOSYS", "bad system call", "thread killed"}
# In kernels without these calls the control proves nothing.
OPTIONAL = re.compile(r"_sysctl|create_module|nfsservctl|uselib|lookup_dcookie|.*_module|kexec.*|iop.*|.* x32 ABI")


def names() -> list[str]:
    """The probes' names, read off their source: a map's keys at the beginning of a line."""
    text = "".join(file.read_text() for file in PROBE.glob("*.go") if not file.name.endswith("arm64.go"))
    kinds = re.findall(r'"(\w+)": 0x', text)
    found = re.findall(r'^\t\t"([^"]+)":', text, re.MULTILINE)
    found += [f"unshare of a {kind} namespace" for kind in kinds]
    return found + [f"clone of a {kind} namespace" for kind in kinds if kind != "time"]


@pytest.fixture(scope="module")
def probed(target: Sandbox, go_program: Callable[[str], Path]) -> dict[str, dict[str, str]]:
    program = go_program("probe")
    target.files.write("/opt/probe", program.read_bytes(), mode=0o755, user="root")
    results = {user: json.loads(target.run(["/opt/probe"], user=user, check=True).stdout) for user in ("user", "root")}
    results["host"] = json.loads(subprocess.run([str(program)], capture_output=True, check=True).stdout)
    return results


@pytest.mark.parametrize("user", ["user", "root"])
@pytest.mark.parametrize("name", names())
def test_system_call_is_denied(probed: dict[str, dict[str, str]], name: str, user: str) -> None:
    if name not in probed["host"]:
        pytest.skip(f"this machine has no such call: {name}")
    assert probed[user][name] in REFUSED


def test_every_probe_is_a_test(probed: dict[str, dict[str, str]]) -> None:
    assert set(probed["user"]) == set(probed["root"]) <= set(names())


def test_same_calls_succeed_on_the_host(probed: dict[str, dict[str, str]]) -> None:
    """So a refusal inside is the wall's."""
    refused = {name for name, answer in probed["host"].items() if answer in REFUSED}
    assert {name for name in refused if not OPTIONAL.fullmatch(name)} == set()


def test_c_libraries_work_with_the_filter(target: Sandbox) -> None:
    """clone3 must be 'not implemented', as a thread's start falls back on nothing else."""
    code = "import threading; t = threading.Thread(target=print, args=('runs',)); t.start(); t.join()"
    assert target.run(["python3", "-c", code], check=True).stdout == "runs\n"
