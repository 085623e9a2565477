"""Ctrl-C at every moment of a real `skerry`: while it loads, while a command runs, and while it exits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.cli import SKERRY, environment
from support.recorded_terminal import Wire
from support.server import Server, wait_until

from skerry import Output, Sandbox
from skerry.client._sync.processes import Run

InterruptedAt = Callable[[str], subprocess.CompletedProcess[bytes]]
# Python imports this module before the program. It counts the program's audit events (imports, opened files, sockets)
# from the first import of the command line on, and sends SIGINT at one of them, or after all others at the exit.
AT_EVENT = """
import atexit, os, signal, sys
at, count, begun = os.environ["INTERRUPT_AT"], 0, False

def hook(event, args):
    global count, begun
    begun = begun or (event == "import" and args[0] == "skerry.cli.app")
    count += begun
    if begun and str(count) == at:
        os.kill(os.getpid(), signal.SIGINT)

def ending():
    if at == "exit":
        os.kill(os.getpid(), signal.SIGINT)
    if at == "none":
        os.write(1, b"%d" % count)

atexit.register(ending)
sys.addaudithook(hook)
"""
COUNTS_INTERRUPTS = """
import os, signal, subprocess, time
child = subprocess.Popen(["sleep", "7171"], start_new_session=True)
signal.signal(signal.SIGINT, lambda *_: os.write(1, b"got\\n"))
os.write(1, b"ready\\n")
while True:
    time.sleep(600)
"""
ENDS_BY_ITSELF = """
import os, signal, time
def end(*_):
    os.write(1, b"saved\\n")
    os._exit(3)
