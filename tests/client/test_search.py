"""Looking for a pattern in pieces: found wherever the cuts are, within a bounded window."""

from __future__ import annotations

import re

import pytest

from skerry.client.results.search import WINDOW, OutputSearch
from skerry.errors import InvalidRequest


def test_match_is_found_for_any_chunking() -> None:
    data = "listening on örtlich:8080\n".encode()
    for size in range(1, len(data)):
        search = OutputSearch(r"on (\w+):(\d+)\n")
        found = [m for at in range(0, len(data), size) if (m := search.add(data[at : at + size]))]
        assert found[0].groups() == ("örtlich", "8080")


def test_bytes_are_searched_as_bytes() -> None:
    search = OutputSearch(rb"\xff(.)")
    assert search.add(b"a\xff") is None
    found = search.add(b"b")
    assert found is not None
    assert found[1] == b"b"


def test_compiled_pattern_keeps_its_flags() -> None:
    assert OutputSearch(re.compile("READY", re.IGNORECASE)).add(b"ready") is not None


def test_search_does_not_match_across_a_gap() -> None:
    search = OutputSearch("ready")
    assert search.add(b"rea") is None
    assert search.add(b"dy", after_gap=True) is None


def test_window_is_bounded_and_its_end_can_be_quoted() -> None:
    search = OutputSearch(
        "begin.*end",
    )
    assert search.add(b"begin") is None
    for _ in range(100):
        assert search.add(b"x" * 4096) is None
    assert search.add(b"end") is None, "too far from its begin"
    assert len(search._window) == WINDOW
    assert search.seen_last.endswith("xend")


@pytest.mark.parametrize("pattern", ["(", 7, None])
def test_invalid_pattern_is_rejected(pattern: object) -> None:
    with pytest.raises(InvalidRequest, match="pattern"):
        OutputSearch(pattern)  # type: ignore[type-var]
