"""Names from the sandbox: a name that a file system might treat as `.git` is rejected everywhere."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from skerry.types.paths import MAX_DEPTH, folded, is_git, refused

GITS = [
    ".git", ".GIT", ".Git", ".giT", "git~1", "GIT~1", "git~2", ".git.", ".git ", ".git...", ".git . .",
    ".git::$INDEX_ALLOCATION",
    ".git:stream", ".git::$DATA", ".git.:x", "GIT~1.", ".g\u200cit", ".\u200dgit", "\u200e.git", ".git\u200f",
    ".gi\u202at", ".gi\u202et",
    ".git\u206a", "\ufeff.git", ".g\u200cI\u200dt", "a\\.git", ".git\\config", "x\\git~1\\y", ".gi\u0307t",
    ".\uff47it", ".g\u0130t",
    ".git\ufe0f", "\u2024git",
]  # fmt: skip
NOT_GITS = [
    ".gitignore", ".gitattributes", ".gitmodules", ".github", "git", "git~", "git~x", ".git~1", "agit", ".git_",
    ".gitx", "a.git",
    ".got", "\u00e9", "\u202egit.", ".g it", "..git", "digit", ".git-blame-ignore-revs", "\u05d0\u05d1", "git~1x",
]  # fmt: skip


@pytest.mark.parametrize("name", GITS)
def test_a_disguised_git_directory_is_rejected_anywhere(name: str) -> None:
    assert is_git(name.encode())
    for path in (name, f"a/b/{name}", f"{name}/config", f"a/{name}/hooks/x"):
        assert "its name is .git" in str(refused(path.encode()))


@pytest.mark.parametrize("name", NOT_GITS)
def test_names_similar_to_git_are_allowed(name: str) -> None:
    assert not is_git(name.encode())
    assert refused(f"a/{name}".encode()) is None


def test_git_accepts_every_allowed_name(tmp_path: Path) -> None:
    """Its own index with all of its protections on is asked."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    blob = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    for name in [*GITS, *NOT_GITS]:
        options = ("-c", "core.protectHFS=true", "-c", "core.protectNTFS=true")
        command = ["git", *options, "update-index", "-z", "--index-info"]
        done = subprocess.run(
            command, cwd=tmp_path, input=f"100644 {blob}\t{name}\0".encode(), capture_output=True, check=False
        )
        if done.returncode or b"nvalid path" in done.stderr:
            assert refused(name.encode()), name


def test_names_that_are_not_text_are_allowed() -> None:
    assert refused(b"\xff\xfe/\x80") is None
    assert refused(b"\xff.git") is None
    assert is_git(b".git\xe2\x80\x8c")


@pytest.mark.parametrize(
    "path", [b"", b"/", b"/a", b"a/", b"a//b", b".", b"..", b"a/..", b"../a", b"a/./b", b"a\0", b"a/" + b"b" * 256,
    b"a/" * 2047 + b"bcd",
             b"/".join([b"d"] * (MAX_DEPTH + 1))],
)  # fmt: skip
def test_invalid_path_strings_are_rejected(path: bytes) -> None:
    assert refused(path)


def test_gitmodules_as_a_link_is_rejected_and_as_a_file_is_allowed() -> None:
    for name in (
        b".gitmodules",
        b".GITMODULES",
        b"sub/.gitmodules",
        b"gitmod~1",
        b"GI7EBA~1",
        ".gitmodules\u200c".encode(),
    ):
        assert refused(name, link=True)
        assert refused(name) is None
    assert refused(b"x", link=True) is None


def test_names_of_one_file_on_other_systems_fold_equally() -> None:
    assert folded("caf\u00e9".encode()) == folded("cafe\u0301".encode()) == folded("CAFE\u0301".encode())
    assert folded(b"README") == folded(b"readme")
    assert folded(b"\xff") != folded(b"\xfe")
