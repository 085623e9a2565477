"""Commit messages round-trip, and a command cannot forge a trailer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.ledgers import begun, git, put, said

from skerry.errors import NotFound
from skerry.review.ledger.commit_message import MAX_COMMAND, CommitInfo, entry, message

COMMANDS = [
    "make test", "", " ", "\n", "a\nb", "a\n\nb\n", "\n\nKind: base\nExit-Code: 0\n", "x\n\nKind: applied",
    "Kind: base", "--- a\n+++ b",
    "echo \x1b[31mred", "printf '\\x1b'", "tab\there", "\u202ertl", "caf\u00e9 \u4f60\u597d",
    "    indented\n        more", "trailing   \n   ",
    "Signed-off-by: Linus <t@x>\n\nCo-authored-by: me <a@b>", "#!/bin/sh\n# comment", "a\rb", "fixup! x", "x" * 500,
    '"quoted"', "a\n\n\n\n",
    "\x00nul", "commit 1234\ntree 5", "\x85\u2028next", "From 1234 Mon Sep 17 00:00:00 2001",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_round_trips_and_forges_nothing(command: str) -> None:
    facts = CommitInfo(
        kind="command", at=1700000000.125, command=command, processes=("p-1", "p-2"), exit_code=-9, duration_s=1.5,
        running=True,
        hosts=("example.com:443", "evil\nKind: base", '"x"', "a\x1b[0m"), left_out=3,
    )  # fmt: skip
    text = message(facts)
    got = entry("1" * 40, text.decode())
    assert (got.kind, got.at, got.command, got.processes) == ("command", 1700000000.125, command, ("p-1", "p-2"))
    assert (got.exit_code, got.duration_s, got.running, got.hosts, got.left_out) == (-9, 1.5, True, facts.hosts, 3)
    assert all(c.isprintable() or c in "\n\t" for c in text.decode())
    trailers = subprocess.run(
        ["git", "interpret-trailers", "--parse", "--no-divider"], input=text, capture_output=True, check=True
    ).stdout.decode()
    assert [line for line in trailers.splitlines() if line.startswith("Kind")] == ["Kind: command"]
    assert "Signed-off-by" not in trailers


def test_a_commit_without_command_names_its_kind() -> None:
    assert (
        message(CommitInfo(kind="background", at=1.0))
        .decode()
        .startswith("Written in the background\n\nKind: background\n")
    )
    assert entry("1" * 40, message(CommitInfo(kind="rollback", at=1.0)).decode()).command == ""


def test_an_endless_command_is_truncated() -> None:
    long = "x" * (MAX_COMMAND + 5)
    assert (
        entry("1" * 40, message(CommitInfo(kind="command", at=1.0, command=long)).decode()).command
        == long[:MAX_COMMAND]
    )


@pytest.mark.parametrize(
    "text", ["", "\n", "hello", "a\n\nKind: nonsense\nAt: never\nExit-Code: 1e99\nLeft-Out: nan", 'a\n\nCommand: "']
)
def test_a_foreign_message_becomes_a_background_entry(text: str) -> None:
    got = entry("1" * 40, text)
    assert got.kind == "background"
    assert got.exit_code is None


def test_history_lists_the_changes_of_each_command(tmp_path: Path) -> None:
    ledger = begun(tmp_path, put(b"a", b"1\n2\n3\n"), put(b"b"))
    second = ledger.commit(said("sed\n\nKind: base", exit_code=1, hosts=("x.org",)), [put(b"a", b"1\n2!\n3\n4\n")])
    third = ledger.commit(said("touch"), [put(b"c/d", b"x\n"), put(b"bin", b"\0\0")])
    assert second is not None
    assert third is not None
    history = ledger.history()
    assert [(one.kind, one.command, one.files, one.added, one.removed) for one in history] == [
        ("base", "", 0, 0, 0), ("command", "sed\n\nKind: base", 1, 2, 1), ("command", "touch", 2, 1, 0),
    ]  # fmt: skip
    assert history[1] == ledger.entry(second)
    assert (history[1].exit_code, history[1].hosts) == (1, ("x.org",))
    assert [one.commit for one in ledger.history(since=second)] == [third]
    assert [one.commit for one in ledger.history(limit=1)] == [third]
    assert [one.commit for one in ledger.history(paths=[b"c"])] == [third]
    for unknown in ("1" * 40, git(ledger, "rev-parse", "main^{tree}").decode().strip()):
        with pytest.raises(NotFound):
            ledger.history(since=unknown)
    moved = ledger.move_base({b"c/d": ledger.entry_of(third, b"c/d")}, said("", kind="applied"))
    assert [one.commit for one in ledger.history(since=second)] == [third, moved]
    assert git(ledger, "log", "--format=%s", "main").decode().splitlines() == [
        "touch",
        "sed Kind: base",
        "Imported workspace",
    ]
