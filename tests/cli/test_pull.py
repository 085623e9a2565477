"""`skerry pull`, and the commands that say when a copy is behind its repository."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import skerry
from support.patch_sets import git, repository
from support.recorded_terminal import Wire
from support.server import Server

from skerry import Sandbox

BEHIND = "1 commit and 2 edited files behind"


@pytest.fixture(scope="module")
def project(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = repository(tmp_path_factory.mktemp("pull") / "project", {"a.txt": b"1\n2\n3\n4\n5\n", "b.txt": b"b\n"})
    sandbox = Sandbox.create(repo=str(root), name="behind", server=server.address)
    sandbox.run("sed -i s/1/one/ a.txt", cwd="/workspace", check=True)
    yield root
    sandbox.delete()


def call(server: Server, where: Path, *words: str, code: int = 0) -> tuple[str, str]:
    done = skerry(*words, server=server.address, cwd=where, HOME=str(where.parent))
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout.decode(), done.stderr.decode()


def test_stale_copy_is_reported_and_pulled(server: Server, project: Path, tmp_path: Path) -> None:
    assert "behind" not in call(server, project, "ls")[1]
    (project / "b.txt").write_text("B\n")
    git(project, "commit", "-qam", "more")
    (project / "a.txt").write_text("1\n2\n3\n4\nfive\n")
    hint = "brings your edits in"
    assert f"behind: {BEHIND}: `skerry pull behind` {hint}" in call(server, project, "ls")[1]
    assert f"repository  {BEHIND}\n" in "\n".join(
        "  ".join(line.split(None, 1)) for line in call(server, project, "show", "behind")[0].splitlines()
    ) + "\n"  # fmt: skip
    assert hint not in call(server, project, "exec", "behind", "--", "true")[1], "stderr is the program's"
    with Wire(server.address, "exec", "behind", "--", "echo", "ran", cwd=project, HOME=str(tmp_path)) as seen:
        assert seen.ends() == 0
        assert (BEHIND.encode() in seen.sent, b"ran" in seen.sent) == (True, True)
    assert hint not in call(server, tmp_path, "ls")[1], "another directory"
    assert hint not in call(server, project, "-q", "ls")[1]

    out, err = call(server, project, "pull", "behind", "--dry-run")
    assert (out, "2 files would change; nothing was written" in err) == ("merged a.txt\nwritten b.txt\n", True)
    out, err = call(server, project, "pull", "behind")
    assert (out, "2 files changed in the sandbox" in err) == ("merged a.txt\nwritten b.txt\n", True)
    assert call(server, project, "exec", "behind", "--", "cat", "a.txt", "b.txt")[0] == "one\n2\n3\n4\nfive\nB\n"
    assert hint not in call(server, project, "ls")[1]
    assert "the sandbox has your current files" in call(server, project, "pull", "behind")[1]
    assert "pulled from your repository" in call(server, project, "history", "behind")[0]
    assert call(server, project, "diff", "behind", "--stat")[0].split()[:3] == ["a.txt", "|", "2"]


def test_conflicting_pull_ends_with_4_and_json_names_the_lines(server: Server, project: Path) -> None:
    (project / "a.txt").write_text("ONE\n2\n3\n4\nfive\n")
    _, err = call(server, project, "pull", "behind", code=4)
    assert "a.txt: line 1: changed here and in the sandbox" in err
    assert "--prefer host" in err
    out, _ = call(server, project, "pull", "behind", "--json", code=4)
    assert json.loads(out)["conflicts"][0]["lines"] == [[1, 1]]
    assert call(server, project, "exec", "behind", "--", "head", "-n1", "a.txt")[0] == "one\n"
    out, _ = call(server, project, "pull", "behind", "--prefer", "host", "--json")
    assert [file["how"] for file in json.loads(out)["files"]] == ["written"]
    assert call(server, project, "exec", "behind", "--", "head", "-n1", "a.txt")[0] == "ONE\n"


def test_pull_of_an_unknown_name_mentions_images(server: Server, project: Path) -> None:
    assert "skerry image pull debian" in call(server, project, "pull", "debian", code=2)[1]
