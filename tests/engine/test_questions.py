"""Questions about what no rule names: whoever is quickest answers, and nobody in time means no."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from skerry.engine.questions import OPEN_MOST, Answered, Questions
from skerry.errors import NotFound
from skerry.types import Question, Reply

Remembered = list[tuple[str, str, int | None, bool]]


def make(url: str | None = None) -> tuple[Questions, Remembered]:
    remembered: Remembered = []

    async def remember(sandbox: str, question: Question, allow: bool) -> None:
        remembered.append((sandbox, question.host, question.port, allow))

    return Questions(url, remember), remembered


async def next_page(pages: AsyncGenerator[list[Question], None]) -> list[Question]:
    async with asyncio.timeout(20):
        return await anext(pages)


@asynccontextmanager
async def webhook(answer: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A real server that answers one request a connection with these bytes, or never if there are none."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        asked.append(await reader.readexactly(length))
        if answer:
            writer.write(answer)
            await writer.drain()
        else:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/ask", asked


def said(body: bytes, status: str = "200 OK", *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def test_a_question_is_shown_and_its_answer_holds() -> None:
    questions, remembered = make()
    asking = asyncio.ensure_future(questions.ask("sb-a", "example.test", 443, 20))
    async with aclosing(questions.read("sb-a")) as pages:
        (question,) = await next_page(pages)
        assert (question.host, question.port, question.sandbox) == ("example.test", 443, "sb-a")
        await questions.reply("sb-a", question.id, Reply(allow=True))
    assert await asking == Answered(True, "it was asked about, and the answer was yes")
    assert remembered == []


async def test_nobody_in_time_means_no_and_the_answer_says_so() -> None:
    questions, _ = make()
    assert await questions.ask("sb-a", "example.test", 443, 0.05) == Answered(False, "nobody answered within 0.05 s")


async def test_an_answer_to_be_remembered_is_made_a_rule_before_it_holds() -> None:
    questions, remembered = make()
    asking = asyncio.ensure_future(questions.ask("sb-a", "example.test", 443, 20))
    async with aclosing(questions.read("sb-a")) as pages:
        (question,) = await next_page(pages)
        await questions.reply("sb-a", question.id, Reply(allow=False, remember=True))
    assert remembered == [("sb-a", "example.test", 443, False)]
    assert not (await asking).allow


async def test_a_question_asked_twice_at_once_is_asked_once() -> None:
    questions, _ = make()
    asking = [asyncio.ensure_future(questions.ask("sb-a", "example.test", 443, 20)) for _ in range(5)]
    async with aclosing(questions.read("sb-a")) as pages:
        (question,) = await next_page(pages)
        await questions.reply("sb-a", question.id, Reply(allow=True))
    assert {(await one).allow for one in asking} == {True}


async def test_an_answer_stands_for_a_while_and_no_longer_than_the_policy_it_was_given_under() -> None:
    questions, _ = make()
    assert not (await questions.ask("sb-a", "example.test", 443, 0.05)).allow
    assert "0.05" in (await questions.ask("sb-a", "example.test", 443, 20)).why
    questions.forget("sb-a")
    assert "0.06" in (await questions.ask("sb-a", "example.test", 443, 0.06)).why


async def test_a_question_of_another_sandbox_can_not_be_answered() -> None:
    questions, _ = make()
    asking = asyncio.ensure_future(questions.ask("sb-a", "example.test", 443, 20))
    async with aclosing(questions.read("sb-a")) as pages:
        (question,) = await next_page(pages)
    with pytest.raises(NotFound):
        await questions.reply("sb-b", question.id, Reply(allow=True))
    questions.drop("sb-a")
    assert await asking == Answered(False, "the sandbox ended")


async def test_an_answer_that_comes_too_late_is_refused() -> None:
    questions, remembered = make()
    asking = asyncio.ensure_future(questions.ask("sb-a", "example.test", 443, 0.2))
    async with aclosing(questions.read("sb-a")) as pages:
        (question,) = await next_page(pages)
    assert not (await asking).allow
    with pytest.raises(NotFound, match="waits for an answer"):
        await questions.reply("sb-a", question.id, Reply(allow=True, remember=True))
    assert remembered == []


async def test_a_flood_of_questions_is_refused_at_once() -> None:
    questions, _ = make()
    asking = [asyncio.ensure_future(questions.ask("sb-a", f"h{n}.test", 443, 20)) for n in range(OPEN_MOST)]
    async with aclosing(questions.read("sb-a")) as pages:
        await next_page(pages)
    over = await questions.ask("sb-a", "one-more.test", 443, 20)
    assert not over.allow
    assert "other questions" in over.why
    assert (await questions.ask("sb-b", "other.test", 443, 0.05)).why.startswith("nobody")
    questions.drop("sb-a")
    await asyncio.gather(*asking)


@pytest.mark.parametrize("allow", [True, False])
async def test_the_webhook_is_asked_and_its_answer_holds(allow: bool) -> None:
    body = json.dumps({"allow": allow, "remember": True}).encode()
    async with webhook(said(body)) as (url, asked):
        questions, remembered = make(url)
        answered = await questions.ask("sb-a", "example.test", 443, 20, "p-aaaaaaaaaa")
    assert answered == Answered(allow, f"the operator's webhook said {'yes' if allow else 'no'}")
    assert remembered == [("sb-a", "example.test", 443, allow)]
    question = json.loads(asked[0])["question"]
    assert (question["host"], question["port"], question["process"]) == ("example.test", 443, "p-aaaaaaaaaa")


@pytest.mark.parametrize(
    "answer",
    [
        said(b"yes"),
        said(b'{"allow": "true"}'),
        said(b'{"allow": true, "why": "because"}'),
        said(b'{"allow": true}', "201 Created"),
        said(b'{"allow": true}', "302 Found", "location: /other"),
        said(b'{"allow": true' + b" " * 5000 + b"}"),
        b"\x16\x03\x01",
    ],
    ids=["no JSON", "a text", "unknown field", "another status", "redirect", "too long", "no HTTP"],
)
async def test_whatever_else_a_webhook_says_is_no(answer: bytes) -> None:
    async with webhook(answer) as (url, _):
        questions, remembered = make(url)
        answered = await questions.ask("sb-a", "example.test", 443, 20)
    assert answered == Answered(False, "the operator's webhook gave no answer that could be used")
    assert remembered == []


async def test_a_webhook_that_says_nothing_is_not_waited_for_longer_than_a_person() -> None:
    async with webhook(b"") as (url, asked):
        questions, _ = make(url)
        answered = await questions.ask("sb-a", "example.test", 443, 2.0)
        assert asked
    assert not answered.allow


async def test_a_webhook_that_is_not_there_means_no() -> None:
    questions, _ = make("http://127.0.0.1:1/ask")
    assert not (await questions.ask("sb-a", "example.test", 443, 20)).allow


async def test_a_person_may_be_quicker_than_the_webhook() -> None:
    async with webhook(b"") as (url, _):
        questions, _ = make(url)
        asking = asyncio.ensure_future(questions.ask("sb-a", "example.test", 443, 20))
        async with aclosing(questions.read("sb-a")) as pages:
            (question,) = await next_page(pages)
            await questions.reply("sb-a", question.id, Reply(allow=True))
        assert (await asking).allow


async def test_the_stream_of_questions_ends_with_its_sandbox() -> None:
    questions, _ = make()
    pages = questions.read("sb-a")
    waiting = asyncio.ensure_future(next_page(pages))
    await asyncio.sleep(0)
    questions.drop("sb-a")
    with pytest.raises(StopAsyncIteration):
        await waiting
