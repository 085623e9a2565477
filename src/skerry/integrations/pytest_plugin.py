"""The pytest fixture `sandbox`: a new sandbox for each test that uses it, deleted afterwards.

pytest loads this module in every run, because the package declares it as a plugin. It loads nothing before the first
test that uses the fixture, and a fixture of the same name in a conftest.py replaces it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from skerry import Sandbox

MARKER = "sandbox(image='base', **options): how the fixture `sandbox` creates it, with the arguments of skerry.Sandbox"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """Create a sandbox with the arguments of the marker `sandbox`, and delete it after the test."""
    from skerry import Sandbox

    marker = request.node.get_closest_marker("sandbox")
    args, options = (marker.args, marker.kwargs) if marker else ((), {})
    with Sandbox(*args, **options) as made:
        yield made
