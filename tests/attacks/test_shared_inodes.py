"""Attacks through files that sandboxes and the host could share: their locks, watches and times would be a way to send
and to learn something."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server import Server

from skerry import Limits, Sandbox
from skerry.keeper.binary import binary

NODES = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty")]
KEEPER = "/run/skerry/bin/skerry-keeper"
MASKED = "/proc/timer_list"  # a /dev/null in its place
FILES = [*NODES, KEEPER, MASKED]


@pytest.fixture(scope="module")
def neighbours(server: Server) -> Iterator[tuple[Sandbox, Sandbox]]:
    limits = Limits(memory="256M")
    with Sandbox(server=server.address, limits=limits) as one, Sandbox(server=server.address, limits=limits) as other:
        yield one, other


def host_file(file: str) -> Path:
    return Path({KEEPER: str(binary()), MASKED: "/dev/null"}.get(file, file))


def identity(box: Sandbox, file: str) -> str:
    return box.run(["stat", "-c", "%d:%i", file], check=True).stdout.strip()


@pytest.mark.parametrize("file", FILES)
def test_file_is_the_sandboxs_own(neighbours: tuple[Sandbox, Sandbox], file: str) -> None:
    one, other = (identity(box, file) for box in neighbours)
    host = host_file(file).stat()
    assert len({one, other, f"{host.st_dev}:{host.st_ino}"}) == 3


@pytest.mark.parametrize("file", FILES)
def test_times_of_the_host_do_not_change(neighbours: tuple[Sandbox, Sandbox], file: str) -> None:
    before = host_file(file).stat().st_mtime_ns
    for user in ("user", "root"):
        neighbours[0].run(["touch", "-d", "2001-01-01", file], user=user)
        neighbours[0].run(["touch", file], user=user)
    assert host_file(file).stat().st_mtime_ns == before


@pytest.mark.parametrize("file", [*NODES[:5], KEEPER])
def test_locks_do_not_cross(neighbours: tuple[Sandbox, Sandbox], file: str) -> None:
    one, other = neighbours
    process = one.spawn(["flock", file, "sh", "-c", "echo locked; cat"])
    try:
        assert one.run(["sh", "-c", f"until ! flock -n {file} true; do sleep 0.01; done"], timeout=30).exit_code == 0
        assert other.run(["flock", "-n", file, "true"]).exit_code == 0
    finally:
        process.kill()
