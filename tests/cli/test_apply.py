"""`skerry apply` and `undo` in a real repository, from a real sandbox."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import SKERRY, environment, skerry
from support.patch_sets import git, repository, tree_of
from support.server import Server

from skerry import CommandFailed, Sandbox

APP = b"".join(b"def f%d():\n    return %d\n\n\n" % (n, n) for n in range(10))
TEST = b"import app\n\nassert app.f3() == 33\n"
BASE = {"app.py": APP, "test_app.py": TEST, "docs/old.md": b"old\n", "Makefile": b"all:\n\ttrue\n"}
WORK = """
set -e
sed -i 's/return 3$/return 33/; s/return 7$/return 77/' app.py
git mv -q docs/old.md docs/new.md 2>/dev/null || mv docs/old.md docs/new.md
printf 'all:\\n\\tcurl evil\\n' > Makefile
printf 'added\\n' > added.txt
"""


class Story:
    """One sandbox of one repository for all tests; each test starts with the original tree and nothing applied."""

    def __init__(self, server: Server, root: Path) -> None:
        self.server, self.root = server, root
        self.sandbox = Sandbox.create(repo=str(root), server=server.address)
        self.sandbox.run(WORK, cwd="/workspace", check=True)

    def call(self, *words: str, code: int = 0) -> tuple[str, str]:
        verb, *rest = words
        done = skerry(verb, *rest, server=self.server.address, cwd=self.root, HOME=str(self.root.parent))
        out, err = done.stdout.decode(), done.stderr.decode()
        assert done.returncode == code, f"exit code {done.returncode}\n{out}\n{err}"
        return out, err

    def apply(self, *words: str, code: int = 0) -> tuple[str, str]:
        return self.call("apply", self.sandbox.id, *words, code=code)

    def undo(self, code: int = 0) -> tuple[str, str]:
        return self.call("undo", self.sandbox.id, code=code)

    def accept(self, text: str) -> None:
        found = [hunk for hunk in self.sandbox.review.changes().hunks if text in hunk.text]
        assert found, text
        self.sandbox.review.accept(*found)

    def reopen(self) -> None:
        decided = [hunk for hunk in self.sandbox.review.changes().hunks if hunk.state in ("accepted", "rejected")]
        if decided:
            self.sandbox.review.reopen(*decided)


@pytest.fixture(scope="module")
def the_story(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    told = Story(server, repository(tmp_path_factory.mktemp("apply") / "project", BASE))
    yield told
    told.sandbox.delete()


@pytest.fixture
def story(the_story: Story) -> Iterator[Story]:
    yield the_story
    git(the_story.root, "reset", "-q", "--hard")
    git(the_story.root, "clean", "-q", "-f", "-d")
    the_story.reopen()


def test_apply_writes_only_accepted_hunks_and_undo_restores(story: Story) -> None:
    assert story.apply()[1].startswith("no accepted changes; ")
    assert story.apply("nosuch")[1].startswith("no accepted changes in nosuch; ")
    story.accept("return 33")
    out, err = story.apply("--dry-run")
    assert (out, "nothing was written" in err) == ("written app.py\n", True)
    assert tree_of(story.root) == BASE
    out, err = story.apply()
    assert out == "written app.py\n"
    assert "1 file changed" in err
    assert tree_of(story.root) == {**BASE, "app.py": APP.replace(b"return 3\n", b"return 33\n")}
    left = story.sandbox.review.changes()
    assert [hunk.path for hunk in left.hunks if "return 33" in hunk.text and hunk.state == "open"] == []
    out, err = story.undo()
    assert (out, "1 file restored" in err) == ("written app.py\n", True)
    assert tree_of(story.root) == BASE
    assert [h.state for h in story.sandbox.review.changes().hunks if "return 33" in h.text] == ["accepted"]


def test_apply_all_leaves_flagged_hunks_and_exits_with_3(story: Story) -> None:
    assert [file.path for file in story.sandbox.review.diff(stat=True) if file.risk] == ["Makefile"]
    out, err = story.apply("--all", "--json", code=3)
    done = json.loads(out)
    assert {file["path"] for file in done["files"]} == {"app.py", "added.txt", "docs/new.md", "docs/old.md"}
    assert [hunk["path"] for hunk in done["held_back"]] == ["Makefile"]
    assert "left out: Makefile: " in err
    assert f"skerry accept {story.sandbox.id} h-" in err
    assert (story.root / "Makefile").read_bytes() == BASE["Makefile"]
    assert (story.root / "docs/new.md").read_bytes() == b"old\n"
    story.undo()
    assert tree_of(story.root) == BASE


def test_apply_all_dry_run_shows_the_plan_and_decides_nothing(story: Story) -> None:
    out, err = story.apply("--all", "--dry-run", code=3)
    assert out.splitlines() == ["written added.txt", "written app.py", "written docs/new.md", "removed docs/old.md"]
    assert "4 files would change; nothing was written" in err
    assert "left out: Makefile: " in err
    assert {hunk.state for hunk in story.sandbox.review.changes().hunks} == {"open"}
    assert tree_of(story.root) == BASE
    out, _ = story.apply("--all", "--dry-run", "added.txt", "--json")
    assert [file["path"] for file in json.loads(out)["files"]] == ["added.txt"]
    (story.root / "added.txt").write_bytes(b"mine\n")
    assert "added.txt" in story.apply("--all", "--dry-run", code=4)[1]


def test_generated_files_are_left_out_and_named(story: Story) -> None:
    (story.root / "skerry.toml").write_text('[review]\nexclude = ["*.snap"]\n')
    with Sandbox.get(story.call("create", "--name", "noisy", "--repo", ".", "--no-setup")[0].strip(),
                     server=story.server.address) as noisy:  # fmt: skip
        noisy.run(
            "mkdir -p node_modules/x .pytest_cache pkg/__pycache__ && echo 1 > node_modules/x/package.json &&"
            " echo 1 > .pytest_cache/README && echo 1 > pkg/__pycache__/m.pyc && echo 1 > pkg/ui.snap &&"
            " echo 1 > pkg/real.py && echo 1 > pkg/other.md",
            check=True,
        )
        apart = ["*.snap", ".pytest_cache/", "node_modules/", "pkg/__pycache__/"]
        review = noisy.review.changes()
        assert ([file.path for file in review], [one.path for one in review.generated]) == (
            ["pkg/other.md", "pkg/real.py"], apart
        )  # fmt: skip
        assert (review.open, review.ignored) == (2, ())
        assert [file.path for file in noisy.review.changes("node_modules")] == ["node_modules/x/package.json"]
        diff = noisy.review.diff()
        assert "# skerry: not in this: node_modules/: 1 generated files\n" in diff
        assert ("+++ b/pkg/real.py\n" in diff, "+++ b/node_modules" in diff) == (True, False)
        out, err = story.call("apply", "noisy", "--all", "--exclude", "*.md")
        assert out == "written pkg/real.py\n"
        assert "left out as generated files: *.snap (1), .pytest_cache/ (1), node_modules/ (1), pkg/__pycache__/" in err
        assert "ignore rules" not in err
        assert {one.state for one in noisy.review.changes("**/*.snap").hunks} == {"open"}
        assert "accepted" in story.call("accept", "noisy", "**/*.snap")[1]
        assert story.call("apply", "noisy")[0] == "written pkg/ui.snap\n"
        assert "pkg/other.md" in story.call("review", "noisy", "--list")[0]
        assert "skerry review noisy .pytest_cache/" in story.call("reject", "noisy", "--all", "--exclude", "pkg")[1]
        noisy.delete()


def test_failed_check_reports_its_output(story: Story) -> None:
    story.accept("return 33")
    check = "echo 3 tests failed; echo traceback >&2; exit 3"
    with pytest.raises(CommandFailed) as failed:
        story.sandbox.review.apply(story.root, check=check)
    assert failed.value.message.splitlines() == [
        "the check failed (exit code 3); nothing was applied", "3 tests failed", "traceback"
    ]  # fmt: skip
    assert failed.value.result is not None
    assert failed.value.result.stdout == "3 tests failed\n"
    _, err = story.apply("--check", check, code=5)
    assert sorted(err.splitlines())[:2] == [
        "3 tests failed",
        "error: the check failed (exit code 3); nothing was applied",
    ]
    out, _ = story.apply("--check", check, "--json", code=5)
    checked = json.loads(out)["checked"]
    assert (checked["exit_code"], checked["stdout"], checked["stderr"]) == (3, "3 tests failed\n", "traceback\n")
    assert tree_of(story.root) == BASE


def test_conflict_is_reported_with_lines_and_nothing_is_written(story: Story) -> None:
    story.accept("return 33")
    mine = b"# mine\n" + APP.replace(b"return 3\n", b"return 333\n")
    (story.root / "app.py").write_bytes(mine)
    _, err = story.apply(code=4)
    assert "app.py: line 15: changed here too" in err
    out, _ = story.apply("--json", code=4)
    assert json.loads(out)["conflicts"] == [{"path": "app.py", "reason": "changed here too", "lines": [[15, 15]]}]
    assert (story.root / "app.py").read_bytes() == mine


def test_check_sees_only_accepted_changes(story: Story) -> None:
    before = {one.id for one in Sandbox.list(server=story.server.address)}
    story.accept("return 33")
    alone = "python3 -c 'import app; assert (app.f3(), app.f7()) == (33, 7)' && cat docs/old.md Makefile && ls"
    _, err = story.apply("--check", f"{alone} && exit 3", code=5)
    assert "old\nall:\n\ttrue\nMakefile\n" in err
    assert "added.txt" not in err
    assert "nothing was applied" in err
    assert tree_of(story.root) == BASE
    story.apply("--check", "python3 test_app.py")
    assert b"return 33\n" in (story.root / "app.py").read_bytes()
    story.undo()
    assert {one.id for one in Sandbox.list(server=story.server.address)} == before


def test_interrupted_check_leaves_no_fork_and_applies_nothing(story: Story) -> None:
    before = {one.id for one in Sandbox.list(server=story.server.address)}
    story.accept("return 33")
    words = [*SKERRY, "apply", story.sandbox.id, "--check", "echo begun; sleep 100"]
    env = environment(SKERRY_SERVER=story.server.address)
    with subprocess.Popen(words, stderr=subprocess.PIPE, cwd=story.root, env=env) as apply:
        assert apply.stderr is not None
        assert apply.stderr.readline() == b"begun\n"
        apply.send_signal(signal.SIGINT)
        assert apply.wait(60) == 130
    assert tree_of(story.root) == BASE
    assert {one.id for one in Sandbox.list(server=story.server.address)} == before


def test_patch_is_accepted_by_git(story: Story) -> None:
    story.accept("return 77")
    out, _ = story.apply("--patch")
    (story.root.parent / "patch").write_text(out)
    git(story.root, "apply", str(story.root.parent / "patch"))
    assert tree_of(story.root) == {**BASE, "app.py": APP.replace(b"return 7\n", b"return 77\n")}
    story.apply("--patch", "--commit", code=2)


def test_branch_and_commit_name_the_originating_command(story: Story) -> None:
    story.accept("return 33")
    _, err = story.apply("--branch", "review/it")
    assert "committed on review/it" in err
    assert tree_of(story.root) == BASE
    _, err = story.undo()
    assert "branch review/it is not changed" in err
    _, err = story.apply("--commit")
    assert git(story.root, "status", "--short") == ""
    assert git(story.root, "diff", "HEAD", "review/it") == ""
    trailers = git(story.root, "log", "-1", "--format=%(trailers:only,unfold)")
    assert f"Skerry-Sandbox: {story.sandbox.id}\n" in trailers
    assert "Skerry-Command: " in trailers
    assert "sed -i" in trailers
    _, err = story.undo()
    assert "is kept; your working tree is as before it" in err
    _, err = story.apply("--branch", "review/more")
    assert "nothing to commit: review/more (or HEAD, for a new branch) has all of it already" in err
    _, err = story.undo()
    assert "no file had to be changed" in err
    assert git(story.root, "status", "--short") == " M app.py\n"
    git(story.root, "reset", "-q", "--hard", "HEAD~")


def test_json_includes_names_that_are_not_utf8(story: Story) -> None:
    story.sandbox.files.write(os.fsdecode(b"/workspace/caf\xe9"), b"1")
    out, _ = story.apply("--all", "--json", "--dir", ".", os.fsdecode(b"caf\xe9"))
    assert [file["raw_path"] for file in json.loads(out)["files"]] == ["Y2Fm6Q=="]
    story.undo()
    story.sandbox.files.remove(os.fsdecode(b"/workspace/caf\xe9"))


def test_paths_select_changes_to_apply(story: Story) -> None:
    story.accept("return 33")
    story.accept("added")
    out, _ = story.apply("added.txt")
    assert out == "written added.txt\n"
    out, _ = story.apply()
    assert out == "written app.py\n"
    story.undo()
    story.undo()
    assert tree_of(story.root) == BASE
    _, err = story.undo(code=2)
    assert "no apply of this sandbox was found here" in err


def test_undo_works_after_the_sandbox_is_deleted(story: Story) -> None:
    other = Sandbox.create(repo=str(story.root), name="gone-later", server=story.server.address)
    other.run("echo more >> app.py", cwd="/workspace", check=True)
    story.call("apply", "gone-later", "--all")
    other.delete()
    assert tree_of(story.root) != BASE
    _, err = story.call("undo", "gone-later")
    assert "1 file restored" in err
    assert tree_of(story.root) == BASE
    story.call("undo", "gone-later", code=2)
