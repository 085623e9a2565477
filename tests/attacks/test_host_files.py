"""Attacks on the host's files, from inside."""

from __future__ import annotations

import pytest
from attacks.conftest import Raid
from attacks.raid import Attack, by_users

SCRIPT = "host_files.py"


@pytest.mark.parametrize(("attack", "user"), by_users(SCRIPT))
def test_no_file_of_the_host_is_reached(raided: Raid, attack: Attack, user: str) -> None:
    outcome = raided(attack, user)
    assert outcome.repelled, outcome
