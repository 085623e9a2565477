"""Approval requests about destinations that no rule names (`on_unknown="ask"`).

The quickest answer counts: from a caller of the API that reads the sandbox's approval requests, or from the operator's
webhook. Without an answer in time the destination is denied. Requests are not kept on disk: the connection waits for
the answer and ends with the server."""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from skerry.engine.webhooks.post import PostError, post
from skerry.errors import InvalidRequest, NotFound
from skerry.types import Approval, ApprovalRequest

log = logging.getLogger("skerry.engine")
MAX_OPEN = 64  # of one sandbox: programs inside decide how often they cause a request
ANSWER_VALID_S = (
    30.0  # an answer holds so long for the same host and port: a program that tries again does not ask again
)
MAX_KEPT = 256  # answers that still stand, of one sandbox
NO = Approval(allow=False)
Remember = Callable[[str, ApprovalRequest, bool], Awaitable[None]]
Key = tuple[str, int | None]


@dataclass(frozen=True)
class ApprovalAnswer:
    """`why` becomes part of the recorded attempt."""

    allow: bool
    why: str


@dataclass(eq=False)
class _Open:
    question: ApprovalRequest
    answer: asyncio.Future[ApprovalAnswer]


@dataclass(eq=False)
class _Asked:
    """The questions of one sandbox: those that wait, and the answers that still stand."""

    open: dict[str, _Open] = field(default_factory=dict)
    stand: dict[Key, tuple[float, ApprovalAnswer]] = field(default_factory=dict)
    more: asyncio.Event = field(default_factory=asyncio.Event)
    over: bool = False

    def notify(self) -> None:
        more, self.more = self.more, asyncio.Event()
        more.set()


class ApprovalQueue:
    """Used from the event loop's thread only. `remember` makes a rule of an answer, and returns once it holds."""

    def __init__(self, url: str | None, remember: Remember) -> None:
        self._url = url
        self._remember = remember
        self._sandboxes: dict[str, _Asked] = {}

    async def ask(
        self, sandbox_id: str, host: str, port: int | None, within: float, process: str | None = None
    ) -> ApprovalAnswer:
        """Return the answer, at the latest after so many seconds. The same request made twice at once is one
        request."""
        asked = self._sandboxes.setdefault(sandbox_id, _Asked())
        stands = asked.stand.get((host, port))
        if stands is not None and stands[0] > time.monotonic():
            return stands[1]
        for one in asked.open.values():
            if (one.question.host, one.question.port) == (host, port):
                return await asyncio.shield(one.answer)
        if len(asked.open) >= MAX_OPEN:
            return ApprovalAnswer(False, f"{MAX_OPEN} other approval requests wait for an answer")
        now = time.time()
        question = ApprovalRequest(
            id=new_id("q"), sandbox=sandbox_id, host=host, port=port, at=now, ends_at=now + within, process=process
        )
        return await self._wait_for_answer(asked, _Open(question, asyncio.get_running_loop().create_future()), within)

    async def _wait_for_answer(self, asked: _Asked, one: _Open, within: float) -> ApprovalAnswer:
        asked.open[one.question.id] = one
        asked.notify()
        call = asyncio.ensure_future(self._call(self._url, one, within)) if self._url is not None else None
        try:
            async with asyncio.timeout(within):
                answered = await asyncio.shield(one.answer)
        except TimeoutError:
            answered = ApprovalAnswer(False, f"no answer within {within:g} s")
        finally:
            asked.open.pop(one.question.id, None)
            if call is not None:
                call.cancel()
            if not one.answer.done():  # also for callers with the same request, and when this server stops
                one.answer.set_result(ApprovalAnswer(False, f"no answer within {within:g} s"))
        _remember_answer(asked, (one.question.host, one.question.port), answered)
        return answered

    async def _call(self, url: str, one: _Open, within: float) -> None:
        reply = await ask_webhook(url, one.question, within)
        if reply is None:
            await self._set_answer(one, NO, "the operator's webhook gave no answer that could be used")
        else:
            await self._set_answer(one, reply, f"the operator's webhook said {'yes' if reply.allow else 'no'}")

    async def reply(self, sandbox_id: str, question: str, reply: Approval) -> None:
        """An answer; returns once it holds."""
        asked = self._sandboxes.get(sandbox_id)
        one = asked.open.get(question) if asked is not None else None
        if one is None or one.answer.done():
            raise NotFound(
                f"approval request {question[:40]!r} is not waiting for an answer",
                hint="it was answered already, or denied after its timeout",
            )
        await self._set_answer(one, reply, f"the approval request was {'allowed' if reply.allow else 'denied'}")

    async def _set_answer(self, one: _Open, reply: Approval, why: str) -> None:
        if one.answer.done():
            return
        if reply.remember:
            await self._remember(one.question.sandbox, one.question, reply.allow)
        if not one.answer.done():
            one.answer.set_result(ApprovalAnswer(reply.allow, why))

    async def read(self, sandbox_id: str) -> AsyncGenerator[list[ApprovalRequest], None]:
        """Those that wait, and then each as it comes, until the sandbox is gone."""
        seen: set[str] = set()
        asked = self._sandboxes.setdefault(sandbox_id, _Asked())
        while not asked.over:
            more = asked.more
            new = [one.question for name, one in asked.open.items() if name not in seen]
            seen = set(asked.open)
            if new:
                yield new
            await more.wait()

    def forget(self, sandbox_id: str) -> None:
        """Drop earlier answers: the policy has changed."""
        asked = self._sandboxes.get(sandbox_id)
        if asked is not None:
            asked.stand.clear()

    def drop(self, sandbox_id: str) -> None:
        """Deny all open requests: the sandbox is deleted."""
        asked = self._sandboxes.pop(sandbox_id, None)
        if asked is None:
            return
        for one in asked.open.values():
            if not one.answer.done():
                one.answer.set_result(ApprovalAnswer(False, "the sandbox ended"))
        asked.over = True
        asked.notify()


def _remember_answer(asked: _Asked, key: Key, answered: ApprovalAnswer) -> None:
    now = time.monotonic()
    for old in [old for old, (until, _) in asked.stand.items() if until <= now]:
        del asked.stand[old]
    while len(asked.stand) >= MAX_KEPT:
        del asked.stand[next(iter(asked.stand))]
    asked.stand[key] = now + ANSWER_VALID_S, answered


def new_id(kind: str) -> str:
    """Return the ID of a new request that waits for a client."""
    return f"{kind}-" + base64.b32encode(secrets.token_bytes(7)).decode().lower()[:10]


MAX_ANSWER = 4096


async def ask_webhook(url: str, question: ApprovalRequest, within: float) -> Approval | None:
    """Ask the operator's webhook by POST. Return None if it gave no valid answer in time, which denies the destination.
    No redirect is followed and no proxy is used."""
    content = msgspec.json.encode({"approval_request": question})
    try:
        response = await post(url, content, {}, timeout_s=within, max_body=MAX_ANSWER)
        if response.status != 200:
            raise ValueError(f"it answered {response.status}")
        return msgspec.json.decode(response.body, type=Approval)
    except (PostError, msgspec.MsgspecError, InvalidRequest, ValueError) as error:
        log.warning(
            "the approval webhook gave no valid answer", extra={"sandbox": question.sandbox, "error": str(error)[:300]}
        )
        return None
