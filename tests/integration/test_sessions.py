"""Sessions in real sandboxes: what lasts, whose turn it is, and what a killed command leaves."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator

import httpx
import pytest
from serving import Server, wait_until

from skerry import AsyncSandbox, Limits, Options, Sandbox, Session
from skerry.errors import CommandFailed, Conflict, InvalidRequest, NotFound, QuotaExceeded, SkerryError

HEADROOM = "1G"


@pytest.fixture(scope="module")
def box(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address) as sandbox:
        yield sandbox


def alive(box: Sandbox, marker: str) -> bool:
    return box.run(["pgrep", "-f", marker], user="root").ok


def test_directory_variables_functions_and_options_last(box: Sandbox) -> None:
    session = box.session("build")
    session.run("mkdir -p src && cd src && export A=1; greet() { echo hello $1; }; set -o pipefail", check=True)
    result = session.run("pwd; echo $A; greet you; false | true")
    assert (result.stdout, result.exit_code) == ("/workspace/src\n1\nhello you\n", 1)
    assert session.cwd == result.cwd == "/workspace/src"


def test_a_session_and_the_journals_of_processes_share_a_directory_in_either_order(server: Server) -> None:
    with Sandbox(server=server.address) as one, Sandbox(server=server.address) as two:
        one.spawn("echo x").wait()
        assert one.session("after").run("echo x").stdout == "x\n"
        assert two.session("before").run("echo x").stdout == "x\n"
        assert two.spawn("echo x").wait().stdout == "x\n"
        for sandbox in (one, two):
            assert not sandbox.run("ls /var/lib/skerry/processes").ok


async def test_the_async_twin_does_the_same(server: Server) -> None:
    async with AsyncSandbox(server=server.address) as sandbox:
        session = await sandbox.session("build")
        await session.run("cd /usr && A=1")
        assert (await session.run("pwd; echo $A")).stdout == "/usr\n1\n"
        assert session.cwd == "/usr"
        assert [found.name for found in await sandbox.sessions.list()] == ["build"]
        await session.close()
        assert await sandbox.sessions.list() == []


def test_exit_code_stdout_and_stderr_stay_apart(box: Sandbox) -> None:
    result = box.session("apart").run("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code, result.hint) == ("out\n", "err\n", 3, None)
    with pytest.raises(CommandFailed, match="exit code 4"):
        box.session("apart").run("exit 4", check=True)


def test_a_command_of_a_session_is_as_one_outside_but_for_its_state(box: Sandbox) -> None:
    session = box.session("as-outside")
    for command in ("echo $PATH; id -un; umask; ulimit -n; pwd", "printenv | grep -v ^_= | grep -v ^SHLVL= | sort"):
        assert session.run(command).stdout == box.run(command).stdout
    heard: list[bytes] = []
    assert session.run("cat; echo", stdin="given", on_output=lambda output: heard.append(output.data)).ok
    assert b"".join(heard) == b"given\n"


def test_exit_leaves_the_session_with_its_state(box: Sandbox) -> None:
    session = box.session("exits")
    assert session.run("A=1; exit 3").exit_code == 3
    assert session.run("echo $? $A").stdout == "3 1\n"


def test_a_shell_killed_by_its_own_command_leaves_the_session_as_it_was(box: Sandbox) -> None:
    session = box.session("killed")
    session.run("A=1")
    result = session.run("A=2; kill -9 $$")
    assert (result.exit_code, result.signal) == (None, "KILL")
    assert result.hint is not None
    assert "as it was before this command" in result.hint
    assert session.run("echo $A").stdout == "1\n"


def test_a_command_that_times_out_is_killed_with_its_tree_and_the_session_lives_on(box: Sandbox) -> None:
    session = box.session("slow")
    earlier = session.run("cd /usr; A=1; setsid sleep 4801 >/dev/null 2>&1 & echo started")
    result = session.run("A=2; cd /; setsid sleep 4802 & sleep 4802", timeout=1)
    assert result.timed_out
    assert result.hint is not None
    assert "time-out" in result.hint
    assert "as it was before this command" in result.hint
    wait_until(lambda: not alive(box, "sleep 4802"), "the whole tree to be gone")
    assert alive(box, "sleep 4801"), "what an earlier command left is not touched"
    assert session.run("echo $A; pwd").stdout == "1\n/usr\n"
    box.processes.signal(earlier.id, "KILL")


def test_sessions_do_not_see_each_other(box: Sandbox) -> None:
    one, two = box.session("one"), box.session("two")
    one.run("cd /usr; A=1; f() { :; }")
    assert two.run("echo ${A-unset}; pwd; declare -F f").stdout == "unset\n/workspace\n"
    assert box.run("echo ${A-unset}; pwd").stdout == "unset\n/workspace\n"


class Gate:
    """A command that runs until it is let through."""

    def __init__(self, session: Session, box: Sandbox, line: str) -> None:
        self.path, self.box = f"/tmp/gate-{session.name}", box
        box.run(["mkfifo", self.path], check=True)
        self.thread = threading.Thread(target=session.run, args=(f"{line}; read -t 60 <> {self.path}",))
        self.thread.start()
        wait_until(lambda: session.info().busy, "it to run")

    def open(self) -> None:
        self.box.run(f"echo > {self.path}", check=True)
        self.thread.join(30)


def test_commands_of_one_session_run_one_after_another_and_in_order(box: Sandbox) -> None:
    session, other = box.session("queue"), box.session("beside")
    gate = Gate(session, box, "LOG=0")
    threads = []
    for number in range(1, 6):
        threads.append(threading.Thread(target=session.run, args=(f"LOG+={number}",)))
        threads[-1].start()
        wait_until(lambda count=number: session.info().waiting == count, "it to stand in the queue")
    assert other.run("echo free").stdout == "free\n"
    gate.open()
    for thread in threads:
        thread.join(30)
    assert session.run("echo $LOG").stdout == "012345\n"


def test_who_leaves_the_queue_leaves_it_cleanly(server: Server, box: Sandbox) -> None:
    session = box.session("left")
    gate = Gate(session, box, "LOG=first")
    body = {"cmd": "LOG+=gone", "session": "left"}
    with server.http() as http, pytest.raises(httpx.ReadTimeout):
        http.post(f"/v1/sandboxes/{box.id}/processes?wait=true", timeout=0.5, json=body)
    wait_until(lambda: session.info().waiting == 0, "the queue to be empty")
    last = threading.Thread(target=session.run, args=("LOG+=last",))
    last.start()
    gate.open()
    last.join(30)
    assert session.run("echo $LOG").stdout == "firstlast\n"


async def test_a_cancelled_call_frees_the_session_for_the_next(server: Server) -> None:
    async with AsyncSandbox(server=server.address) as sandbox:
        session = await sandbox.session("cut")
        await session.run("A=1")
        begun = asyncio.Event()
        running = asyncio.ensure_future(session.run("A=2; echo; sleep 4803", on_output=lambda _: begun.set()))
        async with asyncio.timeout(30):
            await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await session.run("echo $A", timeout=20)).stdout == "1\n"


async def test_the_queue_of_a_session_has_an_end(server: Server) -> None:
    async with AsyncSandbox(server=server.address) as sandbox:
        session = await sandbox.session("full")
        await sandbox.run(["mkfifo", "/tmp/gate"])
        begun = asyncio.Event()
        calls = [asyncio.ensure_future(session.run("echo; read <> /tmp/gate", on_output=lambda _: begun.set()))]
        async with asyncio.timeout(60):
            await begun.wait()
            calls += [asyncio.ensure_future(session.run("A+=x")) for _ in range(64)]
            while (await session.info()).waiting < 64:
                await asyncio.sleep(0.01)
        with pytest.raises(QuotaExceeded, match="wait for their turn"):
            await session.run("A+=y")
        await sandbox.run("echo > /tmp/gate")
        await asyncio.gather(*calls)
        assert (await session.run("echo ${#A}")).stdout == "64\n"


def test_sessions_survive_a_stop_of_the_sandbox_and_the_death_of_the_server(own_server: Server) -> None:
    own_server.start()
    sandbox = Sandbox.create(name="lasting", server=own_server.address)
    session = sandbox.session("work", env={"MODE": "session"})
    session.run("cd /usr; A=1; f() { echo f; }")
    sandbox.stop()
    assert session.run("pwd; echo $A $MODE; f").stdout == "/usr\n1 session\nf\n"
    own_server.end(signal.SIGKILL)
    own_server.start()
    again = Sandbox.get("lasting", server=own_server.address)
    assert [(found.name, found.cwd) for found in again.sessions.list()] == [("work", "/usr")]
    assert again.sessions.get("work").run("pwd; echo $A $MODE; f").stdout == "/usr\n1 session\nf\n"
    again.delete()
    own_server.end()


def test_a_server_killed_in_the_middle_of_a_command_leaves_the_session_as_it_was(own_server: Server) -> None:
    own_server.start()
    sandbox = Sandbox.create(name="cut", server=own_server.address)
    session = sandbox.session("work")
    session.run("A=1")
    begun = threading.Event()

    def run() -> None:
        with contextlib.suppress(SkerryError):
            session.run("A=2; echo; sleep 4804", on_output=lambda _: begun.set())

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(30)
    own_server.end(signal.SIGKILL)
    thread.join(30)
    own_server.start()
    again = Sandbox.get("cut", server=own_server.address)
    wait_until(lambda: not alive(again, "sleep 4804"), "the command to be gone")
    assert again.session("work").run("echo $A").stdout == "1\n"
    again.delete()
    own_server.end()


def test_a_session_of_a_name_is_made_once(box: Sandbox) -> None:
    first = box.session("same", cwd="/usr", env={"A": "1", "PATH": None})
    first.run("B=2")
    again = box.session("same", cwd="/tmp", env={"A": "other"})
    assert again.run("echo $A $B ${PATH-unset}; pwd").stdout == "1 2 unset\n/usr\n"
    with pytest.raises(Conflict, match="user's"):
        box.session("same", user="root")
    assert box.session("same", user="user").user == "user"


def test_a_session_has_a_user_of_its_own(box: Sandbox) -> None:
    session = box.session("admin", user="root")
    assert session.run("id -un; cd /root; echo $HOME").stdout == "root\n/root\n"
    assert session.run("pwd; touch /etc/by-root").ok
    with pytest.raises(InvalidRequest, match="root's"):
        _post(box, {"cmd": "id", "session": "admin", "user": "user"})


def _post(box: Sandbox, body: dict[str, object], wait: bool = True) -> None:
    from skerry.client.requests import json_request, sandbox_path

    request = json_request("POST", sandbox_path(box.id, "processes") + f"?wait={str(wait).lower()}", body)
    box.client.value(request, dict)


def test_a_session_that_is_closed_is_gone(box: Sandbox) -> None:
    session = box.session("over")
    session.run("A=1; setsid sleep 4805 >/dev/null 2>&1 &")
    session.close()
    with pytest.raises(NotFound, match="no session 'over'"):
        session.run("echo $A")
    for call in (session.close, session.info, lambda: box.sessions.get("over")):
        with pytest.raises(NotFound):
            call()
    assert box.session("over").run("echo ${A-unset}").stdout == "unset\n"
    assert alive(box, "sleep 4805"), "what it started lives on"
    box.run(["pkill", "-f", "sleep 4805"])


def test_a_session_is_not_closed_under_a_running_command(box: Sandbox) -> None:
    session = box.session("open")
    gate = Gate(session, box, "A=1")
    with pytest.raises(Conflict, match="is running"):
        session.close()
    gate.open()
    assert session.run("echo $A").stdout == "1\n"
    session.close()


@pytest.mark.parametrize("name", ["", "A", "a/b", "..", "a b", "-a", "a" * 64, "a\n"])
def test_a_name_that_can_t_be_is_refused(box: Sandbox, name: str) -> None:
    with pytest.raises(InvalidRequest, match="name"):
        box.session(name)
    with pytest.raises(NotFound):
        box.sessions.get(name)


def test_nonsense_is_refused(box: Sandbox) -> None:
    with pytest.raises(InvalidRequest, match="can't be a shell's variable"):
        box.session("nonsense", env={"a.b": "1"})
    with pytest.raises(InvalidRequest, match="not absolute"):
        box.session("nonsense", cwd="src")
    with pytest.raises(FileNotFoundError):
        box.session("nonsense", cwd="/not/there")
    with pytest.raises(InvalidRequest, match="not a directory"):
        box.session("nonsense", cwd="/etc/passwd")
    with pytest.raises(InvalidRequest):
        box.session("nonsense", user="nobody-of-that-name")
    assert "nonsense" not in [found.name for found in box.sessions.list()]
    session = box.session("nonsense")
    with pytest.raises(InvalidRequest, match="terminal"):
        _post(box, {"cmd": "id", "session": "nonsense", "pty": {}})
    with pytest.raises(InvalidRequest, match="waited for"):
        _post(box, {"cmd": "id", "session": "nonsense"}, wait=False)
    with pytest.raises(InvalidRequest, match="cwd"):
        session.run("pwd", cwd="/not/there")


def test_a_sandbox_has_a_bounded_number_of_sessions(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox:
        for number in range(64):
            sandbox.session(f"s{number}")
        with pytest.raises(QuotaExceeded, match="64 sessions"):
            sandbox.session("one-more")
        sandbox.sessions.get("s0").close()
        assert len(sandbox.sessions.list()) == 63
        assert sandbox.session("one-more").run("echo $((6*7))").stdout == "42\n"


def test_a_long_command_and_an_argv_work(box: Sandbox) -> None:
    session = box.session("long")
    text = "x" * 300_000
    assert session.run(f"A='{text}'; echo ${{#A}}").stdout == "300000\n"
    assert session.run('echo ${#A}; f() { echo "$#:$1"; }').stdout == "300000\n"
    assert session.run(["f", "a b", "$A"]).stdout == "2:a b\n"
    assert session.run(["cd", "/usr"]).cwd == "/usr"


def test_the_list_of_processes_shows_the_command_and_its_session(box: Sandbox) -> None:
    session = box.session("shown")
    result = session.run("echo this is shown")
    (found,) = [process.known for process in box.processes.list() if process.id == result.id]
    assert (found.cmd, found.session) == ("echo this is shown", "shown")


def test_no_user_makes_a_session_anothers(server: Server) -> None:
    """Where there is no sudo, a session of root's is the way up that must not be."""
    with Sandbox(server=server.address, options=Options(sudo=False)) as sandbox:
        session = sandbox.session("mine")
        for line in (
            'echo \'{"user":"root","created_at":1}\' > /var/lib/skerry/sessions/mine/session.json',
            "mv /var/lib/skerry/sessions/mine /tmp/",
            "rm -rf /var/lib/skerry/sessions/mine/session.json",
            "ln -s /etc /var/lib/skerry/sessions/other",
        ):
            assert not session.run(line).ok
        sandbox.run("cd /var/lib/skerry/sessions/mine/state; rm -f *; ln -s /etc/shadow last; ln -s /etc/passwd shell")
        session.run("true")
        assert session.run("id -un").stdout == "user\n"
        assert "user:x:1000" in sandbox.files.read_text("/etc/passwd")
        assert session.info().cwd.startswith("/")


