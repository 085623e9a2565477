"""A server that engine tests may stop, kill and fill."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from serving import CAP, Server


@pytest.fixture(scope="package")
def house(make_server: Callable[[], Server]) -> Server:
    return make_server().start(SKERRY_MAX_SANDBOXES=str(CAP))
