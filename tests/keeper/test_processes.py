"""Commands, as seen by the host's client, run by a real keeper that is PID 1 of a namespace."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from contextlib import suppress
from pathlib import Path

import pytest
from support.keeper import Room, eventually, spec

from skerry.errors import Conflict, FileNotFound, InvalidRequest, NotFound, QuotaExceeded
from skerry.keeper import Keeper, ProcessSpec, build_id


def pids_with(mark: str) -> list[int]:
    """Return live processes on the host with the mark in their environment or command line."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            line = Path(f"/proc/{name}/cmdline").read_bytes()
            dead = ") Z" in Path(f"/proc/{name}/stat").read_text()
        except OSError:
            continue
        if mark.encode() in line and not dead and int(name) != os.getpid():
            found.append(int(name))
    return found


def in_foreground(mark: str) -> bool:
    """Return whether a process with the mark runs and has its terminal. A shell prints `fg`'s line before that."""
    for pid in pids_with(mark):
        with contextlib.suppress(OSError):
            state, _, group, _, _, foreground = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:6]
            if state in "RS" and group == foreground:
                return True
    return False


async def test_stdout_and_stderr_are_kept_apart(room: Room) -> None:
    status, out, err = await room.run("echo out; echo err >&2")
    assert (status.exit_code, out, err) == (0, b"out\n", b"err\n")
    assert status.signal is None
    assert not status.timed_out
    assert status.left == ()
    assert status.max_rss > 0


async def test_every_exit_code_comes_back(room: Room) -> None:
    for start in range(0, 256, 32):
        codes = range(start, start + 32)
        results = await asyncio.gather(*(room.run("/bin/sh", "-c", f"exit {code}") for code in codes))
        assert [status.exit_code for status, _, _ in results] == list(codes)


@pytest.mark.parametrize("name", ["HUP", "INT", "QUIT", "USR1", "TERM", "KILL", "ALRM", "PIPE", "SEGV"])
async def test_signal_ends_a_command_and_is_named(room: Room, name: str) -> None:
    stream = await room.keeper.start(spec("/bin/sleep", "100"))
    await stream.signal(name)
    assert [frame async for frame in stream] == []
    assert stream.exit.signal == name
    assert stream.exit.exit_code is None


async def test_a_command_starts_with_default_signals_and_an_empty_mask(room: Room) -> None:
    _, out, _ = await room.run("/bin/grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status")
    values = dict(line.split(b":\t") for line in out.splitlines())
    assert int(values[b"SigBlk"], 16) == 0
    assert int(values[b"SigIgn"], 16) == 0


async def test_a_command_has_three_fds_a_session_and_limits(room: Room) -> None:
    await room.configure(open_files=512)
    _, out, _ = await room.run(
        "/bin/sh", "-c", "ls /proc/self/fd | wc -w; ulimit -Sn; ulimit -Hn; umask; ps -o pid=,sid= $$"
    )
    fds, soft, hard, umask, ids = out.decode().splitlines()
    assert int(fds) == 4  # ls itself has the directory open
    assert (soft, hard, umask) == ("512", "512", "0022")
    assert len(set(ids.split())) == 1


async def test_a_command_has_a_worse_oom_score_than_the_keeper(room: Room) -> None:
    _, out, _ = await room.run("/bin/cat", "/proc/self/oom_score_adj", "/proc/1/oom_score_adj")
    mine, keepers = map(int, out.split())
    assert mine > keepers


async def test_ten_mebibytes_without_a_newline_are_complete(room: Room) -> None:
    status, out, _ = await room.run("/bin/sh", "-c", "head -c 10485760 /dev/zero | tr '\\0' x")
    assert status.exit_code == 0
    assert out == b"x" * 10485760


async def test_binary_output_is_preserved(room: Room) -> None:
    _, out, _ = await room.run("/usr/bin/printf", "".join(f"\\{n:03o}" for n in range(256)))
    assert out == bytes(range(256))