def test_what_a_session_of_roots_knows_is_closed_to_others(server: Server) -> None:
    with Sandbox(server=server.address, options=Options(sudo=False)) as sandbox:
        sandbox.session("roots", user="root").run("PASSWORD=secret")
        assert sandbox.run("ls /var/lib/skerry/sessions/roots").ok
        assert not sandbox.run("cat /var/lib/skerry/sessions/roots/state/*").ok


@pytest.mark.parametrize(
    "harm",
    [
        "echo nonsense > /var/lib/skerry/sessions/hurt/session.json",
        "head -c 100M /dev/zero > /var/lib/skerry/sessions/hurt/session.json",
        "cd /var/lib/skerry/sessions/hurt; rm session.json; mkfifo session.json",
        "cd /var/lib/skerry/sessions/hurt; rm session.json; ln -s /dev/zero session.json",
        "cd /var/lib/skerry/sessions/hurt/state; rm -rf last; mkdir last; rm -f shell; mkfifo shell",
        "cd /var/lib/skerry/sessions/hurt/state; head -c 100M /dev/zero | tee 0 1 > last",
    ],
)
def test_harm_done_by_root_inside_costs_its_own_session_only(box: Sandbox, harm: str) -> None:
    session, other = box.session("hurt"), box.session("unhurt")
    other.run("A=1")
    box.run(harm, user="root", check=True)
    with contextlib.suppress(SkerryError):
        session.run("true", timeout=2)
        session.run("true", timeout=2)
    assert [found.name for found in box.sessions.list() if found.name == "unhurt"] == ["unhurt"]
    assert other.run("echo $A").stdout == "1\n"
    session.close()
    assert box.session("hurt").run("echo whole").stdout == "whole\n"


def test_a_session_whose_files_were_cleared_away_mends_itself(box: Sandbox) -> None:
    session = box.session("cleared")
    session.run("A=1; rm -rf /var/lib/skerry/sessions/cleared/state/*")
    session.run("true")
    assert session.run("A=2").ok
    assert session.run("echo $A").stdout == "2\n"


def test_a_full_disk_leaves_the_old_state(server: Server) -> None:
    with Sandbox(server=server.address, limits=Limits(disk="64M")) as sandbox:
        session = sandbox.session("full")
        session.run("A=1")
        result = session.run("A=2; dd if=/dev/zero of=/workspace/fill bs=1M 2>/dev/null; B=$(seq 20000)")
        sandbox.run("rm /workspace/fill")
        if result.hint is not None:
            assert session.run("echo $A").stdout == "1\n"
        else:
            assert session.run("echo $A").stdout == "2\n"


def test_without_bash_the_refusal_says_so(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox:
        sandbox.run("rm /bin/bash", user="root", check=True)
        with pytest.raises(InvalidRequest, match="sessions need bash"):
            sandbox.session("none")
