"""`sudo` at a terminal: the command gets a separate terminal, and a root shell has full job control."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from keeper.test_many_processes import crowd, left
from keeper.test_processes import in_foreground, pids_with
from keeper.test_sudo import add_users
from keeper.test_terminals import PTY, RESIZED, drain, until
from support.keeper import Room, eventually, spec

from skerry.keeper import ProcessStream


@pytest.fixture
async def ann(tmp_path: Path) -> AsyncIterator[Room]:
    async with Room(tmp_path) as room:
        await add_users(room)
        yield room


@asynccontextmanager
async def shell(room: Room) -> AsyncIterator[ProcessStream]:
    prompt = {"PS1": "ready> ", "INPUTRC": "/dev/null"}
    stream = await room.keeper.start(spec("/bin/bash", "--norc", "--noprofile", "-i", pty=PTY, env=prompt))
    await until(stream, b"ready> ")
    yield stream
    await stream.aclose()


async def test_command_has_a_separate_terminal_owned_by_its_user(ann: Room) -> None:
    async with shell(ann) as stream:
        await stream.send_stdin(
            b"sudo -u bob sh -c 'stat -c \"%U %a %n\" $(tty); stty size; echo ctty > /dev/tty'; tty\r"
        )
        shown = (await until(stream, b"/dev/pts/0\r\n")).decode()
        assert "bob 620 /dev/pts/1\r\n40 100\r\nctty\r\n/dev/pts/0\r\n" in shown


async def test_root_shell_has_job_control_and_restores_the_terminal(ann: Room) -> None:
    mark = f"1000.{secrets.randbelow(10**9)}"
    async with shell(ann) as stream:
        await stream.send_stdin(b"sudo PS1='r''oot# ' bash --norc --noprofile -i\r")
        assert b"no job control" not in await until(stream, b"root# ")
        await stream.send_stdin(b"sleep %b\r" % mark.encode())
        await eventually(lambda: in_foreground(f"sleep\0{mark}"))
        await stream.send_stdin(b"\x1a")
        assert b"Stopped" in await until(stream, b"root# ")
        await stream.send_stdin(b"fg\r")
        await until(stream, b"\rsleep")
        await eventually(lambda: in_foreground(f"sleep\0{mark}"))
        await stream.send_stdin(b"\x03")
        await until(stream, b"root# ")
        assert not pids_with(f"sleep\0{mark}")
        await stream.send_stdin(b"exit 9\r")
        await until(stream, b"ready> ")
        await stream.send_stdin(b"echo code $?; stty -a | grep -c -- '-icanon\\|-echo \\|-opost'; exit\r")
        shown, _ = await drain(stream)
        assert b"code 9\r\n0\r\n" in shown


async def test_resize_reaches_the_sudo_command(ann: Room) -> None:
    stream = await ann.keeper.start(spec("/usr/bin/env", "sudo", "python3", "-c", RESIZED, pty=PTY))
    await until(stream, b"ready\r\n")
    await stream.resize(61, 17)
    await until(stream, b"61 17\r\n")
    await stream.aclose()


async def test_pipes_and_background_jobs_get_no_terminal(ann: Room) -> None:
    async with shell(ann) as stream:
        await stream.send_stdin(
            b"echo in | sudo cat; sudo tty < /dev/null; sudo echo back & wait; sudo tty | cat; echo end$?\r"
        )
        shown = (await until(stream, b"end0\r\n")).decode()
        assert "\rin\r\nnot a tty\r\n" in shown
        assert "\nback\r\n" in shown
        assert "/dev/pts/0\r\nend0" in shown


async def test_killed_shim_ends_its_command(ann: Room) -> None:
    mark = f"1000.{secrets.randbelow(10**9)}"
    stream = await ann.keeper.start(spec("/usr/bin/env", "sudo", "sleep", mark, pty=PTY))
    await eventually(lambda: bool(pids_with(f"\0sleep\0{mark}")) and len(pids_with(mark)) >= 2)
    await stream.signal("KILL")
    assert (await drain(stream))[1].left == ()
    assert not pids_with(mark)


async def test_sudo_terminal_works_in_a_command_without_launcher(ann: Room) -> None:
    async with shell(ann) as stream, crowd(ann):
        await left(ann, "--noprofile\0-i")
        await stream.send_stdin(b"sudo sh -c 'tty; id -u; exit 5'; echo code $?; tty\r")
        assert b"/dev/pts/1\r\n0\r\ncode 5\r\n" in await until(stream, b"/dev/pts/0\r\n")
