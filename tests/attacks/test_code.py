"""Attacks by code on what runs it: forged messages, a stolen channel, kernels that are not ours at all. What they reach
is their own context's end, and what it says is words."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from serving import Server, wait_until

from skerry import CodeResult, Limits, Sandbox
from skerry.errors import InvalidRequest, NotFound
from skerry.types import RESULTS_MOST

BROKEN = "the code wrote to the context's own descriptor"
KERNEL = r"""#!/usr/bin/python3
import os, struct, sys, time
def read(n):
    data = b""
    while len(data) < n: data += os.read(3, n - len(data))
    return data
def heard():
    body = read(int.from_bytes(read(5)[1:], "big")); fields = {}; at = 0
    while at < len(body):
        end = at + 1 + body[at]; size = int.from_bytes(body[end:end + 4], "big")
        fields[body[at + 1:end].decode()] = body[end + 4:end + 4 + size]; at = end + 4 + size
    return fields
def message(kind, fields):
    body = b"".join(bytes([len(n)]) + n.encode() + struct.pack(">I", len(v)) + v for n, v in fields.items())
    return kind + struct.pack(">I", len(body)) + body
def send(data):
    while data: data = data[os.write(3, data):]
def say(kind, **fields): send(message(kind, {"run": run, **fields}))
heard()
send(message(b"H", {"version": b"6.6.6"}))
run = heard()["run"]
"""
HOSTILE = {
    "says nothing and leaves": "os._exit(0)",
    "says another's run": 'say(b"B"); run = b"0" * 16; say(b"D", status=b"ok")',
    "says no message": 'say(b"B"); send(b"<html>" * 100)',
    "says half a message": 'say(b"B"); send(b"O\\x00\\x10"); os._exit(0)',
    "announces 4 GiB": 'say(b"B"); send(b"O\\xff\\xff\\xff\\xff" + bytes(1 << 20)); time.sleep(60)',
    "says millions of messages": 'say(b"B")\nwhile True: send(message(b"O", {"run": run}) * 10_000)',
    "says millions of fields": (
        'say(b"B"); send(message(b"O", {"run": run, **{f"{n:06}": b"" for n in range(100_000)}}))'
    ),
    "begins twice": 'say(b"B"); say(b"B"); time.sleep(60)',
    "closes the channel": 'say(b"B"); os.close(3); time.sleep(60)',
    "closes the channel at once": "os.close(3); time.sleep(60)",
    "ends in an unknown way": 'say(b"B"); say(b"D", status=b"root"); time.sleep(60)',
}


@pytest.fixture(scope="module")
def lair(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address, limits=Limits(memory="512M", pids=128)) as box:
        box.code.context("python", "good").run("x = 1")
        yield box


def with_kernel(lair: Sandbox, tail: str, timeout: float = 30) -> CodeResult:
    """A run in a context whose `python3` is a program of the attacker's."""
    lair.files.write("/workspace/evil/python3", KERNEL + tail, parents=True)
    lair.files.chmod("/workspace/evil/python3", 0o755)
    context = lair.code.context("python", env={"PATH": "/workspace/evil:/usr/bin:/bin"})
    try:
        return context.run("1", timeout=timeout)
    finally:
        context.delete()


def unharmed(lair: Sandbox) -> None:
    assert lair.code.run("x", context="good", timeout=30).text == "1"
    assert lair.info().state == "running"


@pytest.mark.parametrize("how", HOSTILE)
def test_a_kernel_that_lies_loses_its_own_context_and_no_more(lair: Sandbox, how: str) -> None:
    result = with_kernel(lair, HOSTILE[how])
    assert result.after == "replaced"
    assert result.error is not None
    assert result.error.name == "ContextDied"
    assert (result.exit_code, result.signal) == ((0, None) if "leaves" in how or "half" in how else (None, "KILL"))
    unharmed(lair)


def test_a_kernel_that_never_begins_is_ended_by_the_time_out(lair: Sandbox) -> None:
    result = with_kernel(lair, "while True: time.sleep(1)", timeout=0.5)
    assert (result.timed_out, result.after) == (True, "replaced")
    result = with_kernel(lair, "while True: send(b'noise' * 10_000)", timeout=0.5)
    assert (result.timed_out, result.after, result.results) == (True, "replaced", ())
    unharmed(lair)


def test_endless_results_are_counted_and_left_out(lair: Sandbox) -> None:
    tail = 'say(b"B")\nfor n in range(500): say(b"O", **{"text/plain": b"x"})\nsay(b"D", status=b"ok"); time.sleep(60)'
    result = with_kernel(lair, tail)
    assert (len(result.results), result.truncated, result.after) == (RESULTS_MOST, True, "kept")
    assert result.hint is not None
    assert "436 results were left out" in result.hint


def test_what_a_kernel_says_chooses_no_form_and_breaks_no_client(lair: Sandbox) -> None:
    forms = {
        "text/plain": b"\\xff\\x00\\x1b]0;evil\\x07", "text/x-evil": b"no", "image/png": b"GIF89a<script>",
        "application/json": b"[" * 100, "application/vnd.skerry.chart+json": b'{"axes": 1}', "cut": b"../../etc root",
    }  # fmt: skip
    tail = f'say(b"B"); say(b"O", main=b"1", **{forms!r})\nsay(b"E", name=b"N" * 100_000, line=b"9" * 50)\n'
    result = with_kernel(lair, tail + 'say(b"D", status=b"error"); time.sleep(60)')
    (value,) = result.results
    assert value.data.keys() == {"text/plain"}
    assert set(value.cut) == {"image/png", "application/json", "application/vnd.skerry.chart+json"}
    assert result.error is not None
    assert (len(result.error.name) < 1000, result.error.line) == (True, None)
    assert result.exit_code == 1


