"""`--repo` on the command line."""

from __future__ import annotations

import json
import os
from pathlib import Path

from cli.calling import skerry
from client.repositories import begun, fill, git
from serving import Server

from skerry import Sandbox


def test_a_directory_below_brings_the_whole_repository_and_says_so(server: Server, tmp_path: Path) -> None:
    source = begun(tmp_path / "source")
    (source / "sub").mkdir()
    fill(source, new="n", **{".gitignore": "*.log\n", "x.log": "1"})
    os.mkfifo(source / "sub/pipe")
    git(source, "add", "-A")
    done = skerry("create", "--repo", ".", server=server.address, cwd=source / "sub")
    assert done.returncode == 0, done.stderr
    said = done.stderr.decode()
    assert f"{source}/sub is a part of {source}: all of it is copied" in said
    assert f"copied {source} to /workspace: 5 files" in said
    with Sandbox.get(done.stdout.decode().strip(), server=server.address) as sandbox:
        assert sandbox.run(["git", "status", "--porcelain=v2"]).stdout == git(source, "status", "--porcelain=v2")


def test_run_works_on_a_copy_and_leaves_nothing(server: Server, tmp_path: Path) -> None:
    source = begun(tmp_path / "source")
    fill(source, **{".gitignore": "*.log\n", "x.log": "1"})
    words = ("run", "--repo", str(source), "--ignored", "--json", "--", "sh", "-c", "cat a x.log; rm -rf a .git")
    done = skerry(*words, server=server.address, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["stdout"] == "two\n1"
    assert (source / "a").exists()


def test_what_can_not_be_is_refused_with_a_hint(server: Server, tmp_path: Path) -> None:
    begun(tmp_path / "source")
    git(tmp_path, "clone", "-q", "--bare", "source", "bare")
    for words, what in (
        (("--repo", "bare"), b"bare repository"),
        (("--repo", "missing"), b"no directory"),
        (("--repo", "ext::sh"), b"is not fetched"),
        (("--ignored",), b"--ignored goes with --repo"),
    ):
        done = skerry("create", *words, server=server.address, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, b"")
        assert what in done.stderr
