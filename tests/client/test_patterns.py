"""Patterns mean the same here as in the keeper: its own test has this table too."""

from __future__ import annotations

import pytest

from skerry.client.host.patterns import Patterns
from skerry.errors import InvalidRequest

CASES = [
    ("*.pyc", "a.pyc", False, True), ("*.pyc", "a/b/c.pyc", False, True), ("*.pyc", "a.py", False, False),
    ("a/b", "a/b", False, True), ("a/b", "x/a/b", False, False), ("/b", "b", False, True), ("/b", "a/b", False, False),
    ("a/*", "a/b", False, True), ("a/*.c", "a/b/x.c", False, False), ("a/**/x.c", "a/x.c", False, True),
    ("a/**/x.c", "a/b/c/x.c", False, True), ("**/x", "x", False, True), ("a/**", "a", True, False),
    ("a/**", "a/b", False, True), ("b/", "a/b", False, False), ("b/", "a/b", True, True),
    ("[!a]x", "bx", False, True), ("[!a]x", "ax", False, False), ("?", "ü", False, True), (r"\*", "*", False, True),
    (r"\*", "a", False, False), ("a?c", "a/c", False, False), ("[a-c]", "b", False, True), ("a.b", "axb", False, False),
    ("*\n", "x\n", False, True), ("x]", "x]", False, True),
    ("*.{ts,tsx}", "a/b.tsx", False, True), ("{a,b/c}/d", "b/c/d", False, True), (".*", ".git", True, True),
    ("*", ".git", True, True), ("[a", "[a", False, True), ("./a//b", "a/b", False, True), ("[]a]", "]", False, True),
    ("[z-a]", "b", False, False), ("[!z-a]", "b", False, True), ("{,x}y", "xy", False, True),
    ("{,x}y", "y", False, True),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "path", "directory", "wanted"), CASES)
def test_pattern_matches_expected_paths(pattern: str, path: str, directory: bool, wanted: bool) -> None:
    assert Patterns([pattern]).excludes(path, directory) == wanted


@pytest.mark.parametrize("pattern", ["", "/", "..", "a/../b", "a\\", "{a", "x" * 1025, "{a,b}" * 7])
def test_invalid_pattern_is_rejected(pattern: str) -> None:
    with pytest.raises(InvalidRequest, match="exclude"):
        Patterns([pattern])


def test_single_string_and_too_many_patterns_are_rejected() -> None:
    with pytest.raises(InvalidRequest, match="not a list"):
        Patterns("*.pyc")
    with pytest.raises(InvalidRequest, match="more than 100"):
        Patterns(["x"] * 101)
