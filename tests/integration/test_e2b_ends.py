"""The ends of sandboxes of E2B, under an operator's maximum lifetime; the domain of their host names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.e2b import Account, Box
from support.server import Server

OPERATORS = '[server]\nwire = ["e2b"]\nwire_domain = "Boxes.Example"\n\n[max]\nlifetime = "1h"\n'


@pytest.fixture(scope="module")
def account(server: Server) -> Iterator[Account]:
    made = Account(server, "ann")
    with made.http:
        yield made


@contextmanager
def deleted(box: Box) -> Iterator[Box]:
    try:
        yield box
    finally:
        assert box.account.api("DELETE", f"/sandboxes/{box.id}").status_code == 204


def lifetime(server: Server, box: Box) -> float:
    with server.http() as http:
        info = http.get(f"/v1/sandboxes/{box.id}").raise_for_status().json()
    return float(info["ends_at"] - info["started_at"])


def test_sandbox_that_is_paused_at_its_end_has_the_maximum_lifetime(server: Server, account: Account) -> None:
    with deleted(account.create(autoPause=True, timeout=60)) as box:
        assert lifetime(server, box) == 3600
        assert account.api("POST", f"/sandboxes/{box.id}/timeout", json={"timeout": 120}).status_code == 204
        assert account.api("POST", f"/sandboxes/{box.id}/pause").status_code == 204
        assert lifetime(server, box) == 3600
        assert account.api("POST", f"/sandboxes/{box.id}/connect", json={"timeout": 60}).status_code == 201


def test_timeout_above_the_maximum_lifetime_is_a_wrong_argument(account: Account) -> None:
    for path in ("/sandboxes", "/v2/sandboxes"):
        answer = account.api("POST", path, json={"templateID": "base", "timeout": 3601})
        assert (answer.status_code, answer.json()["code"]) == (400, 400), answer.text
    with deleted(account.create()) as box:
        answer = account.api("POST", f"/sandboxes/{box.id}/timeout", json={"timeout": 3700})
        assert (answer.status_code, answer.json()["code"]) == (400, 400), answer.text


def test_domain_of_the_operator_may_have_capitals(account: Account) -> None:
    with deleted(account.create()) as box:
        assert box.made["domain"] == "boxes.example"
        for domain in ("boxes.example", "BOXES.example"):
            headers = {"Host": f"49983-{box.id}.{domain}", "X-Access-Token": box.token}
            assert account.http.get("/health", headers=headers).status_code == 204
