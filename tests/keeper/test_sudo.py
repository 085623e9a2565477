"""`sudo` inside: the shim and the keeper's door for it."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from keeper.test_processes import pids_with
from support.keeper import Room, eventually, spec


@pytest.fixture
async def ann(tmp_path: Path) -> AsyncIterator[Room]:
    """A room with the user ann, in the sudo group; bob is not."""
    async with Room(tmp_path) as room:
        await add_users(room)
        yield room


async def add_users(room: Room) -> None:
    accounts = b"root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/bash\nbob:x:1001:1001::/:/bin/sh\n"
    await room.keeper.files.write("/etc/passwd", accounts)
    await room.run("rm -f /usr/local/bin/sudo")
    await room.configure(user="ann", sudo=True, cwd="/workspace", env={"MODE": "test"})


async def test_the_configured_user_becomes_root(ann: Room) -> None:
    status, out, err = await ann.run("sudo id -u; sudo -n -E -H -- whoami; sudo -u bob id -un; sudo -u '#1000' id -u")
    assert (status.exit_code, out, err) == (0, b"0\nroot\nbob\n1000\n", b"")


async def test_sudo_is_found_by_plain_and_login_shells(ann: Room) -> None:
    for argv in (["sudo", "true"], ["/usr/local/bin/sudo", "true"], ["/bin/bash", "-lc", "sudo true"]):
        stream = await ann.keeper.start(spec("/usr/bin/env", *argv))
        assert [frame async for frame in stream] == []
        assert stream.exit.exit_code == 0


async def test_stdio_and_cwd_are_the_callers(ann: Room) -> None:
    status, out, err = await ann.run("cd /usr/lib && cat | sudo sh -c 'pwd; cat; echo e >&2; exit 42'", stdin=b"in")
    assert (status.exit_code, out, err) == (42, b"/usr/lib\nin", b"e\n")


async def test_the_environment_is_roots_unless_kept(ann: Room) -> None:
    line = "export A=1 LANG=x; sudo C=3 env; echo --; sudo -E env; echo --; sudo --preserve-env=A env"
    plain, everything, one = (await ann.run(line))[1].decode().split("--\n")
    for name in ("HOME=/root", "USER=root", "MODE=test", "LANG=x", "C=3", "SUDO_USER=ann", "SUDO_UID=1000"):
        assert f"{name}\n" in plain
    assert "A=1\n" not in plain
    assert "A=1\n" in everything
    assert "HOME=/home/ann\n" in everything
    assert "USER=root\n" in everything
    assert "A=1\n" in one
    assert "PATH=/run/skerry/bin:" in plain


async def test_other_users_are_denied(ann: Room) -> None:
    status, out, err = await ann.run("sudo id", user="bob")
    assert (status.exit_code, out) == (1, b"")
    assert err == b"sudo: bob is not in the sudoers file\n"
    assert (await ann.run("sudo -u bob id -un", user="root"))[1] == b"bob\n"


async def test_missing_command_is_reported(ann: Room) -> None:
    status, _, err = await ann.run("sudo nosuchcommand")
    assert (status.exit_code, err) == (1, b"sudo: nosuchcommand: command not found\n")
    status, _, err = await ann.run("sudo -u nosuchuser id")
    assert (status.exit_code, err) == (1, b"sudo: unknown user: nosuchuser\n")
    status, _, err = await ann.run("sudo")
    assert status.exit_code == 1
    assert err.startswith(b"usage: ")


async def test_common_sudo_options_work(ann: Room) -> None:
    _, out, _ = await ann.run("sudo -i pwd; sudo -s echo 'a b' '$HOME'; sudo -v && sudo -k && sudo -l; sudo --version")
    lines = out.decode().splitlines()
    assert lines[0] in ("/root", "/")
    assert lines[1] == "a b /root"
    assert "NOPASSWD" in lines[3]
    assert "keeper" in lines[4]


async def test_signals_reach_the_command_and_its_end_is_mirrored(ann: Room) -> None:
    line = (
        "mkfifo /tmp/f; sudo sh -c 'trap \"exit 9\" TERM; echo > /tmp/f; while :; do sleep 0.01; done' & p=$!; "
        "cat /tmp/f; kill -TERM $p; wait $p; echo $?; sudo sh -c 'kill -KILL $$'; echo $?"
    )
    _, out, _ = await ann.run(line)
    assert out == b"\n9\n137\n"


@pytest.mark.parametrize("group", [True, False])
async def test_timeout_kills_root_processes(tmp_path: Path, group: bool) -> None:
    mark = f"1000.{secrets.randbelow(10**9)}"
    async with Room(tmp_path, group=group) as room:
        await add_users(room)
        stream = await room.keeper.start(spec(f"sudo setsid -f sleep {mark}; sudo sleep {mark}", timeout_s=2.0))
        await eventually(lambda: len(pids_with(f"sleep\0{mark}")) >= 2)
        assert [frame async for frame in stream] == []
        assert stream.exit.timed_out
        await eventually(lambda: not pids_with(mark))


async def test_sudo_command_runs_in_the_cgroup_of_the_caller(ann: Room) -> None:
    _, out, _ = await ann.run("grep ^0:: /proc/self/cgroup; sudo grep ^0:: /proc/self/cgroup")
    mine, roots = out.splitlines()
    assert mine == roots
    assert b"/c" in mine


async def test_leftovers_of_sudo_are_listed(ann: Room) -> None:
    status, out, _ = await ann.run("sudo sh -c 'sleep 1000 >/dev/null 2>&1 & echo $!'")
    assert status.left == (int(out),)


async def test_sudo_can_be_disabled(ann: Room) -> None:
    await ann.configure(user="ann", sudo=False)
    status, _, err = await ann.run("ls /run/skerry/sudo.sock /usr/local/bin/sudo")
    assert status.exit_code != 0
    assert err.count(b"No such file") == 2


async def test_invalid_messages_to_the_sudo_socket_are_harmless(ann: Room) -> None:
    code = (
        "import socket, os, sys\n"
        "for data in (b'', b'\\0', b'\\xff' * 100, b'\\0\\0\\0\\5hello', b'\\0\\x0f\\xff\\xff' + b'x' * 1000):\n"
        "    s = socket.socket(socket.AF_UNIX); s.connect('/run/skerry/sudo.sock'); s.sendall(data); s.close()\n"
        "many = [socket.socket(socket.AF_UNIX) for _ in range(100)]\n"
        "for s in many: s.connect('/run/skerry/sudo.sock')\n"
        "print('done', flush=True); os.read(0, 1)\n"
    )
    stream = await ann.keeper.start(spec("/usr/bin/env", "python3", "-c", code, stdin="pipe"))
    assert await anext(stream) == ("stdout", b"done\n")
    threads = len(os.listdir(f"/proc/{ann.pid}/task"))
    assert threads < 40, "those who connect and say nothing must not cost threads"
    await stream.close_stdin()
    assert [frame async for frame in stream] == []
    retry = "for i in 1 2 3 4 5 6 7 8; do sudo -n id -u 2>/dev/null && break; sleep 1; done"
    assert (await ann.run(retry))[1] == b"0\n"
