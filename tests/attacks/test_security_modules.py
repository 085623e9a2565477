"""Root inside tries to leave its AppArmor profile and to change the host's policy. It needs a host with AppArmor."""

from __future__ import annotations

import re

import pytest

from skerry import Sandbox
from skerry.runtimes import spec
from skerry.runtimes.security_modules import security_modules

MODULES = security_modules(spec.CAPABILITIES, load=False)
pytestmark = pytest.mark.skipif(MODULES.profile is None, reason=f"AppArmor: {MODULES.apparmor}")
LABEL = "/proc/self/attr/apparmor/current"
LEAVE = """
import os, sys
try:
    with open(sys.argv[1], "w") as file:
        file.write(sys.argv[2])
except OSError as error:
    print(error.strerror, file=sys.stderr)
os.execvp("cat", ["cat", "/proc/self/attr/apparmor/current"])
"""


@pytest.mark.parametrize(
    ("file", "order"),
    [
        ("current", "changeprofile unconfined"),
        ("current", "changehat 1^unconfined"),
        ("current", "stack unconfined"),
        ("exec", "exec unconfined"),
        ("exec", "stack unconfined"),
        ("exec", "exec :other:unconfined"),
    ],
)
def test_root_cannot_leave_the_profile(sandbox: Sandbox, file: str, order: str) -> None:
    assert sandbox.isolation is not None
    assert "apparmor_profile" in sandbox.isolation.guarantees
    place = f"/proc/self/attr/apparmor/{file}"
    left = sandbox.run(["python3", "-c", LEAVE, place, order], user="root", check=True)
    # A stack enforces each of its profiles.
    assert MODULES.profile in re.split(r"//&| ", left.stdout.strip()), (left.stdout, left.stderr)


def test_children_sudo_and_daemons_keep_the_profile(sandbox: Sandbox) -> None:
    for line in (f"cat {LABEL}", f"sudo cat {LABEL}", f"setsid -w sh -c 'cat {LABEL}'"):
        assert sandbox.run(line, check=True).stdout.strip() == f"{MODULES.profile} (enforce)", line
    assert sandbox.code.run(f"open({LABEL!r}).read().strip()").text == repr(f"{MODULES.profile} (enforce)")


def test_root_cannot_load_policy_or_write_settings_of_the_kernel(sandbox: Sandbox) -> None:
    for path in (
        "/sys/kernel/security/apparmor/.replace", "/sys/kernel/security/apparmor/.remove",
        "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger",
    ):  # fmt: skip
        assert sandbox.run(f"echo x > {path}", user="root").exit_code != 0, path
    assert sandbox.run("cat /proc/kallsyms", user="root").exit_code != 0
