"""`skerry shell` and `attach` in a real terminal multiplexer, against a real server and real sandboxes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import skerry
from support.server import Server, wait_until
from support.tmux import Window

from skerry import Sandbox

NAME = "term"
INSIDE = f"user@{NAME}:/workspace$"


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    with Sandbox(name=NAME, server=server.address) as sandbox:
        yield sandbox
        sandbox.delete()


@pytest.fixture
def window(tmp_path: Path, server: Server, sandbox: Sandbox) -> Iterator[Window]:
    with Window(tmp_path, server.address) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_left(sandbox: Sandbox) -> Iterator[None]:
    yield
    for process in sandbox.processes.list():
        process.kill()


def running(sandbox: Sandbox, *, terminal: bool = True) -> list[str]:
    return [one.id for one in sandbox.processes.list() if one.state == "running" and one.cached_info.pty == terminal]


def runs_inside(sandbox: Sandbox, name: str) -> bool:
    return sandbox.run(["pgrep", "-x", name]).ok


def modes(window: Window, name: str) -> str:
    """Return the terminal's modes as the host's shell sees them, after they are written."""
    file = window.skerry.parent / name
    window.enter(f"stty -a >{name}.part; mv {name}.part {name}")
    wait_until(file.exists, "stty")
    window.is_back()
    return file.read_text()


def into_a_shell(window: Window, *options: str) -> None:
    window.enter(" ".join(["skerry shell", *options, NAME]))
    window.shows_line(INSIDE)


def test_shell_has_the_windows_size_and_colours(window: Window) -> None:
    into_a_shell(window)
    window.enter("stty size; tty; echo $TERM $COLORTERM $SHLVL")
    window.shows_line("30 100")
    window.shows("/dev/pts/")
    window.shows("tmux-256color truecolor 1")
    window.enter("printf '\\033[1;31mr%sd\\033[0m\\n' e; tput colors")
    window.shows_line("red")
    window.shows_line("256")
    assert "\x1b[1m\x1b[31mred" in window.screen(colours=True)


TELLS_ITS_SIZE = """
import os, signal
signal.signal(signal.SIGWINCH, lambda *_: print("now", *os.get_terminal_size(), flush=True))
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_terminal_size_follows_the_window(window: Window, sandbox: Sandbox) -> None:
    sandbox.files.write("/workspace/size.py", TELLS_ITS_SIZE)
    into_a_shell(window)
    window.enter("python3 size.py")
    window.shows_line("ready")
    window.resize(132, 43)
    window.shows_line("now 132 43")
    window.resize(60, 20)
    window.shows_line("now 60 20")


def test_ctrl_c_interrupts_the_program_and_not_the_shell(window: Window, sandbox: Sandbox) -> None:
    into_a_shell(window)
    window.enter("sleep 1000")
    wait_until(lambda: runs_inside(sandbox, "sleep"), "sleep to run")
    window.press("C-c")
    window.enter("echo code $?, and $((6*7))")
    window.shows_line("code 130, and 42")
    assert not runs_inside(sandbox, "sleep")


def test_ctrl_z_stops_a_job(window: Window, sandbox: Sandbox) -> None:
    into_a_shell(window)
    window.enter("sleep 1000")
    wait_until(lambda: runs_inside(sandbox, "sleep"), "sleep to run")
    window.press("C-z")
    window.shows("Stopped")
    window.enter("kill %1; echo j$((1+0))b")
    window.shows_line("j1b")


def test_vim_edits_a_file(window: Window, sandbox: Sandbox) -> None:
    sandbox.files.write("/workspace/poem.txt", "first line\n")
    into_a_shell(window)
    window.enter("vim poem.txt")
    window.shows("first line")
    window.shows_line("~")
    assert window.flag("alternate_on")
    window.type("oUmlaut ü and ~. in the middle")
    window.press("Escape")
    window.shows("Umlaut ü and ~. in the middle")
    window.enter(":wq")
    window.shows_line(f"{INSIDE} vim poem.txt")
    assert not window.flag("alternate_on")
    assert sandbox.files.read_text("/workspace/poem.txt") == "first line\nUmlaut ü and ~. in the middle\n"


@pytest.mark.parametrize(
    ("program", "shown", "leave"), [("htop", "Load average", "q"), ("less /etc/passwd", "root:x", "q")]
)
def test_full_screen_programs_work(window: Window, program: str, shown: str, leave: str) -> None:
    into_a_shell(window)
    window.enter(program)
    window.shows(shown)
    assert window.flag("alternate_on")
    window.type(leave)
    window.shows_line(f"{INSIDE} {program}")
    assert not window.flag("alternate_on")
    window.enter("echo $((6*7))")
    window.shows_line("42")


