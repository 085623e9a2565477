"""A run as frames and as lines: nothing is lost, for any bytes and any chunking."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest

from skerry.codecs.frames import ERROR, EXIT, MAX_PAYLOAD, STARTED, STDERR, STDOUT, FrameDecoder
from skerry.errors import SandboxUnavailable
from skerry.server.http.frames import FrameEncoder, JsonLineEncoder
from skerry.server.http.responses import error_body
from skerry.types import RunResult

END = RunResult(id="p-a", exit_code=0, duration_s=0.1)


def decoded(lines: bytes) -> list[dict[str, Any]]:
    assert lines.endswith(b"\n")
    return [json.loads(line) for line in lines.splitlines()]


def joined(lines: list[dict[str, Any]], stream: str) -> bytes:
    whole = b""
    for line in lines:
        if stream in line:
            whole += line[stream].encode()
        elif f"{stream}_base64" in line:
            whole += base64.b64decode(line[f"{stream}_base64"])
    return whole


def test_client_reads_the_frames_of_the_server() -> None:
    form = FrameEncoder()
    sent = form.started("p-a", 7) + form.output("stdout", b"\0\xff") + form.output("stderr", b"e") + form.exit(END)
    frames = list(FrameDecoder().feed(sent))
    assert [kind for kind, _ in frames] == [STARTED, STDOUT, STDERR, EXIT]
    assert frames[1][1] == b"\0\xff"
    assert json.loads(frames[0][1]) == {"id": "p-a", "pid": 7, "offset": 0}
    assert json.loads(frames[3][1])["exit_code"] == 0


def test_no_frame_is_larger_than_the_client_allows() -> None:
    data = random.Random(1).randbytes(3 * MAX_PAYLOAD + 5)
    frames = list(FrameDecoder().feed(FrameEncoder().output("stdout", data)))
    assert [len(payload) for _, payload in frames] == [MAX_PAYLOAD] * 3 + [5]
    assert b"".join(payload for _, payload in frames) == data


def test_error_is_a_separate_frame() -> None:
    frame = FrameEncoder().error(error_body(SandboxUnavailable("gone")))
    ((kind, payload),) = FrameDecoder().feed(frame)
    assert kind == ERROR
    assert json.loads(payload)["error"]["code"] == "sandbox_unavailable"


def test_text_split_anywhere_stays_text() -> None:
    text = "aß€😀" * 3
    for size in range(1, 8):
        form, data, sent = JsonLineEncoder(), text.encode(), b""
        for at in range(0, len(data), size):
            sent += form.output("stdout", data[at : at + size])
        lines = decoded(sent + form.exit(END))
        assert not any("stdout_base64" in line for line in lines)
        assert joined(lines, "stdout").decode() == text


@pytest.mark.parametrize("seed", range(20))
def test_non_utf8_bytes_are_preserved(seed: int) -> None:
    chance = random.Random(seed)
    form, sent, wanted = JsonLineEncoder(), b"", {"stdout": b"", "stderr": b""}
    for _ in range(50):
        stream = chance.choice(("stdout", "stderr"))
        data = chance.choice((chance.randbytes(chance.randrange(1, 9)), "😀".encode()[: chance.randrange(1, 5)]))
        wanted[stream] += data
        sent += form.output(stream, data)
    lines = decoded(sent + form.exit(END))
    assert {stream: joined(lines, stream) for stream in wanted} == wanted
    assert "exit" in lines[-1]


def test_incomplete_character_at_the_end_is_sent() -> None:
    form = JsonLineEncoder()
    lines = decoded(form.output("stdout", b"a\xe2\x82") + form.error(error_body(SandboxUnavailable("gone"))))
    assert joined(lines, "stdout") == b"a\xe2\x82"
    assert lines[-1]["error"]["code"] == "sandbox_unavailable"
