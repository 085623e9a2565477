"""Turns for work of many keys and owners."""

from __future__ import annotations

import asyncio
from collections import Counter

from skerry.engine.concurrency import FairTurns


class Calls:
    """Calls that hold their turns until they are ended, and the order in which they got them."""

    def __init__(self, turns: FairTurns) -> None:
        self.order: list[str] = []
        self.most: Counter[str] = Counter()
        self.now: Counter[str] = Counter()
        self._turns, self._ends = turns, list[asyncio.Event]()

    def start(self, owner: str, key: str) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._call(owner, key))

    async def _call(self, owner: str, key: str) -> None:
        async with self._turns.turn(owner, key):
            self.order.append(key)
            for name in (owner, key):
                self.now[name] += 1
                self.most[name] = max(self.most[name], self.now[name])
            end = asyncio.Event()
            self._ends.append(end)
            await end.wait()
            self.now.subtract((owner, key))

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def end_all(self) -> None:
        await self.settle()
        while self._ends:
            await self.end_first()

    async def end_first(self) -> None:
        self._ends.pop(0).set()
        await self.settle()


def test_busy_key_leaves_turns_to_quiet_key_of_its_owner() -> None:
    async def story() -> None:
        calls = Calls(FairTurns(alone=4, each_owner=2))
        busy = [calls.start("ann", "busy") for _ in range(32)]
        other = [calls.start("ann", "other") for _ in range(32)]
        await calls.settle()
        quiet = calls.start("ann", "quiet")
        await calls.settle()
        assert calls.order == ["busy", "busy"]
        await calls.end_all()
        await asyncio.gather(*busy, *other, quiet)
        assert calls.order.index("quiet") <= 6
        assert calls.most["ann"] == 2
        assert len(calls.order) == 65

    asyncio.run(story())


def test_active_keys_share_the_turns_of_a_key_that_is_alone() -> None:
    async def story() -> None:
        calls = Calls(FairTurns(alone=8, each_owner=100))
        busy = [calls.start("ann", "busy") for _ in range(32)]
        await calls.settle()
        assert calls.order == ["busy"] * 8
        quiet = calls.start("bob", "quiet")
        await calls.settle()
        assert calls.order == [*["busy"] * 8, "quiet"]
        await calls.end_all()
        await asyncio.gather(*busy, quiet)
        assert calls.order[9:] == ["busy"] * 24

    asyncio.run(story())


def test_busy_key_has_half_of_its_turns_beside_a_quiet_one() -> None:
    async def story() -> None:
        calls = Calls(FairTurns(alone=4, each_owner=100))
        quiet = calls.start("bob", "quiet")
        await calls.settle()
        busy = [calls.start("ann", "busy") for _ in range(8)]
        await calls.settle()
        assert calls.order == ["quiet", "busy"]
        await calls.end_all()
        await asyncio.gather(*busy, quiet)

    asyncio.run(story())


def test_key_is_alone_again_after_a_while() -> None:
    async def story() -> None:
        turns = FairTurns(alone=4, each_owner=100, active_s=0)
        async with turns.turn("bob", "quiet"):
            pass
        calls = Calls(turns)
        busy = [calls.start("ann", "busy") for _ in range(8)]
        await calls.settle()
        assert calls.order == ["busy"] * 4
        await calls.end_all()
        await asyncio.gather(*busy)

    asyncio.run(story())


def test_waiting_calls_take_all_turns_once_their_key_is_alone_again() -> None:
    async def story() -> None:
        turns = FairTurns(alone=8, each_owner=100)
        calls = Calls(turns)
        busy = [calls.start("ann", "busy") for _ in range(32)]
        await calls.settle()
        async with turns.turn("bob", "quiet"):
            for _ in range(8):
                await calls.end_first()
            assert calls.now["busy"] == 2
        async with asyncio.timeout(10):
            while calls.now["busy"] < 8:
                busy.append(calls.start("ann", "busy"))
                await calls.end_first()
        await calls.end_all()
        await asyncio.gather(*busy)

    asyncio.run(story())


def test_busy_owner_does_not_delay_other_owner() -> None:
    async def story() -> None:
        calls = Calls(FairTurns(alone=4, each_owner=2))
        busy = [calls.start("ann", f"sandbox {number}") for number in range(50)]
        await calls.settle()
        quiet = calls.start("bob", "quiet")
        await calls.settle()
        assert calls.order[2:] == ["quiet"]
        await calls.end_all()
        await asyncio.gather(*busy, quiet)

    asyncio.run(story())


def test_cancelled_calls_give_up_their_turns() -> None:
    """While they wait, while they work, and at the moment of their turn."""

    async def story() -> None:
        turns = FairTurns(alone=1, each_owner=1)
        calls = Calls(turns)
        working, next_one, waiting, last = (calls.start("ann", "one") for _ in range(4))
        await calls.settle()
        waiting.cancel()
        await calls.settle()
        working.cancel()
        await asyncio.sleep(0)  # it gives its turn to the next one, which is cancelled before it runs
        next_one.cancel()
        await calls.settle()
        assert calls.order == ["one", "one"]
        await calls.end_all()
        await last
        async with asyncio.timeout(10), turns.turn("ann", "one"):
            pass
        await asyncio.gather(working, next_one, waiting, return_exceptions=True)

    asyncio.run(story())
