"""What may do something before anybody looks at it is flagged, however it is spelled."""

from __future__ import annotations

import pytest

from skerry.review import risk
from skerry.review.deltas import Delta

RISKY = """.gitignore .gitattributes .GitModules sub/.gitattributes .git/config .github/workflows/ci.yml .gitlab-ci.yml
.husky/pre-commit hooks/pre-push .githooks/x .pre-commit-config.yaml Jenkinsfile .vscode/settings.json .idea/x.xml
a/b/.vscode/tasks.json .devcontainer/devcontainer.json .claude/settings.json CLAUDE.md docs/claude.MD AGENTS.md
.cursor/rules/x .mcp.json skerry.toml .envrc package.json sub/package.json setup.py pyproject.toml Makefile makefile
GNUmakefile rules.mk build.rs app/build.gradle build.gradle.kts .npmrc pip.conf conftest.py tests/conftest.py
.cargo/config.toml Dockerfile Dockerfile.dev CMakeLists.txt requirements-dev.txt x.code-workspace .env.local x/HEAD
.vscode./settings.json .VSCODE/x .cl\u200baude/x .git:stream eslint.config.js .bashrc install.PS1""".split()  # noqa: SIM905
PLAIN = """app.py README.md docs/git.md src/hooks/useLogin.ts src/github/client.py index.html data/package.jsonl
src/makefile.py legit/x.py tests/test_x.py src/build/x.py environment.py claude.py lib/agents.py""".split()  # noqa: SIM905


@pytest.mark.parametrize("path", RISKY)
def test_it_is_flagged(path: str) -> None:
    assert risk.of_path(path.encode())


@pytest.mark.parametrize("path", PLAIN)
def test_it_is_not_flagged(path: str) -> None:
    assert risk.of_path(path.encode()) == ()


def test_modes_that_matter_are_flagged() -> None:
    assert risk.of_modes(None, "100755") == risk.of_modes("100644", "100755") == (risk.EXECUTABLE,)
    assert risk.of_modes(None, "120000") == risk.of_modes("100644", "120000") == (risk.LINK,)
    assert risk.of_modes("100755", "100755") == risk.of_modes("120000", None) == risk.of_modes("100755", "100644") == ()


def test_a_change_is_flagged_for_its_names_before_and_after_and_for_its_mode() -> None:
    moved = Delta(path=b"a.py", kind="renamed", old_path=b"setup.py", old_mode="100644", new_mode="100755")
    assert risk.of_change(moved) == tuple(sorted((*risk.of_path(b"setup.py"), risk.EXECUTABLE)))


def test_a_name_that_is_no_text_is_no_trouble() -> None:
    assert risk.of_path(b"\xff\xfe/\xff") == ()
    assert risk.of_path(b"\xff/.vscode/x")
