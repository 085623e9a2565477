"""Tokens: shown once, kept as hashes, gone when removed."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.engine.database import Database
from skerry.engine.tokens import MAX_TICKETS, TICKET_S, Tokens, new_secret
from skerry.errors import InvalidRequest, NotFound, QuotaExceeded
from skerry.types import Caller, Lifecycle, Limits, SandboxInfo


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "state.db")
    yield database
    database.close()


def test_token_has_an_owner_and_a_scope(database: Database) -> None:
    tokens = Tokens(database)
    made = tokens.create("review", "ann", "for the laptop")
    assert made.secret is not None
    assert tokens.authenticate(made.secret) == Caller(owner="ann", scope="review", token=made.id)


def test_used_and_expired_tickets_are_not_counted(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, caller = Tokens(database), Caller(owner="ann", scope="use")
    sandbox = SandboxInfo(
        id="sb-aaaaaaaaaa", state="running", image="base", limits=Limits(), lifecycle=Lifecycle(), created_at=1.0
    )
    made = [tokens.issue_ticket(caller, sandbox) for _ in range(MAX_TICKETS)]
    with pytest.raises(QuotaExceeded, match="1,000 open tickets"):
        tokens.issue_ticket(caller, sandbox)
    assert tokens.redeem(made[0].ticket, sandbox.id) == caller
    tokens.issue_ticket(caller, sandbox)
    monkeypatch.setattr(time, "time", lambda: made[-1].expires_at + TICKET_S)
    for _ in range(MAX_TICKETS):
        tokens.issue_ticket(caller, sandbox)
    with pytest.raises(QuotaExceeded):
        tokens.issue_ticket(caller, sandbox)


def test_token_without_an_owner_is_a_separate_owner(database: Database) -> None:
    one, two = (Tokens(database).create("use", None, "") for _ in range(2))
    assert one.owner == one.id
    assert one.owner != two.owner


def test_secret_is_shown_once_and_not_stored(database: Database, tmp_path: Path) -> None:
    tokens = Tokens(database)
    secret = tokens.create("use", None, "").secret
    assert secret is not None
    assert all(token.secret is None for token in tokens.list())
    database.close()
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert secret.encode() not in stored
    assert secret.removeprefix("skt_").encode() not in stored
    rows = sqlite3.connect(tmp_path / "state.db").execute("SELECT hash FROM tokens").fetchall()
    assert [len(row[0]) for row in rows] == [32]


def test_tokens_survive_a_server_restart(database: Database) -> None:
    made = Tokens(database).create("admin", "ops", "")
    assert made.secret is not None
    assert Tokens(database).authenticate(made.secret) == Caller(owner="ops", scope="admin", token=made.id)


def test_removed_token_is_not_accepted(database: Database) -> None:
    tokens = Tokens(database)
    made = tokens.create("use", None, "")
    assert made.secret is not None
    assert tokens.any
    tokens.remove(made.id)
    assert tokens.authenticate(made.secret) is None
    assert Tokens(database).authenticate(made.secret) is None
    assert not tokens.any
    with pytest.raises(NotFound):
        tokens.remove(made.id)


@pytest.mark.parametrize(
    "wrong", ["", "skt_", "x" * 44, "skt_" + "A" * 40, "skt_" + "a" * 39, "skt_" + "a" * 41, "skt_" + "a" * 40]
)
def test_other_strings_are_not_accepted(database: Database, wrong: str) -> None:
    tokens = Tokens(database)
    tokens.create("use", None, "")
    assert tokens.authenticate(wrong) is None
    assert tokens.authenticate("\ud800") is None


def test_secrets_have_200_bits_and_a_prefix_that_scanners_find() -> None:
    secrets = {new_secret() for _ in range(1000)}
    assert len(secrets) == 1000
    assert {len(secret) for secret in secrets} == {44}
    assert all(secret.startswith("skt_") for secret in secrets)


@pytest.mark.parametrize("owner", ["", "A", "a b", "../x", "a" * 64, "-a"])
def test_invalid_owner_name_is_rejected(database: Database, owner: str) -> None:
    with pytest.raises(InvalidRequest):
        Tokens(database).create("use", owner, "")


@pytest.mark.parametrize("note", ["\0", "x" * 1001])
def test_note_is_bounded_text(database: Database, note: str) -> None:
    with pytest.raises(InvalidRequest):
        Tokens(database).create("use", None, note)
