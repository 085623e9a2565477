"""Ignore rules are evaluated by git itself; a hostile repository runs nothing and adds nothing."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from skerry.client.host.pack import Packer
from skerry.errors import InvalidRequest
from skerry.types import TransferResult

NOTHING = TransferResult(files=0, directories=0, links=0, bytes=0)


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    return home


def git(directory: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "protocol.file.allow=always")
    return subprocess.run(
        ["git", *identity, "-C", directory, *words], check=True, capture_output=True, text=True
    ).stdout


def fill(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(b"x")


def packed(directory: Path, **how: object) -> tuple[set[str], list[str]]:
    packer = Packer(directory, ignoring=True, **how)  # type: ignore[arg-type]
    with tarfile.open(fileobj=io.BytesIO(b"".join(packer))) as tar:
        names = {one.name for one in tar if not one.isdir()}
    return names, [one.path for one in packer.with_skipped(NOTHING).skipped]


@pytest.mark.parametrize("repository", [True, False])
def test_nested_files_negation_and_directories_work_like_git(tmp_path: Path, repository: bool) -> None:
    fill(tmp_path, "a.log", "keep.log", "build/out", "src/build/x", "src/a.tmp", "src/b.c", "deep/er/x.o", "deep/y.o")
    (tmp_path / ".gitignore").write_text("*.log\n!keep.log\nbuild/\n")
    (tmp_path / "src/.gitignore").write_text("*.tmp\n!build/\n")
    (tmp_path / "deep/.gitignore").write_text("/y.o\n")
    if repository:
        git(tmp_path, "init", "-q")
    names, skipped = packed(tmp_path)
    assert names == {
        ".gitignore", "src/.gitignore", "deep/.gitignore", "keep.log", "src/b.c", "src/build/x", "deep/er/x.o",
    }  # fmt: skip
    assert skipped == []


def test_tracked_files_are_included_although_ignored_and_git_is_not(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    fill(tmp_path, "a.log", "b.log", "c", "gone")
    git(tmp_path, "add", "a.log", "gone")
    git(tmp_path, "commit", "-qm", "x")
    (tmp_path / ".gitignore").write_text("*.log\n")
    (tmp_path / ".git/info/exclude").write_text("c\n")
    (tmp_path / "gone").unlink()
    assert packed(tmp_path) == ({".gitignore", "a.log"}, [])


def test_subdirectory_and_additional_patterns_are_respected(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    fill(tmp_path, "sub/a.log", "sub/b", "sub/c.x", "other")
    (tmp_path / ".gitignore").write_text("*.log\n")
    assert packed(tmp_path / "sub", exclude=["*.x"]) == ({"b"}, [])


def test_nested_repositories_use_their_ignore_rules(tmp_path: Path) -> None:
    library = tmp_path / "library"
    outer = tmp_path / "outer"
    for place in (library, outer, outer / "nested"):
        place.mkdir()
        git(place, "init", "-q")
        fill(place, "f", "x.o")
        (place / ".gitignore").write_text("*.o\n")
        git(place, "add", "-A")
        git(place, "commit", "-qm", "x")
    git(outer, "submodule", "add", "-q", str(library), "module")
    fill(outer, "module/y.o", "module/new")
    names, _ = packed(outer)
    assert names == {
        ".gitignore", ".gitmodules", "f", "nested/f", "nested/.gitignore", "module/f", "module/.gitignore",
        "module/new",
    }  # fmt: skip


def test_odd_names_are_preserved(tmp_path: Path) -> None:
    names = {"-n", "a b", 'q"', "new\nline", os.fsdecode(b"\xff")}
    fill(tmp_path, *names)
    assert packed(tmp_path) == (names, [])


def test_hostile_repository_runs_nothing(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    git(work, "init", "-q")
    fill(work, "f")
    git(work, "add", "f")
    mark = tmp_path / "it-ran"
    run = f"touch {mark}; exit 1"
    with (work / ".git/config").open("a") as config:
        config.write(
            f'[core]\nfsmonitor = "{run}"\nhooksPath = {work}/hooks\nsshCommand = "{run}"\npager = "{run}"\n'
            f'[filter "x"]\nclean = "{run}"\nprocess = "{run}"\n'
            f'[remote "o"]\nurl = "ext::sh -c {run}"\npromisor = true\n'
            "[extensions]\npartialClone = o\n"
        )
    fill(work, "hooks/post-index-change", "hooks/fsmonitor-watchman")
    for hook in (work / "hooks").iterdir():
        hook.write_text(f"#!/bin/sh\n{run}\n")
        hook.chmod(0o755)
    (work / ".gitattributes").write_text("* filter=x\n")
    git(work, "ls-files", "-o")
    assert mark.exists(), "called plainly, git would have run it"
    mark.unlink()
    names, _ = packed(work)
    assert "f" in names
    assert not mark.exists()


def test_forged_index_reaches_nothing_outside(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    git(work, "init", "-q")
    fill(work, "aa/secret", "bbbb/secret")
    git(work, "add", "-A")
    index = work / ".git/index"
    body = index.read_bytes()[:-20].replace(b"aa/secret", b"../secret").replace(b"bbbb/secret", b"link/secret")
    index.write_bytes(body + hashlib.sha1(body).digest())
    (work / "link").symlink_to(tmp_path)
    (tmp_path / "secret").write_text("outside")
    listed = git(work, "ls-files").split()
    assert {"../secret", "link/secret"} <= set(listed), "git itself lists them"
    names, skipped = packed(work)
    assert names == {"aa/secret", "bbbb/secret", "link"}
    assert set(skipped) == {"../secret", "link/secret"}


def test_repository_of_another_user_is_a_clear_error(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    fill(tmp_path, "f")
    os.chown(tmp_path, 12345, 12345)
    os.chown(tmp_path / ".git", 12345, 12345)
    with pytest.raises(InvalidRequest, match="dubious ownership"):
        packed(tmp_path)


def test_missing_git_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidRequest, match="git is not installed"):
        packed(tmp_path)


def test_git_settings_of_the_environment_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "f")
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("GIT_WORK_TREE", "/etc")
    assert packed(tmp_path) == ({"f"}, [])
