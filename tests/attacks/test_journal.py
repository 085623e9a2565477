"""Attacks by way of output: a journal lies on the sandbox's own disk, in its own memory, and is root's inside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.server import Server

from skerry import Limits, Output, Sandbox

MIB = 1 << 20


@pytest.fixture
def small_sandbox(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address, limits=Limits(memory="64M", disk="192M", pids=128)) as sandbox:
        yield sandbox


def streamed(sandbox: Sandbox, cmd: list[str]) -> int:
    got = 0

    def count(output: Output) -> None:
        nonlocal got
        got += len(output.data)

    assert sandbox.run(cmd, on_output=count, timeout=100).ok
    return got


def test_output_larger_than_memory_does_not_end_a_sandbox(small_sandbox: Sandbox) -> None:
    """A hot journal is mapped: its pages are the disk's, and the kernel can take them back."""
    processes = [small_sandbox.spawn(["head", "-c", "300M", "/dev/zero"]) for _ in range(2)]
    assert streamed(small_sandbox, ["head", "-c", "300M", "/dev/zero"]) == 300 * MIB
    for process in processes:
        assert process.wait(timeout=100).exit_code == 0
        pieces = list(process.follow())
        assert sum(len(piece.data) + piece.missing for piece in pieces) == 300 * MIB
        assert sum(len(piece.data) for piece in pieces) <= 96 * MIB
    assert small_sandbox.info().state == "running"


def test_programs_continue_on_a_full_disk_and_a_run_loses_nothing(small_sandbox: Sandbox) -> None:
    assert "error writing" in small_sandbox.run("head -c 1G /dev/zero > /workspace/fill").stderr
    process = small_sandbox.spawn("seq 2000000; echo end")
    assert streamed(small_sandbox, ["seq", "2000000"]) == 14888896
    assert process.wait(timeout=60).exit_code == 0
    output = list(process.follow())
    assert sum(len(piece.data) + piece.missing for piece in output) == 14888896 + 4
    assert output[-1].data.endswith(b"end\n")
    small_sandbox.run("rm /workspace/fill", check=True)
    assert small_sandbox.run("echo alive").stdout == "alive\n"


def test_journals_truncated_and_linked_by_root_are_harmless(server: Server) -> None:
    place = "/var/lib/skerry/processes"
    ruins = (
        f"truncate -s 4097 {place}/*",
        f"rm -rf {place}; ln -s /proc/1 {place}",
        f"for f in {place}/*; do ln -sf /dev/zero $f; done",
    )
    with Sandbox(server=server.address) as sandbox:
        sandbox.run("touch /tmp/on", user="root", check=True)
        vandals = [sandbox.spawn(f"while [ -e /tmp/on ]; do {ruin}; done 2>/dev/null", user="root") for ruin in ruins]
        floods = [sandbox.spawn(["head", "-c", "200M", "/dev/zero"]) for _ in range(2)]
        assert streamed(sandbox, ["head", "-c", "200M", "/dev/zero"]) <= 200 * MIB
        for flood in floods:
            assert flood.wait(timeout=100).exit_code == 0
            assert sum(len(piece.data) + piece.missing for piece in flood.follow()) == 200 * MIB
        for vandal in vandals:
            vandal.kill()
        assert sandbox.run("echo alive").stdout == "alive\n"
