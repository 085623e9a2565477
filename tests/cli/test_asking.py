"""Questions about what no rule names, put to a person at a real terminal."""

from __future__ import annotations

import os
import pty
import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.multiplexer import Window
from serving import Server
from world.world import World

from skerry import Network, Question, Sandbox
from skerry.cli.asking import Prompt

URL = "http://api.example.test/"
CURL = "curl -sS -o /dev/null -w '%{http_code}\\n'"


@pytest.fixture
def window(tmp_path: Path, world: World, world_server: Server) -> Iterator[Window]:
    world.reset()
    with Window(tmp_path, world_server.address) as made:
        yield made


def test_a_run_asks_whoever_started_it(window: Window) -> None:
    window.enter(f"skerry run --network ask -- {CURL} {URL}")
    window.shows("api.example.test:80 is not in the policy. Let it through?")
    window.enter("maybe")
    window.shows("y, a, n or never:")
    window.enter("y")
    window.shows_line("200")
    window.is_back()


def test_a_no_is_a_refusal_that_says_who_said_so(window: Window) -> None:
    window.enter(f"skerry run --network ask -- {CURL} {URL}")
    window.shows("Let it through?")
    window.enter("n")
    window.shows("hint: api.example.test:80 was refused:")
    window.shows("the answer was no")
    window.is_back()


@pytest.mark.parametrize(
    ("key", "allow", "deny"), [("a", ("api.example.test",), ()), ("never", (), ("api.example.test",))]
)
def test_another_terminal_answers_and_what_it_says_may_become_a_rule(
    window: Window, world_server: Server, key: str, allow: tuple[str, ...], deny: tuple[str, ...]
) -> None:
    with Sandbox(name="asker", network=Network(on_unknown="ask"), server=world_server.address) as sandbox:
        try:
            window.enter("skerry network ask asker")
            window.shows("waiting for questions of asker")
            process = sandbox.spawn(f"{CURL} {URL}")
            window.shows("Let it through?")
            window.enter(key)
            assert (process.wait(20).stdout == "200\n") == bool(allow)
            known = sandbox.network.show().network
            assert (known.allow, known.deny) == (allow, deny)
            window.press("C-c")
            window.is_back()
        finally:
            sandbox.delete()


def test_what_was_typed_before_is_no_answer() -> None:
    """It was meant for the program that ran, or for nobody."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, b"y\n")
        select.select([theirs], [], [], 5)
        now = time.time()
        asked = Question(id="q-aaaaaaaaaa", sandbox="sb-aaaaaaaaaa", host="a.test", port=443, at=now, ends_at=now + 0.3)
        assert Prompt(theirs)(asked) is None
    finally:
        os.close(ours)
        os.close(theirs)
