"""Contexts in real sandboxes: what lasts, whose turn it is, how they end, and what is told of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from serving import Server

from skerry import Sandbox


@pytest.fixture(scope="module")
def box(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address) as sandbox:
        yield sandbox


def test_a_context_remembers_and_the_last_value_is_a_result(box: Sandbox) -> None:
    context = box.code.context("python")
    assert context.run("x = 6\nprint('set')").stdout == "set\n"
    result = context.run("x * 7")
    assert (result.text, result.exit_code, result.error, result.lost) == ("42", 0, None, None)
    assert result.context == context.name
    assert result.version is not None
