"""Contexts that are restarted or deleted at the moment in which a run begins there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from skerry.engine.context_table import ContextRow
from skerry.engine.contexts import Contexts, Seat
from skerry.errors import SandboxUnavailable

CALLER: Any = None


class Kernels:
    """A memory in which a run begins with another kernel while the old one is being ended."""

    def __init__(self, contexts: Contexts, fails: bool = False) -> None:
        self._contexts, self._fails = contexts, fails
        self.told: list[bool] = []

    def lives(self, live: Any, seat: Seat) -> bool:
        return True

    async def forget(self, live: Any, keeper: Any, seat: Seat) -> None:
        self.told.append(seat.gone)
        if self._fails:
            raise SandboxUnavailable("it does not answer")
        self._contexts.note(live, seat, process="p-new", lost=None)


def contexts_of(fails: bool = False) -> tuple[Contexts, Seat, Kernels]:
    live = SimpleNamespace(row=SimpleNamespace(id="sb-1", state="running", started_at=1.0), deleted=False)

    @asynccontextmanager
    async def use(*_: Any) -> AsyncIterator[Any]:
        yield live, None

    languages = SimpleNamespace(table={"python": SimpleNamespace(kernel="python")})
    settings: Any = {"contexts.most": 8, "contexts.idle": "1h"}
    made = Contexts(settings, lambda *_: cast("Any", live), use, lambda _: None, cast("Any", languages))
    made._table = cast("Any", SimpleNamespace(put=lambda *_: None, remove=lambda *_: None))
    row = ContextRow(
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
    seat = Seat(row)
    made._seats["sb-1"] = {"a": seat}
    kernels = Kernels(made, fails)
    made.memories["python"] = cast("Any", kernels)
    return made, seat, kernels


async def test_a_restart_does_not_lose_sight_of_a_kernel_that_is_started_meanwhile() -> None:
    contexts, seat, _ = contexts_of()
    await contexts.restart(CALLER, "sb-1", "a")
    assert seat.row.process == "p-new"


async def test_who_begins_while_a_context_is_deleted_sees_that_it_goes() -> None:
    contexts, seat, kernels = contexts_of()
    await contexts.delete(CALLER, "sb-1", "a")
    assert (kernels.told, seat.gone) == ([True], True)


async def test_a_context_that_could_not_be_deleted_is_still_there() -> None:
    contexts, seat, _ = contexts_of(fails=True)
    with pytest.raises(SandboxUnavailable):
        await contexts.delete(CALLER, "sb-1", "a")
    assert not seat.gone
    assert contexts.seat(contexts._find(CALLER, "sb-1"), "a") is seat
