"""Attacks on the limits of what a user inside is."""

from __future__ import annotations

import pytest
from attacks.conftest import Raid
from attacks.raid import Attack, by_users, with_control

SCRIPT = "capabilities.py"


@pytest.mark.parametrize(("attack", "user"), by_users(SCRIPT))
def test_nobody_becomes_more_than_they_are(raided: Raid, attack: Attack, user: str) -> None:
    outcome = raided(attack, user)
    assert outcome.repelled, outcome


@pytest.mark.parametrize("attack", with_control(SCRIPT))
def test_the_same_attack_succeeds_where_nothing_is_in_its_way(raided: Raid, attack: Attack) -> None:
    outcome = raided(attack, str(attack.control))
    assert outcome.gained is not None, outcome
