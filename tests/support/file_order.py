"""Run the slowest test files first, so that no worker waits at the end for a long file that began last."""

from __future__ import annotations

from pathlib import Path

import pytest

LONGEST = """
    agents/test_worker engine/volumes/test_buckets agents/test_sign_in sdk/test_typescript attacks/test_kernel_memory
    keeper/test_watch engine/test_faults integration/test_lifecycle engine/sandboxes/test_ends
    agents/test_run docs/test_sandbox_pages docs/test_review_pages docs/test_file_pages docs/test_network_pages
    docs/test_first_pages
    attacks/test_lying_keeper integration/test_rich_results keeper/test_tracking engine/review/test_review_faults
    cli/test_apply cli/test_review_story integration/test_processes integration/test_presets cli/test_shell
    engine/snapshots/test_snapshot_faults integration/test_gateway integration/test_terminals integration/test_events
    cli/test_commands engine/sandboxes/test_pause keeper/test_entries integration/test_previews network/test_clients
    server/test_websockets attacks/test_races keeper/test_edits integration/test_sessions keeper/test_archives
    client/test_local_server storage/test_crashes attacks/egress/test_crashes keeper/test_build
    engine/images/test_pull_faults integration/test_archives client/test_unpack integration/test_files
    images/test_pull engine/snapshots/test_tall_stacks
"""


def sort(items: list[pytest.Item]) -> None:
    """Sort by file only; the order of the tests within a file stays the same."""
    rank = {Path(__file__).parents[1] / f"{name}.py": number for number, name in enumerate(LONGEST.split())}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))
