"""Concurrent callers at one sandbox, one key or the last free slot: correct responses, and nothing is left over."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from support.server import Server, wait_until

CAP = (os.cpu_count() or 1) + 4  # more sandboxes than an engine starts at once
CALLERS = 2 * CAP


@pytest.fixture(scope="module")
def capped_server(make_server: Callable[[], Server]) -> Iterator[Server]:
    """Start a server that allows at most CAP sandboxes."""
    made = make_server().start(SKERRY_MAX_SANDBOXES=str(CAP))
    yield made
    made.retire()


def ids_of(http: httpx2.Client) -> list[str]:
    return [sandbox["id"] for sandbox in http.get("/v1/sandboxes").json()["sandboxes"]]


def test_one_key_creates_one_sandbox_while_other_creates_are_queued(server: Server) -> None:
    with server.http() as http, ThreadPoolExecutor(32) as pool:

        def create(key: str) -> httpx2.Response:
            return http.post("/v1/sandboxes", json={}, headers={"Idempotency-Key": key})

        others = [pool.submit(create, f"other-{number}") for number in range(24)]
        wait_until(lambda: len(http.get("/v1/sandboxes?state=creating").json()["sandboxes"]) > CAP, "a line of creates")
        same = {answer.json()["id"] for answer in pool.map(create, ["the-same"] * 8)}
        for sandbox in same | {other.result().json()["id"] for other in others}:
            http.delete(f"/v1/sandboxes/{sandbox}").raise_for_status()
    assert len(same) == 1


def test_concurrent_creates_do_not_exceed_the_cap(capped_server: Server) -> None:
    with capped_server.http() as http, ThreadPoolExecutor(CALLERS) as pool:
        codes = Counter(pool.map(lambda _: http.post("/v1/sandboxes", json={}).status_code, range(CALLERS)))
        assert codes == {201: CAP, 429: CALLERS - CAP}
        assert len(ids_of(http)) == CAP
        capped_server.remove_all()


def test_concurrent_resumes_do_not_exceed_the_cap(capped_server: Server) -> None:
    with capped_server.http() as http, ThreadPoolExecutor(CALLERS) as pool:
        for _ in range(CAP + 2):
            made = http.post("/v1/sandboxes", json={}).json()["id"]
            http.post(f"/v1/sandboxes/{made}/stop").raise_for_status()
        resumed = pool.map(lambda one: http.post(f"/v1/sandboxes/{one}/resume").status_code, ids_of(http))
        assert Counter(resumed) == {200: CAP, 429: 2}
        capped_server.remove_all()


def test_update_during_a_delete_does_not_restore_the_sandbox(capped_server: Server) -> None:
    with capped_server.http() as http, ThreadPoolExecutor(CALLERS) as pool:
        made = http.post("/v1/sandboxes", json={"name": "fleeting"}).json()["id"]
        deleted = pool.submit(http.delete, f"/v1/sandboxes/{made}")

        def change(_: int) -> set[int]:
            codes: set[int] = set()
            while not deleted.done():
                codes.add(http.patch(f"/v1/sandboxes/{made}", json={"labels": {"a": "b"}}).status_code)
            return codes

        assert set().union(*pool.map(change, range(CALLERS - 1))) <= {200, 404}
        assert deleted.result().status_code == 204
        assert ids_of(http) == []
    assert capped_server.sql("SELECT * FROM sandboxes") == []


def test_concurrent_deletes_stops_and_resumes_leave_nothing(capped_server: Server) -> None:
    with capped_server.http() as http, ThreadPoolExecutor(CALLERS) as pool:
        made = http.post("/v1/sandboxes", json={}).json()["id"]
        calls = [("POST", "/stop"), ("POST", "/resume"), ("POST", "/pause"), ("GET", "/usage"), ("DELETE", "")] * 4
        answers = pool.map(lambda call: http.request(call[0], f"/v1/sandboxes/{made}{call[1]}"), calls)
        assert not [answer.text for answer in answers if answer.status_code >= 500 and answer.status_code != 503]
        http.delete(f"/v1/sandboxes/{made}")
        assert ids_of(http) == []
    assert capped_server.leftovers() == []


def test_slow_reader_of_a_stopped_sandbox_does_not_end_the_restarted_one(server: Server) -> None:
    with server.http() as http:
        made = http.post("/v1/sandboxes", json={}).json()["id"]
        path = f"/v1/sandboxes/{made}"
        line = "for i in $(seq 1000); do head -c 10000 /dev/zero; echo $i > /tmp/n; done"
        frames = {"Accept": "application/vnd.skerry.frames"}
        with http.stream("POST", f"{path}/processes?wait=true", json={"cmd": line}, headers=frames) as slow:
            pieces = slow.iter_raw()
            next(pieces)
            count = {"cmd": "cat /tmp/n || echo 0"}
            written = lambda: int(http.post(f"{path}/processes?wait=true", json=count).json()["stdout"] or 0)  # noqa: E731
            wait_until(lambda: written() > 60, "more output than the way to us holds")
            http.post(f"{path}/stop").raise_for_status()
            http.post(f"{path}/resume").raise_for_status()
            for _ in pieces:
                pass
        info = http.get(path).json()
        assert (info["state"], info["reason"]) == ("running", None)
        http.delete(path).raise_for_status()
