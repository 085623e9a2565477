"""Programs that misuse their channel, with the help of root inside: the keeper survives."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from keeper.test_exchanges import MIB, message, program, run, said
from keeper.test_journal_attacks import fill, small
from support.keeper import Room, eventually, spec

from skerry.errors import Conflict

__all__ = ["small"]  # a fixture

NEVER_READS = "import os, time; os.read(3, 1); print('here', flush=True); time.sleep(1000)"
DIR = "/var/lib/skerry/processes"


def memory(room: Room) -> int:
    """Return the memory of the keeper in bytes."""
    return int(Path(f"/proc/{room.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_program_that_never_reads_blocks_only_its_own_exchange(room: Room) -> None:
    process = await program(room, NEVER_READS)
    before = memory(room)
    turn = await room.keeper.exchange(process, bytes(32 * MIB))
    assert await anext(turn) == ("stdout", b"here\n")
    assert (await room.run("echo alive"))[1] == b"alive\n"
    with pytest.raises(Conflict, match="in progress"):
        await room.keeper.exchange(process)
    turn._wait_s = 0.3
    with pytest.raises(Conflict, match="does not read its input"):
        await turn.finish()
    assert memory(room) - before < 8 * MIB
    again = await room.keeper.exchange(process, bytes(32 * MIB))
    await again.signal("KILL")
    await said(again)
    assert again.exit is not None
    assert again.exit.signal == "KILL"


async def test_program_that_floods_its_channel_waits_for_its_reader(room: Room) -> None:
    process = await program(room, journal=MIB)
    turn = await room.keeper.exchange(process, message("while True: c.sendall(b'x' * 100000)"))
    before = memory(room)
    assert (await anext(turn))[0] == "channel"
    last = -1
    while (now := (await room.keeper.process(process)).offset) != last:
        last = now
        await asyncio.sleep(0.1)
    assert last < 8 * MIB
    while turn.offset < 50 * MIB:
        kind, data = await anext(turn)
        assert kind == "channel"
        assert data.count(b"x") == len(data)
    assert memory(room) - before < 16 * MIB
    usage = asyncio.create_task(turn.finish())
    assert (await usage).cpu_s > 0
    await room.keeper.signal(process, "KILL")


async def test_closed_channel_is_reported(room: Room) -> None:
    process = await program(room)
    turn = await room.keeper.exchange(process, message("out('a'); c.close(); signal.pause()"))
    assert (await said(turn))["stdout"] == b"a"
    assert turn.shut
    assert not turn.ended
    await turn.send(bytes(3 * MIB))  # is dropped
    assert (await turn.finish()).duration_s > 0
    again = await room.keeper.exchange(process, bytes(3 * MIB))
    await said(again)
    assert again.shut
    await again.signal("TERM")
    await said(again)
    assert again.exit is not None
    assert again.exit.signal == "TERM"


async def test_channel_closed_with_unread_bytes_loses_no_message(room: Room) -> None:
    process = await program(room)
    turn = await room.keeper.exchange(
        process, message("c.sendall(b'last words'); c.close(); signal.pause()") + bytes(MIB)
    )
    assert (await said(turn))["channel"] == b"last words"
    assert turn.shut
    await turn.aclose()


async def test_exit_is_not_reported_as_closed_channel(room: Room) -> None:
    process = await program(room)
    turn = await room.keeper.exchange(process, message("c.close(); sys.exit(3)"))
    await said(turn)
    assert turn.exit is not None
    assert (turn.exit.exit_code, turn.shut) == (3, False)


async def test_children_holding_the_channel_delay_neither_exit_nor_next_exchange(room: Room) -> None:
    process = await program(room)
    holds = "c.set_inheritable(True); subprocess.Popen(['sleep', '1000'], close_fds=False)"
    await run(room, process, holds)
    await run(room, process, holds)
    turn = await room.keeper.exchange(process, message("c.sendall(b'bye'); os._exit(4)"))
    assert (await said(turn))["channel"] == b"bye"
    assert turn.exit is not None
    assert turn.exit.exit_code == 4
    assert len(turn.exit.left) == 2


async def test_descriptors_sent_over_the_channel_are_closed(room: Room) -> None:
    process = await program(room)
    await run(room, process, "pass")
    descriptors = Path(f"/proc/{room.pid}/fd")
    before = len(list(descriptors.iterdir()))
    await run(room, process, "for _ in range(100): socket.send_fds(c, [b'x'], [0, 1, 2])")
    assert len(list(descriptors.iterdir())) < before + 30  # of 300; a launcher or a journal file may be new


async def test_out_of_band_bytes_are_harmless(room: Room) -> None:
    process = await program(room)
    code = "for _ in range(100): c.send(b'ab', socket.MSG_OOB)\nc.sendall(b'done')"
    turn = await room.keeper.exchange(process, message(code))
    await said(turn)
    await turn.aclose()
    assert (await room.run("echo alive"))[1] == b"alive\n"


async def test_journals_deleted_during_an_exchange_lose_nothing(room: Room) -> None:
    process = await program(room, journal=8 * MIB)
    turn = await room.keeper.exchange(process, message("c.sendall(b'x' * (4 << 20)); take(1); c.sendall(b'done')"))
    while turn.offset < MIB:
        await anext(turn)
    await room.run(f"rm -rf {DIR}")
    await turn.send(b"!")
    start, got = turn.offset, await said(turn)
    assert (turn.missing, len(got["channel"]), got["channel"].count(b"x")) == (
        0,
        (4 << 20) - start + 4,
        (4 << 20) - start,
    )
    await turn.finish()
    assert (await run(room, process, "c.sendall(b'y' * 99999)"))["channel"] == b"y" * 99999 + b"done"


async def test_journals_truncated_during_an_exchange_are_reported_missing(room: Room) -> None:
    process = await program(room, journal=8 * MIB)
    turn = await room.keeper.exchange(
        process, message("c.sendall(b'x' * (4 << 20)); out('filled'); c.sendall(b'done')")
    )
    async with asyncio.timeout(30):
        while (await room.keeper.process(process)).offset < (4 << 20) + 6 + 4:
            await asyncio.sleep(0.01)
    await room.run(f"truncate -s 0 {DIR}/{process}.*")
    await turn.finish()
    assert 0 < turn.missing < (4 << 20) + 10
    assert turn.offset == (4 << 20) + 10
    assert (await run(room, process, "pass"))["channel"] == b"done"


async def test_exchange_on_a_full_disk_loses_nothing(small: Room) -> None:
    process = await program(small)
    fill(small)
    code = "d = '\\n'.join(map(str, range(200_000)))\nout(d); c.sendall(d.encode() + b'done')"
    turn = await small.keeper.exchange(process, message(code))
    got, whole = await said(turn), "\n".join(map(str, range(200_000))).encode()
    assert (len(got["stdout"]), len(got["channel"])) == (len(whole), len(whole) + 4)
    assert got["stdout"] == got["channel"][:-4] == whole
    await turn.finish()
    await run(small, process, "pass")


async def test_bytes_of_a_dead_program_in_the_channel_are_read(room: Room) -> None:
    process = await program(room, journal=MIB)
    turn = await room.keeper.exchange(process, message("c.sendall(b'x' * 150000); os._exit(0)"))
    got = await said(turn)
    assert len(got["channel"]) == 150_000
    assert turn.exit is not None


async def test_exchange_with_a_program_that_ends_before_reading_is_its_exit(room: Room) -> None:
    command = spec("/bin/sh", "-c", "exit 5", channel=True)
    await room.keeper.spawn(command)
    try:
        turn = await room.keeper.exchange(command.id, bytes(32 * MIB))
    except Conflict:
        return
    await said(turn)
    assert turn.exit is not None
    assert turn.exit.exit_code == 5


async def test_hosts_that_hang_up_leave_nothing_behind(room: Room) -> None:
    process = await program(room, NEVER_READS)
    await (await room.keeper.exchange(process)).aclose()
    descriptors = Path(f"/proc/{room.pid}/fd")
    before = len(list(descriptors.iterdir()))
    for size in (0, 10, MIB, 8 * MIB) * 4:
        turn = await room.keeper.exchange(process, bytes(size))
        await turn.aclose()
    await eventually(lambda: len(list(descriptors.iterdir())) <= before + 4)
