"""What may leave a sandbox, as its owner sees and changes it, whether it runs or not."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from skerry.config import Settings
from skerry.engine import egress, furnishing, plan
from skerry.engine.live import Live
from skerry.engine.questions import Answered, Questions
from skerry.engine.rows import Rows
from skerry.errors import NotFound
from skerry.network.learn import learned
from skerry.network.rules import check_rules
from skerry.types import Attempt, Caller, Network, NetworkChange, NetworkInfo, Question, Reply, parse_span

T = TypeVar("T")


class Doors(Protocol):
    """What is needed of the doors themselves (engine/network.py)."""

    async def changed(self, live: Live) -> None:
        """The row has new rules: tell the worker, return once they hold. Nothing to do for one without a door."""

    def info(self, live: Live) -> NetworkInfo:
        """Its row's policy, with what went through."""

    def attempts(self, sandbox: str, since: int, follow: bool, denied: bool) -> AsyncGenerator[list[Attempt], None]:
        """Pages of what was tried after number `since`, oldest first; to follow, also what comes."""


class Policies:
    """`engine.network`. `find` gives a caller's sandbox, `held` holds its lock, `uncut` is for what must not be cut in
    half by a caller who leaves."""

    def __init__(
        self,
        settings: Settings,
        find: Callable[[Caller, str], Live],
        held: Callable[[Live], AbstractAsyncContextManager[None]],
        uncut: Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]],
        lives: Callable[[str], Live | None],
    ) -> None:
        self._settings = settings
        self._find = find
        self._held = held
        self._uncut = uncut
        self._lives = lives
        self._open_questions = Questions(settings["network.ask_url"], self._remember)

    def begin(self, rows: Rows, doors: Doors, furnish: Callable[[Live], Awaitable[None]]) -> None:
        """Once the engine has them. `furnish` puts inside what goes with a policy: certificates, presets' set-up."""
        self._rows = rows
        self._doors = doors
        self._furnish = furnish

    # -- for the API --------------------------------------------------------------------------------------------------

    def show(self, caller: Caller, ref: str) -> NetworkInfo:
        return self._doors.info(self._find(caller, ref))

    async def set(self, caller: Caller, ref: str, network: Network) -> NetworkInfo:
        live = self._find(caller, ref)
        settled = egress.settled(network, self._settings, self.peers(caller, live.row.owner))
        await self._uncut(self._put(live, lambda _: settled))
        return self._doors.info(live)

    async def change(self, caller: Caller, ref: str, change: NetworkChange) -> NetworkInfo:
        live = self._find(caller, ref)
        check_rules(Network(allow=change.allow, deny=change.deny, presets=change.presets))
        await self._uncut(self._put(live, lambda network: egress.changed(network, change)))
        return self._doors.info(live)

    async def log(
        self, caller: Caller, ref: str, since: int = 0, follow: bool = False, denied: bool = False
    ) -> AsyncGenerator[list[Attempt], None]:
        """Pages of it. A sandbox that is gone is not found from the start, not in the middle."""
        return self._doors.attempts(self._find(caller, ref).row.id, since, follow, denied)

    async def learn(self, caller: Caller, ref: str) -> Network:
        """The smallest policy that allows what was tried, as far as rules can."""
        pages = self._doors.attempts(self._find(caller, ref).row.id, 0, False, False)
        return learned([attempt async for page in pages for attempt in page])

    def questions(self, caller: Caller, ref: str) -> AsyncGenerator[list[Question], None]:
        return self._open_questions.read(self._find(caller, ref).row.id)

    async def reply(self, caller: Caller, ref: str, question: str, reply: Reply) -> None:
        await self._open_questions.reply(self._find(caller, ref).row.id, question, reply)

    def peers(self, caller: Caller, owner: str) -> egress.Peer:
        """Gives the id of another sandbox of that owner; one of somebody else's is not found."""

        def peer(ref: str) -> str:
            row = self._find(caller, ref).row
            if row.owner != owner:
                raise NotFound(f"network.peers: {owner} has no sandbox {ref[:80]!r}", details={"sandbox": ref[:80]})
            return row.id

        return peer

    # -- for the doors ------------------------------------------------------------------------------------------------

    async def ask(self, live: Live, host: str, port: int | None, process: str | None) -> Answered:
        """Somebody is asked about what no rule names; bounded by the sandbox's own time limit."""
        within = parse_span(live.row.spec.network.ask_timeout or self._settings["network.ask_timeout"])
        return await self._open_questions.ask(live.row.id, host, port, within, process)

    def gone(self, sandbox: str) -> None:
        self._open_questions.drop(sandbox)

    # -- inner workings -----------------------------------------------------------------------------------------------

    async def _put(self, live: Live, make: Callable[[Network], Network]) -> None:
        """The row first: a worker or server that dies in between comes back with what was asked for. The doors in any
        case: what goes wrong inside must not keep a narrower policy from holding."""
        async with self._held(live):
            before = live.row.spec.network
            spec = plan.bounded(replace(live.row.spec, network=make(before)))
            live.row = self._rows.update(live.row, spec=spec)
            self._open_questions.forget(live.row.id)
            try:
                if live.row.state == "running" and furnishing.differ(before, spec.network):
                    await self._furnish(live)
            finally:
                await self._doors.changed(live)

    async def _remember(self, sandbox: str, question: Question, allow: bool) -> None:
        live = self._lives(sandbox)
        if live is None:
            return
        rule = egress.rule_of(question.host, question.port)
        change = NetworkChange(allow=(rule,)) if allow else NetworkChange(deny=(rule,))
        await self._uncut(self._put(live, lambda network: egress.changed(network, change)))
