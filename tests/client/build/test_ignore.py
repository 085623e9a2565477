""".dockerignore."""

from __future__ import annotations

import pytest

from skerry.client.build.sources import DockerIgnore
from skerry.errors import InvalidRequest


@pytest.mark.parametrize(
    ("lines", "path", "excluded"),
    [
        (["*.md"], "README.md", True),
        (["*.md"], "docs/README.md", False),
        (["**/*.md"], "docs/a/README.md", True),
        (["**/*.md"], "README.md", True),
        (["node_modules"], "node_modules/a/b.js", True),
        (["node_modules"], "sub/node_modules", False),
        (["/build/"], "build/x", True),
        (["a?c"], "abc", True),
        (["a?c"], "a/c", False),
        (["[a-c]x"], "bx", True),
        (["[^a-c]x"], "bx", False),
        (["[\\]a-c&&b]x"], "]x", True),
        (["[--a]x"], "^x", True),
        (["\\*"], "*", True),
        (["\\*"], "a", False),
        (["# a comment", "", "  x  "], "x", True),
        (["*", "!src"], "src/a.py", False),
        (["*", "!src", "src/*.pyc"], "src/a.pyc", True),
        (["*", "!src"], "other", True),
        (["a/**"], "a/b/c", True),
        (["./a/../b"], "b", True),
        (["**file"], "dir/file", True),
        (["**/dir2/*"], "dir/dir2/file", True),
        (["dir/**/x"], "dir/x", True),
        (["**"], "any/thing", True),
    ],
)
def test_last_matching_pattern_decides(lines: list[str], path: str, excluded: bool) -> None:
    assert DockerIgnore(lines).names(path) is excluded


def test_directory_with_reincluded_files_is_entered() -> None:
    ignore = DockerIgnore(["*", "!src/keep/*.txt", "!**/here"])
    assert not ignore.excludes("src", True)
    assert ignore.excludes("src/x.txt", False)
    assert DockerIgnore(["*", "!src/keep"]).excludes("other", True)


def test_invalid_pattern_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="is not a pattern"):
        DockerIgnore(["[z-a]"])
