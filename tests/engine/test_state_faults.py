"""The server is killed with -9 after every step of a snapshot, a fork and a rollback; the next one repairs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec
import pytest
from serving import Server

from skerry.engine import faults
from skerry.types import SnapshotInfo

ONE = "/v1/sandboxes/subject"


@pytest.fixture(scope="module", autouse=True)
def clear(house: Server) -> Iterator[None]:
    yield
    house.remove_all()
    assert house.leftovers() == []


def begin(house: Server) -> None:
    """A sandbox that runs, with something in it."""
    with house.http() as http:
        if http.get(ONE).status_code == 404:
            http.post("/v1/sandboxes", json={"name": "subject"}).raise_for_status()
        run(http, "echo kept > /workspace/note; sync")
        if run(http, "pgrep -c sleep") == "0\n":
            http.post(f"{ONE}/processes", json={"cmd": "sleep 1000"}).raise_for_status()


def run(http: httpx.Client, line: str, ref: str = "subject") -> str:
    answer = http.post(f"/v1/sandboxes/{ref}/processes?wait=true", json={"cmd": line})
    answer.raise_for_status()
    return str(answer.json()["stdout"])


def killed_at_each(
    house: Server, points: tuple[str, ...], drive: Callable[[httpx.Client], Any], check: Callable[[httpx.Client], Any]
) -> None:
    """`drive` does what passes the points; `check` looks at what the next server made of it, and clears up."""
    begin(house)
    house.end()
    house.start(SKERRY_FAULT=points[0])
    for point, after in itertools.pairwise((*points, "")):
        with house.http() as http, pytest.raises(httpx.TransportError):
            drive(http).raise_for_status()
        assert house.process is not None
        assert house.process.wait(10) == -9, point
        house.start(SKERRY_FAULT=after)
        with house.http() as http:
            check(http)
            check_nothing_is_left(house, http)


def check_nothing_is_left(house: Server, http: httpx.Client) -> None:
    """Every unit is some sandbox's, every snapshot on disk some row's."""
    pool = house.state_dir / "pool"
    specs = [msgspec.json.decode(spec) for (spec,) in house.sql("SELECT spec FROM sandboxes")]
    ids = [sandbox for (sandbox,) in house.sql("SELECT id FROM sandboxes")]
    owned = {spec.get("unit") or sandbox for spec, sandbox in zip(specs, ids, strict=True)}
    assert {path.name for path in (pool / "u").iterdir()} == owned
    rows = [msgspec.json.decode(body, type=SnapshotInfo) for (body,) in house.sql("SELECT body FROM snapshots")]
    assert {f"snap:{path.name}" for path in (pool / "s").iterdir()} == {info.layers[0] for info in rows}


def lives_on(http: httpx.Client) -> None:
    """It was not ended, and is not frozen."""
    assert http.get(ONE).json()["state"] == "running"
    assert run(http, "pgrep -c sleep") == "1\n"


def test_a_server_killed_at_any_step_of_a_snapshot_leaves_it_complete_or_gone(house: Server) -> None:
    def check(http: httpx.Client) -> None:
        lives_on(http)
        for snapshot in http.get(f"{ONE}/snapshots").json()["snapshots"]:
            copy = http.post("/v1/sandboxes", json={"image": snapshot["id"]}).json()["id"]
            assert run(http, "cat /workspace/note", copy) == "kept\n"
            http.delete(f"/v1/sandboxes/{copy}").raise_for_status()
            http.delete(f"/v1/snapshots/{snapshot['id']}").raise_for_status()

    killed_at_each(house, faults.SNAPSHOT, lambda http: http.post(f"{ONE}/snapshots", json={"name": "deps"}), check)


def test_a_server_killed_while_a_snapshot_is_deleted_leaves_none_of_it(house: Server) -> None:
    def drive(http: httpx.Client) -> httpx.Response:
        http.post(f"{ONE}/snapshots", json={"name": "deps"}).raise_for_status()
        return http.delete("/v1/snapshots/deps")

    killed_at_each(house, faults.UNSNAPSHOT, drive, lambda http: lives_on(http) or gone(http.get("/v1/snapshots/deps")))


def gone(answer: httpx.Response) -> None:
    assert answer.status_code == 404


def test_a_server_killed_at_any_step_of_a_fork_leaves_all_or_none(house: Server) -> None:
    def check(http: httpx.Client) -> None:
        lives_on(http)
        forks = [one for one in http.get("/v1/sandboxes").json()["sandboxes"] if one["name"] is None]
        assert len(forks) in (0, 2)
        for fork in forks:
            assert fork["state"] == "running"
            assert run(http, "cat /workspace/note", fork["id"]) == "kept\n"
            http.delete(f"/v1/sandboxes/{fork['id']}").raise_for_status()

    killed_at_each(house, faults.FORK, lambda http: http.post(f"{ONE}/fork", json={"n": 2}), check)


def test_a_server_killed_at_any_step_of_a_rollback_leaves_it_done_or_not_begun(house: Server) -> None:
    begin(house)
    with house.http() as http:
        http.post(f"{ONE}/snapshots", json={"name": "good"}).raise_for_status()

    def drive(http: httpx.Client) -> httpx.Response:
        run(http, "echo bad > /workspace/note; sync")
        return http.post(f"{ONE}/rollback", json={"snapshot": "good"})

    def check(http: httpx.Client) -> None:
        seen.append(run(http, "cat /workspace/note"))
        assert http.get(ONE).json()["state"] == "running"

    seen: list[str] = []
    first, *others = faults.ROLLBACK
    killed_at_each(house, (first, "stop.mark", *others), drive, check)
    assert seen == ["bad\n", "bad\n", "kept\n", "kept\n"]
    with house.http() as http:
        http.delete("/v1/snapshots/good").raise_for_status()
        assert list((house.state_dir / "pool" / "s").iterdir()) == []
