"""Run the examples of the pages about the network, each page on a new server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

PAGES = ["docs/guides/network.md", "docs/guides/secrets.md", "docs/guides/previews.md", "docs/guides/handlers.md"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES)
def test_page_runs_as_printed(run_page: Callable[[str], None], page: str) -> None:
    run_page(page)
