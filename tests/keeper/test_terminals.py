"""Terminals: a real one inside, bytes both ways, its size, its end."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from keeper.test_many_processes import crowd, left
from keeper.test_processes import in_foreground, pids_with
from support.keeper import Room, eventually, spec

from skerry.errors import Conflict, InvalidRequest, QuotaExceeded
from skerry.keeper import ExitStatus, OutputStream, ProcessSpec, ProcessStream, Size

PTY = Size(cols=100, rows=40)
FLAT = "stty raw -echo; "  # input passes unchanged, without echo


async def show(room: Room, *argv: str, **more: object) -> tuple[bytes, ExitStatus]:
    return await drain(await room.keeper.start(spec(*argv, pty=PTY, **more)))


async def drain(stream: ProcessStream) -> tuple[bytes, ExitStatus]:
    frames = [frame async for frame in stream]
    assert {kind for kind, _ in frames} <= {"stdout"}, "a terminal has one stream"
    return b"".join(data for _, data in frames), stream.exit


async def until(stream: AsyncIterator[object], sign: bytes) -> bytes:
    """Reads on until the sign is shown."""
    seen = b""
    async with asyncio.timeout(20):
        while sign not in seen:
            frame = await anext(stream)
            assert isinstance(frame, tuple)
            seen += frame[1]
    return seen


async def test_command_has_a_terminal_owned_by_its_user(room: Room) -> None:
    line = "tty; stat -c '%U %G %a' $(tty); stty size; echo $TERM; echo err >&2; ls /proc/self/fd | wc -w; exit 7"
    out, end = await show(room, "/bin/sh", "-c", line, user="nobody")
    assert out.decode().split("\r\n") == [
        "/dev/pts/0", "nobody tty 620", "40 100", "xterm-256color", "err", "4", ""
    ]  # fmt: skip
    assert end.exit_code == 7


async def test_terminal_is_controlling_and_uses_utf_8(room: Room) -> None:
    out, _ = await show(room, "/bin/sh", "-c", "echo to > /dev/tty; ps -o pid=,sid=,pgid=,tpgid=,tty= $$; stty -a")
    first, ids, *rest = out.decode().splitlines()
    assert first == "to"
    assert len(set(ids.split()[:4])) == 1
    assert ids.split()[4] == "pts/0"
    assert " iutf8" in " ".join(rest)


async def test_term_variable_has_the_requested_value(room: Room) -> None:
    await room.configure(env={"TERM": "vt100"})
    assert (await show(room, "/usr/bin/env"))[0].decode().splitlines().count("TERM=vt100") == 1
    assert b"TERM=dumb\r\n" in (await show(room, "/usr/bin/env", env={"TERM": "dumb"}))[0]
    assert b"TERM=" not in (await show(room, "/usr/bin/env", env={"TERM": None}))[0]
    assert b"TERM=vt100" in (await room.run("/usr/bin/env"))[1]
    await room.configure()
    assert b"TERM=" not in (await room.run("/usr/bin/env"))[1]


async def test_typed_input_is_echoed_and_read_and_eof_can_be_typed(room: Room) -> None:
    stream = await room.keeper.start(spec("/bin/cat", pty=PTY))
    await stream.send_stdin("naïve\n".encode())
    assert await until(stream, b"ve\r\nna") == "naïve\r\nnaïve\r\n".encode()
    await stream.close_stdin()
    out, end = await drain(stream)
    assert (out, end.exit_code) == (b"", 0)


async def test_end_of_one_input_does_not_end_the_terminal(room: Room) -> None:
    stream = await room.keeper.start(spec("/bin/sh", "-c", FLAT.replace("raw", "") + "cat; echo next; cat", pty=PTY))
    await stream.close_stdin()
    await until(stream, b"next\r\n")
    await stream.send_stdin(b"more\n")
    await until(stream, b"more\r\n")
    await stream.close_stdin()
    assert (await drain(stream))[1].exit_code == 0


async def test_eof_character_can_be_changed(room: Room) -> None:
    stream = await room.keeper.start(spec("/bin/sh", "-c", "stty eof ^X; echo set; cat", pty=PTY))
    await until(stream, b"set\r\n")
    await stream.close_stdin()
    assert (await drain(stream))[1].exit_code == 0


async def test_shell_has_job_control_and_ctrl_c_reaches_the_foreground_job(room: Room) -> None:
    mark = f"1000.{secrets.randbelow(10**9)}"
    stream = await room.keeper.start(spec("/bin/bash", "--norc", "--noprofile", "-i", pty=PTY, env={"PS1": "ready> "}))
    await until(stream, b"ready> ")
    await stream.send_stdin(b"sleep %b\r" % mark.encode())
    await eventually(lambda: in_foreground(f"sleep\0{mark}"))
    await stream.send_stdin(b"\x03")
    await until(stream, b"ready> ")
    assert not pids_with(f"sleep\0{mark}")
    await stream.send_stdin(b"sleep %b\r" % mark.encode())
    await eventually(lambda: in_foreground(f"sleep\0{mark}"))
    await stream.send_stdin(b"\x1a")
    assert b"Stopped" in await until(stream, b"ready> ")
    await stream.send_stdin(b"fg\r")
    await until(stream, b"\rsleep")
    await eventually(lambda: in_foreground(f"sleep\0{mark}"))
    await stream.send_stdin(b"\x03")
    await until(stream, b"ready> ")
    await stream.send_stdin(b"exit 42\r")
    out, end = await drain(stream)
    assert end.exit_code == 42
    assert b"no job control" not in out


async def test_large_paste_arrives_complete(room: Room) -> None:
    data = os.urandom(300_000)
    line = FLAT + "echo ready; head -c 300000 | sha256sum"
    stream = await room.keeper.start(spec("/bin/sh", "-c", line, pty=PTY))
    await until(stream, b"ready")
    feeding = asyncio.create_task(stream.send_stdin(data))
    out, end = await drain(stream)
    await feeding
    assert end.exit_code == 0
    assert hashlib.sha256(data).hexdigest().encode() in out


async def test_large_output_is_complete(room: Room) -> None:
    out, _ = await show(room, "/bin/sh", "-c", "seq 200000")
    assert out == b"".join(b"%d\r\n" % n for n in range(1, 200001))


# Not a shell: a shell forgets a resize that arrives while it still prints the last size.
RESIZED = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
print("ready", flush=True)
while signal.sigwait([signal.SIGWINCH]):
    print(*os.get_terminal_size(0), flush=True)
"""


