"""Contexts in real sandboxes: state, queueing, ends and their reports."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable

import httpx2
import pytest
from support.server import Server, wait_until, with_enough_time

from skerry import AsyncSandbox, Lifecycle, Limits, Sandbox
from skerry.client._sync.code import Context
from skerry.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded, SkerryError, ToolchainMissing

LOOP = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.01)"
STUBBORN = (
    "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('begun', flush=True)\ntime.sleep(60)"
)


class Under:
    """A started run in a separate thread."""

    def __init__(self, context: Context, code: str) -> None:
        self.begun, self.outcome = threading.Event(), ""

        def run() -> None:
            try:
                result = context.run(code, on_output=lambda _: self.begun.set())
                self.outcome = result.error.name if result.error else "done"
            except SkerryError as error:
                self.outcome = error.code

        self.thread = threading.Thread(target=run)
        self.thread.start()
        assert self.begun.wait(30)

    def over(self) -> str:
        self.thread.join(30)
        return self.outcome


def test_context_keeps_state_and_the_last_value_is_a_result(sandbox: Sandbox) -> None:
    context = sandbox.code.context("python")
    assert context.run("x = 6\nprint('set')").stdout == "set\n"
    result = context.run("x * 7")
    assert (result.text, result.exit_code, result.error, result.lost) == ("42", 0, None, None)
    assert (result.context, result.after) == (context.name, "kept")
    assert result.version == context.info().version is not None
    assert (context.info().state, context.info().runs) == ("idle", 2)


def test_contexts_are_separate_and_one_is_the_default(sandbox: Sandbox) -> None:
    one, two = sandbox.code.context("py", "one"), sandbox.code.context("python", "two")
    one.run("x = 1")
    assert two.run("'x' in globals()").text == "False"
    sandbox.code.run("x = 3")
    assert sandbox.code.run("x").text == "3"
    assert (sandbox.code.get("python").info().default, one.info().default) == (True, False)
    assert {"one", "two", "python"} <= {context.name for context in sandbox.code.contexts()}
    with pytest.raises(Conflict, match="already"):
        sandbox.code.context("python", "one")
    with pytest.raises(InvalidRequest, match="default"):
        sandbox.code.context("python", "javascript")
    with pytest.raises(InvalidRequest, match="one of python"):
        sandbox.code.run("1", "javascript", context="one")
    with pytest.raises(InvalidRequest, match="has its own"):
        sandbox.code.run("1", cwd="/tmp")


@pytest.mark.parametrize(
    ("language", "code", "shown"),
    [
        ("python", "import os; os.environ.get('A', '-') + os.environ.get('HOME', '-')", "'{}'"),
        ("javascript", "(process.env.A ?? '-') + (process.env.HOME ?? '-')", "'{}'"),
        ("typescript", "const shown: string = (process.env.A ?? '-') + (process.env.HOME ?? '-'); shown", "'{}'"),
        ("bash", 'printf %s "${A--}${HOME--}"', None),
    ],
)
def test_variables_of_a_run_apply_to_that_run_only(
    sandbox: Sandbox, language: str, code: str, shown: str | None
) -> None:
    context = sandbox.code.context(language)

    def run(**env: str | None) -> str | None:
        result = context.run(code, env=env)
        assert result.ok, result
        return result.text if shown is not None else result.stdout

    def value(text: str) -> str:
        return shown.format(text) if shown is not None else text

    home = sandbox.run("echo $HOME").stdout.strip()
    assert run() == value(f"-{home}")
    assert run(A="1=ü", HOME=None) == value("1=ü-")
    assert run() == value(f"-{home}")
    failures = {"python": "1/0", "javascript": "throw 1", "typescript": "throw 1", "bash": "false"}
    failing = context.run(failures[language], env={"A": "2"})
    assert not failing.ok
    assert run() == value(f"-{home}")
    context.delete()


def test_context_has_its_user_directory_and_variables(sandbox: Sandbox) -> None:
    context = sandbox.code.context("python", cwd="/usr", env={"MODE": "own"}, user="root")
    told = context.run("import os; (os.getuid(), os.getcwd(), os.environ['MODE'])").text
    assert told == "(0, '/usr', 'own')"
    assert (context.info().user, context.info().cwd) == ("root", "/usr")
    for wrong in ({"cwd": "/nowhere"}, {"user": "nobody-there"}):
        with pytest.raises(InvalidRequest):
            sandbox.code.context("python", **wrong).run("1")


def test_fresh_run_leaves_no_state_and_no_process(sandbox: Sandbox) -> None:
    sandbox.code.run("x = 1")
    result = sandbox.code.run("import subprocess\nsubprocess.Popen(['sleep', '4811'])\n'x' in globals()", fresh=True)
    assert (result.text, result.context, result.after) == ("False", None, None)
    wait_until(lambda: not sandbox.run(["pgrep", "-f", "sleep 4811"]).ok, "what it started to be gone")
    assert sandbox.processes.get(result.id).wait(30).signal == "KILL"
    died = sandbox.code.run("import os; os._exit(3)", fresh=True)
    assert (died.exit_code, died.after) == (3, None)


def test_stdin_has_exactly_the_given_input(sandbox: Sandbox) -> None:
    assert sandbox.code.run("input() + input()", stdin="a\nb\n").text == "'ab'"
    refused = sandbox.code.run("input()", timeout=20)
    assert refused.error is not None
    assert not refused.timed_out


def test_missing_toolchain_is_named(sandbox: Sandbox) -> None:
    with pytest.raises(ToolchainMissing, match="python3"):
        sandbox.code.run("1", fresh=True, env={"PATH": "/nowhere"})
    context = sandbox.code.context("python", env={"PATH": "/nowhere"})
    with pytest.raises(ToolchainMissing, match="python3"):
        context.run("1")
    assert context.info().state == "new"


def test_created_files_are_listed_once_with_their_type(sandbox: Sandbox) -> None:
    sandbox.run("mkdir -p /workspace/made/deep && echo old > /workspace/made/old.txt", check=True)
    context = sandbox.code.context("python", cwd="/workspace/made")
    context.run("import time; time.sleep(0.02)")  # file times have a coarse clock: wait for one step
    result = context.run("for name in ('a.csv', 'deep/b.png', 'c', 'd.tar.gz'): open(name, 'w').write(name)")
    assert {(file.path, file.size, file.media_type) for file in result.files} == {
        ("/workspace/made/a.csv", 5, "text/csv"),
        ("/workspace/made/deep/b.png", 10, "image/png"),
        ("/workspace/made/c", 1, "application/octet-stream"),
        ("/workspace/made/d.tar.gz", 8, "application/gzip"),
    }
    assert context.run("1").files == ()
    assert [file.path for file in context.run("open('old.txt', 'a').write('more')").files] == [
        "/workspace/made/old.txt"
    ]


def test_usage_is_measured(sandbox: Sandbox) -> None:
    context = sandbox.code.context("python")
    busy = context.run("x = bytearray(100 << 20)\nfor _ in range(2_000_000): pass")
    assert busy.usage.cpu_s > 0.01
    assert (busy.usage.memory_peak or 0) > 100 << 20
    calm = context.run("del x")
    assert calm.usage.cpu_s < busy.usage.cpu_s
    calm = context.run("1")
    assert (calm.usage.memory_peak or 0) < 100 << 20, "of this run alone"


# -- ends -------------------------------------------------------------------------------------------------------------


def test_interrupted_run_keeps_the_state_of_its_context(sandbox: Sandbox) -> None:
    context = sandbox.code.context("python")
    context.run("x = 1")
    running = Under(context, LOOP)
    assert context.info().state == "busy"
    context.interrupt()
    assert running.over() in ("KeyboardInterrupt", "Interrupted")
    assert context.run("x").text == "1"
    context.interrupt()
    assert context.run("x").text == "1", "an interrupt of nothing does nothing"


def test_missed_interrupt_does_not_lose_the_state(sandbox: Sandbox) -> None:
    context = sandbox.code.context("python")
    context.run("x = 1\nimport time")
    result = context.run("try: time.sleep(60)\nexcept KeyboardInterrupt: time.sleep(60)", timeout=0.3)
    assert (result.timed_out, result.after) == (True, "kept")
    assert context.run("x").text == "1"


def test_timeout_interrupts_and_reports_that_the_state_was_kept(sandbox: Sandbox) -> None:
    context = sandbox.code.context("python")
    code = f"x = 1\n{LOOP}"
    result = with_enough_time(lambda timeout: context.run(code, timeout=timeout), lambda result: bool(result.stdout))
    assert (result.timed_out, result.after, result.exit_code) == (True, "kept", 1)
    assert result.stdout == "begun\n"
    assert result.hint is not None
    assert "state is kept" in result.hint
    again = context.run("x")
    assert (again.text, again.lost) == ("1", None)


def test_kernel_that_ignores_an_interrupt_is_replaced_and_the_next_run_reports_it(
    server: Server, sandbox: Sandbox
) -> None:
    left = sandbox.code.context("python", "left-behind")
    body, headers = {"code": STUBBORN, "context": left.name}, {"Accept": "application/x-ndjson"}
    with (
        server.http() as http,
        http.stream("POST", f"/v1/sandboxes/{sandbox.id}/code", json=body, headers=headers) as run,
    ):
        assert any("begun" in line for line in run.iter_lines())
    context = sandbox.code.context("python")
    code = f"import subprocess\nsubprocess.Popen(['sleep', '4812'])\nx = 1\n{STUBBORN}"
    result = with_enough_time(
        lambda timeout: context.run(code, timeout=timeout), lambda result: "begun" in result.stdout
    )
    assert (result.timed_out, result.after, result.exit_code, result.signal) == (True, "replaced", None, "KILL")
    assert result.hint is not None
    assert "replaced" in result.hint
    assert result.error is not None
    assert result.error.name == "Interrupted"
    assert not sandbox.run(["pgrep", "-f", "sleep 4812"]).ok, "with all that it started"
    assert (context.info().state, context.info().lost) == ("new", "its last run did not stop when its time was out")
    again = context.run("'x' in globals()")
    assert (again.text, again.lost) == ("False", "its last run did not stop when its time was out")
    assert context.run("1").lost is None
    assert left.run("1", timeout=30).lost == "its last run did not stop when it was interrupted"


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import os; os._exit(3)", (3, None)),
        ("import os; os.kill(os.getpid(), 9)", (None, "KILL")),
        ("import ctypes; ctypes.string_at(0)", (None, "SEGV")),
    ],
)
def test_dead_context_is_reported_by_its_run_and_by_the_next_one(
    sandbox: Sandbox, code: str, how: tuple[int | None, str | None]
) -> None:
    context = sandbox.code.context("python")
    died = context.run(f"x = 1\nprint('last words', flush=True)\n{code}")
    assert (died.exit_code, died.signal, died.after) == (*how, "replaced")
    assert died.stdout == "last words\n"
    assert died.error is not None
    assert died.error.name == "ContextDied"
    assert died.oom_killed is False
    again = context.run("'x' in globals()")
    assert again.text == "False"
    assert again.lost is not None
    assert str(how[0] if how[1] is None else how[1]) in again.lost


def test_context_that_dies_between_runs_is_reported_by_the_next_run(sandbox: Sandbox) -> None:
    context = sandbox.code.context("python")
    context.run("x = 1")
    sandbox.processes.signal(context.info().process or "", "KILL")
    wait_until(lambda: context.info().state == "new", "its end to be seen")
    assert context.info().lost == "its process is gone"
    again = context.run("'x' in globals()")
    assert (again.text, again.lost) == ("False", "its process was ended by KILL")


def test_context_out_of_memory_is_killed_with_a_reason(server: Server) -> None:
    with Sandbox(limits=Limits(memory="128M"), server=server.address) as sandbox:
        context = sandbox.code.context("python")
        sandbox.code.context("python", "other").run("x = 1")
        result = context.run("x = bytearray(1 << 30)")
        assert (result.oom_killed, result.after) == (True, "replaced")
        assert result.hint is not None
        assert "--memory" in result.hint
        assert context.run("1").lost == "it was killed: out of memory"
        assert sandbox.code.get("other").run("x").text == "1"
        assert sandbox.run(["python3", "-c", "bytearray(1 << 30)"]).oom_killed is True, (
            "idle contexts are not in the way"
        )


def test_restart_clears_a_context_even_during_a_run(sandbox: Sandbox) -> None:
    context = sandbox.code.context("python")
    context.run("x = 1")
    context.restart()
    assert (context.info().state, context.info().lost) == ("new", "it was restarted")
    assert context.run("'x' in globals()").text == "False"
    running = Under(context, STUBBORN)
    context.restart()
    assert running.over() == "Interrupted"
    assert context.run("1").lost == "it was restarted"


def test_deleted_context_ends_its_running_and_queued_runs(sandbox: Sandbox) -> None:
    context = sandbox.code.context("python", "short")
    running = Under(context, STUBBORN)
    late = threading.Thread(target=lambda: outcome.append(_code_of(lambda: context.run("1"))))
    outcome: list[str] = []
    late.start()
    wait_until(lambda: context.info().waiting == 1, "it to stand in the queue")
    process = context.info().process
    context.delete()
    another = sandbox.code.context("python", "short")
    assert running.over() == "Interrupted"
    late.join(30)
    assert outcome == ["not_found"], "another of its name is not the one that was meant"
    assert another.info().runs == 0
    another.delete()
    for call in (lambda: context.run("1"), context.info, context.delete, context.restart, context.interrupt):
        with pytest.raises(NotFound, match="not found"):
            call()
    assert sandbox.processes.get(process or "").wait(30).signal == "KILL"


def _code_of(call: Callable[[], object]) -> str:
    try:
        call()
    except SkerryError as error:
        return error.code
    return "done"


# -- turns ------------------------------------------------------------------------------------------------------------


def test_runs_of_one_context_are_serialised_in_order(sandbox: Sandbox) -> None:
    context, other = sandbox.code.context("python"), sandbox.code.context("python")
    sandbox.run(["mkfifo", "/tmp/code-gate"], check=True)
    first = Under(context, "log = [0]\nprint(flush=True)\nopen('/tmp/code-gate').read()")
    threads = []
    for number in range(1, 5):
        threads.append(threading.Thread(target=context.run, args=(f"log.append({number})",)))
        threads[-1].start()
        wait_until(lambda count=number: context.info().waiting == count, "it to stand in the queue")
    assert other.run("'free'").text == "'free'"
    sandbox.run("echo > /tmp/code-gate", check=True)
    assert first.over() == "done"
    for thread in threads:
        thread.join(30)
    assert context.run("log").text == "[0, 1, 2, 3, 4]"


async def test_queue_of_a_context_is_bounded(server: Server) -> None:
    async with AsyncSandbox(server=server.address) as sandbox:
        context = await sandbox.code.context("python")
        begun = asyncio.Event()
        calls = [asyncio.ensure_future(context.run(f"n = 0\n{LOOP}", on_output=lambda _: begun.set()))]
        async with asyncio.timeout(60):
            await begun.wait()
            calls += [asyncio.ensure_future(context.run("n += 1")) for _ in range(64)]
            while (await context.info()).waiting < 64:
                await asyncio.sleep(0.01)
        with pytest.raises(QuotaExceeded, match="already waiting"):
            await context.run("n += 1")
        await context.interrupt()
        await asyncio.gather(*calls)
        assert (await context.run("n")).text == "64"


def test_disconnect_interrupts_the_run_and_the_context_continues(server: Server, sandbox: Sandbox) -> None:
    context = sandbox.code.context("python", "left")
    context.run("x = 1")
    body = {"code": LOOP, "context": "left"}
    with server.http() as http, pytest.raises(httpx2.ReadTimeout):
        http.post(f"/v1/sandboxes/{sandbox.id}/code", timeout=0.5, json=body)
    again = context.run("x", timeout=30)
    assert (again.text, again.lost) == ("1", None)


def test_disconnect_in_the_queue_removes_the_run(server: Server, sandbox: Sandbox) -> None:
    context = sandbox.code.context("python", "queue")
    running = Under(context, f"log = ['first']\n{LOOP}")
    body = {"code": "log.append('gone')", "context": "queue"}
    with server.http() as http, pytest.raises(httpx2.ReadTimeout):
        http.post(f"/v1/sandboxes/{sandbox.id}/code", timeout=0.5, json=body)
    wait_until(lambda: context.info().waiting == 0, "the queue to be empty")
    context.interrupt()
    running.over()
    assert context.run("log").text == "['first']"


# -- the sandbox's life, and the server's -----------------------------------------------------------------------------


def test_stop_loses_the_state_and_the_next_run_reports_it(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox:
        context = sandbox.code.context("python", "work", cwd="/usr")
        context.run("x = 1")
        sandbox.stop()
        assert (context.info().state, context.info().lost) == ("new", "the sandbox was stopped: requested")
        assert sandbox.info().state == "stopped", "a question wakes nobody"
        again = context.run("import os; ('x' in globals(), os.getcwd())")
        assert (again.text, again.lost) == ("(False, '/usr')", "the sandbox was stopped: requested")
        context.run("x = 2")
        sandbox.pause()
        assert context.info().state == "idle"
        assert context.run("x").text == "2", "a pause takes nothing"
        snapshot = sandbox.snapshot("before")
        context.run("x = 3")
        sandbox.rollback("before")
        assert context.run("'x' in globals()").lost == "the sandbox was stopped: rolled back to before"
        fork = sandbox.fork()[0]
        assert fork.code.contexts() == []
        assert fork.code.run("'x' in globals()").text == "False"
        fork.delete()
        snapshot.delete()


def test_contexts_are_deleted_with_their_sandbox(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox:
        sandbox.code.run("1")
        ours = server.sql("SELECT name FROM contexts WHERE sandbox = ?", sandbox.id)
        assert ours == [("python",)]
    assert server.sql("SELECT name FROM contexts WHERE sandbox = ?", sandbox.id) == []


def test_idle_context_does_not_keep_a_sandbox_awake_but_its_processes_do(server: Server) -> None:
    brief = Lifecycle(idle_timeout="300ms", on_idle="pause")
    with (
        Sandbox(lifecycle=brief, server=server.address) as at_work,
        Sandbox(lifecycle=brief, server=server.address) as idle,
    ):
        at_work.code.run("import subprocess\nchild = subprocess.Popen(['sleep', '1000'])")
        idle.code.run("x = 1")
        wait_until(lambda: idle.info().state == "paused", "it to be idle")
        assert at_work.info().state == "running"
        assert idle.code.run("x").text == "1"
        at_work.code.run("child.kill(); child.wait()")
        wait_until(lambda: at_work.info().state == "paused", "it to be idle too")


def test_idle_contexts_end_with_a_reason_and_their_number_is_bounded(own_server: Server) -> None:
    own_server.start(SKERRY_CONTEXTS_IDLE_TIMEOUT="200ms", SKERRY_CONTEXTS_MAX_PER_SANDBOX="2")
    with Sandbox(server=own_server.address) as sandbox:
        context = sandbox.code.context("python")
        context.run("x = 1")
        process = context.info().process or ""
        named = sandbox.code.context("python", "kept")
        with pytest.raises(QuotaExceeded, match="2 contexts"):
            sandbox.code.context("python")
        wait_until(lambda: context.info().state == "new", "it to be let go")
        assert context.info().lost == "it was idle for 200ms"
        assert sandbox.processes.get(process).wait(30).signal == "KILL"
        sandbox.code.run("'the default one'")
        with pytest.raises(NotFound):  # unnamed and without state: it was evicted
            context.info()
        named.run("x = 1")
        wait_until(lambda: named.info().state == "new", "it to be let go")
        assert named.run("'x' in globals()").lost == "it was idle for 200ms"
    own_server.end()


def test_server_crash_during_a_run_keeps_the_state(own_server: Server) -> None:
    own_server.start()
    sandbox = Sandbox.create(name="lasting", server=own_server.address)
    context, calm = sandbox.code.context("python", "work"), sandbox.code.context("python", "calm")
    context.run("x = 1")
    calm.run("y = 2")
    running = Under(context, f"x = 2\n{LOOP}")
    alone = threading.Thread(target=lambda: _code_of(lambda: sandbox.code.run(LOOP, fresh=True)))
    alone.start()
    wait_until(lambda: len([one for one in sandbox.processes.list() if one.state == "running"]) == 3, "all to run")
    own_server.end(signal.SIGKILL)
    running.over()
    alone.join(30)
    own_server.start()
    again = Sandbox.get("lasting", server=own_server.address)
    assert {one.name: one.info().state for one in again.code.contexts()} == {"work": "idle", "calm": "idle"}
    result = again.code.run("x", context="work", timeout=30)
    assert (result.text, result.lost, result.stdout) == ("2", None, "")
    assert again.code.run("y", context="calm").text == "2"
    wait_until(lambda: len([p for p in again.processes.list() if p.state == "running"]) == 2, "the orphan to be gone")
    again.pause()
    own_server.end()
    own_server.start()
    asleep = Sandbox.get("lasting", server=own_server.address)
    assert (asleep.code.get("work").cached_info.state, asleep.info().state) == ("idle", "paused")
    asleep.update(lifecycle=Lifecycle(idle_timeout="300ms", on_idle="pause"))
    assert asleep.code.run("x", context="work").text == "2"
    wait_until(lambda: asleep.info().state == "paused", "it to be idle: its kernels rest")
    again.delete()
    own_server.end()


# -- other results of a run -------------------------------------------------------------------------------------------


def test_denials_are_reported_only_for_their_run(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox:
        ask = "import socket\ntry: socket.create_connection(('{}', 80), 5)\nexcept OSError: pass"
        first = sandbox.code.run(ask.format("one.example.test"))
        assert {attempt.host for attempt in first.denied} == {"one.example.test"}
        assert first.hint is not None
        assert "one.example.test" in first.hint
        second = sandbox.code.run(ask.format("two.example.test"))
        assert {attempt.host for attempt in second.denied} == {"two.example.test"}
        assert sandbox.code.run("1").denied == ()


def test_review_names_the_code_that_changed_a_file(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox:
        with server.http() as http:
            http.post(f"/v1/sandboxes/{sandbox.id}/review", json={}).raise_for_status()
        sandbox.code.run("y = 1")
        sandbox.code.run("# make it\nopen('a.txt', 'w').write('a')")
        (made,) = sandbox.review.history(limit=1)
        assert (made.kind, made.command, made.exit_code) == ("command", "python: # make it", 0)
        sandbox.run("echo b > b.txt")
        (made,) = sandbox.review.history(limit=1)
        assert (made.kind, made.command) == ("command", "echo b > b.txt")
        sandbox.code.run("open('a.txt', 'a').write('c'); 1/0")
        (made,) = sandbox.review.history(limit=1)
        assert (made.command, made.exit_code) == ("python: open('a.txt', 'a').write('c'); 1/0", 1)


def test_kernel_is_listed_as_a_kernel(sandbox: Sandbox) -> None:
    context = sandbox.code.context("python", "listed")
    context.run("1")
    process = sandbox.processes.get(context.info().process or "")
    assert process.info().cmd == "python (context listed)"
    assert process.output().data == b""
