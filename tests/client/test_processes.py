"""Output through connections that break anywhere: nothing is lost, nothing comes twice, and it gives up in time."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.lying_server import SANDBOX, Asked, Said, lying, refused, said

from skerry import Client, Process, Sandbox
from skerry.client.transport import backoff
from skerry.codecs.frames import ERROR, EXIT, MEDIA_TYPE, MISSING, PAUSE, STARTED, STDERR, STDOUT, encode
from skerry.engine.sandboxes.reaper import retry_delay
from skerry.errors import CommandFailed, CommandTimeout, Conflict, NotFound, SandboxUnavailable, ServerUnreachable

INFO = {"id": "p-aaaaaaaaaa", "cmd": "make", "state": "running", "pid": 7}
END = {"id": INFO["id"], "exit_code": 3, "duration_s": 1.5, "stdout": "out", "stderr": "err"}


def started(offset: int) -> bytes:
    return encode(STARTED, json.dumps({"id": INFO["id"], "pid": 7, "offset": offset}).encode())


def exited() -> bytes:
    return encode(EXIT, json.dumps(END).encode())


@pytest.fixture
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "GIVE_UP_AFTER", 0.2)


Handler = Callable[[Asked], Said]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Callable[[Handler], Process]]:
    """A process of a server that answers for its output as the test wants."""
    opened = []

    def make(answer: Handler) -> Process:
        def handle(asked: Asked) -> Said:
            if asked.path.endswith(INFO["id"]):  # type: ignore[arg-type]
                return said(INFO)
            return answer(asked) if "/processes/" in asked.path else said(SANDBOX)

        context = lying(tmp_path, handle)
        server = context.__enter__()
        opened.append(context)
        found = Sandbox.get("sb-aaaaaaaaaa", server=server.address).processes.get("p-aaaaaaaaaa")
        found.asked = server.asked  # type: ignore[attr-defined]
        return found

    yield make
    for context in opened:
        context.__exit__(None, None, None)


def journal(seed: int) -> list[tuple[int, bytes]]:
    chance = random.Random(seed)
    return [(chance.choice((STDOUT, STDERR)), chance.randbytes(chance.randrange(1, 400))) for _ in range(60)]


def from_byte(pieces: list[tuple[int, bytes]], since: int) -> bytes:
    """The frames from a byte on, as a server sends them."""
    wire, at = started(since), 0
    for kind, data in pieces:
        if at + len(data) > since:
            wire += encode(kind, data[max(0, since - at) :])
        at += len(data)
    return wire + exited()


@pytest.mark.parametrize("seed", range(10))
def test_stream_interrupted_anywhere_is_complete(process: Callable[[Handler], Process], seed: int) -> None:
    pieces, chance = journal(seed), random.Random(seed)

    def answer(asked: Asked) -> Said:
        wire = from_byte(pieces, int(asked.query["since"][0]))
        cut = chance.randrange(0, 4000)
        return Said(200, wire[:cut], MEDIA_TYPE, whole=False) if cut < len(wire) else Said(200, wire, MEDIA_TYPE)

    got = list(process(answer).follow())
    for kind, name in ((STDOUT, "stdout"), (STDERR, "stderr")):
        assert b"".join(o.data for o in got if o.stream == name) == b"".join(d for k, d in pieces if k == kind)
    position = 0
    for output in got:
        position += len(output.data) + output.missing
        assert output.offset == position


def test_gap_is_reported_at_its_position(process: Callable[[Handler], Process]) -> None:
    wire = started(0) + encode(MISSING, b'{"missing":100}') + encode(STDOUT, b"rest") + exited()
    gap, rest = process(lambda _: Said(200, wire, MEDIA_TYPE)).follow()
    assert (gap.missing, gap.data, gap.offset) == (100, b"", 100)
    assert (rest.missing, rest.data, rest.offset) == (0, b"rest", 104)


def test_output_is_one_chunk_with_its_offset(process: Callable[[Handler], Process]) -> None:
    wire = started(40) + encode(MISSING, b'{"missing":2}') + encode(STDOUT, b"ab") + encode(STDERR, b"c")
    wire += encode(PAUSE, b'{"offset":45,"more":true}')
    one = process(lambda _: Said(200, wire, MEDIA_TYPE))
    output = one.output(-5, limit=3)
    assert (output.stream, output.data, output.offset, output.missing, output.text) == ("both", b"abc", 45, 2, "abc")
    asked = one.asked[-1]  # type: ignore[attr-defined]
    assert asked.query == {"since": ["-5"], "follow": ["false"], "limit": ["3"]}


def test_offset_from_the_end_becomes_absolute(process: Callable[[Handler], Process]) -> None:
    answers = [
        Said(200, started(90) + encode(STDOUT, b"12345"), MEDIA_TYPE, whole=False),
        Said(200, started(95) + encode(STDOUT, b"67890") + exited(), MEDIA_TYPE),
    ]
    one = process(lambda _: answers.pop(0))
    assert b"".join(output.data for output in one.follow(-10)) == b"1234567890"
    assert [asked.query["since"] for asked in one.asked[-2:]] == [["-10"], ["95"]]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("short_backoff")
def test_stream_gives_up_on_a_server_that_always_disconnects(process: Callable[[Handler], Process]) -> None:
    one = process(lambda _: Said(status=0))
    with pytest.raises(ServerUnreachable):
        list(one.follow())
    with pytest.raises(ServerUnreachable):
        one.wait()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (refused(404, "not_found"), NotFound),
        (refused(503, "sandbox_unavailable"), SandboxUnavailable),
        (Said(200, started(0) + encode(ERROR, b'{"code":"sandbox_unavailable","message":"x"}'), MEDIA_TYPE),
         SandboxUnavailable),
    ],
)  # fmt: skip
def test_deleted_sandbox_ends_the_stream_at_once(
    process: Callable[[Handler], Process], answer: Said, error: type[Exception]
) -> None:
    with pytest.raises(error):
        list(process(lambda _: answer).follow())


def test_wait_polls_until_the_exit(process: Callable[[Handler], Process]) -> None:
    answers = [Said(204), Said(status=0), Said(204), said({**END, "stdout_base64": "/w==", "truncated": True})]
    result = process(lambda _: answers.pop(0)).wait()
    assert (result.exit_code, result.stdout_bytes, result.stderr, result.truncated) == (3, b"\xff", "err", True)


def test_wait_timeout_reports_that_the_process_still_runs(process: Callable[[Handler], Process]) -> None:
    with pytest.raises(CommandTimeout, match=r"'make'.*is still running after 0.05 s"):
        process(lambda _: Said(204)).wait(0.05)


def test_missing_pattern_times_out_and_quotes_the_output(process: Callable[[Handler], Process]) -> None:
    wire = started(0) + encode(STDOUT, b"half way\n") + encode(PAUSE, b'{"offset":9,"more":false}')
    with pytest.raises(CommandTimeout, match=r"(?s)'ready' was not printed by 'make' within 5 s.*half way"):
        process(lambda _: Said(200, wire, MEDIA_TYPE)).wait_for_output("ready", timeout=5)


def test_exit_before_the_pattern_raises_with_the_result(process: Callable[[Handler], Process]) -> None:
    def answer(asked: Asked) -> Said:
        if asked.path.endswith("/wait"):
            return said(END)
        return Said(200, started(0) + encode(STDERR, b"no such file\n") + exited(), MEDIA_TYPE)

    with pytest.raises(CommandFailed, match=r"(?s)ended with exit code 3 before 'ready' came.*no such file") as failed:
        process(answer).wait_for_output("ready")
    assert failed.value.result is not None
    assert failed.value.result.exit_code == 3


def test_pattern_is_found_across_a_disconnect(process: Callable[[Handler], Process]) -> None:
    answers = [
        Said(200, started(0) + encode(STDOUT, b"rea"), MEDIA_TYPE, whole=False),
        Said(200, started(3) + encode(STDOUT, b"dy on 80"), MEDIA_TYPE, whole=False),
    ]
    assert process(lambda _: answers.pop(0)).wait_for_output(r"ready on (\d+)")[1] == "80"


def test_kill_ignores_an_ended_process_and_signal_does_not(process: Callable[[Handler], Process]) -> None:
    one = process(lambda _: refused(409, "conflict", "the process has ended"))
    one.kill()
    with pytest.raises(Conflict, match="has ended"):
        one.signal("TERM")
    with pytest.raises(Conflict, match="has ended"):
        one.stdin.write("x")


def test_wait_for_output_times_out_without_a_server(
    process: Callable[[Handler], Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "GIVE_UP_AFTER", 1000.0)
    with pytest.raises(ServerUnreachable):
        process(lambda _: Said(200, started(0), MEDIA_TYPE)).wait_for_output("ready", timeout=0.3)


def test_followed_stream_that_always_ends_at_once_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy in front of a broken server can answer every request and end it: that is no progress."""
    monkeypatch.setattr(backoff, "GIVE_UP_AFTER", 0.2)
    hello = json.dumps({"seq": 1, "at": 1.0, "type": "hello"}).encode() + b"\n"
    with lying(tmp_path, lambda _: Said(200, hello, "application/x-ndjson")) as server:
        with Client(server.address) as client, pytest.raises(ServerUnreachable, match="the stream of events ended"):
            list(client.events(follow=True))
        assert 1 < len(server.asked) < 20


def test_retries_of_a_failed_end_become_rare() -> None:
    delays = [retry_delay(failures) for failures in (1, 2, 3, 20, 10_000)]
    assert delays == [5, 10, 20, 600, 600]
