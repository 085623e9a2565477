"""Pydantic AI's own tests of a workspace backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from pydantic_ai.workspaces import WorkspaceRef, WorkspaceUnavailableError
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from skerry import AsyncSandbox
from skerry.integrations.pydantic_ai import SkerryWorkspace


class TestSkerryWorkspace(WorkspaceBackendSuite):
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    async def made(self) -> AsyncIterator[list[SkerryWorkspace]]:
        workspaces: list[SkerryWorkspace] = []
        yield workspaces
        for workspace in workspaces:
            try:
                if workspace.ref is not None:
                    await workspace.delete()
            except WorkspaceUnavailableError:  # the test has deleted it
                continue

    @pytest.fixture
    def fresh_backend(self, made: list[SkerryWorkspace]) -> Callable[[], SkerryWorkspace]:
        def make() -> SkerryWorkspace:
            made.append(SkerryWorkspace())
            return made[-1]

        return make

    @pytest.fixture
    def backend(self, fresh_backend: Callable[[], SkerryWorkspace]) -> SkerryWorkspace:
        return fresh_backend()

    @pytest.fixture
    def attach_backend(self) -> Callable[[WorkspaceRef], SkerryWorkspace]:
        return lambda ref: SkerryWorkspace(ref=ref)

    @pytest.fixture
    def destroy_environment(self) -> Callable[[SkerryWorkspace], Awaitable[None]]:
        async def destroy(workspace: SkerryWorkspace) -> None:
            assert workspace.ref is not None
            sandbox = await AsyncSandbox.get(workspace.ref.id)
            await sandbox.delete(force=True)

        return destroy
