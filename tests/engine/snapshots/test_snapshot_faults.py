"""The server is killed with -9 after every step of a snapshot, its deletion, a fork and a rollback; the next one
repairs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import httpx2
import msgspec
import pytest
from support.server import Server

from skerry.engine import faults
from skerry.types import SnapshotInfo

ONE = "/v1/sandboxes/subject"


@dataclass
class Act:
    """`drive` passes the fault points; `check` inspects the state after the next server start, and cleans up."""

    points: tuple[str, ...]
    drive: Callable[[httpx2.Client], httpx2.Response]
    check: Callable[[httpx2.Client], None]


def run(http: httpx2.Client, line: str, ref: str = "subject") -> str:
    answer = http.post(f"/v1/sandboxes/{ref}/processes?wait=true", json={"cmd": line})
    answer.raise_for_status()
    return str(answer.json()["stdout"])


def begin(http: httpx2.Client) -> None:
    """A sandbox that runs, with something in it."""
    http.post("/v1/sandboxes", json={"name": "subject"}).raise_for_status()
    run(http, "echo kept > /workspace/note; sync")
    http.post(f"{ONE}/processes", json={"cmd": "sleep 1000"}).raise_for_status()


def lives_on(http: httpx2.Client) -> None:
    """It was not ended, and is not frozen."""
    assert http.get(ONE).json()["state"] == "running"
    assert run(http, "pgrep -c sleep") == "1\n"


def check_nothing_is_left(server: Server) -> None:
    """Every unit is some sandbox's, every snapshot on disk some row's."""
    pool = server.state_dir / "pool"
    specs = server.sql("SELECT id, spec FROM sandboxes")
    owned = {msgspec.json.decode(spec).get("unit") or sandbox for sandbox, spec in specs}
    assert {path.name for path in (pool / "u").iterdir()} == owned
    rows = [msgspec.json.decode(body, type=SnapshotInfo) for (body,) in server.sql("SELECT body FROM snapshots")]
    assert {f"snap:{path.name}" for path in (pool / "s").iterdir()} == {info.layers[0] for info in rows}


def take(http: httpx2.Client) -> httpx2.Response:
    return http.post(f"{ONE}/snapshots", json={"name": "deps"})


def it_is_complete_or_gone(http: httpx2.Client) -> None:
    lives_on(http)
    for snapshot in http.get(f"{ONE}/snapshots").json()["snapshots"]:
        copy = http.post("/v1/sandboxes", json={"image": snapshot["id"]}).json()["id"]
        assert run(http, "cat /workspace/note", copy) == "kept\n"
        http.delete(f"/v1/sandboxes/{copy}").raise_for_status()
        http.delete(f"/v1/snapshots/{snapshot['id']}").raise_for_status()


def take_and_delete(http: httpx2.Client) -> httpx2.Response:
    take(http).raise_for_status()
    return http.delete("/v1/snapshots/deps")


def it_is_gone(http: httpx2.Client) -> None:
    lives_on(http)
    assert http.get("/v1/snapshots/deps").status_code == 404


def fork(http: httpx2.Client) -> httpx2.Response:
    return http.post(f"{ONE}/fork", json={"n": 2})


def all_are_there_or_none(http: httpx2.Client) -> None:
    lives_on(http)
    forks = [one for one in http.get("/v1/sandboxes").json()["sandboxes"] if one["name"] is None]
    assert len(forks) in (0, 2)
    for one in forks:
        assert one["state"] == "running"
        assert run(http, "cat /workspace/note", one["id"]) == "kept\n"
        http.delete(f"/v1/sandboxes/{one['id']}").raise_for_status()


def spoil_and_go_back(http: httpx2.Client) -> httpx2.Response:
    if http.get("/v1/snapshots/good").status_code == 404:
        http.post(f"{ONE}/snapshots", json={"name": "good"}).raise_for_status()
    run(http, "echo bad > /workspace/note; sync")
    return http.post(f"{ONE}/rollback", json={"snapshot": "good"})


def test_operation_killed_at_any_step_is_complete_or_absent(server: Server) -> None:
    """In an order in which no check passes the point at which the next act is to be killed."""
    notes: list[str] = []
    first, *others = faults.ROLLBACK
    acts = (
        Act(faults.SNAPSHOT, take, it_is_complete_or_gone),
        Act(faults.FORK, fork, all_are_there_or_none),
        Act(faults.DELETE_SNAPSHOT, take_and_delete, it_is_gone),
        Act(
            (first, "stop.mark", *others), spoil_and_go_back,
            lambda http: notes.append(run(http, "cat /workspace/note")),
        ),
    )  # fmt: skip
    with server.http() as http:
        begin(http)
    server.end()
    kills = [(point, act) for act in acts for point in act.points]
    server.start(SKERRY_FAULT=kills[0][0])
    for (point, act), (after, _) in itertools.pairwise([*kills, ("", acts[0])]):
        with server.http() as http, pytest.raises(httpx2.TransportError):
            act.drive(http).raise_for_status()
        assert server.process is not None
        assert server.process.wait(60) == -9, point
        server.start(SKERRY_FAULT=after)
        with server.http() as http:
            act.check(http)
        check_nothing_is_left(server)
    assert notes == ["bad\n", "bad\n", "kept\n", "kept\n"]
    server.remove_all()
    with server.http() as http:
        http.delete("/v1/snapshots/good").raise_for_status()
    assert server.leftovers() == []
    assert list((server.state_dir / "pool" / "s").iterdir()) == []
