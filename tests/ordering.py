"""Which test files go first: those that take longest. What is begun last keeps all others waiting at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

LONGEST = """
    keeper/test_watches engine/test_faults integration/test_life engine/test_endings cli/test_guides attacks/test_liar
    integration/test_rich_results keeper/test_tracking engine/test_reviews cli/test_apply cli/test_review_story
    integration/test_processes integration/test_presets cli/test_terminal engine/test_state_faults
    integration/test_network_door integration/test_terminals integration/test_events cli/test_with_server
    engine/test_sleep keeper/test_entries integration/test_previews network/test_clients server/test_websockets
    attacks/test_races keeper/test_edits integration/test_sessions keeper/test_trees client/test_local
    storage/test_crashes attacks/egress/test_deaths keeper/test_build engine/test_pull_faults integration/test_archives
    client/test_hostile_archives integration/test_files images/test_pull engine/test_high_stacks
"""


def sort(items: list[pytest.Item]) -> None:
    """By file only: the tests of one stay as they are."""
    rank = {Path(__file__).parent / f"{name}.py": number for number, name in enumerate(LONGEST.split())}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))
