"""Attacks on devices, from inside."""

from __future__ import annotations

import pytest
from attacks.conftest import Raid
from support.attack import Attack, by_users

SCRIPT = "devices.py"


@pytest.mark.parametrize(("attack", "user"), by_users(SCRIPT))
def test_no_device_is_reached(run_attack: Raid, attack: Attack, user: str) -> None:
    outcome = run_attack(attack, user)
    assert outcome.repelled, outcome
