"""Inspect AI's own checks of a sandbox provider."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
from inspect_ai.util._sandbox.self_check import *  # noqa: F403


@pytest.fixture
async def sandbox_env() -> AsyncIterator[object]:
    provider = registry_find_sandboxenv("skerry")  # through the package's entry point
    made = await provider.sample_init("self_check", None, {})
    yield made["default"]
    await provider.sample_cleanup("self_check", None, made, False)
