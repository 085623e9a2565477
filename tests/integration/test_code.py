"""Code in real sandboxes through the SDK: values, output without loss, files, contexts, and `execute_code`'s word."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import SKERRY, environment
from support.server import Server, wait_until, with_enough_time

from skerry import AsyncSandbox, Client, Context, Limits, Sandbox, async_execute_code, execute_code, execute_with_limits
from skerry.errors import CommandFailed, CommandTimeout, Conflict, InvalidRequest, NotFound, OutOfMemory

HEADROOM = "1G"
OPERATORS = '[languages]\ninstall = "never"\n'
MIB = 1 << 20


def test_last_value_is_the_result_and_printed_text_is_output(sandbox: Sandbox) -> None:
    result = sandbox.code.run("print('hello'); {'a': [1, 2]}")
    assert (result.ok, result.stdout, result.text) == (True, "hello\n", "{'a': [1, 2]}")
    assert (result.language, result.context, result.after) == ("python", "python", "kept")
    assert [value.main for value in result.results] == [True]


def test_error_has_its_name_and_the_lines_of_the_code(sandbox: Sandbox) -> None:
    result = sandbox.code.run("def f():\n    return 1 / 0\n\nf()")
    assert result.error is not None
    assert (result.exit_code, result.error.name) == (1, "ZeroDivisionError")
    assert "return 1 / 0" in result.error.traceback
    assert "skerry" not in result.error.traceback
    with pytest.raises(CommandFailed, match="ZeroDivisionError"):
        sandbox.code.run("1 / 0", check=True)


def test_ten_mebibytes_are_streamed_and_the_result_marks_the_gap(sandbox: Sandbox) -> None:
    code = f"for i in range({10 * MIB // 1024}): print(f'{{i:01023}}')"
    data, end = bytearray(), None
    for event in sandbox.code.stream(code):
        data += event.data
        end = event.end
    assert bytes(data) == b"".join(b"%01023d\n" % i for i in range(10 * MIB // 1024))
    assert end is not None
    assert end.truncated
    assert len(end.stdout_bytes) < 2 * MIB
    assert b"left out here" in end.stdout_bytes


def test_non_utf8_output_is_preserved(sandbox: Sandbox) -> None:
    result = sandbox.code.run(r"import os; _ = os.write(1, b'\xff\x00\xfe')")
    assert result.stdout_bytes == b"\xff\x00\xfe"


def test_created_files_are_listed_and_readable_from_the_result(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.files.write("/workspace/old.txt", "old")
    code = (
        "import os; os.makedirs('out', exist_ok=True); open('out/a.csv', 'w').write('1,2'); open('b.txt', 'w').close()"
    )
    made = {file.path: file for file in sandbox.code.run(code).files}
    assert {"/workspace/out/a.csv", "/workspace/b.txt"} <= made.keys()
    file = made["/workspace/out/a.csv"]
    assert (file.name, file.size, file.media_type, file.read_text()) == ("a.csv", 3, "text/csv", "1,2")
    file.download(tmp_path / "here.csv")
    assert (tmp_path / "here.csv").read_bytes() == file.read_bytes() == b"1,2"
    assert "/workspace/out/a.csv" not in [one.path for one in sandbox.code.run("1").files]


def test_stdin_is_read_and_reading_a_missing_one_fails_at_once(sandbox: Sandbox) -> None:
    assert sandbox.code.run("input() + input()", stdin="a\nb\n").text == "'ab'"
    assert sandbox.code.run("import sys; sys.stdin.buffer.read()", stdin=b"\xff").text == r"b'\xff'"
    result = sandbox.code.run("input()", timeout=20)
    assert result.error is not None
    assert "stdin" in result.error.message


def test_state_persists_in_the_default_context_only(sandbox: Sandbox) -> None:
    sandbox.code.run("import math\ndef area(r): return math.pi * r * r\nx = 5")
    assert sandbox.code.run("round(area(x))").text == "79"
    assert sandbox.code.run("x", fresh=True).error is not None
    assert sandbox.code.run("x").text == "5"


def test_contexts_are_separate_and_can_be_listed_restarted_and_deleted(sandbox: Sandbox) -> None:
    one, two = sandbox.code.context("python", "one"), sandbox.code.context("py", cwd="/tmp", env={"A": "1"})
    one.run("x = 1")
    two.run("x = 2")
    assert (one.run("x").text, two.run("x").text) == ("1", "2")
    assert two.run("import os; os.getcwd(), os.environ['A']").text == "('/tmp', '1')"
    assert {"one", two.name} <= {context.name for context in sandbox.code.contexts()}
    with pytest.raises(Conflict):
        sandbox.code.context("python", "one")
    one.restart()
    after = one.run("x")
    assert after.error is not None
    assert after.error.name == "NameError"
    assert sandbox.code.get("one").info().runs >= 1
    one.delete()
    with pytest.raises(NotFound):
        one.run("1")
    two.delete()


def interrupt_until_over(context: Context, thread: threading.Thread) -> None:
    """In the very moment in which Python goes to sleep, a signal is not seen before it wakes; the next one is."""
    for _ in range(3):
        context.interrupt()
        thread.join(30)
        if not thread.is_alive():
            return


def test_run_interrupted_from_another_thread_keeps_the_state(sandbox: Sandbox) -> None:
    context, began = sandbox.code.context(), threading.Event()
    context.run("x = 7")
    ended = []

    def work() -> None:
        code = "import time\nprint('begun', flush=True)\ntime.sleep(600)"
        for event in context.stream(code):
            if event.type == "stdout":
                began.set()
            if event.end is not None:
                ended.append(event.end)

    thread = threading.Thread(target=work)
    thread.start()
    assert began.wait(30)
    interrupt_until_over(context, thread)
    assert ended[0].error is not None
    assert (ended[0].error.name, ended[0].after) == ("KeyboardInterrupt", "kept")
    assert context.run("x").text == "7"
    context.delete()


def test_closing_a_stream_early_interrupts_the_code_and_keeps_the_state(sandbox: Sandbox) -> None:
    context = sandbox.code.context()
    context.run("x = 8")
    for event in context.stream("import time\nprint('begun', flush=True)\ntime.sleep(600)"):
        assert event.text == "begun\n"
        break
    assert context.run("x").text == "8"
    context.delete()


def test_interrupted_cli_interrupts_the_code_and_keeps_the_state(server: Server, sandbox: Sandbox) -> None:
    sandbox.code.run("kept = 'yes'")
    code = "import time\nprint('begun', flush=True)\ntime.sleep(600)"
    words, env = [*SKERRY, "exec", "--code", code, sandbox.id], environment(SKERRY_SERVER=server.address)
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert sandbox.code.run("kept").text == "'yes'"


def test_timeout_reports_whether_the_state_was_kept(sandbox: Sandbox) -> None:
    context = sandbox.code.context()
    context.run("x = 9")
    result = context.run("while True: pass", timeout=0.3)
    assert (result.timed_out, result.after) == (True, "kept")
    assert context.run("x").text == "9"
    stubborn = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    late = with_enough_time(lambda timeout: context.run(stubborn, timeout=timeout), lambda run: run.after == "replaced")
    assert late.after == "replaced"
    after = context.run("x")
    assert after.lost
    assert after.error is not None
    context.delete()


def test_dead_context_is_reported_and_the_next_run_starts_fresh(sandbox: Sandbox) -> None:
    context = sandbox.code.context()
    result = context.run("import os; os.kill(os.getpid(), 11)")
    assert (result.ok, result.signal, result.after) == (False, "SEGV", "replaced")
    after = context.run("1 + 1")
    assert after.text == "2"
    assert after.lost
    context.delete()


async def test_async_client_does_the_same(server: Server) -> None:
    async with AsyncSandbox(server=server.address) as sandbox:
        result = await sandbox.code.run("import asyncio\nawait asyncio.sleep(0, 6 * 7)")
        assert result.text == "42"
        result = await sandbox.code.run("open('a', 'w').write('b')")
        assert await result.files[0].read_text() == "b"
        assert [event.type async for event in sandbox.code.stream("print(1); 2")] == ["stdout", "result", "end"]


def test_unknown_language_error_lists_the_known_ones(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidRequest, match="python, javascript"):
        sandbox.code.run("x", "cobol")


def test_execute_code_reports_usage_and_effective_limits(server: Server) -> None:
    code = "import time\nblock = b'x' * (96 << 20)\nwhile time.process_time() < 0.8: pass"
    limits = Limits(memory="256M", cpus=0.8)
    result = execute_code("python", code, timeout=50, limits=limits, server=server.address)
    assert (result.status, result.exit_code, result.error_message) == ("success", 0, None)
    used, held = result.resource_usage, result.limits_applied
    assert used.execution_time_seconds == result.execution_time >= 0.5
    assert used.memory_peak_mb is not None
    assert 96 <= used.memory_peak_mb < 256
    assert 0.5 <= used.cpu_seconds < 5
    assert used.memory_start_mb is not None
    assert used.memory_start_mb < 96
    assert used.cpu_average_percent is not None
    assert used.cpu_peak_percent is not None
    assert 0 < used.cpu_average_percent <= used.cpu_peak_percent
    assert (held.time_limit_seconds, held.memory_limit_mb, held.cpu_limit_cores) == (50, 256, 0.8)
    tiny = execute_code("python", "pass", limits=limits, server=server.address).resource_usage
    assert tiny.memory_peak_mb is not None
    assert tiny.memory_peak_mb < 64
    assert tiny.cpu_seconds < 0.5


def test_execute_code_applies_the_reported_limits(server: Server) -> None:
    late = execute_code("python", "while True: pass", timeout=1, server=server.address)
    assert (late.status, late.exit_code, late.limits_applied.time_limit_seconds) == ("timeout", -1, 1)
    code = "block = bytearray(400 << 20)\nblock[::4096] = b'x' * (len(block) // 4096)"
    fat = execute_code("python", code, limits=Limits(memory="128M"), server=server.address)
    assert (fat.status, fat.exit_code) == ("error", -1)
    assert "memory" in (fat.error_message or "")
    loud = execute_code("python", "print('x' * 5000)", max_output_chars=1000, server=server.address)
    assert (loud.status, len(loud.stdout), loud.truncated) == ("success", 1000, True)


def test_execute_code_distinguishes_code_and_setup_failures(server: Server) -> None:
    failed = execute_code("python", "raise ValueError('no')", server=server.address)
    assert (failed.status, failed.error_message, failed.exit_code) == ("error", "ValueError: no (line 1)", 1)
    assert "Traceback" in failed.stderr
    wrong = execute_code("python", "def (", server=server.address)
    assert wrong.status == "error"
    assert (wrong.error_message or "").startswith("SyntaxError")
    for language, code in (("python", "import sys; sys.exit(3)"), ("javascript", "process.exit(3)")):
        left = execute_code(language, code, server=server.address)
        assert (left.status, left.exit_code) == ("error", 3)
    assert execute_code("python", "import sys; sys.exit()", server=server.address).status == "success"
    missing = execute_code("rust", "fn main() {}", server=server.address)
    assert (missing.status, missing.exit_code) == ("setup_error", -1)
    assert "rustc" in f"{missing.error_message} {missing.notice}"
    unknown = execute_code("cobol", "x", server=server.address)
    assert unknown.status == "setup_error"
    assert "python, javascript" in f"{unknown.error_message} {unknown.notice}"


@contextlib.contextmanager
def relay_that_cuts(server: Server, path: Path, mark: bytes) -> Iterator[str]:
    """Relay connections to the server; cut those with the mark in an answer."""

    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while (data := source.recv(65536)) and (source in clients or mark not in data):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                clients.append(client)
                inner = socket.socket(socket.AF_UNIX)
                inner.connect(server.address.removeprefix("unix://"))
                servers.append(inner)
                for ends in ((client, inner), (inner, client)):
                    copies.append(threading.Thread(target=copy, args=ends))
                    copies[-1].start()

    clients: list[socket.socket] = []
    servers: list[socket.socket] = []
    copies: list[threading.Thread] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        accepting = threading.Thread(target=serve)
        accepting.start()
        try:
            yield f"unix://{path}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
    for one in clients + servers:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
    for thread in copies:
        thread.join()
    for one in clients + servers:
        one.close()


def test_connection_cut_during_the_run_is_not_a_setup_error(server: Server, tmp_path: Path) -> None:
    code = "import time\nopen('ran', 'a').write('x')\nprint('be' + 'gun', flush=True)\ntime.sleep(600)"
    with relay_that_cuts(server, tmp_path / "r.sock", b"begun") as address:
        result = execute_code("python", code, timeout=50, session_id="cut", server=address)
    with Sandbox.get("cut", server=server.address) as sandbox:
        try:
            assert (result.status, result.exit_code) == ("error", -1), "the code has run"
            assert "broke" in (result.error_message or "")
            assert sandbox.files.read_text("ran") == "x"
        finally:
            sandbox.delete()


def test_execute_code_with_check_raises_the_end_of_the_code(server: Server) -> None:
    with pytest.raises(CommandTimeout) as late:
        execute_code("python", "while True: pass", timeout=1, check=True, server=server.address)
    assert late.value.result is not None
    assert late.value.result.timed_out
    code = "block = bytearray(400 << 20)\nblock[::4096] = b'x' * (len(block) // 4096)"
    with pytest.raises(OutOfMemory) as fat:
        execute_code("python", code, limits=Limits(memory="128M"), check=True, server=server.address)
    assert fat.value.result is not None
    assert fat.value.result.oom_killed


async def test_execute_code_takes_stdin_and_files_and_returns_created_files(server: Server) -> None:
    code = "text = open('in.txt').read() + input()\nopen('out.json', 'w').write(text)\ntext"
    result = await async_execute_code("python", code, stdin="!", files={"in.txt": "hi"}, server=server.address)
    assert (result.status, result.text) == ("success", "'hi!'")
    assert [(file.path, file.size, file.media_type, file.content) for file in result.files] == [
        ("/workspace/out.json", 3, "application/json", b"hi!")
    ]


def test_execute_code_session_keeps_state_and_files(server: Server) -> None:
    def run(code: str) -> str | None:
        result = execute_code("python", code, session_id="kept", server=server.address)
        assert result.status == "success", result.error_message
        return result.text

    try:
        run("x = 41\nopen('a.txt', 'w').write('kept')")
        assert run("x + 1") == "42"
        assert run("open('a.txt').read()") == "'kept'"
        shell = execute_code("bash", "cat a.txt; exit 4", session_id="kept", server=server.address)
        assert (shell.status, shell.stdout, shell.exit_code) == ("error", "kept", 4)
        for turn in range(10):
            files = {"in.txt": f"{turn}"}
            result = execute_code("python", "1", session_id="kept", files=files, server=server.address)
            assert result.files == (), "what was brought in just before is not what the code made"
        other = execute_code("python@3.999", "1", session_id="kept", server=server.address, image="base")
        assert (other.status, "3.999" in (other.error_message or "")) == ("setup_error", True)
        assert Sandbox.get("kept", server=server.address).name == "kept"
    finally:
        Sandbox.get("kept", server=server.address).delete()


def test_execute_code_without_a_session_leaves_nothing(server: Server) -> None:
    execute_code("python", "1", labels={"test": "gone"}, server=server.address)
    wait_until(lambda: not Sandbox.list(labels={"test": "gone"}, server=server.address), "it to be gone")


def test_execute_with_limits_applies_them_also_to_the_child_of_a_shell(server: Server) -> None:
    code = "python3 -c \"block = bytearray(400 << 20); block[::4096] = b'x' * (len(block) // 4096)\""
    result = execute_with_limits("bash", code, Limits(memory="128M", cpus=0.5), server=server.address)
    assert (result.status, result.exit_code) == ("error", -1), "bash itself ends with 137"
    assert result.error_message == ("it ran out of memory; use less memory, or limits=Limits(memory=…) above 128 MiB")
    assert (result.limits_applied.memory_limit_mb, result.limits_applied.cpu_limit_cores) == (128, 0.5)


def test_execute_code_lists_denied_hosts_and_the_remedy(server: Server) -> None:
    code = "import urllib.request\nurllib.request.urlopen('http://denied.test/')"
    result = execute_code("python", code, server=server.address)
    assert (result.status, result.exit_code) == ("error", 1)
    assert {attempt.host for attempt in result.denied} == {"denied.test"}
    assert "; refused: denied.test" in (result.error_message or "")
    assert "network=Network(allow=" in (result.error_message or "")
    assert [attempt["host"] for attempt in result["denied"]] == [attempt.host for attempt in result.denied]


def test_execute_code_has_the_traceback_and_the_line_of_javascript(server: Server) -> None:
    code = "function broken() {\n  throw new TypeError('no')\n}\nbroken()"
    result = execute_code("javascript", code, server=server.address)
    assert (result.status, result.exit_code, result.error_message) == ("error", 1, "TypeError: no (line 2)")
    assert "TypeError: no" in result.stderr
    assert "at broken" in result.stderr


def test_execute_code_runs_the_version_that_base_has(server: Server) -> None:
    with Client(server.address) as client:
        python = next(language for language in client.languages() if language.name == "python")
    version = next(version for version, image in python.versions.items() if image == "base")
    result = execute_code(f"python@{version}", "import sys; sys.version", server=server.address)
    assert (result.status, result.error_message) == ("success", None)
    assert (result.text or "").startswith(f"'{version}.")


def test_execute_code_returns_created_files_with_odd_names(server: Server) -> None:
    result = execute_code("python", r"open(b'\xff.txt', 'w').write('x')", server=server.address)
    assert result.status == "success", result.error_message
    assert [(file.path, file.content) for file in result.files] == [("/workspace/\udcff.txt", b"x")]
    assert [file["path"] for file in json.loads(json.dumps(result))["files"]] == ["/workspace/\ufffd.txt"]
