"""Attacks on what is mounted where, from inside."""

from __future__ import annotations

import pytest
from attacks.conftest import Raid
from attacks.raid import Attack, by_users

SCRIPT = "mounts.py"


@pytest.mark.parametrize(("attack", "user"), by_users(SCRIPT))
def test_nothing_is_mounted_or_unmounted(raided: Raid, attack: Attack, user: str) -> None:
    outcome = raided(attack, user)
    assert outcome.repelled, outcome
