""".dockerignore."""

from __future__ import annotations

import pytest

from skerry.client.building.ignore import Ignore
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
def test_the_last_pattern_that_matches_decides(lines: list[str], path: str, excluded: bool) -> None:
    assert Ignore(lines).names(path) is excluded


def test_a_directory_that_something_is_brought_back_from_is_entered() -> None:
    ignore = Ignore(["*", "!src/keep/*.txt", "!**/here"])
    assert not ignore.excludes("src", True)
    assert ignore.excludes("src/x.txt", False)
    assert Ignore(["*", "!src/keep"]).excludes("other", True)


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="is not a pattern"):
        Ignore(["[z-a]"])
