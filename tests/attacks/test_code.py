"""Attacks by code on its kernel and server: forged messages, a stolen channel, foreign kernels. They can only
end their context, and their messages are plain text."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from support.server import Server, wait_until, with_enough_time

from skerry import CodeResult, Limits, Sandbox
from skerry.errors import InvalidRequest, NotFound
from skerry.types import MAX_RESULTS

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
def sandbox(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address, limits=Limits(memory="512M", pids=128)) as sandbox:
        sandbox.code.context("python", "good").run("x = 1")
        yield sandbox


def with_kernel(sandbox: Sandbox, tail: str, timeout: float = 30) -> CodeResult:
    """Run in a context with a `python3` of the attacker."""
    sandbox.files.write("/workspace/evil/python3", KERNEL + tail, parents=True)
    sandbox.files.chmod("/workspace/evil/python3", 0o755)
    context = sandbox.code.context("python", env={"PATH": "/workspace/evil:/usr/bin:/bin"})
    try:
        return context.run("1", timeout=timeout)
    finally:
        context.delete()


def unharmed(sandbox: Sandbox) -> None:
    assert sandbox.code.run("x", context="good", timeout=30).text == "1"
    assert sandbox.info().state == "running"


@pytest.mark.parametrize("how", HOSTILE)
def test_misbehaving_kernel_loses_only_its_context(sandbox: Sandbox, how: str) -> None:
    result = with_kernel(sandbox, HOSTILE[how])
    assert result.after == "replaced"
    assert result.error is not None
    assert result.error.name == "ContextDied"
    assert (result.exit_code, result.signal) == ((0, None) if "leaves" in how or "half" in how else (None, "KILL"))
    unharmed(sandbox)


def test_kernel_that_never_starts_times_out(sandbox: Sandbox) -> None:
    result = with_kernel(sandbox, "while True: time.sleep(1)", timeout=0.5)
    assert (result.timed_out, result.after) == (True, "replaced")
    result = with_kernel(sandbox, "while True: send(b'noise' * 10_000)", timeout=0.5)
    assert (result.timed_out, result.after, result.results) == (True, "replaced", ())
    unharmed(sandbox)


def test_excess_results_are_counted_and_dropped(sandbox: Sandbox) -> None:
    tail = 'say(b"B")\nfor n in range(500): say(b"O", **{"text/plain": b"x"})\nsay(b"D", status=b"ok"); time.sleep(60)'
    result = with_kernel(sandbox, tail)
    assert (len(result.results), result.truncated, result.after) == (MAX_RESULTS, True, "kept")
    assert result.hint is not None
    assert "436 results were left out" in result.hint


def test_hostile_kernel_messages_break_no_client(sandbox: Sandbox) -> None:
    forms = {
        "text/plain": b"\\xff\\x00\\x1b]0;evil\\x07", "text/x-evil": b"no", "image/png": b"GIF89a<script>",
        "application/json": b"[" * 100, "application/vnd.skerry.chart+json": b'{"axes": 1}', "cut": b"../../etc root",
    }  # fmt: skip
    tail = f'say(b"B"); say(b"O", main=b"1", **{forms!r})\nsay(b"E", name=b"N" * 100_000, line=b"9" * 50)\n'
    result = with_kernel(sandbox, tail + 'say(b"D", status=b"error"); time.sleep(60)')
    (value,) = result.results
    assert value.data.keys() == {"text/plain"}
    assert set(value.cut) == {"image/png", "application/json", "application/vnd.skerry.chart+json"}
    assert result.error is not None
    assert (len(result.error.name) < 1000, result.error.line) == (True, None)
    assert result.exit_code == 1


def test_large_images_and_texts_are_complete_up_to_their_bounds(sandbox: Sandbox) -> None:
    tail = (
        'say(b"B")\nfor n in range(4): say(b"O", **{"image/png": b"\\x89PNG\\r\\n\\x1a\\n" + bytes(7 << 20)})\n'
        'say(b"O", **{"image/png": b"\\x89PNG\\r\\n\\x1a\\n" + bytes(9 << 20)})\n'
        'say(b"D", status=b"ok"); time.sleep(60)'
    )
    result = with_kernel(sandbox, tail)
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
def test_forged_messages_are_ignored(sandbox: Sandbox, attack: str) -> None:
    context = sandbox.code.context("python")
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
def test_code_that_closes_the_channel_loses_its_context(sandbox: Sandbox, attack: str) -> None:
    context = sandbox.code.context("python")
    result = context.run(f"x = 1\n{FORGED}\n{attack}\n'a value'", timeout=30)
    assert (result.results, result.after) == ((), "replaced")
    assert result.error is not None
    assert result.error.name == "ContextDied"
    assert context.run("'x' in globals()").lost is not None
    stolen = sandbox.run("cat /workspace/stolen 2>/dev/null; rm -f /workspace/stolen").stdout
    assert "value" not in stolen, "nothing of ours goes where the code put its own"
    context.delete()


def test_messages_between_two_runs_are_ignored(sandbox: Sandbox) -> None:
    """A thread that outlives its run knows the channel, and nothing of the next run's secret until that has begun."""
    context = sandbox.code.context("python")
    context.run(
        f"{FORGED}\nimport threading\ngo = threading.Event()\ndone = threading.Event()\n"
        "def forge():\n go.wait(60)\n os.write(channel, message(b'D', run=b'0' * 16) + b'junk')\n done.set()\n"
        " open('/workspace/was-forged', 'w').close()\n"
        "threading.Thread(target=forge).start()",
        check=True,
    )
    sandbox.run(["mkfifo", "/tmp/forged"], check=True)
    context.run("threading.Thread(target=lambda: (open('/tmp/forged').read(), go.set())).start()", check=True)
    sandbox.run("echo > /tmp/forged", check=True)
    wait_until(lambda: sandbox.run("test -e /workspace/was-forged").ok, "the thread to have written")
    assert context.run("done.is_set()").text == "True"
    context.delete()


