"""Files that may take effect before a person looks at them are flagged, in every spelling."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from skerry.review.hunks import risk
from skerry.review.hunks.hunks import ReviewedFile, Sides
from skerry.review.ledger.diff import Delta

RISKY = """.gitignore .gitattributes .GitModules sub/.gitattributes .git/config .github/workflows/ci.yml .gitlab-ci.yml
.husky/pre-commit hooks/pre-push .githooks/x .pre-commit-config.yaml Jenkinsfile .vscode/settings.json .idea/x.xml
a/b/.vscode/tasks.json .devcontainer/devcontainer.json .claude/settings.json CLAUDE.md docs/claude.MD AGENTS.md
.cursor/rules/x .mcp.json skerry.toml .envrc package.json sub/package.json setup.py pyproject.toml Makefile makefile
GNUmakefile rules.mk build.rs app/build.gradle build.gradle.kts .npmrc pip.conf conftest.py tests/conftest.py
.cargo/config.toml Dockerfile Dockerfile.dev CMakeLists.txt requirements-dev.txt x.code-workspace .env.local x/HEAD
.vscode./settings.json .VSCODE/x .cl\u200baude/x .git:stream eslint.config.js .bashrc install.PS1
.hg/hgrc .svn/x .JJ/repo app/__pycache__/app.cpython-311.pyc app.PYC lib/native.so lib/libx.so.1.2 addon.node
x/tool.jar Main.class page.wasm node_modules/left-pad/index.js web/Node_Modules/x/readme.md .venv/bin/python
lib/python3.11/site-packages/x.py model.pkl weights.pt report.xlsm setup.exe start.vbs x.pyc. x.pyc\u200b
.qwen/settings.json QWEN.md .agents/skills/x.md .pi/x .factory/x .amp/x .crush.json .crushignore .vibe/x .kimi/x
.openhands/x .hermes/x .antigravity/x""".split()  # noqa: SIM905
PLAIN = """app.py README.md docs/git.md src/hooks/useLogin.ts src/github/client.py index.html data/package.jsonl
src/makefile.py legit/x.py tests/test_x.py src/build/x.py environment.py claude.py lib/agents.py config/app.yml
src/config.py src/hooks/index.ts bin/update digit/x.py docs/class.md src/node.py so.txt
photo.png notes/jar src/pi/x.py""".split()  # noqa: SIM905


@pytest.mark.parametrize("path", RISKY)
def test_risky_paths_are_flagged(path: str) -> None:
    assert risk.of_path(path.encode())


@pytest.mark.parametrize("path", PLAIN)
def test_harmless_paths_are_not_flagged(path: str) -> None:
    assert risk.of_path(path.encode()) == ()


@pytest.mark.parametrize(
    "path",
    ["config", "hooks/update", "hooks/post-receive", "hooks/reference-transaction", "hooks/pre-commit", "HEAD",
     "config.worktree", "commondir", "objects/info/alternates", "worktrees/x/gitdir"],
)  # fmt: skip
@pytest.mark.parametrize("repository", ["vendor/tiny.git", "fixtures/bare", "Fixtures/Tiny.GIT", "sub/modules/x", ""])
def test_attack_config_and_hooks_of_a_bare_repository_are_flagged(repository: str, path: str) -> None:
    """git obeys a bare repository at any place in the tree, under any name."""
    assert risk.of_path(f"{repository}/{path}".removeprefix("/").encode())


def test_git_obeys_the_flagged_config_of_a_bare_repository(tmp_path: Path) -> None:
    """The control: without a flag, `git status` there would run a program."""
    bare = tmp_path / "fixtures/bare"
    subprocess.run(["git", "init", "-q", "--bare", str(bare)], check=True)
    with (bare / "config").open("a") as file:
        file.write(f'[core]\n\tbare = false\n\tworktree = {tmp_path}\n\tfsmonitor = "touch {tmp_path}/ran;false"\n')
    subprocess.run(["git", "-C", str(bare), "status"], capture_output=True)
    assert (tmp_path / "ran").exists()
    assert risk.of_path(b"fixtures/bare/config")


def test_risky_modes_are_flagged() -> None:
    assert risk.of_modes(None, "100755") == risk.of_modes("100644", "100755") == (risk.EXECUTABLE,)
    assert risk.of_modes(None, "120000") == risk.of_modes("100644", "120000") == (risk.LINK,)
    assert risk.of_modes("100755", "100755") == risk.of_modes("120000", None) == risk.of_modes("100755", "100644") == ()


def test_a_change_is_flagged_for_its_names_before_and_after_and_for_its_mode() -> None:
    moved = Delta(path=b"a.py", kind="renamed", old_path=b"setup.py", old_mode="100644", new_mode="100755")
    assert risk.of_change(moved) == tuple(sorted((*risk.of_path(b"setup.py"), risk.EXECUTABLE)))


@pytest.mark.parametrize(
    ("path", "flagged"),
    [(b"tool", True), (b"data.xyz", True), (b".png", True), (b"image.png", False), (b"photo.JPG.", False)],
)
def test_binary_file_of_an_unknown_format_is_flagged(path: bytes, flagged: bool) -> None:
    """It may be a program. The exceptions are known formats of data."""
    text = Delta(path=path, kind="added", new_mode="100644", new_oid="1" * 40)
    binary = replace(text, binary=True)
    assert risk.of_change(text) == ()
    assert risk.of_change(binary) == risk.of_change(text, large=True) == ((risk.UNKNOWN,) if flagged else ())
    assert ReviewedFile(b"k" * 16, binary, (), Sides()).hunks[0].risk == risk.of_change(binary)
    assert ReviewedFile(b"k" * 16, text, (), Sides(), large=True).hunks[0].risk == risk.of_change(binary)
    assert risk.of_change(replace(binary, kind="deleted", old_mode="100644", new_mode=None)) == ()


def test_python_runs_a_flagged_pyc(tmp_path: Path) -> None:
    """The control: without a flag, an applied .pyc would run on the host at the next import."""
    (tmp_path / "tool.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    compile_it = "import py_compile, os; py_compile.compile('tool.py', 'tool.pyc'); os.remove('tool.py')"
    subprocess.run([sys.executable, "-c", compile_it], cwd=tmp_path, check=True)
    subprocess.run([sys.executable, "-c", "import tool"], cwd=tmp_path, check=True)
    assert (tmp_path / "ran").exists()
    assert risk.of_path(b"tool.pyc")


def test_a_name_that_is_not_text_is_handled() -> None:
    assert risk.of_path(b"\xff\xfe/\xff") == ()
    assert risk.of_path(b"\xff/.vscode/x")
