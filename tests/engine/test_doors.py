"""What the server makes of what its worker says: of a sandbox whose door it was given, or nothing."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from skerry.config import load
from skerry.engine.attempts import Attempts
from skerry.engine.database import Database
from skerry.engine.live import Live
from skerry.engine.network import ASKS_MOST, Doors, rules_of
from skerry.engine.questions import Answered
from skerry.engine.reach import Reach
from skerry.engine.rows import Row, Spec
from skerry.network.messages import Ask, Close, Counted, Dial, FromServer, Tried
from skerry.types import Attempt, Lifecycle, Limits, Network, Options, Preset

BOX, OTHER, FOREIGN = "sb-aaaaaaaaaa", "sb-bbbbbbbbbb", "sb-cccccccccc"
SPEC = Spec(
    image="base", image_digest="", layers=(), user="root", cwd="/", image_env={}, env={}, labels={},
    limits=Limits(memory="1G"), lifecycle=Lifecycle(idle="1h"), network=Network(peers={"db": OTHER, "x": FOREIGN}),
    options=Options(),
)  # fmt: skip


def attempt(**more: Any) -> Attempt:
    values: dict[str, Any] = {"kind": "connection", "host": "a.example", "decision": "denied", "why": "no rule"}
    return Attempt(**{"id": "a1", "at": time.time(), **values, **more})


class House:
    """Doors with their own worker, three sandboxes that are rows alone, and one of them with a door."""

    def __init__(self, state: Path) -> None:
        self.settings = load(environ={"SKERRY_STATE_DIR": str(state)})
        owners = {BOX: "me", OTHER: "me", FOREIGN: "you"}
        self.lives = {
            sandbox: Live(Row(id=sandbox, owner=owner, name=None, state="running", spec=SPEC, created_at=0.0))
            for sandbox, owner in owners.items()
        }
        self.tasks: set[asyncio.Task[None]] = set()
        self.dialled: list[str] = []
        self.said: list[FromServer] = []
        self.doors = Doors(self.settings, self.lives, Reach(self._awake), self._spawn)
        self.attempts = Attempts(Database(state / "state.db"))
        self.doors.begin(self.attempts)
        self.doors.tell = lambda message, fds=(): self.said.append(message)  # type: ignore[method-assign]

    async def _awake(self, live: Live) -> None:
        self.dialled.append(live.row.id)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def settle(self) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0.05)

    async def close(self) -> None:
        for task in list(self.tasks):
            task.cancel()
        await self.doors.close()


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    process = subprocess.Popen(["unshare", "--net", "sleep", "600"])
    async with asyncio.timeout(10):
        while os.readlink(f"/proc/{process.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            await asyncio.sleep(0.001)
    pidfd = os.pidfd_open(process.pid)
    made = House(tmp_path)
    await made.doors.open(made.lives[BOX], pidfd)
    yield made
    await made.close()
    os.close(pidfd)
    process.kill()
    process.wait()


async def test_what_is_said_of_a_sandbox_without_a_door_is_ignored(house: House) -> None:
    for sandbox in (OTHER, "sb-nobody", "../../etc"):
        house.doors._heard(Tried(sandbox=sandbox, attempt=attempt()))
        house.doors._heard(Counted(sandbox=sandbox, sent=5, received=5, open=1))
    house.doors._heard(Tried(sandbox=BOX, attempt=attempt(port=99999)))
    house.doors._heard(Counted(sandbox=BOX, sent=-5, received=0, open=0))
    house.attempts.flush()
    assert [page async for page in house.attempts.read(BOX, 0, False, False)] == []
    assert [page async for page in house.attempts.read(OTHER, 0, False, False)] == []
    assert (house.attempts.traffic(BOX), house.attempts.traffic(OTHER)) == ((0, 0), (0, 0))


async def test_rules_that_can_not_be_told_end_those_that_held(house: House) -> None:
    """The file of its secrets can't be read, say: it has no way out then, rather than the old one."""

    def broken(row: Row) -> Any:
        raise OSError("no such disk")

    assert house.doors.worker is not None
    assert await house.doors.worker.up(10)
    house.doors.secrets = broken
    with pytest.raises(OSError, match="no such disk"):
        await house.doors.changed(house.lives[BOX])
    assert house.said[-1] == Close(sandbox=BOX)


async def test_traffic_keeps_a_sandbox_from_being_idle(house: House) -> None:
    live = house.lives[BOX]
    live._used_at -= 7200
    assert live.idle_due
    house.doors._heard(Counted(sandbox=BOX, sent=1, received=2, open=3))
    assert not live.idle_due
    shown = house.doors.info(live)
    assert (shown.sent, shown.received, shown.open_connections) == (1, 2, 3)


