"""Calls of clients' handlers: one client at a time, no answer means failure, and bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from skerry.engine.network.handlers import HandlerCalls, HandlerFailed
from skerry.errors import Conflict, NotFound
from skerry.types import HandlerCall, HandlerDecision, HttpRequest

BOX, HOST = "sb-aaaaaaaaaa", "api.example"


def call(name: str, sandbox: str = BOX, host: str = HOST) -> HandlerCall:
    return HandlerCall(id=name, sandbox=sandbox, host=host, request=HttpRequest(method="GET", url="/"), ends_at=0.0)


async def taken(stream: AsyncGenerator[list[HandlerCall], None]) -> list[str]:
    async with asyncio.timeout(30):
        return [one.id for one in await anext(stream)]


async def test_client_receives_the_calls_of_its_handler_and_decides() -> None:
    calls = HandlerCalls()
    stream = calls.read(BOX, HOST)
    asked = [asyncio.ensure_future(calls.ask(one, 30)) for one in (call("a"), call("b"), call("c", host="other"))]
    await asyncio.sleep(0)
    assert await taken(stream) == ["a", "b"]
    for wrong in ((BOX, "x"), ("sb-bbbbbbbbbb", "a")):
        with pytest.raises(NotFound):
            calls.decide(*wrong, HandlerDecision())
    for name in ("a", "b"):
        calls.decide(BOX, name, HandlerDecision(redirect=f"{name}.example"))
        with pytest.raises(NotFound):
            calls.decide(BOX, name, HandlerDecision())
    assert [(await one).redirect for one in asked[:2]] == ["a.example", "b.example"]
    asked[2].cancel()
    await stream.aclose()


async def test_call_fails_when_its_client_disconnects() -> None:
    calls = HandlerCalls()
    stream = calls.read(BOX, HOST)
    asked = asyncio.ensure_future(calls.ask(call("a"), 30))
    await asyncio.sleep(0)
    assert await taken(stream) == ["a"]
    await stream.aclose()
    assert (await asked).error == "its client disconnected"
    assert calls._places == {}


async def test_call_without_a_client_or_an_answer_fails() -> None:
    calls = HandlerCalls()
    with pytest.raises(HandlerFailed, match="is not connected"):
        await calls.ask(call("a"), 0.05)
    stream = calls.read(BOX, HOST)
    asked = asyncio.ensure_future(calls.ask(call("b"), 0.05))
    await asyncio.sleep(0)
    assert await taken(stream) == ["b"]
    with pytest.raises(HandlerFailed, match=r"no answer within 0\.05 s"):
        await asked
    await stream.aclose()
    assert calls._places == {}


async def test_call_waits_for_a_client_that_connects_again() -> None:
    calls = HandlerCalls()
    asked = asyncio.ensure_future(calls.ask(call("a"), 30))
    await asyncio.sleep(0)
    stream = calls.read(BOX, HOST)
    assert await taken(stream) == ["a"]
    calls.decide(BOX, "a", HandlerDecision())
    assert await asked == HandlerDecision()
    await stream.aclose()


async def test_newest_client_replaces_an_older_one_for_good() -> None:
    calls = HandlerCalls()
    older = calls.read(BOX, HOST, "one")
    waiting = asyncio.ensure_future(taken(older))
    await asyncio.sleep(0)
    newer = calls.read(BOX, HOST, "two")
    asked = asyncio.ensure_future(calls.ask(call("a"), 30))
    await asyncio.sleep(0)
    assert await taken(newer) == ["a"]
    with pytest.raises(StopAsyncIteration):
        await waiting
    with pytest.raises(Conflict, match="another client"):
        calls.check_not_replaced(BOX, HOST, "one")
    calls.check_not_replaced(BOX, HOST, "two")  # it may connect again
    calls.decide(BOX, "a", HandlerDecision())
    await asked
    await newer.aclose()


async def test_deleted_sandbox_fails_its_calls_and_ends_its_streams() -> None:
    calls = HandlerCalls()
    stream = calls.read(BOX, HOST)
    asked = [asyncio.ensure_future(calls.ask(one, 30)) for one in (call("a"), call("b", "sb-bbbbbbbbbb"))]
    await asyncio.sleep(0)
    assert await taken(stream) == ["a"]
    calls.end(BOX)
    assert (await asked[0]).error == "the sandbox ended"
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert not asked[1].done()
    asked[1].cancel()
