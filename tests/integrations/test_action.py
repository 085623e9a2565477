"""The script of action.yml, with the variables that GitHub would set; GitHub itself is not part of the test."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from support.server import Server

ROOT = Path(__file__).parents[2]
ACTION = (ROOT / "action.yml").read_text()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    place = tmp_path / "repository"
    place.mkdir()
    (place / "answer.py").write_text("print(6 * 7)\n")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=T", "-c", "user.email=t@t", "commit", "-qm", "A"]):
        subprocess.run(["git", *words], cwd=place, check=True)
    return place


def act(server: Server, repository: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "SKERRY_SERVER": server.address}
    env |= {f"INPUT_{name}": "" for name in re.findall(r"INPUT_(\w+):", ACTION)}
    env |= {"INPUT_REPO": ".", **{f"INPUT_{name.upper()}": value for name, value in inputs.items()}}
    command = ["sh", str(ROOT / "scripts" / "action")]
    return subprocess.run(command, cwd=repository, env=env, capture_output=True, text=True, check=False, timeout=110)


def test_inputs_are_passed_as_variables_only() -> None:
    declared = re.findall(r"^  (\w+):\n    description:", ACTION, re.MULTILINE)
    assert re.findall(r"INPUT_\w+: \$\{\{ inputs\.(\w+) \}\}", ACTION) == declared
    assert ACTION.count("${{") == len(declared)


def test_commands_run_in_a_copy_of_the_repository(server: Server, repository: Path) -> None:
    inputs = {"memory": "512M", "allow": "*.example.com\nexample.org", "out": "results"}
    done = act(
        server, repository, run="pwd; python3 answer.py | tee found.txt\nfalse | true\necho unreachable", **inputs
    )
    assert done.stdout == "/workspace\n42\n", done.stderr
    assert done.returncode == 1
    assert (repository / "results" / "found.txt").read_text() == "42\n"


def test_input_with_shell_code_is_a_value(server: Server, repository: Path) -> None:
    done = act(server, repository, run="true", memory="$(touch stolen)`touch stolen`")
    assert done.returncode != 0
    assert "memory" in done.stderr
    assert [path.name for path in repository.iterdir() if path.name == "stolen"] == []