def test_large_pictures_and_texts_come_through_whole_up_to_their_bounds(lair: Sandbox) -> None:
    tail = (
        'say(b"B")\nfor n in range(4): say(b"O", **{"image/png": b"\\x89PNG\\r\\n\\x1a\\n" + bytes(7 << 20)})\n'
        'say(b"O", **{"image/png": b"\\x89PNG\\r\\n\\x1a\\n" + bytes(9 << 20)})\n'
        'say(b"D", status=b"ok"); time.sleep(60)'
    )
    result = with_kernel(lair, tail)
    assert [len(value.png or b"") for value in result.results] == [(7 << 20) + 8] * 4
    assert result.truncated


FORGED = r"""
import os, struct
def message(kind, **fields):
    body = b"".join(bytes([len(n)]) + n.encode() + struct.pack(">I", len(v)) + v for n, v in fields.items())
    return kind + struct.pack(">I", len(body)) + body
channel = 100
assert os.readlink("/proc/self/fd/100").startswith("socket:")
"""


@pytest.mark.parametrize(
    "attack",
    [
        'os.write(channel, message(b"D", run=b"0" * 16, status=b"ok"))',
        'os.write(channel, message(b"O", run=b"0" * 16, main=b"1", **{"text/plain": b"forged"}))',
        'os.write(channel, b"junk" * 100)',
    ],
)
def test_code_that_forges_messages_is_not_believed(lair: Sandbox, attack: str) -> None:
    context = lair.code.context("python")
    result = context.run(f"{FORGED}\nprint('before', flush=True)\n{attack}\nimport time; time.sleep(60)", timeout=40)
    assert (result.results, result.after, result.timed_out) == ((), "replaced", False)
    assert result.error is not None
    assert result.error.message == f"{BROKEN}; the context was replaced"
    assert result.stdout == "before\n"
    assert context.run("2").lost == BROKEN
    context.delete()


@pytest.mark.parametrize(
    "attack",
    [
        "os.dup2(os.open('/workspace/stolen', os.O_RDWR | os.O_CREAT), channel)",
        "os.dup2(1, channel)",
        "os.close(channel)",
        "os.closerange(3, 4096)",
    ],
)
def test_code_that_takes_the_channel_away_loses_its_context(lair: Sandbox, attack: str) -> None:
    context = lair.code.context("python")
    result = context.run(f"x = 1\n{FORGED}\n{attack}\n'a value'", timeout=30)
    assert (result.results, result.after) == ((), "replaced")
    assert result.error is not None
    assert result.error.name == "ContextDied"
    assert context.run("'x' in globals()").lost is not None
    stolen = lair.run("cat /workspace/stolen 2>/dev/null; rm -f /workspace/stolen").stdout
    assert "value" not in stolen, "nothing of ours goes where the code put its own"
    context.delete()


def test_what_was_said_between_two_runs_counts_for_nothing(lair: Sandbox) -> None:
    """A thread that outlives its run knows the channel, and nothing of the next run's secret until that has begun."""
    context = lair.code.context("python")
    context.run(
        f"{FORGED}\nimport threading\ngo = threading.Event()\ndone = threading.Event()\n"
        "def forge():\n go.wait(60)\n os.write(channel, message(b'D', run=b'0' * 16) + b'junk')\n done.set()\n"
        " open('/workspace/was-forged', 'w').close()\n"
        "threading.Thread(target=forge).start()",
        check=True,
    )
    lair.run(["mkfifo", "/tmp/forged"], check=True)
    context.run("threading.Thread(target=lambda: (open('/tmp/forged').read(), go.set())).start()", check=True)
    lair.run("echo > /tmp/forged", check=True)
    wait_until(lambda: lair.run("test -e /workspace/was-forged").ok, "the thread to have written")
    assert context.run("done.is_set()").text == "True"
    context.delete()


def test_a_context_is_its_sandboxs_alone(server: Server, lair: Sandbox) -> None:
    with Sandbox(server=server.address) as other:
        for name in ("good", "../good", f"{lair.id}/good"):
            for call in (lambda name=name: other.code.run("x", context=name), lambda name=name: other.code.get(name)):
                with pytest.raises((NotFound, InvalidRequest)):
                    call()


def test_output_without_end_ends_with_the_time_out_and_the_context_remembers(lair: Sandbox) -> None:
    context = lair.code.context("python")
    result = context.run("x = 1\nwhile True: print('y' * 1000)", timeout=0.5)
    assert (result.timed_out, result.truncated) == (True, True)
    if result.after == "kept":
        assert context.run("x", timeout=30).text == "1"
    context.delete()


def test_a_reader_who_does_not_read_holds_nobody_up(server: Server, lair: Sandbox) -> None:
    """Their run is cut off at its time-out, however little of it they took."""
    context = lair.code.context("python", "unread")
    body = {"code": "while True: print('y' * 1000)", "context": "unread", "timeout": 0.3}
    headers = {"Accept": "application/vnd.skerry.frames"}
    with server.http() as http, http.stream("POST", f"/v1/sandboxes/{lair.id}/code", json=body, headers=headers):
        flood = [threading.Thread(target=lair.code.run, args=("1",), kwargs={"fresh": True}) for _ in range(12)]
        for thread in flood:
            thread.start()
        assert lair.code.run("x", context="good", timeout=30).text == "1"
        for thread in flood:
            thread.join(60)
        assert context.run("2", timeout=30).text == "2"
    context.delete()
    unharmed(lair)