async def test_a_dial_needs_a_preview_or_a_peer_of_the_same_owner(house: House) -> None:
    for dial in (
        Dial(number=1, sandbox=BOX, port=80),  # no preview shows it
        Dial(number=2, sandbox=OTHER, port=80),
        Dial(number=3, sandbox=BOX, port=80, peer_of=BOX),  # it names no such peer
        Dial(number=4, sandbox=FOREIGN, port=80, peer_of=BOX),  # named, and somebody else's
        Dial(number=5, sandbox=BOX, port=80, peer_of=OTHER),  # who has no door, and can't ask
        Dial(number=6, sandbox=OTHER, port=0, peer_of=BOX),
        Dial(number=7, sandbox="sb-nobody", port=80, peer_of=BOX),
    ):
        house.doors._heard(dial)
    await house.settle()
    assert house.dialled == []
    house.doors._heard(Dial(number=8, sandbox=OTHER, port=80, peer_of=BOX))
    house.doors.shared = lambda sandbox, port: house.lives[BOX] if (sandbox, port) == (BOX, 80) else None
    house.doors._heard(Dial(number=9, sandbox=BOX, port=80))
    house.doors._heard(Dial(number=10, sandbox=BOX, port=81))
    await house.settle()
    assert sorted(house.dialled) == [BOX, OTHER]


async def test_a_flood_of_questions_is_answered_with_no(house: House) -> None:
    asked: list[str] = []

    async def ask(live: Live, host: str, port: int | None, process: str | None) -> Answered:
        asked.append(host)
        await asyncio.sleep(60)
        return Answered(True, "yes")

    house.doors.ask = ask
    for number in range(ASKS_MOST + 50):
        house.doors._heard(Ask(question=f"q{number}", sandbox=BOX, host="x.example", port=443))
    house.doors._heard(Ask(question="q", sandbox=OTHER, host="x.example", port=443))
    house.doors._heard(Ask(question="q" * 1000, sandbox=BOX, host="x.example", port=443))
    await house.settle()
    assert len(asked) == ASKS_MOST
    assert len(house.said) == 50


async def test_a_question_is_answered_in_the_answerers_words(house: House) -> None:
    async def ask(live: Live, host: str, port: int | None, process: str | None) -> Answered:
        return Answered(host == "x.example", "somebody said so")

    house.doors.ask = ask
    house.doors._heard(Ask(question="q1", sandbox=BOX, host="x.example", port=443))
    await house.settle()
    (told,) = house.said
    assert (told.question, told.allow, told.why) == ("q1", True, "somebody said so")  # type: ignore[union-attr]


def test_rules_are_the_policy_what_presets_add_and_what_the_operator_holds_them_to() -> None:
    settings = load(environ={"SKERRY_MAX_BANDWIDTH": "1M", "SKERRY_MAX_CONNECTIONS": "10"})
    preset = Preset(name="pip", allow=("index.example",), certificates="PEM", proxy="http://proxy.example:3128")
    network = Network(allow=("a.example",), deny=("b.example",), presets=(preset,), bandwidth="5M", total="1G")
    rules = rules_of(SPEC.__class__(**{**_fields(SPEC), "network": network}), settings, (), None)
    assert (rules.allow, rules.deny, rules.ceiling) == (("a.example", "index.example"), ("b.example",), ("*",))
    assert (rules.bandwidth, rules.total, rules.connections) == (1 << 20, 1 << 30, 10)
    assert (rules.proxies, rules.certificates) == (((("index.example",), "http://proxy.example:3128"),), "PEM")


def test_what_the_operator_denies_no_owner_lifts() -> None:
    settings = load(environ={"SKERRY_NETWORK_DENY": "bad.example"})
    for deny in ((), ("bad.example",)):  # as an owner left it, and as a new sandbox has it
        network = Network(allow=("*",), deny=deny)
        assert rules_of(SPEC.__class__(**{**_fields(SPEC), "network": network}), settings, (), None).deny == (
            "bad.example",
        )


def _fields(spec: Spec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in spec.__struct_fields__}


async def test_what_a_dead_server_left_of_a_deleted_sandbox_is_swept(house: House) -> None:
    house.doors._heard(Tried(sandbox=BOX, attempt=attempt()))
    house.attempts.flush()
    names = house.settings.state_dir / "names"
    for sandbox in (BOX, OTHER):
        (names / sandbox).touch()
    house.doors.sweep({OTHER})
    assert os.listdir(names) == [OTHER]
    assert [page async for page in house.attempts.read(BOX, 0, False, False)] == []