async def test_stdin_reaches_the_program(room: Room) -> None:
    data = os.urandom(3 << 20)
    stream = await room.keeper.start(spec("/bin/cat", stdin="pipe"))

    async def feed() -> None:
        await stream.send_stdin(data)
        await stream.close_stdin()

    feeding = asyncio.create_task(feed())
    out = b"".join([piece async for _, piece in stream])
    await feeding
    assert out == data


async def test_program_may_close_its_stdin_early(room: Room) -> None:
    status, out, _ = await room.run("/bin/sh", "-c", "exec <&-; echo done", stdin=b"x" * (2 << 20))
    assert (status.exit_code, out) == (0, b"done\n")


async def test_without_stdin_a_program_reads_nothing(room: Room) -> None:
    status, out, _ = await room.run("/bin/cat")
    assert (status.exit_code, out) == (0, b"")


async def test_signals_pass_a_program_that_does_not_read_its_stdin(room: Room) -> None:
    stream = await room.keeper.start(spec("/bin/sleep", "100", stdin="pipe"))
    feeding = asyncio.create_task(stream.send_stdin(b"x" * (300 << 10)))
    await asyncio.wait_for(feeding, 10)
    await stream.signal("TERM")
    assert [frame async for frame in stream] == []
    assert stream.exit.signal == "TERM"


STRAYS = "(setsid sleep 1000.{m} &) ; setsid -f sleep 1000.{m} ; nohup sleep 1000.{m} >/dev/null 2>&1 & sleep 1000.{m}"


async def test_timeout_kills_the_children_of_a_command(either: Room) -> None:
    mark = str(secrets.randbelow(10**9))
    stream = await either.keeper.start(spec(STRAYS.format(m=mark), timeout_s=2.0))
    await eventually(lambda: len(pids_with(f"1000.{mark}")) >= 5)
    assert [frame async for frame in stream] == []
    assert (stream.exit.timed_out, stream.exit.signal, stream.exit.left) == (True, "KILL", ())
    assert pids_with(f"1000.{mark}") == []
    status, out, _ = await either.run("echo alive")
    assert (status.exit_code, out) == (0, b"alive\n")


async def test_host_hangup_ends_the_command_with_its_tree(either: Room) -> None:
    mark = str(secrets.randbelow(10**9))
    stream = await either.keeper.start(spec(STRAYS.format(m=mark)))
    await eventually(lambda: len(pids_with(f"1000.{mark}")) >= 5)
    await stream.aclose()
    await eventually(lambda: not pids_with(f"1000.{mark}"))


async def test_hangup_is_noticed_while_stdin_blocks(room: Room) -> None:
    mark = str(secrets.randbelow(10**9))
    stream = await room.keeper.start(spec("/bin/sleep", f"1000.{mark}", stdin="pipe"))
    feeding = asyncio.create_task(stream.send_stdin(b"x" * (16 << 20)))
    await eventually(lambda: bool(pids_with(f"1000.{mark}")))
    await stream.aclose()
    await asyncio.wait({feeding}, timeout=10)
    await eventually(lambda: not pids_with(f"1000.{mark}"))


async def test_detached_command_survives_its_connection(room: Room) -> None:
    command = spec("/bin/sleep", "1000")
    assert (await room.keeper.spawn(command)).state == "running"
    await room.keeper.close()
    room.keeper = Keeper(room.connect, build_id())
    assert (await room.keeper.process(command.id)).state == "running"
    await room.keeper.signal(command.id, "KILL")

    async def ended() -> bool:
        return (await room.keeper.process(command.id)).state == "exited"

    async with asyncio.timeout(10):
        while not await ended():
            await asyncio.sleep(0.005)
    assert (await room.keeper.process(command.id)).signal == "KILL"


async def test_leftover_children_keep_running_and_are_listed(either: Room) -> None:
    mark = str(secrets.randbelow(10**9))
    command = spec(f"sleep 1000.{mark} & echo $!")
    stream = await either.keeper.start(command)
    out = b"".join([data async for _, data in stream])
    child = int(out)
    assert stream.exit.exit_code == 0
    assert stream.exit.left == (child,)
    assert (await either.keeper.process(command.id)).children == (child,)
    assert len(pids_with(f"1000.{mark}")) == 1
    await either.keeper.signal(command.id, "KILL")
    await eventually(lambda: not pids_with(f"1000.{mark}"))