def test_multiplexer_runs_in_a_shell(window: Window) -> None:
    into_a_shell(window)
    window.enter("tmux new-session 'echo in tmux: $TMUX; exec cat'")
    window.shows("in tmux: /tmp/tmux-1000")
    window.press("C-d")
    window.shows("[exited]")


@pytest.mark.parametrize(("line", "code"), [("exit 7", 7), ("exit", 0), ("kill -9 $$", 137), ("kill -HUP $$", 129)])
def test_exit_code_is_returned_and_the_terminal_restored(window: Window, line: str, code: int) -> None:
    before = modes(window, "before")
    into_a_shell(window)
    window.enter(line)
    window.is_back()
    window.enter("echo code $?")
    window.shows_line(f"code {code}")
    assert modes(window, "after") == before


def test_detached_shell_keeps_running_and_attach_returns(window: Window, sandbox: Sandbox) -> None:
    before = modes(window, "before")
    into_a_shell(window)
    window.enter("A=remembered; echo on the screen")
    window.shows_line("on the screen")
    window.press("Enter")
    window.type("~?")
    window.shows("send one ~")
    window.press("Enter")
    window.type("~.")
    window.shows("To return: skerry attach")
    window.is_back()
    window.enter("echo code $?")
    window.shows_line("code 0")
    assert modes(window, "after") == before
    (process,) = running(sandbox)
    assert sandbox.processes.get(process).cached_info.cmd == ["/bin/bash", "-l"]
    window.enter(f"clear; skerry attach {NAME} {process}")
    window.shows_line("on the screen")
    window.enter("echo $A, $(stty size)")
    window.shows_line("remembered, 30 100")
    window.enter("exit 9")
    window.is_back()
    window.enter("echo code $?")
    window.shows_line("code 9")


def test_tilde_is_an_ordinary_key_without_escapes(window: Window) -> None:
    into_a_shell(window, "-E")
    window.enter("~.")
    window.shows("~.: command not found")
    window.enter("exit")
    window.is_back()
    into_a_shell(window)
    window.enter("~~.")
    window.shows("~.: command not found")


def test_detaching_from_vim_leaves_its_screen_and_attach_redraws(window: Window, sandbox: Sandbox) -> None:
    window.enter(f"skerry shell {NAME} -- vim -c 'set mouse=a' /workspace/left.txt")
    window.shows_line("~")
    window.type("iwords")
    window.press("Escape")
    window.shows_line("words")
    assert window.flag("mouse_any_flag")
    window.press("Enter")
    window.type("~.")
    window.shows("To return: skerry attach")
    assert not window.flag("alternate_on")
    assert not window.flag("mouse_any_flag")
    assert window.flag("cursor_flag")
    (process,) = running(sandbox)
    window.enter(f"skerry attach {NAME} {process}")
    window.shows_line("words")
    window.shows_line("~")
    assert window.flag("alternate_on")
    window.enter(":wq")
    window.is_back()
    assert sandbox.files.read_text("/workspace/left.txt") == "words\n"


def test_closed_window_keeps_the_shell_running(window: Window, sandbox: Sandbox) -> None:
    window.enter(f"sh -c 'echo $$ >pid; exec skerry shell {NAME}'")
    window.shows_line(INSIDE)
    (process,) = running(sandbox)
    viewer = Path("/proc", (window.skerry.parent / "pid").read_text().strip())
    window.close()
    wait_until(lambda: not viewer.exists(), "who looked on to leave")
    wait_until(lambda: sandbox.processes.get(process).state == "running", "the shell to live on")
    window.enter(f"skerry attach {NAME} {process}")
    window.shows_line(INSIDE)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_signal_restores_the_terminal(window: Window, sandbox: Sandbox, number: signal.Signals, code: int) -> None:
    before = modes(window, "before")
    window.enter(f"sh -c 'echo $$ >pid; exec skerry shell {NAME}'; echo code $?")
    window.shows_line(INSIDE)
    os.kill(int((window.skerry.parent / "pid").read_text()), number)
    window.shows_line(f"code {code}")
    assert modes(window, "after") == before
    assert len(running(sandbox)) == 1


def test_stopped_sandbox_restores_the_terminal(window: Window, sandbox: Sandbox) -> None:
    before = modes(window, "before")
    into_a_shell(window)
    sandbox.stop()
    window.is_back()
    assert modes(window, "after") == before


