"""The command line lands what was accepted, in a real repository, from a real sandbox."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.calling import SKERRY, environment, skerry
from client.applies import git, repository, tree_of
from serving import Server

from skerry import Sandbox

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
    """One sandbox of one repository, for all tests here: each begins with the tree as it was, and nothing applied."""

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

    def unapply(self, code: int = 0) -> tuple[str, str]:
        return self.call("unapply", self.sandbox.id, code=code)

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


def test_an_accepted_hunk_lands_alone_and_is_taken_back(story: Story) -> None:
    assert story.apply()[1].startswith("nothing is accepted; ")
    assert story.apply("nosuch")[1].startswith("nothing is accepted in nosuch; ")
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
    out, err = story.unapply()
    assert (out, "1 file taken back" in err) == ("written app.py\n", True)
    assert tree_of(story.root) == BASE
    assert [h.state for h in story.sandbox.review.changes().hunks if "return 33" in h.text] == ["accepted"]


def test_all_leaves_what_is_flagged_and_ends_with_a_code_of_its_own(story: Story) -> None:
    assert [file.path for file in story.sandbox.review.diff(stat=True) if file.risk] == ["Makefile"]
    out, err = story.apply("--all", "--json", code=3)
    done = json.loads(out)
    assert {file["path"] for file in done["files"]} == {"app.py", "added.txt", "docs/new.md", "docs/old.md"}
    assert [hunk["path"] for hunk in done["held_back"]] == ["Makefile"]
    assert "left out: Makefile: " in err
    assert f"skerry accept {story.sandbox.id} h-" in err
    assert (story.root / "Makefile").read_bytes() == BASE["Makefile"]
    assert (story.root / "docs/new.md").read_bytes() == b"old\n"
    story.unapply()
    assert tree_of(story.root) == BASE


def test_what_stands_in_the_way_is_told_with_its_lines_and_nothing_is_written(story: Story) -> None:
    story.accept("return 33")
    mine = b"# mine\n" + APP.replace(b"return 3\n", b"return 333\n")
    (story.root / "app.py").write_bytes(mine)
    _, err = story.apply(code=4)
    assert "app.py: line 15: changed here too" in err
    out, _ = story.apply("--json", code=4)
    assert json.loads(out)["conflicts"] == [{"path": "app.py", "reason": "changed here too", "lines": [[15, 15]]}]
    assert (story.root / "app.py").read_bytes() == mine


def test_a_check_sees_what_was_accepted_and_nothing_else(story: Story) -> None:
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
    story.unapply()
    assert {one.id for one in Sandbox.list(server=story.server.address)} == before


def test_an_interrupted_check_leaves_no_fork_and_nothing_applied(story: Story) -> None:
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


def test_a_patch_is_one_that_git_takes(story: Story) -> None:
    story.accept("return 77")
    out, _ = story.apply("--patch")
    (story.root.parent / "patch").write_text(out)
    git(story.root, "apply", str(story.root.parent / "patch"))
    assert tree_of(story.root) == {**BASE, "app.py": APP.replace(b"return 7\n", b"return 77\n")}
    story.apply("--patch", "--commit", code=2)


def test_a_branch_and_a_commit_tell_the_command_that_made_it(story: Story) -> None:
    story.accept("return 33")
    _, err = story.apply("--branch", "review/it")
    assert "committed on review/it" in err
    assert tree_of(story.root) == BASE
    _, err = story.unapply()
    assert "branch review/it stays as it is" in err
    _, err = story.apply("--commit")
    assert git(story.root, "status", "--short") == ""
    assert git(story.root, "diff", "HEAD", "review/it") == ""
    trailers = git(story.root, "log", "-1", "--format=%(trailers:only,unfold)")
    assert f"Skerry-Sandbox: {story.sandbox.id}\n" in trailers
    assert "Skerry-Command: " in trailers
    assert "sed -i" in trailers
    _, err = story.unapply()
    assert "stays; your working tree is as before it" in err
    _, err = story.apply("--branch", "review/more")
    assert "nothing was committed: review/more, or HEAD where it is new, has all of it already" in err
    _, err = story.unapply()
    assert "no file here had to change" in err
    assert git(story.root, "status", "--short") == " M app.py\n"
    git(story.root, "reset", "-q", "--hard", "HEAD~")


def test_a_name_that_is_no_text_is_told_in_json_too(story: Story) -> None:
    story.sandbox.files.write(os.fsdecode(b"/workspace/caf\xe9"), b"1")
    out, _ = story.apply("--all", "--json", "--to", ".", os.fsdecode(b"caf\xe9"))
    assert [file["raw_path"] for file in json.loads(out)["files"]] == ["Y2Fm6Q=="]
    story.unapply()
    story.sandbox.files.remove(os.fsdecode(b"/workspace/caf\xe9"))


def test_paths_choose_what_lands(story: Story) -> None:
    story.accept("return 33")
    story.accept("added")
    out, _ = story.apply("added.txt")
    assert out == "written added.txt\n"
    out, _ = story.apply()
    assert out == "written app.py\n"
    story.unapply()
    story.unapply()
    assert tree_of(story.root) == BASE
    _, err = story.unapply(code=2)
    assert "nothing of this sandbox is applied here" in err


def test_what_a_sandbox_that_is_gone_applied_can_be_taken_back(story: Story) -> None:
    other = Sandbox.create(repo=str(story.root), name="gone-later", server=story.server.address)
    other.run("echo more >> app.py", cwd="/workspace", check=True)
    story.call("apply", "gone-later", "--all")
    other.delete()
    assert tree_of(story.root) != BASE
    _, err = story.call("unapply", "gone-later")
    assert "1 file taken back" in err
    assert tree_of(story.root) == BASE
    story.call("unapply", "gone-later", code=2)