async def test_finished_command_does_not_affect_the_next_one(either: Room) -> None:
    """Launchers are reused: processes of the second command must not look like children of the first."""
    first = spec("/bin/true")
    async for _ in await either.keeper.start(first):
        pass
    second = await either.keeper.start(spec("/bin/sleep", "1000"))
    assert (await either.keeper.process(first.id)).children == ()
    with pytest.raises(Conflict):
        await either.keeper.signal(first.id, "KILL")
    await second.signal("TERM")
    assert [frame async for frame in second] == []
    assert second.exit.signal == "TERM"


async def test_killed_launcher_without_a_cgroup_ends_its_tree(tmp_path: Path) -> None:
    mark = str(secrets.randbelow(10**9))
    async with Room(tmp_path, group=False) as room:
        other = await room.keeper.start(spec("/bin/sleep", f"2000.{mark}"))
        stream = await room.keeper.start(
            spec(f"setsid -f sleep 1000.{mark}; setsid -f sleep 1000.{mark}; kill -KILL $PPID; sleep 1000.{mark}")
        )
        async for _ in stream:
            pass
        assert stream.exit.signal == "KILL"
        await eventually(lambda: not pids_with(f"1000.{mark}"))
        assert len(pids_with(f"2000.{mark}")) == 1
        await other.aclose()


async def test_long_command_lines_are_shortened_in_lists(room: Room) -> None:
    for command in (spec("true " + "x" * 200_000), spec("/bin/true", *(["é" * 1000] * 100))):
        async for _ in await room.keeper.start(command):
            pass
        listed = await room.keeper.process(command.id)
        assert len("".join(listed.argv or [listed.shell or ""])) < 1100


async def test_leftover_child_can_keep_writing(room: Room) -> None:
    line = "(for i in $(seq 40); do echo tick; sleep 0.02; done; echo survived > /tmp/proof) & echo main"
    status, out, _ = await room.run(line)
    assert status.exit_code == 0
    assert out.startswith(b"main\n") or b"main\n" in out
    assert len(status.left) >= 1

    async def proof() -> bool:
        return (await room.run("/bin/cat", "/tmp/proof"))[1] == b"survived\n"

    async with asyncio.timeout(20):
        while not await proof():
            await asyncio.sleep(0.05)


async def test_missing_command_exits_with_127(room: Room) -> None:
    for argv in (["/bin/nope"], ["nope"], ["nope", "x"], ["./nope"]):
        stream = await room.keeper.start(ProcessSpec(id=f"p-{secrets.token_hex(5)}", argv=argv))
        err = b"".join([data async for _, data in stream])
        assert stream.exit.exit_code == 127
        assert b"command not found" in err


async def test_command_that_is_not_executable_exits_with_126(room: Room) -> None:
    for path in ("/etc/passwd", "/etc", "/dev/null"):
        status, _, err = await room.run(path)
        assert status.exit_code == 126
        assert err.startswith(path.encode())
    await room.keeper.files.write("/tmp/broken", b"\x7fELF nonsense", mode=0o755)
    status, _, _ = await room.run("/tmp/broken")
    assert status.exit_code == 126


async def test_inaccessible_cwd_is_rejected(room: Room) -> None:
    await room.keeper.files.mkdir("/tmp/closed", mode=0o700)
    for cwd, user in (("/nope", None), ("/etc/passwd", None), ("/tmp/closed", "nobody")):
        with pytest.raises(InvalidRequest, match="cwd"):
            await room.run("/bin/true", cwd=cwd, user=user)


async def test_command_starts_in_the_cwd(room: Room) -> None:
    await room.configure(cwd="/workspace")
    assert (await room.run("/bin/pwd"))[1] == b"/workspace\n"
    assert (await room.run("/bin/pwd", cwd="/usr/bin"))[1] == b"/usr/bin\n"