def resized() -> ProcessSpec:
    return spec("/usr/bin/env", "python3", "-c", RESIZED, pty=PTY)


async def test_program_is_notified_of_a_resize(room: Room) -> None:
    command = resized()
    stream = await room.keeper.start(command)
    await until(stream, b"ready\r\n")
    await stream.resize(33, 22)
    await until(stream, b"33 22\r\n")
    await room.keeper.resize(command.id, 10_000, 1)
    await until(stream, b"10000 1\r\n")
    await stream.aclose()


@pytest.mark.parametrize(("cols", "rows"), [(0, 0), (0, 24), (80, 0), (100_000, 100_000), (80, 10_001), (-1, 5)])
async def test_invalid_sizes_are_rejected(room: Room, cols: int, rows: int) -> None:
    with pytest.raises(InvalidRequest, match="10000"):
        await room.keeper.start(spec("/bin/true", pty=Size(cols=cols, rows=rows)))
    command = spec("/bin/sh", "-c", "read x; stty size", pty=PTY)
    stream = await room.keeper.start(command)
    with pytest.raises(InvalidRequest, match="10000"):
        await room.keeper.resize(command.id, cols, rows)
    await stream.resize(cols, rows)  # a frame has no response; it does nothing
    await stream.send_stdin(b"\n")
    assert b"40 100\r\n" in (await drain(stream))[0]


async def test_only_an_open_terminal_can_be_resized(room: Room) -> None:
    plain = spec("/bin/sleep", "100")
    stream = await room.keeper.start(plain)
    with pytest.raises(Conflict, match="no terminal"):
        await room.keeper.resize(plain.id, 80, 24)
    await stream.aclose()
    command = spec("/bin/true", pty=PTY)
    await drain(await room.keeper.start(command))
    with pytest.raises(Conflict, match="ended"):
        await room.keeper.resize(command.id, 80, 24)
    assert (await room.keeper.process(command.id)).pty
    assert not (await room.keeper.process(plain.id)).pty


async def test_leftover_process_does_not_delay_the_exit(room: Room) -> None:
    mark = f"1000.{secrets.randbelow(10**9)}"
    hangs_up = f"trap '' HUP; sleep {mark} & echo main; exit 3"
    out, end = await show(room, "/bin/bash", "-c", hangs_up)
    assert (out, end.exit_code) == (b"main\r\n", 3)
    assert len(end.left) >= 1
    gives_up = (
        "import fcntl, signal, subprocess, termios\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN); fcntl.ioctl(0, termios.TIOCNOTTY)\n"  # its exit sends no hangup
        f"subprocess.Popen(['sleep', '{mark}'], start_new_session=True); print('main')\n"
    )
    out, end = await show(room, "/usr/bin/env", "python3", "-c", gives_up)
    assert (out, end.exit_code, len(end.left)) == (b"main\r\n", 0, 1)


async def test_program_may_close_and_reopen_its_terminal(room: Room) -> None:
    line = "exec <&- >&- 2>&-; sleep 0.2; echo back > /dev/tty; sleep 0.1; echo again > /dev/tty; exit 4"
    out, end = await show(room, "/bin/bash", "-c", line)
    assert (out, end.exit_code) == (b"back\r\nagain\r\n", 4)


async def test_timeout_kills_all_processes_of_a_terminal(room: Room) -> None:
    mark = f"1000.{secrets.randbelow(10**9)}"
    line = f"setsid -f sleep {mark}; trap '' HUP; sleep {mark}; sleep {mark}"
    _, end = await show(room, "/bin/bash", "-c", line, timeout_s=0.5)
    assert (end.timed_out, end.signal, end.left) == (True, "KILL", ())
    assert not pids_with(mark)


