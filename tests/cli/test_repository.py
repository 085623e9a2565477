"""`--repo` on the command line."""

from __future__ import annotations

import json
import os
from pathlib import Path

from support.cli import skerry
from support.repositories import begun, fill, git
from support.server import Server

from skerry import Sandbox


def test_subdirectory_copies_the_whole_repository(server: Server, tmp_path: Path) -> None:
    source = begun(tmp_path / "source")
    (source / "sub").mkdir()
    fill(source, new="n", **{".gitignore": "*.log\n", "x.log": "1"})
    os.mkfifo(source / "sub/pipe")
    git(source, "add", "-A")
    done = skerry("create", "--repo", ".", server=server.address, cwd=source / "sub")
    assert done.returncode == 0, done.stderr
    said = done.stderr.decode()
    assert f"{source}/sub is part of the repository {source}: copying the whole repository" in said
    assert f"copied {source} to /workspace: 5 files" in said
    with Sandbox.get(done.stdout.decode().strip(), server=server.address) as sandbox:
        assert sandbox.run(["git", "status", "--porcelain=v2"]).stdout == git(source, "status", "--porcelain=v2")


def test_run_uses_a_copy_of_the_repository(server: Server, tmp_path: Path) -> None:
    source = begun(tmp_path / "source")
    fill(source, **{".gitignore": "*.log\n", "x.log": "1"})
    words = (
        "run",
        "--repo",
        str(source),
        "--include-ignored",
        "--json",
        "--",
        "sh",
        "-c",
        "cat a x.log; rm -rf a .git",
    )
    done = skerry(*words, server=server.address, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["stdout"] == "two\n1"
    assert (source / "a").exists()


def test_invalid_repositories_are_rejected_with_a_hint(server: Server, tmp_path: Path) -> None:
    begun(tmp_path / "source")
    git(tmp_path, "clone", "-q", "--bare", "source", "bare")
    for words, what in (
        (("--repo", "bare"), b"bare repository"),
        (("--repo", "missing"), b"not a directory"),
        (("--repo", "ext::sh"), b"is not supported"),
        (("--include-ignored",), b"--include-ignored needs --repo"),
    ):
        done = skerry("create", *words, server=server.address, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, b"")
        assert what in done.stderr
