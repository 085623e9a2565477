"""Attacks on PID 1 and on the launchers that fork for it, from inside."""

from __future__ import annotations

import pytest
from attacks.conftest import Raid
from attacks.raid import Attack, by_users

SCRIPT = "first_process.py"


@pytest.mark.parametrize(("attack", "user"), by_users(SCRIPT))
def test_the_first_process_is_not_reached(raided: Raid, attack: Attack, user: str) -> None:
    outcome = raided(attack, user)
    assert outcome.repelled, outcome