async def test_host_hangup_ends_its_terminal(room: Room) -> None:
    mark = f"1000.{secrets.randbelow(10**9)}"
    stream = await room.keeper.start(spec("/bin/sleep", mark, pty=PTY))
    await eventually(lambda: bool(pids_with(mark)))
    await stream.aclose()
    await eventually(lambda: not pids_with(mark))


async def test_many_viewers_share_a_terminal_that_survives_them(room: Room) -> None:
    process = await room.keeper.spawn(spec("/bin/cat", pty=PTY))
    assert process.pty
    viewers = [await room.keeper.output(process.id, follow=True) for _ in range(3)]
    await viewers[0].send_stdin(b"hello\n")
    for viewer in viewers:
        await until(viewer, b"hello\r\nhello\r\n")
        await viewer.aclose()
    late: OutputStream = await room.keeper.output(process.id, since=-7, follow=True)
    await until(late, b"hello\r\n")
    await late.send_stdin(b"more\n")
    await until(late, b"more\r\nmore\r\n")
    await late.resize(30, 10)
    await late.close_stdin()
    async for _ in late:
        pass
    assert late.exit.exit_code == 0


async def test_stdin_can_be_sent_by_a_separate_call(room: Room) -> None:
    process = await room.keeper.spawn(spec("/bin/sh", "-c", FLAT.replace("raw", "") + "echo ready; cat; cat", pty=PTY))
    viewer = await room.keeper.output(process.id, follow=True)
    await until(viewer, b"ready\r\n")

    async def typed(*lines: bytes) -> AsyncIterator[bytes]:
        for line in lines:
            yield line

    await room.keeper.stdin(process.id, typed(b"one\n", b"two\n"), close=True)
    await until(viewer, b"one\r\ntwo\r\n")
    await room.keeper.stdin(process.id, typed(b"three\n"), close=True)
    await until(viewer, b"three\r\n")
    async for _ in viewer:
        pass
    assert viewer.exit.exit_code == 0


async def test_a_command_without_launcher_keeps_its_terminal(room: Room) -> None:
    stream = await room.keeper.start(resized())
    await until(stream, b"ready\r\n")
    async with crowd(room):
        await left(room, "get_terminal_size")
        await stream.resize(44, 11)
        await until(stream, b"44 11\r\n")
        await stream.send_stdin(b"\x1c")
        _, end = await drain(stream)
        assert end.signal == "QUIT"


async def test_hundred_terminals_work_concurrently(room: Room) -> None:
    outs = await asyncio.gather(*(show(room, "/bin/sh", "-c", f"tty; seq {n} {n + 500}") for n in range(100)))
    for n, (out, end) in enumerate(outs):
        assert end.exit_code == 0
        assert out.partition(b"\r\n")[2] == b"".join(b"%d\r\n" % k for k in range(n, n + 501))
    await eventually(lambda: not any("/ptmx" in target for target in descriptors(room.pid)))


def descriptors(pid: int) -> list[str]:
    """Return the open files of a process, without those that it closes meanwhile."""
    found = []
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(one))
    return found


@pytest.mark.parametrize(
    "line",
    [
        "mount --bind /dev/null /dev/pts/ptmx",
        "mkfifo /tmp/f && mount --bind /tmp/f /dev/pts/ptmx",
        "touch /tmp/f && mount --bind /tmp/f /dev/pts/ptmx",
        "mount --bind /dev/tty /dev/pts/ptmx",
    ],
)
async def test_terminal_device_replaced_by_root_is_not_opened(room: Room, line: str) -> None:
    assert (await room.run(line))[0].exit_code == 0
    with pytest.raises(Conflict, match="no terminals"):
        await room.keeper.start(spec("/bin/true", pty=PTY))
    assert (await room.run("echo alive"))[1] == b"alive\n"


async def test_exhausted_terminals_are_harmless(room: Room) -> None:
    assert (await room.run("mount -t devpts -o newinstance,max=3 devpts /dev/pts"))[0].exit_code == 0
    streams = [await room.keeper.start(spec("/bin/sleep", "100", pty=PTY)) for _ in range(3)]
    with pytest.raises(QuotaExceeded, match="terminal"):
        await room.keeper.start(spec("/bin/true", pty=PTY))
    await streams[0].signal("TERM")
    await drain(streams[0])
    async with asyncio.timeout(10):
        while True:
            with suppress(QuotaExceeded):  # the kernel takes a moment to give it back
                assert (await show(room, "/bin/true"))[1].exit_code == 0
                break


async def test_missing_program_is_reported_on_its_terminal(room: Room) -> None:
    stream = await room.keeper.start(spec("/bin/nope", pty=PTY))
    assert b"command not found" in b"".join([data async for _, data in stream])
    assert stream.exit.exit_code == 127
