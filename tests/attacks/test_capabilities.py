"""Attacks on the privileges of users inside."""

from __future__ import annotations

import re

import pytest
from attacks.conftest import Raid
from support.attack import Attack, by_users

from skerry import Sandbox

SCRIPT = "capabilities.py"


@pytest.mark.parametrize(("attack", "user"), by_users(SCRIPT))
def test_privilege_escalation_fails(run_attack: Raid, attack: Attack, user: str) -> None:
    outcome = run_attack(attack, user)
    assert outcome.repelled, outcome


BITS = {
    "CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_FOWNER": 3, "CAP_FSETID": 4, "CAP_KILL": 5, "CAP_SETGID": 6,
    "CAP_SETUID": 7, "CAP_SETPCAP": 8, "CAP_NET_BIND_SERVICE": 10, "CAP_SETFCAP": 31,
}  # fmt: skip


def status(sandbox: Sandbox, user: str, pid: str = "self") -> dict[str, str]:
    text = sandbox.run(["cat", f"/proc/{pid}/status"], user=user, check=True).stdout
    return dict(re.findall(r"^(\w+):\s*(.*)$", text, re.MULTILINE))


@pytest.mark.parametrize(("user", "pid"), [("user", "self"), ("root", "self"), ("root", "1")])
def test_capabilities_are_exactly_the_documented_ones(target: Sandbox, user: str, pid: str) -> None:
    assert target.isolation is not None
    promised = sum(1 << BITS[name] for name in target.isolation.details["capabilities"])
    found = status(target, user, pid)
    held = {name: int(found[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
    own = promised if user == "root" else 0
    assert held == {"CapInh": 0, "CapPrm": own, "CapEff": own, "CapBnd": promised, "CapAmb": 0}
    assert (found["NoNewPrivs"], found["Seccomp"]) == ("1", "2")


def test_sudo_grants_no_more_than_root_inside_has(target: Sandbox) -> None:
    by_sudo = target.run(["sudo", "grep", "-E", "Cap|NoNew|Seccomp:", "/proc/self/status"], check=True).stdout
    by_root = target.run(["grep", "-E", "Cap|NoNew|Seccomp:", "/proc/self/status"], user="root", check=True).stdout
    assert by_sudo == by_root
