"""Files of this host that a build copies."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from skerry.client.build.sources import SourceArchive, digest, find_matches, local_source
from skerry.client.build.steps import Local
from skerry.errors import InvalidRequest


@pytest.fixture
def context(tmp_path: Path) -> Path:
    root = tmp_path / "context"
    for name in ("a.txt", "b.txt", "src/main.py", "src/deep/one.py", "src/deep/two.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"this is {name}")
    (root / "src/link").symlink_to("/etc/passwd")
    (root / "src/main.py").chmod(0o755)
    (tmp_path / "secret").write_text("not yours")
    return root


def held(context: Path, pattern: str, *ignore: str, parents: bool = False) -> dict[str, tarfile.TarInfo]:
    archive = SourceArchive(find_matches(Local(str(context), pattern, contained=True, ignore=ignore)), parents=parents)
    with tarfile.open(fileobj=io.BytesIO(b"".join(archive))) as tar:
        assert sorted(name for name, _ in archive.names) == sorted(tar.getnames())
        return {member.name: member for member in tar.getmembers()}


def mark(context: Path, pattern: str = ".", *ignore: str) -> str:
    return digest([Local(str(context), pattern, contained=True, ignore=ignore)])


def test_directory_copies_its_content_and_a_file_keeps_its_name(context: Path) -> None:
    assert sorted(held(context, "src")) == ["deep", "deep/one.py", "deep/two.txt", "link", "main.py"]
    assert sorted(held(context, "src/deep/one.py")) == ["one.py"]
    assert held(context, "src")["main.py"].mode == 0o755
    assert held(context, "src")["link"].issym()


def test_patterns_find_files_at_each_level(context: Path) -> None:
    assert sorted(held(context, "*.txt")) == ["a.txt", "b.txt"]
    assert sorted(held(context, "src/*/one.*")) == ["one.py"]
    assert sorted(held(context, "**/*.py")) == ["main.py", "one.py"]
    assert sorted(held(context, "**/*.py", parents=True)) == [
        "src", "src/deep", "src/deep/one.py", "src/main.py",
    ]  # fmt: skip


def test_existing_file_named_like_a_pattern_is_copied(context: Path) -> None:
    (context / "a[1].txt").write_text("x")
    assert sorted(held(context, "a[1].txt")) == ["a[1].txt"]


def test_dockerignored_files_are_not_copied(context: Path) -> None:
    assert sorted(held(context, ".", "*", "!src/**/*.txt", "!b.txt")) == [
        "b.txt",
        "src",
        "src/deep",
        "src/deep/two.txt",
    ]
    with pytest.raises(InvalidRequest, match=r"that \.dockerignore does not exclude"):
        held(context, "a.txt", "*.txt")


@pytest.mark.parametrize("pattern", ["../secret", "src/../../secret", "out", "up/secret"])
def test_nothing_above_the_context_can_be_copied(context: Path, pattern: str) -> None:
    (context / "out").symlink_to("../secret")
    (context / "up").symlink_to("..")
    with pytest.raises(InvalidRequest, match="outside of"):
        held(context, pattern)


def test_absolute_source_is_relative_to_the_context(context: Path) -> None:
    assert sorted(held(context, "/a.txt")) == ["a.txt"]
    with pytest.raises(InvalidRequest, match="not found"):
        held(context, "/etc/passwd")


def test_named_link_within_the_context_is_followed(context: Path) -> None:
    (context / "way").symlink_to("src/deep")
    assert sorted(held(context, "way")) == ["one.py", "two.txt"]


def test_directory_swapped_for_a_link_is_not_followed(context: Path) -> None:
    matches = find_matches(Local(str(context), "src/deep", contained=True))
    (context / "src").rename(context / "was")
    (context / "src").symlink_to("/etc")
    with pytest.raises(InvalidRequest):
        list(SourceArchive(matches))


def test_digest_depends_on_content_modes_and_names_but_not_times(context: Path) -> None:
    before = mark(context)
    os.utime(context / "a.txt", (1, 1))
    assert mark(context) == before
    seen = {before}
    for change in (
        lambda: (context / "a.txt").write_text("other"),
        lambda: (context / "a.txt").chmod(0o600),
        lambda: (context / "a.txt").rename(context / "c.txt"),
        lambda: (context / "new").mkdir(),
        lambda: ((context / "src/link").unlink(), (context / "src/link").symlink_to("/etc/group")),
    ):
        change()
        seen.add(mark(context))
    assert len(seen) == 6
    ignored = mark(context, ".", "a*")
    (context / "a.new").write_text("x")
    assert mark(context, ".", "a*") == ignored


def test_unreadable_file_fails_the_build(context: Path) -> None:
    (context / "loop").symlink_to("loop")
    with pytest.raises(InvalidRequest, match="loop"):
        mark(context, "loop")


def test_path_given_by_the_caller_may_be_anywhere(context: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(context / "src")
    assert [match.name for match in find_matches(local_source("../*.txt"))] == ["a.txt", "b.txt"]
    assert find_matches(local_source("."))[0].is_directory
    assert find_matches(local_source(context / "a.txt"))[0].name == "a.txt"
    with pytest.raises(InvalidRequest, match="not found"):
        find_matches(local_source("missing"))
