"""skill install: the file for coding agents."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.cli import skerry

from skerry.cli.commands.skill import AGENTS, text

ROOT = Path(__file__).parents[2]


def install(home: Path, *words: str) -> tuple[int, str]:
    """Run it in a project below a home directory."""
    (home / "project").mkdir(parents=True, exist_ok=True)
    unset = {"CLAUDE_CONFIG_DIR": "", "OPENCODE_CONFIG_DIR": ""}
    done = skerry("skill", "install", *words, cwd=home / "project", **{"HOME": str(home), **unset})
    return done.returncode, (done.stdout + done.stderr).decode()


@pytest.mark.parametrize("agent", AGENTS)
def test_skill_is_installed_updated_and_removed(tmp_path: Path, agent: str) -> None:
    for scope, base, place in (
        ("user", tmp_path, AGENTS[agent].user), ("project", tmp_path / "project", AGENTS[agent].project),
    ):  # fmt: skip
        path = base / place / "skerry" / "SKILL.md"
        assert install(tmp_path, agent, "--scope", scope) == (0, f"{path}: installed\n")
        assert path.read_text() == text()
        assert install(tmp_path, agent, "--scope", scope) == (0, f"{path}: is up to date\n")
        path.write_text("old")
        assert install(tmp_path, agent, "--scope", scope) == (0, f"{path}: updated\n")
        assert install(tmp_path, agent, "--scope", scope, "--remove") == (0, f"{path}: removed\n")
        assert not path.parent.exists()
        assert install(tmp_path, agent, "--scope", scope, "--remove") == (0, f"{path}: was not installed\n")


def test_other_files_of_the_skill_stay(tmp_path: Path) -> None:
    install(tmp_path, "codex")
    other = tmp_path / ".agents" / "skills" / "skerry" / "notes.md"
    other.write_text("mine")
    assert install(tmp_path, "codex", "--remove")[0] == 0
    assert [path.name for path in other.parent.iterdir()] == ["notes.md"]


def test_project_cannot_lead_the_skill_elsewhere(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / ".claude").symlink_to(target)
    code, said = install(tmp_path, "claude-code", "--scope", "project")
    assert code != 0
    assert "outside the project" in said
    assert list(target.iterdir()) == []


def test_skill_and_index_are_current() -> None:
    subprocess.run([sys.executable, str(ROOT / "scripts" / "model_files.py"), "--check"], check=True)


def test_skill_has_a_name_and_a_description() -> None:
    head = text().split("---\n")[1]
    assert head.startswith("name: skerry\ndescription: ")
    assert len(head) < 1024


def test_skill_shows_code_sessions_and_snapshots() -> None:
    for call in (
        "sandbox.code.run(",
        "sandbox.code.stream(",
        "sandbox.session(",
        "sandbox.snapshot()",
        "image=snapshot",
    ):
        assert call in text(), call
