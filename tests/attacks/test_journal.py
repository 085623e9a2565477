"""Attacks by way of output: a journal lies on the sandbox's own disk, in its own memory, and is root's inside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from serving import Server

from skerry import Limits, Output, Sandbox

MIB = 1 << 20


@pytest.fixture
def cramped(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address, limits=Limits(memory="64M", disk="192M", pids=128)) as box:
        yield box


def streamed(box: Sandbox, cmd: list[str]) -> int:
    got = 0

    def count(output: Output) -> None:
        nonlocal got
        got += len(output.data)

    assert box.run(cmd, on_output=count, timeout=100).ok
    return got


def test_output_of_many_times_its_memory_does_not_end_a_sandbox(cramped: Sandbox) -> None:
    """A hot journal is mapped: its pages are the disk's, and the kernel can take them back."""
    processes = [cramped.spawn(["head", "-c", "300M", "/dev/zero"]) for _ in range(2)]
    assert streamed(cramped, ["head", "-c", "300M", "/dev/zero"]) == 300 * MIB
    for process in processes:
        assert process.wait(timeout=100).exit_code == 0
        pieces = list(process.follow())
        assert sum(len(piece.data) + piece.missing for piece in pieces) == 300 * MIB
        assert sum(len(piece.data) for piece in pieces) <= 96 * MIB
    assert cramped.info().state == "running"


def test_on_a_full_disk_programs_go_on_and_a_run_loses_nothing(cramped: Sandbox) -> None:
    assert "error writing" in cramped.run("head -c 1G /dev/zero > /workspace/fill").stderr
    process = cramped.spawn("seq 2000000; echo end")
    assert streamed(cramped, ["seq", "2000000"]) == 14888896
    assert process.wait(timeout=60).exit_code == 0
    output = list(process.follow())
    assert sum(len(piece.data) + piece.missing for piece in output) == 14888896 + 4
    assert output[-1].data.endswith(b"end\n")
    cramped.run("rm /workspace/fill", check=True)
    assert cramped.run("echo alive").stdout == "alive\n"


def test_root_inside_cuts_and_links_journals_away_under_a_flood(server: Server) -> None:
    place = "/var/lib/skerry/processes"
    ruins = (
        f"truncate -s 4097 {place}/*",
        f"rm -rf {place}; ln -s /proc/1 {place}",
        f"for f in {place}/*; do ln -sf /dev/zero $f; done",
    )
    with Sandbox(server=server.address) as box:
        box.run("touch /tmp/on", user="root", check=True)
        vandals = [box.spawn(f"while [ -e /tmp/on ]; do {ruin}; done 2>/dev/null", user="root") for ruin in ruins]
        floods = [box.spawn(["head", "-c", "200M", "/dev/zero"]) for _ in range(2)]
        assert streamed(box, ["head", "-c", "200M", "/dev/zero"]) <= 200 * MIB
        for flood in floods:
            assert flood.wait(timeout=100).exit_code == 0
            assert sum(len(piece.data) + piece.missing for piece in flood.follow()) == 200 * MIB
        for vandal in vandals:
            vandal.kill()
        assert box.run("echo alive").stdout == "alive\n"
