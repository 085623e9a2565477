"""Python kernels; the files about other languages have their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.kernel import Running, running


@pytest.fixture(scope="module")
def kernel() -> Iterator[Running]:
    with running("python") as made:
        yield made


@pytest.fixture
def fresh() -> Iterator[Running]:
    with running("python") as made:
        yield made
