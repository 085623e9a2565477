"""Programs with a channel, and exchanges with them."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import pytest
from support.keeper import Room, eventually, spec

from skerry.errors import Conflict, InvalidRequest
from skerry.keeper import Exchange

MIB = 1 << 20
OBEYS = """
import os, signal, socket, subprocess, sys, threading, time
c = socket.socket(fileno=3)
c.set_inheritable(False)
def take(size):
    body = bytearray()
    while len(body) < size:
        piece = c.recv(min(size - len(body), 1 << 20))
        if not piece: sys.exit(0)
        body += piece
    return bytes(body)
def out(text):
    sys.stdout.write(text)
    sys.stdout.flush()
while True:
    exec(take(int.from_bytes(take(4), "big")))
"""


def message(code: str) -> bytes:
    return len(code.encode()).to_bytes(4, "big") + code.encode()


async def program(room: Room, source: str = OBEYS, **more: object) -> str:
    command = spec("/usr/bin/python3", "-c", source, channel=True, **more)
    assert (await room.keeper.spawn(command)).channel
    return command.id


async def said(turn: Exchange, until: bytes = b"done") -> dict[str, bytes]:
    """Return the output until the channel had `until`, or to the end."""
    got = {"stdout": bytearray(), "stderr": bytearray(), "channel": bytearray()}
    async with asyncio.timeout(60):
        async for kind, data in turn:
            got[kind] += data
            if until in got["channel"][-len(data) - len(until) :]:
                break
    return {kind: bytes(data) for kind, data in got.items()}


async def run(room: Room, process: str, code: str) -> dict[str, bytes]:
    """Run one complete exchange."""
    turn = await room.keeper.exchange(process, message(code + "\nc.sendall(b'done')"))
    got = await said(turn)
    await turn.finish()
    return got


async def test_program_receives_bytes_answers_and_keeps_state(room: Room) -> None:
    process = await program(room)
    turn = await room.keeper.exchange(process, message("x = 6; print(x * 7, flush=True); c.sendall(b'done')"))
    got = await said(turn)
    assert (got["stdout"], got["channel"]) == (b"42\n", b"done")
    usage = await turn.finish()
    assert usage.duration_s > 0
    assert usage.max_rss > MIB
    assert turn.offset == len(b"42\ndone")
    again = await room.keeper.exchange(process, message("print(x, file=sys.stderr); c.sendall(b'done')"))
    assert (again.offset, again.pid, again.cgroup) == (7, turn.pid, turn.cgroup)
    assert (await said(again))["stderr"] == b"6\n"
    await again.finish()
    assert (await room.keeper.process(process)).pid == turn.pid


async def test_output_printed_before_a_message_precedes_it(room: Room) -> None:
    process = await program(room)
    for size in (1, 5_000, 70_000, 300_000):
        code = f"out('x' * {size}); subprocess.run(['head', '-c', '{size}', '/dev/zero'], stdout=2)"
        turn = await room.keeper.exchange(process, message(f"for i in range(5): {code}; c.sendall(b'done'); take(1)"))
        for i in range(1, 6):
            got = await said(turn)
            assert (len(got["stdout"]), len(got["stderr"])) == (size, size), f"in round {i} of {size}"
            await turn.send(b"!")
        await turn.finish()


async def test_exchange_takes_more_and_large_input(room: Room) -> None:
    process = await program(room)
    data = os.urandom(5 * MIB)
    turn = await room.keeper.exchange(process, message(f"import hashlib; d = take({len(data)})"))
    await turn.send(data)
    await turn.send(message("c.sendall(hashlib.sha256(d).hexdigest().encode() + b'done')"))
    assert (await said(turn))["channel"] == hashlib.sha256(data).hexdigest().encode() + b"done"
    await turn.finish()


async def test_large_message_reaches_a_slow_reader_complete(room: Room) -> None:
    process = await program(room, journal=MIB)
    size = 16 * MIB
    code = f"d = take({size}); out('begun'); c.sendall(d); out('ended'); c.sendall(b'done')"
    data = os.urandom(size)
    turn = await room.keeper.exchange(process, message(code) + data)
    got: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray(), "channel": bytearray()}
    async for kind, piece in turn:
        got[kind] += piece
        await asyncio.sleep(0)
        if got["channel"][-4:] == b"done" and len(got["channel"]) >= size + 4:
            break
    assert got["channel"] == data + b"done"
    assert got["stdout"] == b"begunended"
    await turn.finish()
    assert turn.missing == 0


async def test_much_output_and_messages_between_are_complete(room: Room) -> None:
    process = await program(room, journal=24 * MIB)
    line = "".join(f"{n}\n" for n in range(200_000)).encode()
    code = "d = ''.join(f'{n}\\n' for n in range(200_000))\nfor i in range(40): out(d); c.sendall(b'%d;' % i)\n"
    turn = await room.keeper.exchange(process, message(code + "c.sendall(b'done')"))
    digest, said, printed = hashlib.sha256(), b"", 0
    async for kind, data in turn:
        if kind == "stdout":
            digest.update(data)
            printed += len(data)
        else:
            said += data
            assert printed >= len(line) * said.count(b";")
        if said.endswith(b"done"):
            break
    assert said == b"".join(b"%d;" % i for i in range(40)) + b"done"
    assert digest.digest() == hashlib.sha256(line * 40).digest()
    await turn.finish()
    assert turn.missing == 0


async def test_output_between_exchanges_is_not_part_of_the_next(room: Room) -> None:
    process = await program(room)
    later = (
        "def later():\n    time.sleep(0.05)\n    c.sendall(b'stale' * 9999); out('stale'); open('/tmp/said', 'w')\n"
        "threading.Thread(target=later).start()"
    )
    await run(room, process, later)
    await eventually(lambda: Path(f"/proc/{room.pid}/root/tmp/said").exists())
    got = await run(room, process, "out('fresh')")
    assert got == {"stdout": b"fresh", "stderr": b"", "channel": b"done"}


async def test_output_never_contains_channel_messages(room: Room) -> None:
    process = await program(room)
    await run(room, process, "out('a')")
    await run(room, process, "out('b')")
    stream = await room.keeper.output(process)
    pieces = [piece async for piece in stream]
    assert b"".join(piece[1] for piece in pieces if isinstance(piece, tuple)) == b"ab"
    assert stream.offset == len(b"adonebdone")
    stream = await room.keeper.output(process, limit=3)
    assert [piece async for piece in stream] == [("stdout", b"a")]
    assert stream.more


async def test_each_exchange_has_separate_peak_and_processor_time(either: Room) -> None:
    process = await program(either)
    begin = await either.keeper.exchange(process, message("c.sendall(b'done')"))
    await said(begin)
    small = await begin.finish()
    burn = "t = time.process_time()\nwhile time.process_time() < t + 0.3: pass\n"
    burner = f"subprocess.run([sys.executable, '-c', {'import time;' + burn!r}])\n"
    code = f"{burn}{burner}b = bytearray(b'x' * (100 << 20)); del b\nc.sendall(b'done')"
    turn = await either.keeper.exchange(process, message(code))
    await said(turn)
    large = await turn.finish()
    assert large.cpu_s >= 0.55
    assert large.max_rss > small.max_rss + 90 * MIB
    turn = await either.keeper.exchange(process, message("c.sendall(b'done')"))
    await said(turn)
    after = await turn.finish()
    assert after.cpu_s < 0.3
    assert after.max_rss < small.max_rss + 50 * MIB
    assert large.duration_s > after.duration_s


async def test_peak_includes_child_processes(either: Room) -> None:
    process = await program(either)
    hungry = "b = bytearray(b'x' * (60 << 20)); print(flush=True); input()"
    code = f"""two = [subprocess.Popen([sys.executable, '-c', {hungry!r}], stdin=-1, stdout=-1) for _ in range(2)]
