"""Approval requests for destinations without a rule: the first answer wins, and a timeout denies."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from world import certificates

from skerry.engine.network.approvals import MAX_OPEN, ApprovalAnswer, ApprovalQueue
from skerry.errors import NotFound
from skerry.types import Approval, ApprovalRequest

Remembered = list[tuple[str, str, int | None, bool]]


def make(url: str | None = None) -> tuple[ApprovalQueue, Remembered]:
    remembered: Remembered = []

    async def remember(sandbox: str, question: ApprovalRequest, allow: bool) -> None:
        remembered.append((sandbox, question.host, question.port, allow))

    return ApprovalQueue(url, remember), remembered


async def next_page(pages: AsyncGenerator[list[ApprovalRequest], None]) -> list[ApprovalRequest]:
    async with asyncio.timeout(20):
        return await anext(pages)


@asynccontextmanager
async def webhook(answer: bytes, context: ssl.SSLContext | None = None) -> AsyncIterator[tuple[str, list[bytes]]]:
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

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"http{'s' if context else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}/ask", asked


def said(body: bytes, status: str = "200 OK", *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def test_approval_request_is_listed_and_its_answer_applies() -> None:
    questions, remembered = make()
    asking = asyncio.ensure_future(questions.ask("sb-a", "example.test", 443, 20))
    async with aclosing(questions.read("sb-a")) as pages:
        (question,) = await next_page(pages)
        assert (question.host, question.port, question.sandbox) == ("example.test", 443, "sb-a")
        await questions.answer("sb-a", question.id, Approval(allow=True))
    assert await asking == ApprovalAnswer(True, "the approval request was allowed")
    assert remembered == []


async def test_unanswered_approval_request_is_denied_with_the_reason() -> None:
    questions, _ = make()
    assert await questions.ask("sb-a", "example.test", 443, 0.05) == ApprovalAnswer(False, "no answer within 0.05 s")


async def test_remembered_answer_becomes_a_rule_before_it_applies() -> None:
    questions, remembered = make()
    asking = asyncio.ensure_future(questions.ask("sb-a", "example.test", 443, 20))
    async with aclosing(questions.read("sb-a")) as pages:
        (question,) = await next_page(pages)
        await questions.answer("sb-a", question.id, Approval(allow=False, remember=True))
    assert remembered == [("sb-a", "example.test", 443, False)]
    assert not (await asking).allow


async def test_concurrent_equal_approval_requests_are_merged() -> None:
    questions, _ = make()
    asking = [asyncio.ensure_future(questions.ask("sb-a", "example.test", 443, 20)) for _ in range(5)]
    async with aclosing(questions.read("sb-a")) as pages:
        (question,) = await next_page(pages)
        await questions.answer("sb-a", question.id, Approval(allow=True))
    assert {(await one).allow for one in asking} == {True}


async def test_answer_expires_with_time_or_with_its_policy() -> None:
    questions, _ = make()
    assert not (await questions.ask("sb-a", "example.test", 443, 0.05)).allow
    assert "0.05" in (await questions.ask("sb-a", "example.test", 443, 20)).why
    questions.forget("sb-a")
    assert "0.06" in (await questions.ask("sb-a", "example.test", 443, 0.06)).why


async def test_approval_request_of_another_sandbox_cannot_be_answered() -> None:
    questions, _ = make()
    asking = asyncio.ensure_future(questions.ask("sb-a", "example.test", 443, 20))
    async with aclosing(questions.read("sb-a")) as pages:
        (question,) = await next_page(pages)
    with pytest.raises(NotFound):
        await questions.answer("sb-b", question.id, Approval(allow=True))
    questions.drop("sb-a")
    assert await asking == ApprovalAnswer(False, "the sandbox ended")


async def test_late_answer_is_rejected() -> None:
    questions, remembered = make()
    asking = asyncio.ensure_future(questions.ask("sb-a", "example.test", 443, 0.2))
    async with aclosing(questions.read("sb-a")) as pages:
        (question,) = await next_page(pages)
    assert not (await asking).allow
    with pytest.raises(NotFound, match="waiting for an answer"):
        await questions.answer("sb-a", question.id, Approval(allow=True, remember=True))
    assert remembered == []


async def test_flood_of_approval_requests_is_denied_at_once() -> None:
    questions, _ = make()
    asking = [asyncio.ensure_future(questions.ask("sb-a", f"h{n}.test", 443, 20)) for n in range(MAX_OPEN)]
    async with aclosing(questions.read("sb-a")) as pages:
        await next_page(pages)
    over = await questions.ask("sb-a", "one-more.test", 443, 20)
    assert not over.allow
    assert "other approval requests" in over.why
    assert (await questions.ask("sb-b", "other.test", 443, 0.05)).why.startswith("no answer")
    questions.drop("sb-a")
    await asyncio.gather(*asking)


@pytest.mark.parametrize("allow", [True, False])
async def test_answer_of_the_webhook_applies(allow: bool) -> None:
    body = json.dumps({"allow": allow, "remember": True}).encode()
    async with webhook(said(body)) as (url, asked):
        questions, remembered = make(url)
        answered = await questions.ask("sb-a", "example.test", 443, 20, "p-aaaaaaaaaa")
    assert answered == ApprovalAnswer(allow, f"the operator's webhook said {'yes' if allow else 'no'}")
    assert remembered == [("sb-a", "example.test", 443, allow)]
    question = json.loads(asked[0])["approval_request"]
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
async def test_invalid_webhook_response_denies(answer: bytes) -> None:
    async with webhook(answer) as (url, _):
        questions, remembered = make(url)
        answered = await questions.ask("sb-a", "example.test", 443, 20)
    assert answered == ApprovalAnswer(False, "the operator's webhook gave no answer that could be used")
    assert remembered == []


async def test_silent_webhook_has_the_same_timeout_as_a_person() -> None:
    async with webhook(b"") as (url, asked):
        questions, _ = make(url)
        answered = await questions.ask("sb-a", "example.test", 443, 2.0)
        assert asked
    assert not answered.allow


async def test_unreachable_webhook_denies() -> None:
    questions, _ = make("http://127.0.0.1:1/ask")
    assert not (await questions.ask("sb-a", "example.test", 443, 20)).allow


async def test_person_can_answer_before_the_webhook() -> None:
    async with webhook(b"") as (url, _):
        questions, _ = make(url)
        asking = asyncio.ensure_future(questions.ask("sb-a", "example.test", 443, 20))
        async with aclosing(questions.read("sb-a")) as pages:
            (question,) = await next_page(pages)
            await questions.answer("sb-a", question.id, Approval(allow=True))
        assert (await asking).allow


async def test_approval_stream_ends_with_its_sandbox() -> None:
    questions, _ = make()
    pages = questions.read("sb-a")
    waiting = asyncio.ensure_future(next_page(pages))
    await asyncio.sleep(0)
    questions.drop("sb-a")
    with pytest.raises(StopAsyncIteration):
        await waiting


async def test_certificates_of_the_system_apply_to_webhooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificates.make(tmp_path, ["webhook.test"], ["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    async with webhook(said(b'{"allow": true}'), context) as (url, _):
        questions, _ = make(url)
        assert not (await questions.ask("sb-a", "example.test", 443, 20)).allow
        # Where OpenSSL looks for the system's authorities.
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        questions, _ = make(url)
        assert (await questions.ask("sb-a", "example.test", 443, 20)).allow
