"""Run the examples of the pages about sandboxes and the programs in them, each page on a new server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

PAGES = [
    "docs/guides/sandboxes.md",
    "docs/guides/processes.md",
    "docs/guides/sessions.md",
    "docs/guides/terminals.md",
    "docs/guides/ssh.md",
    "docs/guides/code.md",
    "docs/guides/agents.md",
    "docs/guides/replay.md",
    "docs/guides/volumes.md",
    "docs/concepts/pool.md",
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES)
def test_page_runs_as_printed(run_page: Callable[[str], None], page: str) -> None:
    run_page(page)
