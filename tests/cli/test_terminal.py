"""`skerry shell` and `attach` in a real terminal multiplexer, against a real server and real sandboxes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.calling import skerry
from cli.multiplexer import Window
from serving import Server, wait_until

from skerry import Sandbox

NAME = "term"
INSIDE = f"user@{NAME}:/workspace$"


@pytest.fixture(scope="module")
def box(server: Server) -> Iterator[Sandbox]:
    with Sandbox(name=NAME, server=server.address) as sandbox:
        yield sandbox
        sandbox.delete()


@pytest.fixture
def window(tmp_path: Path, server: Server, box: Sandbox) -> Iterator[Window]:
    with Window(tmp_path, server.address) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_left(box: Sandbox) -> Iterator[None]:
    yield
    for process in box.processes.list():
        process.kill()


def running(box: Sandbox, *, terminal: bool = True) -> list[str]:
    return [one.id for one in box.processes.list() if one.state == "running" and one.known.pty == terminal]


def runs_inside(box: Sandbox, name: str) -> bool:
    return box.run(["pgrep", "-x", name]).ok


def modes(window: Window, name: str) -> str:
    """The terminal's own, as the host's shell sees them; waits for them to be written."""
    file = window.skerry.parent / name
    window.enter(f"stty -a >{name}.part; mv {name}.part {name}")
    wait_until(file.exists, "stty")
    window.is_back()
    return file.read_text()


def into_a_shell(window: Window, *options: str) -> None:
    window.enter(" ".join(["skerry shell", *options, NAME]))
    window.shows_line(INSIDE)


def test_a_shell_has_a_terminal_of_the_windows_size_with_colours(window: Window) -> None:
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


def test_the_size_inside_follows_the_window(window: Window, box: Sandbox) -> None:
    box.files.write("/workspace/size.py", TELLS_ITS_SIZE)
    into_a_shell(window)
    window.enter("python3 size.py")
    window.shows_line("ready")
    window.resize(132, 43)
    window.shows_line("now 132 43")
    window.resize(60, 20)
    window.shows_line("now 60 20")


def test_ctrl_c_interrupts_the_program_and_not_the_shell(window: Window, box: Sandbox) -> None:
    into_a_shell(window)
    window.enter("sleep 1000")
    wait_until(lambda: runs_inside(box, "sleep"), "sleep to run")
    window.press("C-c")
    window.enter("echo code $?, and $((6*7))")
    window.shows_line("code 130, and 42")
    assert not runs_inside(box, "sleep")


def test_ctrl_z_stops_a_job_inside(window: Window, box: Sandbox) -> None:
    into_a_shell(window)
    window.enter("sleep 1000")
    wait_until(lambda: runs_inside(box, "sleep"), "sleep to run")
    window.press("C-z")
    window.shows("Stopped")
    window.enter("kill %1; echo j$((1+0))b")
    window.shows_line("j1b")


def test_vim_opens_a_file_and_saves_it(window: Window, box: Sandbox) -> None:
    box.files.write("/workspace/poem.txt", "first line\n")
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
    assert box.files.read_text("/workspace/poem.txt") == "first line\nUmlaut ü and ~. in the middle\n"


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


def test_a_multiplexer_runs_inside(window: Window) -> None:
    into_a_shell(window)
    window.enter("tmux new-session 'echo in tmux: $TMUX; exec cat'")
    window.shows("in tmux: /tmp/tmux-1000")
    window.press("C-d")
    window.shows("[exited]")


@pytest.mark.parametrize(("line", "code"), [("exit 7", 7), ("exit", 0), ("kill -9 $$", 137), ("kill -HUP $$", 129)])
def test_the_exit_code_comes_out_and_the_terminal_is_as_before(window: Window, line: str, code: int) -> None:
    before = modes(window, "before")
    into_a_shell(window)
    window.enter(line)
    window.is_back()
    window.enter("echo code $?")
    window.shows_line(f"code {code}")
    assert modes(window, "after") == before


def test_leaving_lets_the_shell_live_and_attach_comes_back(window: Window, box: Sandbox) -> None:
    before = modes(window, "before")
    into_a_shell(window)
    window.enter("A=remembered; echo on the screen")
    window.shows_line("on the screen")
    window.press("Enter")
    window.type("~?")
    window.shows("type one ~")
    window.press("Enter")
    window.type("~.")
    window.shows("Come back: skerry attach")
    window.is_back()
    window.enter("echo code $?")
    window.shows_line("code 0")
    assert modes(window, "after") == before
    (process,) = running(box)
    assert box.processes.get(process).known.cmd == ["/bin/bash", "-l"]
    window.enter(f"clear; skerry attach {NAME} {process}")
    window.shows_line("on the screen")
    window.enter("echo $A, $(stty size)")
    window.shows_line("remembered, 30 100")
    window.enter("exit 9")
    window.is_back()
    window.enter("echo code $?")
    window.shows_line("code 9")


def test_a_tilde_is_a_key_like_any_other_without_escapes(window: Window) -> None:
    into_a_shell(window, "-E")
    window.enter("~.")
    window.shows("~.: command not found")
    window.enter("exit")
    window.is_back()
    into_a_shell(window)
    window.enter("~~.")
    window.shows("~.: command not found")


def test_leaving_vim_leaves_its_screen_too_and_coming_back_draws_it_again(window: Window, box: Sandbox) -> None:
    window.enter(f"skerry shell {NAME} -- vim -c 'set mouse=a' /workspace/left.txt")
    window.shows_line("~")
    window.type("iwords")
    window.press("Escape")
    window.shows_line("words")
    assert window.flag("mouse_any_flag")
    window.press("Enter")
    window.type("~.")
    window.shows("Come back: skerry attach")
    assert not window.flag("alternate_on")
    assert not window.flag("mouse_any_flag")
    assert window.flag("cursor_flag")
    (process,) = running(box)
    window.enter(f"skerry attach {NAME} {process}")
    window.shows_line("words")
    window.shows_line("~")
    assert window.flag("alternate_on")
    window.enter(":wq")
    window.is_back()
    assert box.files.read_text("/workspace/left.txt") == "words\n"


def test_a_window_that_is_closed_leaves_the_shell_alive(window: Window, box: Sandbox) -> None:
    window.enter(f"sh -c 'echo $$ >pid; exec skerry shell {NAME}'")
    window.shows_line(INSIDE)
    (process,) = running(box)
    viewer = Path("/proc", (window.skerry.parent / "pid").read_text().strip())
    window.close()
    wait_until(lambda: not viewer.exists(), "who looked on to leave")
    wait_until(lambda: box.processes.get(process).state == "running", "the shell to live on")
    window.enter(f"skerry attach {NAME} {process}")
    window.shows_line(INSIDE)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_signal_from_outside_puts_the_terminal_back(
    window: Window, box: Sandbox, number: signal.Signals, code: int
) -> None:
    before = modes(window, "before")
    window.enter(f"sh -c 'echo $$ >pid; exec skerry shell {NAME}'; echo code $?")
    window.shows_line(INSIDE)
    os.kill(int((window.skerry.parent / "pid").read_text()), number)
    window.shows_line(f"code {code}")
    assert modes(window, "after") == before
    assert len(running(box)) == 1


def test_a_sandbox_that_is_stopped_under_it_puts_the_terminal_back(window: Window, box: Sandbox) -> None:
    before = modes(window, "before")
    into_a_shell(window)
    box.stop()
    window.is_back()
    assert modes(window, "after") == before


def test_a_command_of_ones_own_by_another_user_elsewhere(window: Window) -> None:
    window.enter(
        f"skerry shell --user root --cwd /tmp -e A=b {NAME} -- sh -c 'id -un; pwd; echo $A; tty'; echo code $?"
    )
    window.shows_line("root")
    window.shows_line("/tmp")
    window.shows_line("b")
    window.shows("/dev/pts/")
    window.shows_line("code 0")


def test_exec_it_is_a_shell_too(window: Window) -> None:
    window.enter(f"skerry exec -it {NAME} bash")
    window.shows_line(INSIDE)
    window.enter("stty size; exit 3")
    window.shows_line("30 100")
    window.is_back()
    window.enter("echo code $?")
    window.shows_line("code 3")


def test_two_see_and_use_the_same(window: Window, box: Sandbox, tmp_path: Path, server: Server) -> None:
    into_a_shell(window)
    (process,) = running(box)
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


def test_a_server_that_is_killed_and_comes_again_is_not_noticed(own_server: Server, tmp_path: Path) -> None:
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


# -- without a terminal on one of the sides ---------------------------------------------------------------------------


def test_a_shell_needs_a_terminal(server: Server, box: Sandbox) -> None:
    for words in (["shell", NAME], ["exec", "-it", NAME, "bash"]):
        done = skerry(*words, server=server.address, stdin=b"ls\n")
        assert done.returncode == 2
        assert b"stdin is not a terminal" in done.stderr
        assert f"skerry exec {NAME} -- COMMAND".encode() in done.stderr
    assert running(box) == []


def test_a_pipe_in_place_of_a_keyboard(server: Server, box: Sandbox) -> None:
    process = box.spawn(["bash", "--norc", "--noprofile"], pty=True)
    done = skerry("attach", NAME, process.id, server=server.address, stdin=b"echo ~.$((6*7)); exit 5\n")
    assert done.returncode == 5
    assert b"~.42" in done.stdout


def test_who_only_looks_on_changes_nothing(window: Window, box: Sandbox) -> None:
    process = box.spawn("read line; echo got $line; exit 6", pty=True)
    before = modes(window, "before")
    window.enter(f"skerry attach --no-stdin {NAME} {process.id}; echo code $?")
    window.enter("typed here")
    with process.terminal() as terminal:
        terminal.write("typed there\r")
    window.shows_line("got typed there")
    window.shows_line("code 6")
    assert modes(window, "after") == before


def test_a_process_without_a_terminal_is_attached_to_as_a_pipe(server: Server, box: Sandbox) -> None:
    process = box.spawn(["sh", "-c", "echo before; cat; echo oops >&2; exit 8"])
    done = skerry("attach", NAME, process.id, server=server.address, stdin=b"through\n")
    assert (done.returncode, done.stdout, done.stderr) == (8, b"before\nthrough\n", b"oops\n")


def test_ctrl_c_leaves_a_process_without_a_terminal(window: Window, box: Sandbox) -> None:
    process = box.spawn(["sh", "-c", "echo here; exec sleep 1000"])
    window.enter(f"skerry attach {NAME} {process.id}; echo code $?")
    window.shows_line("here")
    window.press("C-c")
    window.shows(f"Come back: skerry attach {NAME} {process.id}")
    window.shows_line("code 0")
    assert process.info().state == "running"


def test_attach_to_what_has_ended_shows_it_again(server: Server, box: Sandbox) -> None:
    ended = box.spawn("echo was here; exit 3", pty=True)
    ended.wait(30)
    done = skerry("attach", "--no-stdin", NAME, ended.id, server=server.address)
    assert (done.returncode, done.stdout) == (3, b"was here\r\n")


def test_attach_to_nothing_is_told(server: Server, box: Sandbox) -> None:
    done = skerry("attach", NAME, "p-aaaaaaaaaa", server=server.address)
    assert done.returncode == 2
    assert b"no process" in done.stderr
