"""Running commands: results tell the truth, trees die whole, what is left behind is listed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from serving import Server, wait_until

from skerry import AsyncSandbox, Limits, Sandbox
from skerry.errors import CommandFailed, CommandTimeout


@pytest.fixture(scope="module")
def box(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address, env={"MODE": "test"}) as sandbox:
        yield sandbox


def alive(box: Sandbox, marker: str) -> bool:
    return box.run(["pgrep", "-f", marker], user="root").ok


def test_the_first_example_of_the_readme(server: Server) -> None:
    limits = Limits(cpus=1, memory="512M")
    with Sandbox(limits=limits, env={"MODE": "test"}, server=server.address) as sandbox:
        result = sandbox.run("python3 -c 'print(6*7)'")
        assert result.stdout == "42\n"
        assert result.ok
        sandbox.files.write("/workspace/a.txt", "hello")
        assert sandbox.files.read_text("/workspace/a.txt") == "hello"
        assert sandbox.run("echo $MODE").stdout == "test\n"


async def test_the_async_twin_does_the_same(server: Server) -> None:
    async with AsyncSandbox(server=server.address) as sandbox:
        assert (await sandbox.run("echo $((6*7))")).stdout == "42\n"
        await sandbox.files.write("/workspace/a", "x")
        assert await sandbox.files.read_text("/workspace/a") == "x"


def test_stdout_and_stderr_stay_apart(box: Sandbox) -> None:
    result = box.run("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code, result.ok) == ("out\n", "err\n", 3, False)


def test_a_signal_is_told_by_name(box: Sandbox) -> None:
    result = box.run("kill -SEGV $$")
    assert result.exit_code is None
    assert result.signal == "SEGV"


def test_check_raises_with_the_result(box: Sandbox) -> None:
    with pytest.raises(CommandFailed) as failed:
        box.run("echo why >&2; exit 4", check=True)
    assert failed.value.result is not None
    assert failed.value.result.exit_code == 4
    with pytest.raises(CommandTimeout) as timed_out:
        box.run("sleep 30", timeout=0.3, check=True)
    assert timed_out.value.result is not None
    assert timed_out.value.result.timed_out


def test_output_streams_as_it_comes(box: Sandbox) -> None:
    first = threading.Event()
    box.files.write("/workspace/wait.py", "print('first', flush=True); open('/tmp/go').read(); print('second')")
    box.run(["mkfifo", "/tmp/go"])

    def seen(output: object) -> None:
        if not first.is_set():
            first.set()
            threading.Thread(target=box.run, args=("echo > /tmp/go",)).start()

    assert box.run(["python3", "wait.py"], on_output=seen, timeout=20).stdout == "first\nsecond\n"


def test_a_list_is_an_argv_and_a_string_a_shell_line(box: Sandbox) -> None:
    assert box.run(["echo", "$HOME;", "*"]).stdout == "$HOME; *\n"
    assert box.run("echo $HOME").stdout == "/home/user\n"


def test_user_env_and_cwd_are_per_call(box: Sandbox) -> None:
    result = box.run("id -un; pwd; echo $A-$MODE", user="root", cwd="/tmp", env={"A": "1", "MODE": None})
    assert result.stdout == "root\n/tmp\n1-\n"


def test_a_timed_out_command_takes_its_children_with_it(box: Sandbox) -> None:
    result = box.run("setsid sleep 4711 & (setsid nohup sleep 4711 &) ; sleep 4711", timeout=1)
    assert result.timed_out
    assert result.hint is not None
    assert "--timeout" in result.hint
    wait_until(lambda: not alive(box, "sleep 4711"), "the whole tree to be gone")


def test_children_left_behind_live_on_and_are_listed_until_killed(box: Sandbox) -> None:
    result = box.run("setsid sleep 4712 >/dev/null 2>&1 & echo started")
    assert result.stdout == "started\n"
    assert result.duration_s < 10
    assert alive(box, "sleep 4712")
    (listed,) = [process for process in box.processes.list() if process.id == result.id]
    assert listed.state == "exited"
    assert len(listed.known.children) == 1
    box.processes.signal(result.id, "KILL")
    wait_until(lambda: not alive(box, "sleep 4712"), "what was left behind to be gone")


def test_a_child_that_holds_the_pipe_does_not_hold_the_run(box: Sandbox) -> None:
    result = box.run("sleep 4713 & echo done")
    assert result.stdout == "done\n"
    box.processes.signal(result.id, "KILL")


def test_a_caller_that_goes_away_ends_its_command(server: Server, box: Sandbox) -> None:
    with server.http() as http, http.stream(
        "POST", f"/v1/sandboxes/{box.id}/processes?wait=true", json={"cmd": "echo go; sleep 4714"},
        headers={"Accept": "application/x-ndjson"},
    ) as answer:  # fmt: skip
        lines = answer.iter_lines()  # held: an iterator that is dropped closes the answer
        assert "started" in next(lines)
        wait_until(lambda: alive(box, "sleep 4714"), "the command to be there")
    wait_until(lambda: not alive(box, "sleep 4714"), "the command to be gone")


def test_sudo_runs_one_command_as_root(box: Sandbox) -> None:
    assert box.run("id -un; sudo id -un; sudo sh -c 'exit 7'; echo $?").stdout == "user\nroot\n7\n"
    assert box.run("echo in | sudo tee /etc/from-sudo").stdout == "in\n"
    assert box.files.stat("/etc/from-sudo").uid == 0


def test_without_sudo_there_is_no_way_to_root(server: Server) -> None:
    from skerry import Options

    with Sandbox(server=server.address, options=Options(sudo=False)) as sandbox:
        assert not sandbox.run("sudo id").ok


def test_what_sudo_started_dies_with_the_command(box: Sandbox) -> None:
    assert box.run("sudo sleep 4715", timeout=1).timed_out
    wait_until(lambda: not alive(box, "sleep 4715"), "root's part of the tree to be gone")


def test_where_two_commands_ran_an_oom_kill_is_no_ones_for_certain(server: Server) -> None:
    with Sandbox(server=server.address, limits=Limits(memory="256M")) as sandbox:
        other = threading.Thread(target=sandbox.run, args=("sleep 4716",), kwargs={"timeout": 60})
        other.start()
        wait_until(lambda: alive(sandbox, "sleep"), "the other command")
        result = sandbox.run(["python3", "-c", "x = bytearray(600 << 20)"])
        sandbox.run(["pkill", "sleep"])
        other.join()
    assert not result.ok
    assert result.oom_killed is None


def test_package_managers_find_what_they_need(box: Sandbox) -> None:
    assert "pip" in box.run("pip --version", check=True).stdout
    assert box.run("python --version && node --version && npm --version && git --version && rg --version").ok
    assert box.run("python3 -m venv /tmp/v && /tmp/v/bin/pip --version").ok
    assert box.run("apt-get --version && dpkg -l adduser procps curl").ok
    assert box.run("sudo adduser --disabled-password --gecos '' other && sudo -u other id -un").stdout.endswith(
        "other\n"
    )


def test_a_debugger_works_on_ones_own_processes(box: Sandbox) -> None:
    code = (
        "import ctypes, os, signal\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    libc.ptrace(0, 0, 0, 0); os.kill(os.getpid(), signal.SIGSTOP); os._exit(0)\n"
        "_, status = os.waitpid(pid, 0)\n"
        "assert os.WIFSTOPPED(status)\n"
        "assert libc.ptrace(7, pid, 0, 0) == 0\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
    )
    assert box.run(["python3", "-c", code]).ok