signal.signal(signal.SIGINT, end)
os.write(1, b"ready\\n")
time.sleep(600)
"""


@pytest.fixture(scope="module")
def interrupted_at(tmp_path_factory: pytest.TempPathFactory) -> InterruptedAt:
    place = tmp_path_factory.mktemp("site")
    (place / "sitecustomize.py").write_text(AT_EVENT)

    def run(moment: str) -> subprocess.CompletedProcess[bytes]:
        env = environment(PYTHONPATH=str(place), INTERRUPT_AT=moment, SKERRY_SERVER=f"unix://{place}/no-server.sock")
        command = [*SKERRY, "exec", "dev", "--", "true"]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=env, timeout=100, check=False)

    return run


def test_ctrl_c_at_any_moment_of_loading_ends_without_traceback(interrupted_at: InterruptedAt) -> None:
    interrupted_at("none")  # writes the bytecode, which the next runs only read
    events = int(interrupted_at("none").stdout)
    assert events > 500, "the program's imports are counted"
    # The number of events may vary a little. The last ones belong to the exit, with its own test below.
    for moment in range(1, events * 9 // 10, events // 16):
        done = interrupted_at(str(moment))
        assert b"Traceback" not in done.stderr, (moment, events, done.stderr)
        assert (done.returncode, done.stdout) == (130, b""), (moment, events, done.stderr)


def test_ctrl_c_while_the_interpreter_exits_keeps_the_exit_code(interrupted_at: InterruptedAt) -> None:
    done = interrupted_at("exit")
    assert done.returncode == 125
    assert done.stderr.startswith(b"error: ")
    assert b"Traceback" not in done.stderr


def started(server: Server, *words: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [*SKERRY, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment(SKERRY_SERVER=server.address),
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.mark.parametrize(
    "words", [["run", "--"], ["exec", "SANDBOX", "--"], ["exec", "--session", "s", "SANDBOX", "--"]]
)
def test_ctrl_c_goes_to_the_command_and_returns_its_exit_code(
    server: Server, sandbox: Sandbox, words: list[str]
) -> None:
    words = [sandbox.id if word == "SANDBOX" else word for word in words]
    process = started(server, *words, "python3", "-c", ENDS_BY_ITSELF)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (3, b"saved\n", b"")


def test_second_ctrl_c_kills_the_command_with_its_tree(server: Server, sandbox: Sandbox) -> None:
    process = started(server, "exec", sandbox.id, "--", "python3", "-c", COUNTS_INTERRUPTS)
    assert process.stdout is not None
    answers = 0
    # On a slow machine more than 2 s may pass between two of them: the second is then another first one.
    process.send_signal(signal.SIGINT)
    while process.stdout.readline() == b"got\n":
        answers += 1
        process.send_signal(signal.SIGINT)
    assert answers >= 1
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (128 + signal.SIGKILL, b"")
    wait_until(lambda: not sandbox.run(["pgrep", "-f", "sleep 7171"]).ok, "the tree to be gone")


PYTHON_CODE = """
import sys, time
try:
    print("ready", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("saved")
    sys.exit(3)
"""
C_CODE = """
#include <signal.h>
#include <unistd.h>
static void end(int number) { write(1, "saved\\n", 6); _exit(3); }
int main(void) { signal(SIGINT, end); write(1, "ready\\n", 6); for (;;) pause(); }
"""
SHELL_CODE = "trap 'echo saved; exit 3' INT; echo ready; while :; do sleep 0.1; done"
REPEATS = """
import time
said = "ready"
while True:
    try:
        print(said, flush=True)
        time.sleep(600)
    except KeyboardInterrupt:
        said = "got"
"""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["run", "-l", "python"], PYTHON_CODE), (["exec", "-l", "python", "SANDBOX"], PYTHON_CODE),
        (["exec", "-l", "python", "--no-context", "SANDBOX"], PYTHON_CODE),
        (["exec", "-l", "bash", "SANDBOX"], SHELL_CODE), (["exec", "-l", "c", "SANDBOX"], C_CODE),
    ],
    ids=["run", "context", "no context", "shell", "compiled"],
)  # fmt: skip
def test_ctrl_c_goes_to_the_code_and_returns_its_exit_code(
    server: Server, sandbox: Sandbox, tmp_path: Path, words: list[str], code: str
) -> None:
    file = tmp_path / "code"
    file.write_text(code)
    words = [sandbox.id if word == "SANDBOX" else word for word in words]
    process = started(server, *words, str(file))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.count(b"Traceback")) == (3, b"saved\n", 0), err


def test_ctrl_c_that_code_does_not_handle_returns_130_and_keeps_the_context(server: Server, sandbox: Sandbox) -> None:
    code = "x = 5\nprint('ready', flush=True)\nimport time\ntime.sleep(600)"
    process = started(server, "exec", "--code", code, sandbox.id)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, b"KeyboardInterrupt" in err) == (130, True)
    assert sandbox.code.run("x").text == "5"


def test_second_ctrl_c_kills_the_code(server: Server, sandbox: Sandbox) -> None:
    process = started(server, "exec", "--code", REPEATS, sandbox.id)
    assert process.stdout is not None
    process.send_signal(signal.SIGINT)
    while process.stdout.readline() == b"got\n":  # as above: the second may be another first one
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, b"Traceback" in err) == (128 + signal.SIGKILL, False)


def test_ctrl_c_in_a_terminal_goes_to_the_command(server: Server, sandbox: Sandbox) -> None:
    with Wire(server.address, "exec", sandbox.id, "--", "python3", "-c", ENDS_BY_ITSELF) as wire:
        wire.shows("ready")
        wire.press(b"\x03")
        wire.shows("saved")
        assert wire.ends() == 3


def test_command_can_be_signalled_from_on_start(sandbox: Sandbox) -> None:
    started: list[Run] = []

    def interrupt(piece: Output) -> None:
        if piece.data == b"ready\n":
            started[0].signal("INT")

    result = sandbox.run(["python3", "-c", ENDS_BY_ITSELF], on_start=started.append, on_output=interrupt)
    assert (result.exit_code, result.id) == (3, started[0].id)


def test_git_remote_ends_without_traceback(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(AT_EVENT.replace("skerry.cli.app", "skerry.cli.commands"))
    call = "import sys; from skerry.cli import git_remote; sys.argv[1:] = ['origin']; git_remote()"
    env = environment(PYTHONPATH=str(tmp_path), INTERRUPT_AT="100", GIT_DIR=os.devnull)
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, env=env, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, b"")


HANDLED_ELSEWHERE = """
import os, signal, threading
from skerry.cli import signals

signal.signal(signal.SIGINT, signal.default_int_handler)
signals.interrupts_work()
reader, _ = os.pipe()
other = threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT), daemon=True)
threading.Timer(0.3, other.start).start()
try:
    os.read(reader, 1)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_interrupt_that_does_not_end_a_waiting_call_is_handled_soon() -> None:
    """As one does that arrives just before the call: here it is delivered to another thread."""
    done = subprocess.run([sys.executable, "-c", HANDLED_ELSEWHERE], capture_output=True, timeout=60, check=True)
    assert done.stdout == b"interrupted\n"
