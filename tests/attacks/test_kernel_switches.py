"""Attacks on the kernel's switches and on what it tells, from inside."""

from __future__ import annotations

import pytest
from attacks.conftest import Raid
from attacks.raid import Attack, by_users

SCRIPT = "kernel_switches.py"


@pytest.mark.parametrize(("attack", "user"), by_users(SCRIPT))
def test_no_switch_is_turned_and_no_secret_told(raided: Raid, attack: Attack, user: str) -> None:
    outcome = raided(attack, user)
    assert outcome.repelled, outcome
