"""Contexts that are restarted or deleted at the moment in which a run begins there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from skerry.engine.code.context_table import ContextRecord
from skerry.engine.code.contexts import ContextService, ContextState, ContextStore
from skerry.engine.tasks import Tasks
from skerry.errors import SandboxUnavailable

CALLER: Any = None


class Kernels:
    """A memory in which a run begins with another kernel while the old one is being ended."""

    def __init__(self, contexts: ContextStore, fails: bool = False) -> None:
        self._contexts, self._fails = contexts, fails
        self.told: list[bool] = []

    def has_state(self, live: Any, seat: ContextState) -> bool:
        return True

    async def end_state(self, live: Any, keeper: Any, seat: ContextState) -> None:
        self.told.append(seat.gone)
        if self._fails:
            raise SandboxUnavailable("it does not answer")
        self._contexts.note(live, seat, process="p-new", lost=None)


def contexts_of(fails: bool = False) -> tuple[ContextService, ContextState, Kernels]:
    live = SimpleNamespace(record=SimpleNamespace(id="sb-1", state="running", started_at=1.0), deleted=False)

    @asynccontextmanager
    async def use(*_: Any) -> AsyncIterator[Any]:
        yield live, None

    languages = SimpleNamespace(table={"python": SimpleNamespace(kernel="python")})
    settings: Any = {"contexts.max_per_sandbox": 8, "contexts.idle_timeout": "1h"}
    store = ContextStore(settings, cast("Any", SimpleNamespace(put=lambda *_: None, remove=lambda *_: None)))
    row = ContextRecord(
        name="a",
        language="python",
        user="user",
        cwd="/",
        created_at=1.0,
        used_at=1.0,
        process="p-old",
        since=1.0,
        runs=1,
    )
    seat = ContextState(row)
    store._contexts["sb-1"] = {"a": seat}
    kernels = Kernels(store, fails)
    memories: Any = {"python": kernels}
    registry: Any = SimpleNamespace(find=lambda *_: live)
    lifecycle: Any = SimpleNamespace(use=use)
    return (
        ContextService(settings, store, memories, registry, lifecycle, cast("Any", languages), Tasks()),
        seat,
        kernels,
    )


async def test_restart_keeps_track_of_a_kernel_that_starts_concurrently() -> None:
    contexts, seat, _ = contexts_of()
    await contexts.restart(CALLER, "sb-1", "a")
    assert seat.record.process == "p-new"


async def test_run_during_a_delete_fails_because_the_context_is_gone() -> None:
    contexts, seat, kernels = contexts_of()
    await contexts.delete(CALLER, "sb-1", "a")
    assert (kernels.told, seat.gone) == ([True], True)


async def test_context_whose_delete_fails_still_exists() -> None:
    contexts, seat, _ = contexts_of(fails=True)
    with pytest.raises(SandboxUnavailable):
        await contexts.delete(CALLER, "sb-1", "a")
    assert not seat.gone
    assert contexts._store.get(contexts._registry.find(CALLER, "sb-1"), "a") is seat