def test_context_belongs_to_its_sandbox_only(server: Server, sandbox: Sandbox) -> None:
    with Sandbox(server=server.address) as other:
        for name in ("good", "../good", f"{sandbox.id}/good"):
            for call in (lambda name=name: other.code.run("x", context=name), lambda name=name: other.code.get(name)):
                with pytest.raises((NotFound, InvalidRequest)):
                    call()


def test_endless_output_ends_with_the_timeout_and_keeps_the_state(sandbox: Sandbox) -> None:
    context = sandbox.code.context("python")
    code = "x = 1\nwhile True: print('y' * 1000)"
    result = with_enough_time(lambda timeout: context.run(code, timeout=timeout), lambda result: result.truncated)
    assert (result.timed_out, result.truncated) == (True, True)
    if result.after == "kept":
        assert context.run("x", timeout=30).text == "1"
    context.delete()


def test_stalled_reader_blocks_no_others(server: Server, sandbox: Sandbox) -> None:
    """Their run is cut off at its time-out, however little of it they took."""
    context = sandbox.code.context("python", "unread")
    body = {"code": "while True: print('y' * 1000)", "context": "unread", "timeout": 0.3}
    headers = {"Accept": "application/vnd.skerry.frames"}
    with server.http() as http, http.stream("POST", f"/v1/sandboxes/{sandbox.id}/code", json=body, headers=headers):
        flood = [threading.Thread(target=sandbox.code.run, args=("1",), kwargs={"fresh": True}) for _ in range(12)]
        for thread in flood:
            thread.start()
        assert sandbox.code.run("x", context="good", timeout=30).text == "1"
        for thread in flood:
            thread.join(60)
        assert context.run("2", timeout=30).text == "2"
    context.delete()
    unharmed(sandbox)
