"""Run the examples of the pages about repositories and reviews, each page on a new server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

PAGES = [
    "docs/guides/coding-agents.md",
    "docs/guides/repositories.md",
    "docs/guides/review.md",
    "docs/guides/applying.md",
    "docs/guides/mcp.md",
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES)
def test_page_runs_as_printed(run_page: Callable[[str], None], page: str) -> None:
    run_page(page)
