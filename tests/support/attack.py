"""Attacks that are run where an attacker would run them: the scripts of `inside/`, in a sandbox or, as the control that
shows that they can succeed at all, on the host."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from skerry import Sandbox

INSIDE = Path(__file__).parents[1] / "attacks" / "inside"
PLACE = "/opt/attacks"
# All capabilities, no filter, and nothing of the host's that could be harmed.
_NAMESPACES = ["unshare", "--user", "--map-root-user", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork"]


@dataclass(frozen=True)
class Attack:
    script: str
    name: str
    control: str | None
    by: tuple[str, ...] = ("user", "root")

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Outcome:
    """The outcome of an attack: exactly one field is set. `broken` is a fault in the attack itself."""

    gained: str | None = None
    failed: str | None = None
    killed: str | None = None
    broken: str | None = None

    @property
    def repelled(self) -> bool:
        return self.failed is not None or self.killed == "SIGSYS"


def attacks(script: str) -> list[Attack]:
    """Every attack of a script, read off its source: tests are named after them before any is run."""
    found = []
    for node in ast.parse((INSIDE / script).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "attack":
                    words = {str(word.arg): ast.literal_eval(word.value) for word in mark.keywords}
                    found.append(Attack(script, node.name, ast.literal_eval(mark.args[0]), **words))
    return found


def by_users(script: str) -> list[Any]:
    """Parameters `attack, user`: each attack of a script, by the image's user and by root inside."""
    return [pytest.param(a, user, id=f"{a.name}-by_{user}") for a in attacks(script) for user in a.by]


def with_control(script: str) -> list[Any]:
    """Parameter `attack`: those that can be shown to succeed somewhere."""
    return [pytest.param(attack, id=attack.name) for attack in attacks(script) if attack.control is not None]


def carry_in(sandbox: Sandbox) -> None:
    for file in INSIDE.iterdir():
        if file.suffix == ".py":
            sandbox.files.write(f"{PLACE}/{file.name}", file.read_bytes(), user="root")


def plant(sandbox: Sandbox) -> None:
    """Add programs that root inside can leave for its users: setuid, setgid, or with capabilities."""
    code = (
        "import os, shutil, struct, sys\n"
        "for mode in (0o4755, 0o2755, 0o755):\n"
        "    path = f'/opt/planted-{mode:o}'\n"
        "    shutil.copy(os.path.realpath(sys.executable), path)\n"
        "    os.chmod(path, mode)\n"
        "every = (1 << 32) - 1\n"
        "os.setxattr(path, 'security.capability', struct.pack('<IIIII', 0x02000001, every, 0, every & 0x1ff, 0))\n"
        "print(oct(os.stat('/opt/planted-4755').st_mode))\n"
    )
    assert sandbox.run(["python3", "-c", code], user="root", check=True).stdout == "0o104755\n"


def raid(sandbox: Sandbox, script: str, user: str, facts: dict[str, Any], *names: str) -> dict[str, Outcome]:
    """The attacks of a script by a user of the sandbox: those that are named, or all that are for that user."""
    names = names or tuple(attack.name for attack in attacks(script) if user in attack.by)
    argv = ["python3", f"{PLACE}/{script}", json.dumps(facts | {"inside": True, "scratch": "/tmp"}), *names]
    done = sandbox.run(argv, user=user, timeout=60)
    assert done.ok, done.stderr
    return _outcomes(done.stdout)


def control(script: str, where: str, facts: dict[str, Any]) -> dict[str, Outcome]:
    """The same attacks where they should succeed."""
    names = [attack.name for attack in attacks(script) if attack.control == where]
    before = _NAMESPACES if where == "namespace" else []
    with tempfile.TemporaryDirectory() as scratch:
        facts = facts | {"first": [facts["victim"]], "scratch": scratch}
        argv = [*before, sys.executable, str(INSIDE / script), json.dumps(facts), *names]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": ""})
    assert done.returncode == 0, done.stderr
    return _outcomes(done.stdout)


def _outcomes(text: str) -> dict[str, Outcome]:
    return {name: Outcome(**outcome) for name, outcome in json.loads(text).items()}
