"""`skerry run -it`, `skerry exec` at a terminal and `skerry shell` without a sandbox, in real terminals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.cli import skerry
from support.recorded_terminal import Wire
from support.server import Server

from skerry import Sandbox
from skerry.cli.terminal import needs_terminal, reads_stdin

# Draws its size in the corner of the screen, again at each change, until q is pressed.
CURSES = """
import curses

def main(screen):
    key = None
    while key != ord("q"):
        rows, cols = screen.getmaxyx()
        screen.erase()
        screen.addstr(rows - 1, cols - 30, f"[{cols} by {rows}]")
        screen.refresh()
        key = screen.getch()
        if key == curses.KEY_RESIZE:
            curses.update_lines_cols()

curses.wrapper(main)
"""


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Sandbox:
    with Sandbox(name="kept", server=server.address) as sandbox:
        sandbox.files.write("/workspace/screen.py", CURSES)
        return sandbox


@pytest.fixture(autouse=True)
def only_the_named_sandbox_stays(server: Server, sandbox: Sandbox) -> object:
    yield
    listed = json.loads(skerry("ls", "--json", server=server.address).stdout)
    assert [one["name"] for one in listed] == ["kept"]


@pytest.mark.parametrize(
    "words",
    [
        ["run", "-it", "--", "bash"],
        ["run", "--", "bash", "-l"],
        ["run", "-it", "base", "--", "bash"],
        ["run", "-it", "base"],
        ["run"],
        ["shell"],
        ["shell", "--image", "base", "--", "bash"],
    ],
    ids=" ".join,
)
def test_new_sandbox_is_used_in_the_terminal_and_deleted(server: Server, words: list[str]) -> None:
    with Wire(server.address, *words, cols=90, rows=20) as wire:
        wire.shows("/workspace$")
        wire.press(b"tty; stty size; exit 5\r")
        wire.shows("/dev/pts/")
        wire.shows("20 90")
        assert wire.ends() == 5
        assert wire.modes == wire.before


def test_full_screen_program_follows_the_window(server: Server) -> None:
    with Wire(server.address, "exec", "-it", "kept", "--", "python3", "screen.py", cols=90, rows=20) as wire:
        wire.shows("[90 by 20]")
        for cols, rows in ((120, 40), (60, 15)):
            wire.resize(cols, rows)
            wire.shows(f"[{cols} by {rows}]")
        wire.press(b"q")
        assert wire.ends() == 0
        assert wire.modes == wire.before


@pytest.mark.parametrize(("program", "shown"), [("less /etc/passwd", "root:x:0:0"), ("top", "load average")])
def test_exec_gives_a_full_screen_program_a_terminal(server: Server, program: str, shown: str) -> None:
    with Wire(server.address, "exec", "kept", "--", *program.split()) as wire:
        wire.shows(shown)
        wire.press(b"q")
        assert wire.ends() == 0
        assert b"hint:" not in wire.seen()


def test_other_commands_get_a_terminal_on_request_only(server: Server) -> None:
    with Wire(server.address, "exec", "kept", "--", "tty") as wire:
        wire.shows("not a tty")
        assert wire.ends() == 1
    with Wire(server.address, "exec", "-t", "kept", "--", "tty") as wire:
        wire.shows("/dev/pts/")
        assert wire.ends() == 0
    for words in (["-T", "kept", "--", "bash"], ["kept", "--", "cat"]):
        with Wire(server.address, "exec", *words) as wire:
            wire.shows("hint: it printed nothing and had no input; -it gives it this terminal")
            assert wire.ends() == 0


def test_interactive_forwards_typed_lines(server: Server) -> None:
    with Wire(server.address, "exec", "-i", "kept", "--", "sh", "-c", "echo ready; exec sed s/^/got:/") as wire:
        wire.shows("ready")
        wire.press(b"one\r\x04")
        wire.shows("got:one")
        assert wire.ends() == 0


def test_leaving_a_new_sandbox_deletes_it(server: Server) -> None:
    with Wire(server.address, "run", "-it", "--", "bash") as wire:
        wire.shows("/workspace$")
        wire.press(b"~?")
        wire.shows("end the process and delete the sandbox")
        wire.press(b"\r~.")
        wire.shows("left before the end; the sandbox was deleted")
        assert wire.ends() == 130


def test_terminal_run_saves_its_files(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [
        "run",
        "-it",
        "-e",
        "WHO=me",
        "--user",
        "root",
        "--out",
        str(out),
        "--",
        "bash",
        "-c",
        "id -un; echo $WHO >note",
    ]
    with Wire(server.address, *words) as wire:
        wire.shows("root")
        assert wire.ends() == 0
        assert b"hint:" not in wire.seen()
    assert (out / "note").read_text() == "me\n"
    again = ["run", "--out", str(out), "--", "sh", "-c", "echo other >note"]
    refused = skerry(*again, server=server.address)
    assert (refused.returncode, b"--overwrite" in refused.stderr) == (2, True)
    assert skerry(*again[:3], "--overwrite", *again[3:], server=server.address).returncode == 0
    assert (out / "note").read_text() == "other\n"


def test_first_word_with_a_tag_is_the_image(server: Server) -> None:
    done = skerry("run", "no-such:1", "true", server=server.address)
    assert done.returncode == 2
    assert b"no-such" in done.stderr
    assert skerry("run", "--", "no-such:1", server=server.address).returncode == 127


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "-it", "--", "bash"], b"stdin is not a terminal"),
        (["shell"], b"without a terminal: skerry run"),
        (["run", "-t", "--json", "--", "bash"], b"--json"),
        (["exec", "-t", "--session", "s", "kept", "--", "bash"], b"--session"),
        (["run", "-it", "-l", "python", "x.py"], b"-l cannot be combined"),
    ],
)
def test_impossible_terminal_is_an_error(server: Server, words: list[str], message: bytes) -> None:
    done = skerry(*words, server=server.address)
    assert done.returncode == 2
    assert message in done.stderr


def test_options_of_a_new_sandbox_need_a_new_one(server: Server) -> None:
    with Wire(server.address, "shell", "--memory", "1G", "kept") as wire:
        wire.shows("--memory needs a new sandbox")
        assert wire.ends() == 2


@pytest.mark.parametrize(
    ("line", "needs"),
    [
        ("bash", True), ("/bin/sh -l", True), ("bash -c true", False), ("sh script.sh", False), ("python3", True),
        ("python3.12", True), ("python3 x.py", False), ("node", True), ("vim x", True), ("less /etc/passwd", True),
        ("", True), ("make", False), ("cat", False), ("sudo -i", True), ("sudo bash", True), ("sudo make", False),
        ("python -i x.py", True), ("python3 -uiq", True), ("python3 -u x.py -i", False), ("python3 -V", False),
        ("python3 -m pdb x.py", True), ("python3 -m http.server", False), ("python3 -m", False),
        ("python3 -c 1", False), ("python3 -ic x=1", False), ("python3 -i -c x=1", True), ("python --version", False),
        ("node -i", True), ("node inspect x.js", True), ("node x.js", False), ("php -a", True), ("irb", True),
        ("watch -n1 ls", True), ("lazygit", True), ("top -h", True), ("less --version", False),
        ("gdb ./a.out", True), ("gdb --batch -ex bt ./a.out", False), ("gdb -batch x", False),
        ("mysql -u root -h db shop", True), ("mysql -eSELECT shop", False), ("mariadb --execute=SELECT", False),
        ("psql -h db shop", True), ("psql -c SELECT", False), ("psql --file=x.sql", False),
        ("sqlite3", True), ("sqlite3 a.db", True), ("sqlite3 a.db .tables", False), ("sqlite3 -version", False),
        ("claude", True), ("claude fix-it", True), ("claude -p fix-it", False), ("claude --print fix-it", False),
        ("claude mcp list", False), ("codex", True), ("codex exec x", False), ("su - user", True), ("su -c id", False),
        ("redis-cli", True), ("redis-cli get x", False), ("env", False), ("env A=1 B=2", False),
        ("bash -x", True), ("bash -eo pipefail", True), ("bash -o vi --norc", True), ("sh -", True), ("sh -s a", True),
        ("bash --rcfile x", True), ("bash -xc true", False), ("bash -x script.sh", False), ("bash -- x", False),
        ("bash --version", False), ("env bash", True), ("env -i A=1 -u B bash -x", True), ("env bash -c true", False),
        ("env -- make", False), ("sudo -u user bash", True), ("sudo -u user -i", True), ("sudo -E make", False),
        ("nice -n 5 python3", True), ("busybox sh", True), ("sudo env A=1 sh", True), ("python3 -", True),
        ("python3 -X dev", True), ("python3 -Xdev -W error", True), ("python3 -W error x.py", False),
        ("bc -lq", True), ("node --no-warnings", True), ("node -e 1", False), ("node -p1", False), ("lua -v", False),
    ],
)  # fmt: skip
def test_programs_that_need_a_terminal(line: str, needs: bool) -> None:
    assert needs_terminal(line.split()) == needs


@pytest.mark.parametrize(
    ("line", "reads"),
    [
        ("cat", True), ("cat -n", True), ("cat x", False), ("sort -u", True), ("env cat", True), ("bash -x", True),
        ("python3 -", True), ("sed s/a/b/", True), ("sed s/a/b/ x", False), ("grep -v x", True), ("grep x y", False),
        ("tr a b", True), ("xargs rm", True), ("jq .", True), ("touch x", False), ("git add -A", False), ("a=1", False),
        ("env A=1", False),
    ],
)  # fmt: skip
def test_programs_that_read_stdin(line: str, reads: bool) -> None:
    assert reads_stdin(line.split()) == reads


@pytest.mark.parametrize("program", ["bash -x", "env bash", "python3 -", "sudo -u user sh"])
def test_exec_gives_a_shell_with_options_a_terminal(server: Server, program: str) -> None:
    with Wire(server.address, "exec", "kept", "--", *program.split()) as wire:
        wire.press(b"import os; os._exit(7)\r" if program.startswith("python") else b"exit 7\r")
        assert wire.ends() == 7
        assert b"hint:" not in wire.seen()


@pytest.mark.parametrize("program", ["cat -n", "-T bash -x", "-T env python3 -", "grep x", "sed s/a/b/", "-T sh -s a"])
def test_silent_program_without_input_ends_with_a_hint(server: Server, program: str) -> None:
    words = program.split()
    options = [words.pop(0)] if words[0] == "-T" else []
    with Wire(server.address, "exec", *options, "kept", "--", *words) as wire:
        wire.shows("hint: it printed nothing and had no input; -it gives it this terminal")
        assert wire.ends() == (1 if words[0] == "grep" else 0)


@pytest.mark.parametrize("words", [["kept", "--", "touch", "/tmp/x"], ["--session", "quiet", "kept", "--", "cd /tmp"]])
def test_silent_program_that_reads_nothing_ends_without_a_hint(server: Server, words: list[str]) -> None:
    with Wire(server.address, "exec", *words) as wire:
        assert wire.ends() == 0
        assert b"hint:" not in wire.seen()
