"""Attacks on the keeper's turn: what runs inside takes all of the processor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from serving import Server

from skerry import Limits, Sandbox

BUSY = "i=0; while [ $((i += 1)) -le 100 ]; do (while :; do :; done) & done; echo there; wait"


@pytest.fixture(scope="module")
def busy(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address, limits=Limits(memory="512M", pids=256, cpus=0.5)) as sandbox:
        yield sandbox


def test_commands_do_not_inherit_the_keepers_turn(busy: Sandbox) -> None:
    assert busy.run("nice; sudo nice; cut -d' ' -f19 /proc/1/stat", check=True).stdout == "0\n0\n-10\n"
    assert busy.spawn("nice").wait().stdout == "0\n"


def test_busy_programs_do_not_keep_the_keeper_from_answering(busy: Sandbox) -> None:
    process = busy.spawn(BUSY)
    process.wait_for_output("there", timeout=60)
    for _ in range(20):
        assert busy.files.read_text("/etc/hostname")
    assert busy.run(["echo", "alive"], timeout=60).stdout == "alive\n"
    process.signal("KILL")
    process.wait(60)
    assert busy.info().state == "running"
