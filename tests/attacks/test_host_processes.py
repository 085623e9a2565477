"""Attacks on the host's processes, namespaces and shared memory, from inside."""

from __future__ import annotations

import pytest
from attacks.conftest import Raid
from support.attack import Attack, by_users

SCRIPT = "host_processes.py"


@pytest.mark.parametrize(("attack", "user"), by_users(SCRIPT))
def test_no_process_of_the_host_is_reached(run_attack: Raid, attack: Attack, user: str) -> None:
    outcome = run_attack(attack, user)
    assert outcome.repelled, outcome
