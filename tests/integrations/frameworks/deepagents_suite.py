"""LangChain's own tests of a sandbox backend for deepagents."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests

from skerry import Sandbox
from skerry.integrations.deepagents import SkerryBackend


class TestSkerryBackend(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[SkerryBackend]:
        with Sandbox() as sandbox:
            yield SkerryBackend(sandbox)
