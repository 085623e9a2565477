"""Sessions in real sandboxes: persistence, queueing, and killed commands."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading

import httpx2
import pytest
from support.server import Server, wait_until

from skerry import AsyncSandbox, Limits, Options, Sandbox, Session
from skerry.errors import CommandFailed, Conflict, InvalidRequest, NotFound, QuotaExceeded, SkerryError

HEADROOM = "1G"


def alive(sandbox: Sandbox, marker: str) -> bool:
    return sandbox.run(["pgrep", "-f", marker], user="root").ok


def test_directory_variables_functions_and_options_persist(sandbox: Sandbox) -> None:
    session = sandbox.session("build")
    session.run("mkdir -p src && cd src && export A=1; greet() { echo hello $1; }; set -o pipefail", check=True)
    result = session.run("pwd; echo $A; greet you; false | true")
    assert (result.stdout, result.exit_code) == ("/workspace/src\n1\nhello you\n", 1)
    assert session.cwd == result.cwd == "/workspace/src"


def test_session_and_process_journals_share_a_directory_in_either_order(server: Server) -> None:
    with Sandbox(server=server.address) as one, Sandbox(server=server.address) as two:
        one.spawn("echo x").wait()
        assert one.session("after").run("echo x").stdout == "x\n"
        assert two.session("before").run("echo x").stdout == "x\n"
        assert two.spawn("echo x").wait().stdout == "x\n"
        for sandbox in (one, two):
            assert not sandbox.run("ls /var/lib/skerry/processes").ok


async def test_async_client_does_the_same(server: Server) -> None:
    async with AsyncSandbox(server=server.address) as sandbox:
        session = await sandbox.session("build")
        await session.run("cd /usr && A=1")
        assert (await session.run("pwd; echo $A")).stdout == "/usr\n1\n"
        assert session.cwd == "/usr"
        assert [found.name for found in await sandbox.sessions.list()] == ["build"]
        await session.close()
        assert await sandbox.sessions.list() == []


def test_exit_code_stdout_and_stderr_are_separate(sandbox: Sandbox) -> None:
    result = sandbox.session("apart").run("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code, result.hint) == ("out\n", "err\n", 3, None)
    with pytest.raises(CommandFailed, match="exit code 4"):
        sandbox.session("apart").run("exit 4", check=True)


def test_session_command_equals_a_plain_command_except_for_its_state(sandbox: Sandbox) -> None:
    session = sandbox.session("as-outside")
    for command in ("echo $PATH; id -un; umask; ulimit -n; pwd", "printenv | grep -v ^_= | grep -v ^SHLVL= | sort"):
        assert session.run(command).stdout == sandbox.run(command).stdout
    heard: list[bytes] = []
    assert session.run("cat; echo", stdin="given", on_output=lambda output: heard.append(output.data)).ok
    assert b"".join(heard) == b"given\n"


def test_exit_keeps_the_session_state(sandbox: Sandbox) -> None:
    session = sandbox.session("exits")
    assert session.run("A=1; exit 3").exit_code == 3
    assert session.run("echo $? $A").stdout == "3 1\n"


def test_shell_killed_by_its_command_leaves_the_session_unchanged(sandbox: Sandbox) -> None:
    session = sandbox.session("killed")
    session.run("A=1")
    result = session.run("A=2; kill -9 $$")
    assert (result.exit_code, result.signal) == (None, "KILL")
    assert result.hint is not None
    assert "as it was before this command" in result.hint
    assert session.run("echo $A").stdout == "1\n"


def test_timed_out_command_is_killed_with_its_tree_and_the_session_continues(sandbox: Sandbox) -> None:
    session = sandbox.session("slow")
    earlier = session.run("cd /usr; A=1; setsid sleep 4801 >/dev/null 2>&1 & echo started")
    result = session.run("A=2; cd /; setsid sleep 4802 & sleep 4802", timeout=1)
    assert result.timed_out
    assert result.hint is not None
    assert "timeout" in result.hint
    assert "as it was before this command" in result.hint
    wait_until(lambda: not alive(sandbox, "sleep 4802"), "the whole tree to be gone")
    assert alive(sandbox, "sleep 4801"), "what an earlier command left is not touched"
    assert session.run("echo $A; pwd").stdout == "1\n/usr\n"
    sandbox.processes.signal(earlier.id, "KILL")


def test_sessions_are_separate(sandbox: Sandbox) -> None:
    one, two = sandbox.session("one"), sandbox.session("two")
    one.run("cd /usr; A=1; f() { :; }")
    assert two.run("echo ${A-unset}; pwd; declare -F f").stdout == "unset\n/workspace\n"
    assert sandbox.run("echo ${A-unset}; pwd").stdout == "unset\n/workspace\n"


class Gate:
    """A command that runs until it is let through."""

    def __init__(self, session: Session, sandbox: Sandbox, line: str) -> None:
        self.path, self.sandbox = f"/tmp/gate-{session.name}", sandbox
        sandbox.run(["mkfifo", self.path], check=True)
        self.thread = threading.Thread(target=session.run, args=(f"{line}; read -t 60 <> {self.path}",))
        self.thread.start()
        wait_until(lambda: session.info().busy, "it to run")

    def open(self) -> None:
        self.sandbox.run(f"echo > {self.path}", check=True)
        self.thread.join(30)


def test_commands_of_one_session_are_serialised_in_order(sandbox: Sandbox) -> None:
    session, other = sandbox.session("queue"), sandbox.session("beside")
    gate = Gate(session, sandbox, "LOG=0")
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


def test_disconnect_in_the_queue_removes_the_command(server: Server, sandbox: Sandbox) -> None:
    session = sandbox.session("left")
    gate = Gate(session, sandbox, "LOG=first")
    body = {"cmd": "LOG+=gone", "session": "left"}
    with server.http() as http, pytest.raises(httpx2.ReadTimeout):
        http.post(f"/v1/sandboxes/{sandbox.id}/processes?wait=true", timeout=0.5, json=body)
    wait_until(lambda: session.info().waiting == 0, "the queue to be empty")
    last = threading.Thread(target=session.run, args=("LOG+=last",))
    last.start()
    gate.open()
    last.join(30)
    assert session.run("echo $LOG").stdout == "firstlast\n"


async def test_cancelled_call_frees_the_session(server: Server) -> None:
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


async def test_queue_of_a_session_is_bounded(server: Server) -> None:
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
        with pytest.raises(QuotaExceeded, match="already waiting"):
            await session.run("A+=y")
        await sandbox.run("echo > /tmp/gate")
        await asyncio.gather(*calls)
        assert (await session.run("echo ${#A}")).stdout == "64\n"


def test_sessions_survive_a_stop_and_a_server_crash(own_server: Server) -> None:
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


def test_server_crash_during_a_command_leaves_the_session_unchanged(own_server: Server) -> None:
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


def test_session_with_a_name_is_created_once(sandbox: Sandbox) -> None:
    first = sandbox.session("same", cwd="/usr", env={"A": "1", "PATH": None})
    first.run("B=2")
    again = sandbox.session("same", cwd="/tmp", env={"A": "other"})
    assert again.run("echo $A $B ${PATH-unset}; pwd").stdout == "1 2 unset\n/usr\n"
    with pytest.raises(Conflict, match="user's"):
        sandbox.session("same", user="root")
    assert sandbox.session("same", user="user").user == "user"


def test_session_has_a_user(sandbox: Sandbox) -> None:
    session = sandbox.session("admin", user="root")
    assert session.run("id -un; cd /root; echo $HOME").stdout == "root\n/root\n"
    assert session.run("pwd; touch /etc/by-root").ok
    with pytest.raises(InvalidRequest, match="root's"):
        _post(sandbox, {"cmd": "id", "session": "admin", "user": "user"})


def _post(sandbox: Sandbox, body: dict[str, object], wait: bool = True) -> None:
    from skerry.client.transport.requests.sandboxes import json_request, sandbox_path

    request = json_request("POST", sandbox_path(sandbox.id, "processes") + f"?wait={str(wait).lower()}", body)
    sandbox.client.request_json(request, dict)


def test_closed_session_is_gone(sandbox: Sandbox) -> None:
    session = sandbox.session("over")
    session.run("A=1; setsid sleep 4805 >/dev/null 2>&1 &")
    session.close()
    with pytest.raises(NotFound, match="session 'over' not found"):
        session.run("echo $A")
    for call in (session.close, session.info, lambda: sandbox.sessions.get("over")):
        with pytest.raises(NotFound):
            call()
    assert sandbox.session("over").run("echo ${A-unset}").stdout == "unset\n"
    assert alive(sandbox, "sleep 4805"), "what it started lives on"
    sandbox.run(["pkill", "-f", "sleep 4805"])


def test_session_with_a_running_command_cannot_be_closed(sandbox: Sandbox) -> None:
    session = sandbox.session("open")
    gate = Gate(session, sandbox, "A=1")
    with pytest.raises(Conflict, match="is running"):
        session.close()
    gate.open()
    assert session.run("echo $A").stdout == "1\n"
    session.close()


@pytest.mark.parametrize("name", ["", "A", "a/b", "..", "a b", "-a", "a" * 64, "a\n"])
def test_invalid_name_is_rejected(sandbox: Sandbox, name: str) -> None:
    with pytest.raises(InvalidRequest, match="name"):
        sandbox.session(name)
    with pytest.raises(NotFound):
        sandbox.sessions.get(name)


def test_invalid_request_is_rejected(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidRequest, match="can't be a shell's variable"):
        sandbox.session("nonsense", env={"a.b": "1"})
    with pytest.raises(FileNotFoundError):
        sandbox.session("nonsense", cwd="not/there")
    with pytest.raises(FileNotFoundError):
        sandbox.session("nonsense", cwd="/not/there")
    with pytest.raises(InvalidRequest, match="not a directory"):
        sandbox.session("nonsense", cwd="/etc/passwd")
    with pytest.raises(InvalidRequest):
        sandbox.session("nonsense", user="nobody-of-that-name")
    assert "nonsense" not in [found.name for found in sandbox.sessions.list()]
    session = sandbox.session("nonsense")
    with pytest.raises(InvalidRequest, match="terminal"):
        _post(sandbox, {"cmd": "id", "session": "nonsense", "pty": {}})
    with pytest.raises(NotFound, match="session"):
        _post(sandbox, {"cmd": "id", "session": "not-there"}, wait=False)
    with pytest.raises(InvalidRequest, match="cwd"):
        session.run("pwd", cwd="/not/there")


def test_number_of_sessions_is_bounded(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox:
        for number in range(64):
            sandbox.session(f"s{number}")
        with pytest.raises(QuotaExceeded, match="64 sessions"):
            sandbox.session("one-more")
        sandbox.sessions.get("s0").close()
        assert len(sandbox.sessions.list()) == 63
        assert sandbox.session("one-more").run("echo $((6*7))").stdout == "42\n"


def test_long_command_and_argv_work(sandbox: Sandbox) -> None:
    session = sandbox.session("long")
    text = "x" * 300_000
    assert session.run(f"A='{text}'; echo ${{#A}}").stdout == "300000\n"
    assert session.run('echo ${#A}; f() { echo "$#:$1"; }').stdout == "300000\n"
    assert session.run(["f", "a b", "$A"]).stdout == "2:a b\n"
    assert session.run(["cd", "/usr"]).cwd == "/usr"


def test_process_list_shows_the_command_and_its_session(sandbox: Sandbox) -> None:
    session = sandbox.session("shown")
    result = session.run("echo this is shown")
    (found,) = [process.cached_info for process in sandbox.processes.list() if process.id == result.id]
    assert (found.cmd, found.session) == ("echo this is shown", "shown")


def test_user_cannot_turn_a_session_into_a_root_session(server: Server) -> None:
    """Without sudo, a root session would be a privilege escalation."""
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


def test_state_of_a_root_session_is_private(server: Server) -> None:
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
def test_damage_by_root_affects_only_its_session(sandbox: Sandbox, harm: str) -> None:
    session, other = sandbox.session("hurt"), sandbox.session("unhurt")
    other.run("A=1")
    sandbox.run(harm, user="root", check=True)
    with contextlib.suppress(SkerryError):
        session.run("true", timeout=2)
        session.run("true", timeout=2)
    assert [found.name for found in sandbox.sessions.list() if found.name == "unhurt"] == ["unhurt"]
    assert other.run("echo $A").stdout == "1\n"
    session.close()
    assert sandbox.session("hurt").run("echo whole").stdout == "whole\n"


def test_session_with_deleted_files_recovers(sandbox: Sandbox) -> None:
    session = sandbox.session("cleared")
    session.run("A=1; rm -rf /var/lib/skerry/sessions/cleared/state/*")
    session.run("true")
    assert session.run("A=2").ok
    assert session.run("echo $A").stdout == "2\n"


def test_full_disk_keeps_the_old_state(server: Server) -> None:
    with Sandbox(server=server.address, limits=Limits(disk="64M")) as sandbox:
        session = sandbox.session("full")
        session.run("A=1")
        result = session.run("A=2; dd if=/dev/zero of=/workspace/fill bs=1M 2>/dev/null; B=$(seq 20000)")
        sandbox.run("rm /workspace/fill")
        if result.hint is not None:
            assert session.run("echo $A").stdout == "1\n"
        else:
            assert session.run("echo $A").stdout == "2\n"


def test_session_works_on_a_full_disk_and_recovers(server: Server) -> None:
    fill = "dd if=/dev/zero of=/workspace/big bs=1M; dd if=/dev/zero of=/workspace/rest bs=4k"
    with Sandbox(server=server.address, name="full-session", limits=Limits(disk="64M")) as sandbox:
        session = sandbox.session("work")
        session.run("mkdir d; cd d; A=1; greet() { echo hello; }", check=True)
        assert "quota" in sandbox.run(fill).stderr
        for env in ({}, {"A": "7"}, {}):
            result = session.run("echo ${A-}; greet; pwd; A=2; cd /", env=env)
            assert (result.stdout, result.cwd) == (f"{env.get('A', 1)}\nhello\n/workspace/d\n", "/workspace/d")
            assert result.hint is not None
            assert "the disk is full: the session is as it was before" in result.hint
        sandbox.stop()
        result = session.run("echo $A; greet")
        assert result.stdout == "1\nhello\n", "also after a start on a full disk, which is not read-only"
        session.run("rm -f /workspace/big /workspace/rest", env={"A": "7"}, check=True)
        wait_until(lambda: session.run("A=3").hint is None, "the file system has freed the space")
        result = session.run("echo $A; greet; pwd")
        assert (result.stdout, result.hint) == ("3\nhello\n/workspace/d\n", None)
        sandbox.delete()


def test_missing_bash_is_reported(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox:
        sandbox.run("rm /bin/bash", user="root", check=True)
        with pytest.raises(InvalidRequest, match="sessions need bash"):
            sandbox.session("none")


def test_session_has_files_processes_code_and_a_timeout(sandbox: Sandbox) -> None:
    session = sandbox.session("parts", timeout=77)
    session.run("mkdir -p deep && cd deep && export A=1 && twice() { echo $1$1; }", check=True)
    session.files.write("one.txt", "x")
    assert sandbox.files.read_text("/workspace/deep/one.txt") == "x"
    session.files.move("one.txt", "two.txt")
    session.files.link("two.txt", "soft")
    assert [entry.name for entry in session.files.list()] == ["soft", "two.txt"]
    assert session.files.read_text("soft") == "x"
    assert session.files.exists("/workspace/deep/two.txt")

    started = session.spawn("twice ab; echo $A $B $PWD; cd /; A=9", env={"B": "2"})
    assert started.wait().stdout == "abab\n1 2 /workspace/deep\n"
    assert session.run("echo $A ${B-none} $PWD").stdout == "1 none /workspace/deep\n"  # nothing of it was kept

    assert session.code.run("import os; x = (os.getcwd(), os.environ['A']); x").text == "('/workspace/deep', '1')"
    assert session.code.run("x[1]", "py").text == "'1'"  # one context for all names of a language
    for call in (session.code.run, sandbox.code.run):
        with pytest.raises(InvalidRequest, match=r"not 3\.999"):
            call("x", "python@3.999")
    assert not sandbox.code.run("x", fresh=True).ok
    assert sandbox.sessions.get("parts").timeout == 77
    assert sandbox.session("plain").timeout == 300
    names = [context.name for context in sandbox.code.contexts()]
    assert "session.parts.python" in names
    session.close()
    assert "session.parts.python" not in [context.name for context in sandbox.code.contexts()]


def test_session_timeout_ends_its_commands(sandbox: Sandbox) -> None:
    session = sandbox.session("short", timeout=0.5)
    result = session.run("sleep 600")
    assert result.timed_out
    assert result.status == "killed"
    assert session.run("sleep 0.7; echo done", timeout=None).stdout == "done\n"


def test_session_spawn_starts_while_a_command_runs_and_belongs_to_the_session_user(sandbox: Sandbox) -> None:
    session = sandbox.session("busy", user="root")
    with contextlib.ExitStack() as stack:
        running = threading.Event()
        thread = threading.Thread(target=lambda: session.run("sleep 600", on_start=lambda run: running.set()))
        thread.start()
        stack.callback(thread.join)
        stack.callback(lambda: sandbox.run(["pkill", "-KILL", "-f", "sleep 600"], user="root"))
        assert running.wait(30)
        assert session.spawn(["id", "-un"]).wait().stdout == "root\n"
    with pytest.raises(InvalidRequest, match="too long"):
        session.spawn("echo " + "x" * 200_000)


def test_default_session_keeps_directory_and_variables_of_run(server: Server) -> None:
    with Sandbox(options=Options(default_session=True), server=server.address) as sandbox:
        sandbox.run("cd /tmp && export A=1")
        result = sandbox.run("echo $PWD $A")
        assert (result.stdout, result.cwd) == ("/tmp 1\n", "/tmp")
        assert sandbox.run(["pwd"]).stdout == "/tmp\n"
        assert sandbox.run("pwd", user="root").stdout == "/workspace\n"  # of another user: outside
        assert sandbox.spawn("pwd").wait().stdout == "/workspace\n"
        assert [session.name for session in sandbox.sessions.list()] == ["default"]
        sandbox.stop()
        assert sandbox.run("echo $PWD $A").stdout == "/tmp 1\n"
        sandbox.session("default").close()
        assert sandbox.run("pwd").stdout == "/workspace\n"