async def test_users_are_looked_up_inside(room: Room) -> None:
    _, out, _ = await room.run("/usr/bin/id", user="nobody")
    assert out.startswith(b"uid=65534(nobody) gid=65534(nogroup)")
    _, out, _ = await room.run("/usr/bin/id", user="4321:99")
    assert out == b"uid=4321 gid=99 groups=99\n"
    _, out, _ = await room.run("/usr/bin/env", user="nobody")
    assert b"USER=nobody\n" in out
    assert b"HOME=/nonexistent\n" in out
    assert b"PATH=/nonexistent/.local/bin:/run/skerry/bin:/usr/local/sbin:" in out
    for user in ("nosuchuser", "-1", "4294967295", "0x10", "1000:", "", "root\n"):
        if user:
            with pytest.raises(InvalidRequest, match="not found in the sandbox"):
                await room.run("/bin/true", user=user)


async def test_supplementary_groups_are_set(room: Room) -> None:
    await room.keeper.files.write(
        "/etc/passwd", b"root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nbroken\n"
    )
    await room.keeper.files.write("/etc/group", b"root:x:0:\nann:x:1000:\ngames:x:60:bob,ann\nvideo:x:44:bobann\n")
    _, out, _ = await room.run("/usr/bin/id", "-G", user="ann")
    assert out == b"1000 60\n"


async def test_fifo_in_place_of_an_account_file_does_not_hang(room: Room) -> None:
    assert (await room.run("rm /etc/passwd && mkfifo /etc/passwd"))[0].exit_code == 0
    assert (await room.run("/usr/bin/id", "-u", user="1234"))[1] == b"1234\n"
    with pytest.raises(InvalidRequest, match="not found in the sandbox"):
        await room.run("/bin/true", user="nobody")


async def test_the_environment_is_layered_and_null_unsets(room: Room) -> None:
    await room.configure(env={"A": "sandbox", "B": "sandbox", "C": "sandbox"})
    _, out, _ = await room.run("/usr/bin/env", env={"A": "call", "B": None, "HOME": None})
    lines = out.decode().splitlines()
    assert "A=call" in lines
    assert "C=sandbox" in lines
    assert not any(line.startswith(("B=", "HOME=")) for line in lines)


async def test_invalid_requests_are_rejected_by_name(room: Room) -> None:
    bad = [
        ({"argv": ["/bin/echo", "a\0b"]}, "NUL"),
        ({"argv": []}, "argv"),
        ({"argv": ["/bin/true"], "shell": "true"}, "argv"),
        ({"argv": ["/bin/true"], "env": {"A=B": "x"}}, "env"),
        ({"argv": ["/bin/true"], "env": {"": "x"}}, "env"),
        ({"argv": ["/bin/true"], "env": {"A": "x\0y"}}, "env"),
        ({"argv": ["/bin/true"], "cwd": "/a\0b"}, "NUL"),
        ({"argv": ["/bin/true"], "timeout_s": -1.0}, "timeout"),
        ({"argv": ["/bin/true"], "timeout_s": 1e300}, "timeout"),
    ]
    for values, message in bad:
        with pytest.raises(InvalidRequest, match=message):
            await room.keeper.start(ProcessSpec(id="p-aaaaaaaaaa", **values))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="id"):
        await room.keeper.start(ProcessSpec(id="../x", argv=["/bin/true"]))


async def test_id_cannot_be_reused(room: Room) -> None:
    command = spec("/bin/true")
    async for _ in await room.keeper.start(command):
        pass
    with pytest.raises(Conflict):
        await room.keeper.start(command)
    await room.keeper.remove(command.id)
    async for _ in await room.keeper.start(command):
        pass


