"""A server that engine tests may stop and kill, if they start it again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from serving import Server


@pytest.fixture(scope="package")
def house(make_server: Callable[[], Server]) -> Server:
    return make_server().start()
