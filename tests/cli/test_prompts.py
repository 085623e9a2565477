"""Approval requests on a real terminal."""

from __future__ import annotations

import os
import pty
import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server import Server
from support.tmux import Window
from world.world import World

from skerry import ApprovalRequest, Network, Sandbox
from skerry.cli.prompts import Prompt

URL = "http://api.example.test/"
CURL = "curl -sS -o /dev/null -w '%{http_code}\\n'"


@pytest.fixture
def window(tmp_path: Path, world: World, world_server: Server) -> Iterator[Window]:
    world.reset()
    with Window(tmp_path, world_server.address) as made:
        yield made


def test_run_asks_on_its_terminal(window: Window) -> None:
    window.enter(f"skerry run --network ask -- {CURL} {URL}")
    window.shows("api.example.test:80 is not in the policy. Allow it?")
    window.enter("maybe")
    window.shows("y, a, n or never:")
    window.enter("y")
    window.shows_line("200")
    window.is_back()


def test_answer_no_denies_and_names_the_decision(window: Window) -> None:
    window.enter(f"skerry run --network ask -- {CURL} {URL}")
    window.shows("Allow it?")
    window.enter("n")
    window.shows("hint: api.example.test:80 was denied:")
    window.shows("the approval request was denied")
    window.is_back()


@pytest.mark.parametrize(
    ("key", "allow", "deny"), [("a", ("api.example.test",), ()), ("never", (), ("api.example.test",))]
)
def test_another_terminal_can_answer_and_remember(
    window: Window, world_server: Server, key: str, allow: tuple[str, ...], deny: tuple[str, ...]
) -> None:
    with Sandbox(name="asker", network=Network(on_unknown="ask"), server=world_server.address) as sandbox:
        try:
            window.enter("skerry network ask asker")
            window.shows("waiting for approval requests of asker")
            process = sandbox.spawn(f"{CURL} {URL}")
            window.shows("Allow it?")
            window.enter(key)
            assert (process.wait(20).stdout == "200\n") == bool(allow)
            known = sandbox.network.show().network
            assert (known.allow, known.deny) == (allow, deny)
            window.press("C-c")
            window.is_back()
        finally:
            sandbox.delete()


def test_keys_typed_before_the_question_are_discarded() -> None:
    """Earlier keys were meant for the running program."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, b"y\n")
        select.select([theirs], [], [], 5)
        now = time.time()
        asked = ApprovalRequest(
            id="q-aaaaaaaaaa", sandbox="sb-aaaaaaaaaa", host="a.test", port=443, at=now, ends_at=now + 0.3
        )
        assert Prompt(theirs)(asked) is None
    finally:
        os.close(ours)
        os.close(theirs)