for one in two: one.stdout.read(1)
time.sleep(0.3)
for one in two: one.communicate(b'\\n')
c.sendall(b'done')"""
    turn = await either.keeper.exchange(process, message(code))
    await said(turn)
    assert (await turn.finish()).max_rss > 115 * MIB


async def test_exchange_ends_although_a_thread_prints_endlessly(room: Room) -> None:
    process = await program(room, journal=MIB)
    flood = "def flood():\n    while True: out('x' * 100000)\nthreading.Thread(target=flood, daemon=True).start()"
    await run(room, process, flood)
    for _ in range(5):
        assert (await run(room, process, "pass"))["channel"] == b"done"
    await room.keeper.signal(process, "KILL")


async def test_kernel_killed_during_an_exchange_reports_its_exit(room: Room) -> None:
    process = await program(room)
    turn = await room.keeper.exchange(process, message("out('alive'); time.sleep(1000)"))
    assert await anext(turn) == ("stdout", b"alive")
    await turn.signal("KILL")
    await said(turn)
    assert turn.exit is not None
    assert turn.exit.signal == "KILL"
    assert not turn.shut
    assert (await turn.finish()).duration_s == turn.exit.duration_s
    await turn.signal("INT")
    await turn.send(b"nothing")
    with pytest.raises(Conflict, match="ended"):
        await room.keeper.exchange(process)


async def test_interrupt_reaches_the_group_and_the_exchange_continues(room: Room) -> None:
    process = await program(room)
    code = "try:\n    out('wait'); time.sleep(1000)\nexcept KeyboardInterrupt: c.sendall(b'done')"
    turn = await room.keeper.exchange(process, message(code))
    assert await anext(turn) == ("stdout", b"wait")
    await turn.signal("INT")
    assert (await said(turn))["channel"] == b"done"
    await turn.finish()


async def test_second_concurrent_exchange_is_refused(room: Room) -> None:
    process = await program(room)
    first = await room.keeper.exchange(process, message("take(1); c.sendall(b'done')"))
    for data in (b"", bytes(4 * MIB)):
        with pytest.raises(Conflict, match="in progress"):
            await room.keeper.exchange(process, data)
    await first.send(b"!")
    assert (await said(first))["channel"] == b"done"
    await first.finish()
    await run(room, process, "pass")


async def test_host_that_hangs_up_may_start_another_exchange_at_once(room: Room) -> None:
    process = await program(room, journal=MIB)
    for _ in range(10):
        turn = await room.keeper.exchange(process, message("out('begun'); out('x' * (3 << 20))"))
        assert (await anext(turn))[0] == "stdout"
        await room.keeper.hello()  # another connection is available
        await turn.aclose()
        assert [piece async for piece in turn] == []
        assert (await run(room, process, "pass"))["channel"].endswith(b"done")
    turn = await room.keeper.exchange(process, message("take(32 << 20)") + bytes(8 * MIB))
    await turn.aclose()
    turn = await room.keeper.exchange(process)
    await turn.signal("KILL")
    await said(turn)
    assert turn.exit is not None


async def test_exchange_requires_a_channel(room: Room) -> None:
    command = spec("sleep 1000")
    assert not (await room.keeper.spawn(command)).channel
    with pytest.raises(Conflict, match="no channel"):
        await room.keeper.exchange(command.id)
    for bad in (spec("true", channel=True, stdin="pipe"),):
        with pytest.raises(InvalidRequest):
            await room.keeper.spawn(bad)
    with pytest.raises(InvalidRequest):
        await room.keeper.start(spec("true", channel=True))
    with pytest.raises(InvalidRequest):
        await room.keeper.exchange(command.id, bytes(32 * MIB + 1))


async def test_failed_program_has_no_exchanges(room: Room) -> None:
    process = await room.keeper.spawn(spec("/nowhere", "x", channel=True))
    assert process.exit_code == 127
    with pytest.raises(Conflict, match="ended"):
        await room.keeper.exchange(process.id)


async def test_program_is_listed_as_ended_with_its_output_after_a_stop(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    for part in ("1", "2"):
        (tmp_path / part).mkdir()
    async with Room(tmp_path / "1", kept=kept) as room:
        process = await program(room)
        await run(room, process, "out('a' * 9000); c.sendall(b'said' * 9000); out('b' * 9000)")
        await room.keeper.shutdown(0)
        await eventually(lambda: room.unshare.poll() is not None)
    async with Room(tmp_path / "2", kept=kept) as room:
        listed = await room.keeper.process(process)
        assert (listed.state, listed.channel, listed.offset) == ("exited", True, 9000 * 6 + 4)
        pieces = [piece async for piece in await room.keeper.output(process)]
        assert b"".join(piece[1] for piece in pieces if isinstance(piece, tuple)) == b"a" * 9000 + b"b" * 9000
        with pytest.raises(Conflict, match="ended"):
            await room.keeper.exchange(process)


async def test_seventy_programs_with_channels_cost_the_keeper_no_threads(room: Room) -> None:
    threads = Path(f"/proc/{room.pid}/task")
    line = "while read -r x <&3; do echo $x >&3; done"
    await room.keeper.spawn(spec("/bin/sh", "-c", line, channel=True))
    before = len(list(threads.iterdir()))
    ids = [(await room.keeper.spawn(spec("/bin/sh", "-c", line, channel=True))).id for _ in range(70)]
    for _ in range(2):
        turns = await asyncio.gather(*(room.keeper.exchange(one, b"done\n") for one in ids))
        for got in await asyncio.gather(*(said(turn) for turn in turns)):
            assert got["channel"] == b"done\n"
        await asyncio.gather(*(turn.finish() for turn in turns))
    assert len(list(threads.iterdir())) <= before + 8