def test_shell_with_command_user_and_directory(window: Window) -> None:
    window.enter(
        f"skerry shell --user root --cwd /tmp -e A=b {NAME} -- sh -c 'id -un; pwd; echo $A; tty'; echo code $?"
    )
    window.shows_line("root")
    window.shows_line("/tmp")
    window.shows_line("b")
    window.shows("/dev/pts/")
    window.shows_line("code 0")


def test_exec_it_opens_a_shell(window: Window) -> None:
    window.enter(f"skerry exec -it {NAME} bash")
    window.shows_line(INSIDE)
    window.enter("stty size; exit 3")
    window.shows_line("30 100")
    window.is_back()
    window.enter("echo code $?")
    window.shows_line("code 3")


def test_two_terminals_share_a_process(window: Window, sandbox: Sandbox, tmp_path: Path, server: Server) -> None:
    into_a_shell(window)
    (process,) = running(sandbox)
    (tmp_path / "two").mkdir()
    with Window(tmp_path / "two", server.address) as other:
        other.enter(f"skerry attach {NAME} {process}")
        other.shows_line(INSIDE)
        window.enter("echo one $((1+0))")
        other.shows_line("one 1")
        other.enter("echo two $((1+1))")
        window.shows_line("two 2")
        other.enter("exit 4")
        other.is_back()
        window.is_back()


def test_shell_survives_a_killed_server(own_server: Server, tmp_path: Path) -> None:
    own_server.start()
    with Sandbox(name=NAME, server=own_server.address) as sandbox, Window(tmp_path, own_server.address) as window:
        into_a_shell(window)
        own_server.end(signal.SIGKILL)
        own_server.start()
        window.enter("echo still $((6*7))")
        window.shows_line("still 42")
        own_server.end()
        own_server.start()
        window.enter("echo and $((6*7))")
        window.shows_line("and 42")
        sandbox.delete()


# -- without a terminal on one side ---------------------------------------------------------------------------


def test_shell_needs_a_terminal(server: Server, sandbox: Sandbox) -> None:
    for words in (["shell", NAME], ["exec", "-it", NAME, "bash"]):
        done = skerry(*words, server=server.address, stdin=b"ls\n")
        assert done.returncode == 2
        assert b"stdin is not a terminal" in done.stderr
        assert f"skerry exec {NAME} -- COMMAND".encode() in done.stderr
    assert running(sandbox) == []


def test_piped_stdin_is_typed(server: Server, sandbox: Sandbox) -> None:
    process = sandbox.spawn(["bash", "--norc", "--noprofile"], pty=True)
    done = skerry("attach", NAME, process.id, server=server.address, stdin=b"echo ~.$((6*7)); exit 5\n")
    assert done.returncode == 5
    assert b"~.42" in done.stdout


def test_attach_without_stdin_changes_nothing(window: Window, sandbox: Sandbox) -> None:
    process = sandbox.spawn("read line; echo got $line; exit 6", pty=True)
    before = modes(window, "before")
    window.enter(f"skerry attach --no-stdin {NAME} {process.id}; echo code $?")
    window.enter("typed here")
    with process.terminal() as terminal:
        terminal.write("typed there\r")
    window.shows_line("got typed there")
    window.shows_line("code 6")
    assert modes(window, "after") == before


def test_attach_to_a_process_without_a_terminal(server: Server, sandbox: Sandbox) -> None:
    process = sandbox.spawn(["sh", "-c", "echo before; cat; echo oops >&2; exit 8"])
    done = skerry("attach", NAME, process.id, server=server.address, stdin=b"through\n")
    assert (done.returncode, done.stdout, done.stderr) == (8, b"before\nthrough\n", b"oops\n")


def test_ctrl_c_detaches_from_a_process_without_a_terminal(window: Window, sandbox: Sandbox) -> None:
    process = sandbox.spawn(["sh", "-c", "echo here; exec sleep 1000"])
    window.enter(f"skerry attach {NAME} {process.id}; echo code $?")
    window.shows_line("here")
    window.press("C-c")
    window.shows(f"To return: skerry attach {NAME} {process.id}")
    window.shows_line("code 0")
    assert process.info().state == "running"


def test_attach_to_an_ended_process_shows_its_output(server: Server, sandbox: Sandbox) -> None:
    ended = sandbox.spawn("echo was here; exit 3", pty=True)
    ended.wait(30)
    done = skerry("attach", "--no-stdin", NAME, ended.id, server=server.address)
    assert (done.returncode, done.stdout) == (3, b"was here\r\n")


def test_attach_to_an_unknown_process_is_an_error(server: Server, sandbox: Sandbox) -> None:
    done = skerry("attach", NAME, "p-aaaaaaaaaa", server=server.address)
    assert done.returncode == 2
    assert b"process not found" in done.stderr
