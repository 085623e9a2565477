"""`skerry doctor` for users other than root: members of the server's group, and users without access."""

from __future__ import annotations

import grp
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.server import Server

from skerry.config import load
from skerry.engine.doctor import examine

NOBODY = 65534
# The first calls are root's, so that every module is loaded: another user may not be able to read this tree.
AS_NOBODY = f"""
import json, os, sys
from skerry.cli.commands import doctor
from skerry.cli.context import CliContext
from skerry.config import load
from skerry.engine.doctor import examine
doctor._checks(CliContext(server=sys.argv[1])); examine(load())
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
print(json.dumps({{check["name"]: check for check in doctor._checks(CliContext())}}))
"""


def checks_as_nobody(state: Path, server: Server) -> dict[str, Any]:
    """Return the checks of `skerry doctor` by name, for a state directory. `server` is any server."""
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, server.address], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "SKERRY_STATE_DIR": str(state)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_user_without_a_server_gets_the_checks_that_need_no_root(server: Server, tmp_path: Path) -> None:
    found = checks_as_nobody(tmp_path / "none", server)
    assert [name for name, check in found.items() if check["ok"] is False] == ["server"]
    assert "sudo skerry setup" in found["server"]["fix"]
    assert found["kernel"]["ok"]
    for name in ("root", "idmapped overlay", "storage"):
        assert (found[name]["ok"], found[name]["fix"]) == (None, "sudo skerry doctor")


def test_member_of_the_group_gets_the_checks_of_the_server(own_server: Server) -> None:
    group = grp.getgrgid(NOBODY)
    own_server.start("--group", group.gr_name)
    found = checks_as_nobody(own_server.state_dir, own_server)
    assert found["server"]["ok"], found["server"]
    assert (found["root"]["ok"], found["idmapped overlay"]["ok"], found["storage"]["ok"]) == (True, True, True)
    own_server.end()
    own_server.start("--group", "daemon")
    refused = checks_as_nobody(own_server.state_dir, own_server)
    assert refused["server"]["ok"] is False
    assert refused["server"]["fix"] == "sudo usermod --append --groups daemon nobody; then log in again"


def test_program_of_buckets_is_reported_if_the_operator_lists_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text('[buckets.local]\nurl = "http://127.0.0.1:9000"\n')
    monkeypatch.setenv("SKERRY_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "buckets" not in {check.name for check in examine(load())}
    monkeypatch.setenv("SKERRY_CONFIG", str(tmp_path / "config.toml"))
    (check,) = (check for check in examine(load()) if check.name == "buckets")
    assert (check.ok, check.fix) == (False, "install rclone")
    program = tmp_path / "rclone"
    program.touch(0o755)
    (check,) = (check for check in examine(load()) if check.name == "buckets")
    assert (check.ok, check.detail) == (True, str(program))


def test_user_without_access_to_roots_server_is_told_the_way(server: Server) -> None:
    found = checks_as_nobody(server.state_dir, server)
    assert found["server"]["detail"] == "running, but this user is not allowed to use it"
    assert "sudo skerry setup" in found["server"]["fix"]
