"""The guide to the network and the quick start: their commands print what they say, on the tests' own internet."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli.test_guides import MARK, blocks, commands, plain, settings
from serving import Server
from world.world import World

# The guides' hosts are examples, of which the tests' internet has its own.
HOSTS = (("files.example.com", "files.example.test"), ("api.example.com", "api.example.test"),
         ("example.com", "api.example.test"), ("example.org", "files.example.test"))  # fmt: skip
# What is another one each time: an attempt's number and time, and how much went through.
VARYING = ((r"^ *\d+ +\d\d:\d\d:\d\d +", ""), (r"^traffic .*", "traffic"))


def translated(text: str) -> str:
    for example, ours in HOSTS:
        text = re.sub(rf"(?<![\w.]){re.escape(example)}", ours, text)
    return text


def same(text: str) -> str:
    for pattern, replacement in VARYING:
        text = re.sub(pattern, replacement, text)
    return plain(text)


def check(server: Server, listed: list[tuple[str, list[str]]], cwd: Path) -> None:
    script = "\n".join(f"{translated(command)}\necho; echo '{MARK}'" for command, _ in listed)
    done = subprocess.run(
        ["bash", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=settings(server), timeout=100, check=False, cwd=cwd,
    )  # fmt: skip
    for (command, printed), said in zip(listed, done.stdout.split(MARK), strict=False):
        found = [same(line) for line in said.splitlines()]
        missing = [line for line in map(translated, printed) if same(line) not in found]
        assert missing == [], f"$ {command}\n{said}"


def test_the_commands_of_the_guide_print_what_it_says(world_server: Server, tmp_path: Path) -> None:
    check(world_server, list(commands("network.md")), tmp_path)


def test_the_quick_start_shows_one_allowed_and_one_refused_host(world_server: Server, tmp_path: Path) -> None:
    listed = [one for one in commands("quickstart.md") if "--allow" in one[0]]
    assert len(listed) == 2
    check(world_server, listed, tmp_path)


@pytest.mark.parametrize("program", blocks("network.md", "python"))
def test_a_program_of_the_guide_runs(world: World, world_server: Server, program: str) -> None:
    if 'Sandbox.get("dev")' in program:
        program = f'from skerry import Sandbox\nSandbox.create(name="dev")\n{program}\nsandbox.delete()\n'
    world.reset()
    done = subprocess.run(
        [sys.executable, "-c", translated(program)], capture_output=True, text=True, env=settings(world_server),
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{program}\n{done.stderr}"
    for said in re.findall(r"print\(.*\)  # (.*)", translated(program)):
        assert said in done.stdout
    assert world.strays() == []
