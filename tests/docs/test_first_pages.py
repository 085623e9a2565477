"""Run the examples of the pages for newcomers, each page on a new server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

PAGES = [
    "README.md",
    "docs/guides/quickstart.md",
    "docs/guides/install.md",
    "docs/guides/backup.md",
    "docs/guides/upgrade.md",
    "docs/guides/troubleshooting.md",
    "docs/guides/choosing.md",
    "docs/guides/e2b.md",
    "docs/guides/editors.md",
    "docs/guides/team.md",
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES)
def test_page_runs_as_printed(run_page: Callable[[str], None], page: str) -> None:
    run_page(page)
