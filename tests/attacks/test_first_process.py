"""Attacks on PID 1 and on the launchers that fork for it, from inside."""

from __future__ import annotations

import pytest
from attacks.conftest import Raid
from support.attack import Attack, by_users

SCRIPT = "first_process.py"


@pytest.mark.parametrize(("attack", "user"), by_users(SCRIPT))
def test_first_process_cannot_be_attacked(run_attack: Raid, attack: Attack, user: str) -> None:
    outcome = run_attack(attack, user)
    assert outcome.repelled, outcome
