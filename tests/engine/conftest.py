"""A server that engine tests may stop and kill, if they start it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from serving import Server


@pytest.fixture(scope="module")
def house(make_server: Callable[[], Server]) -> Iterator[Server]:
    made = make_server().start()
    yield made
    made.retire()
