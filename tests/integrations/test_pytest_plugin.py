"""The pytest plugin, in a separate pytest run: the fixture, its marker, and its cost in runs that do not use it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.server import Server

USE = """
import pytest

def test_command_runs(sandbox):
    assert sandbox.run("echo on").stdout == "on\\n"
    sandbox.files.write("left", "")

@pytest.mark.sandbox(env={"MODE": "test"}, labels={"by": "pytest"})
def test_marker_gives_the_arguments(sandbox):
    assert sandbox.run("echo $MODE").stdout == "test\\n"
    assert sandbox.labels == {"by": "pytest"}
    assert not sandbox.files.exists("left")
"""
NO_USE = """
import sys

def test_plugin_has_loaded_nothing_else():
    allowed = {"skerry", "skerry._version", "skerry.integrations", "skerry.integrations.pytest_plugin"}
    assert {name for name in sys.modules if name.startswith("skerry")} == allowed
    assert not {"msgspec", "httpx2", "httpcore2", "anyio"} & set(sys.modules)
"""


def run_pytest(place: Path, text: str, server: Server) -> subprocess.CompletedProcess[str]:
    file = place / "test_it.py"
    file.write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--strict-markers", "-p", "no:cacheprovider"]
    env = {**os.environ, "SKERRY_SERVER": server.address, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for name in [name for name in env if name.startswith("PYTEST_XDIST")]:
        del env[name]
    plugin = ["-p", "skerry.integrations.pytest_plugin"]
    return subprocess.run([*command, *plugin, file], env=env, capture_output=True, text=True, check=False, cwd=place)


def test_fixture_creates_a_sandbox_for_each_test(tmp_path: Path, server: Server) -> None:
    done = run_pytest(tmp_path, USE, server)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    with server.http() as http:
        assert http.get("/v1/sandboxes").json()["sandboxes"] == []


def test_run_without_the_fixture_loads_nothing(tmp_path: Path, server: Server) -> None:
    done = run_pytest(tmp_path, NO_USE, server)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_package_declares_its_plugins() -> None:
    """A missing entry point would disable a plugin silently."""
    from importlib.metadata import distribution

    declared = {(one.group, one.name): one for one in distribution("skerry").entry_points}
    assert declared["pytest11", "skerry"].load().__name__ == "skerry.integrations.pytest_plugin"
    assert declared["inspect_ai", "skerry"].value == "skerry.integrations.inspect_ai"
