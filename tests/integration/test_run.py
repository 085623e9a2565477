"""Commands: correct results, complete kills of process trees, listed leftovers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from support.server import Server, wait_until

from skerry import AsyncSandbox, Limits, Sandbox
from skerry.errors import CommandFailed, CommandTimeout, InvalidRequest


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address, env={"MODE": "test"}) as sandbox:
        yield sandbox


def alive(sandbox: Sandbox, marker: str) -> bool:
    return sandbox.run(["pgrep", "-f", marker], user="root").ok


def test_first_example_of_the_readme(server: Server) -> None:
    limits = Limits(cpus=1, memory="512M")
    with Sandbox(limits=limits, env={"MODE": "test"}, server=server.address) as sandbox:
        result = sandbox.run("python3 -c 'print(6*7)'")
        assert result.stdout == "42\n"
        assert result.ok
        sandbox.files.write("/workspace/a.txt", "hello")
        assert sandbox.files.read_text("/workspace/a.txt") == "hello"
        assert sandbox.run("echo $MODE").stdout == "test\n"


async def test_async_client_does_the_same(server: Server) -> None:
    async with AsyncSandbox(server=server.address) as sandbox:
        assert (await sandbox.run("echo $((6*7))")).stdout == "42\n"
        await sandbox.files.write("/workspace/a", "x")
        assert await sandbox.files.read_text("/workspace/a") == "x"


def test_stdout_and_stderr_are_separate(sandbox: Sandbox) -> None:
    result = sandbox.run("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code, result.ok) == ("out\n", "err\n", 3, False)


def test_signal_is_reported_by_name(sandbox: Sandbox) -> None:
    result = sandbox.run("kill -SEGV $$")
    assert result.exit_code is None
    assert result.signal == "SEGV"


def test_check_raises_with_the_result(sandbox: Sandbox) -> None:
    with pytest.raises(CommandFailed) as failed:
        sandbox.run("echo why >&2; exit 4", check=True)
    assert failed.value.result is not None
    assert failed.value.result.exit_code == 4
    with pytest.raises(CommandTimeout) as timed_out:
        sandbox.run("sleep 30", timeout=0.3, check=True)
    assert timed_out.value.result is not None
    assert timed_out.value.result.timed_out


def test_output_is_streamed(sandbox: Sandbox) -> None:
    first = threading.Event()
    sandbox.files.write("/workspace/wait.py", "print('first', flush=True); open('/tmp/go').read(); print('second')")
    sandbox.run(["mkfifo", "/tmp/go"])

    def seen(output: object) -> None:
        if not first.is_set():
            first.set()
            threading.Thread(target=sandbox.run, args=("echo > /tmp/go",)).start()

    assert sandbox.run(["python3", "wait.py"], on_output=seen, timeout=20).stdout == "first\nsecond\n"


def test_list_is_an_argv_and_string_is_a_shell_line(sandbox: Sandbox) -> None:
    assert sandbox.run(["echo", "$HOME;", "*"]).stdout == "$HOME; *\n"
    assert sandbox.run("echo $HOME").stdout == "/home/user\n"


def test_user_env_and_cwd_are_per_call(sandbox: Sandbox) -> None:
    result = sandbox.run("id -un; pwd; echo $A-$MODE", user="root", cwd="/tmp", env={"A": "1", "MODE": None})
    assert result.stdout == "root\n/tmp\n1-\n"


def test_relative_cwd_is_below_the_working_directory_of_the_image(sandbox: Sandbox) -> None:
    sandbox.run("mkdir -p sub/deep /opt/away && ln -s /opt/away sub/link", user="root", check=True)
    session = sandbox.session("elsewhere", cwd="sub")
    session.run("cd /tmp", check=True)
    found = {
        cwd: [
            sandbox.run("pwd -P", cwd=cwd).stdout.strip(),
            sandbox.spawn(["pwd", "-P"], cwd=cwd).wait(60).stdout.strip(),
            session.run("pwd -P", cwd=cwd).stdout.strip(),
            sandbox.code.run("import os; print(os.getcwd())", cwd=cwd, fresh=True).stdout.strip(),
            sandbox.code.run("pwd -P", "bash", cwd=cwd, fresh=True).stdout.strip(),
        ]
        for cwd in ("sub/deep", "sub/link", "..")
    }
    assert found == {"sub/deep": ["/workspace/sub/deep"] * 5, "sub/link": ["/opt/away"] * 5, "..": ["/"] * 5}
    assert sandbox.code.context("python", cwd="sub").info().cwd == "/workspace/sub"
    with pytest.raises(InvalidRequest, match="cwd: /workspace/missing: no such"):
        sandbox.run("pwd", cwd="missing")


def test_timeout_kills_the_children_of_a_command(sandbox: Sandbox) -> None:
    result = sandbox.run("setsid sleep 4711 & (setsid nohup sleep 4711 &) ; sleep 4711", timeout=1)
    assert result.timed_out
    assert result.hint is not None
    assert "--timeout" in result.hint
    wait_until(lambda: not alive(sandbox, "sleep 4711"), "the whole tree to be gone")


def test_leftover_children_keep_running_and_are_listed_until_killed(sandbox: Sandbox) -> None:
    result = sandbox.run("setsid sleep 4712 >/dev/null 2>&1 & echo started")
    assert result.stdout == "started\n"
    assert result.duration_s < 10
    assert alive(sandbox, "sleep 4712")
    (listed,) = [process for process in sandbox.processes.list() if process.id == result.id]
    assert listed.state == "exited"
    assert len(listed.cached_info.children) == 1
    sandbox.processes.signal(result.id, "KILL")
    wait_until(lambda: not alive(sandbox, "sleep 4712"), "what was left behind to be gone")


def test_child_that_holds_the_pipe_does_not_delay_the_run(sandbox: Sandbox) -> None:
    result = sandbox.run("sleep 4713 & echo done")
    assert result.stdout == "done\n"
    sandbox.processes.signal(result.id, "KILL")


def test_disconnect_ends_the_command(server: Server, sandbox: Sandbox) -> None:
    with server.http() as http, http.stream(
        "POST", f"/v1/sandboxes/{sandbox.id}/processes?wait=true", json={"cmd": "echo go; sleep 4714"},
        headers={"Accept": "application/x-ndjson"},
    ) as answer:  # fmt: skip
        lines = answer.iter_lines()  # held: an iterator that is dropped closes the answer
        assert "started" in next(lines)
        wait_until(lambda: alive(sandbox, "sleep 4714"), "the command to be there")
    wait_until(lambda: not alive(sandbox, "sleep 4714"), "the command to be gone")


def test_sudo_runs_one_command_as_root(sandbox: Sandbox) -> None:
    assert sandbox.run("id -un; sudo id -un; sudo sh -c 'exit 7'; echo $?").stdout == "user\nroot\n7\n"
    assert sandbox.run("echo in | sudo tee /etc/from-sudo").stdout == "in\n"
    assert sandbox.files.stat("/etc/from-sudo").uid == 0


def test_sandbox_without_sudo_cannot_become_root(server: Server) -> None:
    from skerry import Options

    with Sandbox(server=server.address, options=Options(sudo=False)) as sandbox:
        assert not sandbox.run("sudo id").ok


def test_sudo_processes_end_with_the_command(sandbox: Sandbox) -> None:
    assert sandbox.run("sudo sleep 4715", timeout=1).timed_out
    wait_until(lambda: not alive(sandbox, "sleep 4715"), "root's part of the tree to be gone")


def test_oom_kill_with_two_running_commands_is_uncertain(server: Server) -> None:
    with Sandbox(server=server.address, limits=Limits(memory="256M")) as sandbox:
        other = threading.Thread(target=sandbox.run, args=("sleep 4716",), kwargs={"timeout": 60})
        other.start()
        wait_until(lambda: alive(sandbox, "sleep"), "the other command")
        result = sandbox.run(["python3", "-c", "x = bytearray(600 << 20)"])
        sandbox.run(["pkill", "sleep"])
        other.join()
    assert not result.ok
    assert result.oom_killed is None


def test_package_managers_work(sandbox: Sandbox) -> None:
    assert "pip" in sandbox.run("pip --version", check=True).stdout
    assert sandbox.run("python --version && node --version && npm --version && git --version && rg --version").ok
    assert sandbox.run("python3 -m venv /tmp/v && /tmp/v/bin/pip --version").ok
    assert sandbox.run("apt-get --version && dpkg -l adduser procps curl").ok
    assert sandbox.run("sudo adduser --disabled-password --gecos '' other && sudo -u other id -un").stdout.endswith(
        "other\n"
    )


def test_debugger_works_on_processes_of_the_same_user(sandbox: Sandbox) -> None:
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
    assert sandbox.run(["python3", "-c", code]).ok
