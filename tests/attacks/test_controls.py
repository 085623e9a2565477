"""Each attack that can be tried safely elsewhere succeeds there: an attack that fails everywhere proves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from attacks.conftest import Raid
from support.attack import INSIDE, Attack, with_control

SCRIPTS = sorted(path.name for path in INSIDE.glob("*.py"))


@pytest.mark.parametrize("attack", [case for script in SCRIPTS for case in with_control(script)])
def test_same_attack_succeeds_without_isolation(run_attack: Raid, attack: Attack) -> None:
    if attack.name == "learn_the_hosts_machine_id" and not Path("/etc/machine-id").exists():
        pytest.skip("this host has no /etc/machine-id to learn")
    outcome = run_attack(attack, str(attack.control))
    assert outcome.gained is not None, outcome