async def test_finished_and_unknown_processes_are_reported(room: Room) -> None:
    command = spec("/bin/sleep", "1000")
    stream = await room.keeper.start(command)
    with pytest.raises(Conflict):
        await room.keeper.remove(command.id)
    await room.keeper.signal(command.id, "TERM")
    assert [frame async for frame in stream] == []
    with pytest.raises(Conflict):
        await room.keeper.signal(command.id, "TERM")
    with pytest.raises(NotFound):
        await room.keeper.signal("p-nothing", "TERM")
    with pytest.raises(InvalidRequest):
        await room.keeper.signal(command.id, "NOSUCH")
    listed = [p for p in await room.keeper.processes() if p.id == command.id]
    assert [(p.state, p.signal, p.exit_code, p.argv) for p in listed] == [
        ("exited", "TERM", None, ["/bin/sleep", "1000"])
    ]


async def test_slow_host_slows_the_program_and_loses_nothing(room: Room) -> None:
    line = "head -c 8000000 /dev/zero; echo sent > /tmp/sent"
    stream = await room.keeper.start(spec("/bin/sh", "-c", line, journal=1 << 20))
    first = await anext(stream)
    for _ in range(100):
        await room.keeper.hello()
    with pytest.raises(FileNotFound):
        await room.keeper.files.stat("/tmp/sent")
    total = len(first[1]) + sum([len(data) async for _, data in stream])
    assert total == 8_000_000
    assert stream.exit.exit_code == 0


async def test_thirty_concurrent_commands_have_separate_output(room: Room) -> None:
    results = await asyncio.gather(*(room.run("/bin/echo", str(n)) for n in range(30)))
    assert [out for _, out, _ in results] == [f"{n}\n".encode() for n in range(30)]


async def test_killed_launchers_are_replaced(room: Room) -> None:
    status, _, _ = await room.run("pkill -KILL -f 'skerry-keeper launcher'; sleep 5")
    assert status.signal == "KILL"
    with suppress(Conflict):  # the spare one was killed too, and that may not have been noticed yet
        await room.run("echo again")
    assert (await room.run("echo again"))[1] == b"again\n"


async def test_image_without_shell_and_accounts_works(tmp_path: Path) -> None:
    async with Room(tmp_path, bare=True) as room:
        status, out, _ = await room.run("/run/skerry/bin/skerry-keeper", "--version", user="1000")
        assert status.exit_code == 0
        assert out.startswith(b"skerry-keeper ")
        with pytest.raises(InvalidRequest, match="shell"):
            await room.run("echo hi")
        with pytest.raises(InvalidRequest, match="not found in the sandbox"):
            await room.run("/run/skerry/bin/skerry-keeper", "--version", user="user")
        assert (await room.run("/bin/sh"))[0].exit_code == 127


async def test_cgroups_of_ended_launchers_are_removed(room: Room) -> None:
    group = room.group
    assert group is not None
    for _ in range(5):
        await room.run("/bin/sleep", "100", timeout_s=0.05)
    await eventually(lambda: len(list(group.glob("c*/"))) <= 2)


async def test_fork_bomb_hits_its_limit_and_the_keeper_survives(room: Room) -> None:
    await room.configure(pids=300)
    bomb = (
        "import os, time, resource\n"
        "print(resource.getrlimit(resource.RLIMIT_NPROC)); n = 0\n"
        "try:\n"
        "    while True:\n"
        "        if os.fork() == 0: time.sleep(1000)\n"
        "        n += 1\n"
        "except BlockingIOError: print(n, flush=True)\n"
    )
    command = spec("/usr/bin/env", "python3", "-c", bomb, user="54321")
    stream = await room.keeper.start(command)
    out = b"".join([data async for kind, data in stream if kind == "stdout"])
    limits, count = out.decode().splitlines()
    assert limits == "(236, 236)"
    assert int(count) == 235
    tries = [room.keeper.spawn(spec("/bin/sleep", "1000", user="54321")) for _ in range(6)]
    results = await asyncio.gather(*tries, return_exceptions=True)
    assert any(isinstance(result, QuotaExceeded) for result in results)
    assert (await room.run("/bin/echo", "alive"))[1] == b"alive\n"
    await room.keeper.signal(command.id, "KILL")
    await eventually(lambda: not pids_with("time.sleep(1000)"))
    assert (await room.run("/bin/echo", "again", user="54321"))[1] == b"again\n"
