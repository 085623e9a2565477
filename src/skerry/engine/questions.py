"""Questions about what no rule names (`on_unknown="ask"`): who is asked, and what holds if nobody answers.

Whoever is quickest answers: a caller of the API who reads the sandbox's questions, or the operator's webhook. Nobody in
time means no. Questions are not kept on disk: who asks waits for the answer, and is gone when the server is.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field

from skerry.engine.webhook import ask_webhook
from skerry.errors import NotFound
from skerry.types import Question, Reply

OPEN_MOST = 64  # of one sandbox: what is inside decides how often it asks
STANDS_S = 30.0  # an answer holds so long for the same host and port: a program that tries again does not ask again
KEPT_MOST = 256  # answers that still stand, of one sandbox
NO = Reply(allow=False)
Remember = Callable[[str, Question, bool], Awaitable[None]]
Key = tuple[str, int | None]


@dataclass(frozen=True)
class Answered:
    """`why` is told in the record of the attempt."""

    allow: bool
    why: str


@dataclass(eq=False)
class _Open:
    question: Question
    answer: asyncio.Future[Answered]


@dataclass(eq=False)
class _Asked:
    """The questions of one sandbox: those that wait, and the answers that still stand."""

    open: dict[str, _Open] = field(default_factory=dict)
    stand: dict[Key, tuple[float, Answered]] = field(default_factory=dict)
    more: asyncio.Event = field(default_factory=asyncio.Event)
    over: bool = False

    def tell(self) -> None:
        more, self.more = self.more, asyncio.Event()
        more.set()


class Questions:
    """Used from the event loop's thread only. `remember` makes a rule of an answer, and returns once it holds."""

    def __init__(self, url: str | None, remember: Remember) -> None:
        self._url = url
        self._remember = remember
        self._sandboxes: dict[str, _Asked] = {}

    async def ask(
        self, sandbox: str, host: str, port: int | None, within: float, process: str | None = None
    ) -> Answered:
        """What is answered within so many seconds. The same question asked twice at once is one question."""
        asked = self._sandboxes.setdefault(sandbox, _Asked())
        stands = asked.stand.get((host, port))
        if stands is not None and stands[0] > time.monotonic():
            return stands[1]
        for one in asked.open.values():
            if (one.question.host, one.question.port) == (host, port):
                return await asyncio.shield(one.answer)
        if len(asked.open) >= OPEN_MOST:
            return Answered(False, f"{OPEN_MOST} other questions wait for an answer")
        now = time.time()
        question = Question(
            id=_new_id(), sandbox=sandbox, host=host, port=port, at=now, ends_at=now + within, process=process
        )
        return await self._answered(asked, _Open(question, asyncio.get_running_loop().create_future()), within)

    async def _answered(self, asked: _Asked, one: _Open, within: float) -> Answered:
        asked.open[one.question.id] = one
        asked.tell()
        call = asyncio.ensure_future(self._call(self._url, one, within)) if self._url is not None else None
        try:
            async with asyncio.timeout(within):
                answered = await asyncio.shield(one.answer)
        except TimeoutError:
            answered = Answered(False, f"nobody answered within {within:g} s")
        finally:
            asked.open.pop(one.question.id, None)
            if call is not None:
                call.cancel()
            if not one.answer.done():  # also for those who asked the same, and when this server leaves
                one.answer.set_result(Answered(False, f"nobody answered within {within:g} s"))
        _keep(asked, (one.question.host, one.question.port), answered)
        return answered

    async def _call(self, url: str, one: _Open, within: float) -> None:
        reply = await ask_webhook(url, one.question, within)
        if reply is None:
            await self._settle(one, NO, "the operator's webhook gave no answer that could be used")
        else:
            await self._settle(one, reply, f"the operator's webhook said {'yes' if reply.allow else 'no'}")

    async def reply(self, sandbox: str, question: str, reply: Reply) -> None:
        """An answer; returns once it holds."""
        asked = self._sandboxes.get(sandbox)
        one = asked.open.get(question) if asked is not None else None
        if one is None or one.answer.done():
            raise NotFound(
                f"no question {question[:40]!r} waits for an answer",
                hint="it was answered, or nobody did in time and the answer was no",
            )
        await self._settle(one, reply, f"it was asked about, and the answer was {'yes' if reply.allow else 'no'}")

    async def _settle(self, one: _Open, reply: Reply, why: str) -> None:
        if one.answer.done():
            return
        if reply.remember:
            await self._remember(one.question.sandbox, one.question, reply.allow)
        if not one.answer.done():
            one.answer.set_result(Answered(reply.allow, why))

    async def read(self, sandbox: str) -> AsyncGenerator[list[Question], None]:
        """Those that wait, and then each as it comes, until the sandbox is gone."""
        seen: set[str] = set()
        asked = self._sandboxes.setdefault(sandbox, _Asked())
        while not asked.over:
            more = asked.more
            new = [one.question for name, one in asked.open.items() if name not in seen]
            seen = set(asked.open)
            if new:
                yield new
            await more.wait()

    def forget(self, sandbox: str) -> None:
        """Another policy: what was answered before no longer stands."""
        asked = self._sandboxes.get(sandbox)
        if asked is not None:
            asked.stand.clear()

    def drop(self, sandbox: str) -> None:
        """The sandbox is gone, and with it whoever asked."""
        asked = self._sandboxes.pop(sandbox, None)
        if asked is None:
            return
        for one in asked.open.values():
            if not one.answer.done():
                one.answer.set_result(Answered(False, "the sandbox ended"))
        asked.over = True
        asked.tell()


def _keep(asked: _Asked, key: Key, answered: Answered) -> None:
    now = time.monotonic()
    for old in [old for old, (until, _) in asked.stand.items() if until <= now]:
        del asked.stand[old]
    while len(asked.stand) >= KEPT_MOST:
        del asked.stand[next(iter(asked.stand))]
    asked.stand[key] = now + STANDS_S, answered


def _new_id() -> str:
    return "q-" + base64.b32encode(secrets.token_bytes(7)).decode().lower()[:10]
