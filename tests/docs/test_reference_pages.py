"""Run the examples of the reference, each page on a new server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

PAGES = [
    "docs/guides/audit.md",
    "docs/guides/usage.md",
    "docs/guides/monitoring.md",
    "docs/guides/webhooks.md",
    "docs/reference/http.md",
    "docs/reference/sdk.md",
    "docs/reference/settings.md",
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES)
def test_page_runs_as_printed(run_page: Callable[[str], None], page: str) -> None:
    run_page(page)
