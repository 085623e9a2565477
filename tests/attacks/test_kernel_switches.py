"""Attacks on kernel settings and kernel secrets, from inside."""

from __future__ import annotations

import pytest
from attacks.conftest import Raid
from support.attack import Attack, by_users

SCRIPT = "kernel_switches.py"


@pytest.mark.parametrize(("attack", "user"), by_users(SCRIPT))
def test_kernel_settings_cannot_be_changed_and_secrets_not_read(run_attack: Raid, attack: Attack, user: str) -> None:
    outcome = run_attack(attack, user)
    assert outcome.repelled, outcome
