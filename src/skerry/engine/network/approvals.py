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
MAX_KEPT = 256  # recent answers, of one sandbox
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
    request: ApprovalRequest
    answer: asyncio.Future[ApprovalAnswer]


@dataclass(eq=False)
class _SandboxRequests:
    """The approval requests of one sandbox: the open ones, and recent answers, which still hold."""

    open: dict[str, _Open] = field(default_factory=dict)
    answered: dict[Key, tuple[float, ApprovalAnswer]] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False

    def notify(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class ApprovalQueue:
    """The approval requests of all sandboxes. Used from the event loop's thread only. `remember` makes a rule of an
    answer, and returns once the rule is in force."""

    def __init__(self, url: str | None, remember: Remember) -> None:
        self._url = url
        self._remember = remember
        self._sandboxes: dict[str, _SandboxRequests] = {}

    async def ask(
        self, sandbox_id: str, host: str, port: int | None, timeout_s: float, process: str | None = None
    ) -> ApprovalAnswer:
        """Return the answer, or a denial after `timeout_s`. Identical open requests are one request."""
        requests = self._sandboxes.setdefault(sandbox_id, _SandboxRequests())
        earlier = requests.answered.get((host, port))
        if earlier is not None and earlier[0] > time.monotonic():
            return earlier[1]
        for one in requests.open.values():
            if (one.request.host, one.request.port) == (host, port):
                return await asyncio.shield(one.answer)
        if len(requests.open) >= MAX_OPEN:
            return ApprovalAnswer(False, f"{MAX_OPEN} other approval requests wait for an answer")
        now = time.time()
        request = ApprovalRequest(
            id=new_id("q"), sandbox=sandbox_id, host=host, port=port, at=now, ends_at=now + timeout_s, process=process
        )
        return await self._wait_for_answer(
            requests, _Open(request, asyncio.get_running_loop().create_future()), timeout_s
        )

    async def _wait_for_answer(self, requests: _SandboxRequests, one: _Open, timeout_s: float) -> ApprovalAnswer:
        requests.open[one.request.id] = one
        requests.notify()
        call = asyncio.ensure_future(self._call(self._url, one, timeout_s)) if self._url is not None else None
        try:
            async with asyncio.timeout(timeout_s):
                answered = await asyncio.shield(one.answer)
        except TimeoutError:
            answered = ApprovalAnswer(False, f"no answer within {timeout_s:g} s")
        finally:
            requests.open.pop(one.request.id, None)
            if call is not None:
                call.cancel()
            if not one.answer.done():  # also for callers with the same request, and when this server stops
                one.answer.set_result(ApprovalAnswer(False, f"no answer within {timeout_s:g} s"))
        _remember_answer(requests, (one.request.host, one.request.port), answered)
        return answered

    async def _call(self, url: str, one: _Open, timeout_s: float) -> None:
        reply = await ask_webhook(url, one.request, timeout_s)
        if reply is None:
            await self._set_answer(one, NO, "the operator's webhook gave no answer that could be used")
        else:
            await self._set_answer(one, reply, f"the operator's webhook said {'yes' if reply.allow else 'no'}")

    async def answer(self, sandbox_id: str, request_id: str, approval: Approval) -> None:
        """Answer a request; return once the answer is in force."""
        requests = self._sandboxes.get(sandbox_id)
        one = requests.open.get(request_id) if requests is not None else None
        if one is None or one.answer.done():
            raise NotFound(
                f"approval request {request_id[:40]!r} is not waiting for an answer",
                hint="it was answered already, or denied after its timeout",
            )
        await self._set_answer(one, approval, f"the approval request was {'allowed' if approval.allow else 'denied'}")

    async def _set_answer(self, one: _Open, reply: Approval, why: str) -> None:
        if one.answer.done():
            return
        if reply.remember:
            await self._remember(one.request.sandbox, one.request, reply.allow)
        if not one.answer.done():
            one.answer.set_result(ApprovalAnswer(reply.allow, why))

    async def read(self, sandbox_id: str) -> AsyncGenerator[list[ApprovalRequest], None]:
        """Yield the open requests, then each new one, until the sandbox is deleted."""
        seen: set[str] = set()
        requests = self._sandboxes.setdefault(sandbox_id, _SandboxRequests())
        while not requests.ended:
            changed = requests.changed
            new = [one.request for name, one in requests.open.items() if name not in seen]
            seen = set(requests.open)
            if new:
                yield new
            await changed.wait()

    def forget(self, sandbox_id: str) -> None:
        """Drop earlier answers: the policy has changed."""
        requests = self._sandboxes.get(sandbox_id)
        if requests is not None:
            requests.answered.clear()

    def drop(self, sandbox_id: str) -> None:
        """Deny all open requests: the sandbox is deleted."""
        requests = self._sandboxes.pop(sandbox_id, None)
        if requests is None:
            return
        for one in requests.open.values():
            if not one.answer.done():
                one.answer.set_result(ApprovalAnswer(False, "the sandbox ended"))
        requests.ended = True
        requests.notify()


def _remember_answer(requests: _SandboxRequests, key: Key, answered: ApprovalAnswer) -> None:
    now = time.monotonic()
    for old in [old for old, (until, _) in requests.answered.items() if until <= now]:
        del requests.answered[old]
    while len(requests.answered) >= MAX_KEPT:
        del requests.answered[next(iter(requests.answered))]
    requests.answered[key] = now + ANSWER_VALID_S, answered


def new_id(kind: str) -> str:
    """Return the ID of a new request that waits for a client."""
    return f"{kind}-" + base64.b32encode(secrets.token_bytes(7)).decode().lower()[:10]


MAX_ANSWER = 4096


async def ask_webhook(url: str, request: ApprovalRequest, timeout_s: float) -> Approval | None:
    """Ask the operator's webhook by POST. Return None if it gave no valid answer in time, which denies the destination.
    No redirect is followed and no proxy is used."""
    content = msgspec.json.encode({"approval_request": request})
    try:
        response = await post(url, content, {}, timeout_s=timeout_s, max_body=MAX_ANSWER)
        if response.status != 200:
            raise ValueError(f"it answered {response.status}")
        return msgspec.json.decode(response.body, type=Approval)
    except (PostError, msgspec.MsgspecError, InvalidRequest, ValueError) as error:
        log.warning(
            "the approval webhook gave no valid answer", extra={"sandbox": request.sandbox, "error": str(error)[:300]}
        )
        return None
