"""A program's output at somebody's terminal: colours stay, nothing else speaks."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from cli.calling import SKERRY, environment, skerry
from serving import Server

from skerry import Sandbox
from skerry.cli.tame import Tame

TITLE = b"\x1b]0;owned\x07"
CLIPBOARD = b"\x1b]52;c;ZXZpbA==\x07"
QUESTIONS = b"\x1b[c\x1b[6n\x1bP$qm\x1b\\\x1b[?2004h\x05\xc2\x9b21t\x9b21t"
EVIL = TITLE + CLIPBOARD + QUESTIONS


def tamed(*pieces: bytes) -> bytes:
    tame = Tame()
    return b"".join([*map(tame.take, pieces), tame.end()])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_escape_codes_become_visible_however_they_are_cut(size: int) -> None:
    evil = b"before" + EVIL + "päst 🦭".encode()
    shown = tamed(*(evil[at : at + size] for at in range(0, len(evil), size)))
    assert shown == tamed(evil)
    assert not any(byte < 0x20 or byte == 0x7F for byte in shown)
    assert shown.startswith(b"before\\x1b]0;owned\\x07\\x1b]52;c;")
    assert shown.endswith("päst 🦭".encode())
    assert b"\xc2\x9b" not in shown


@pytest.mark.parametrize(
    "text", [b"a\tb\r\nc\x08d", b"\x1b[1;31mred\x1b[0m", b"\x1b[38;5;9mx\x1b[K", "naïve 你好".encode()]
)
def test_colours_and_lines_stay(text: bytes) -> None:
    assert Tame().take(text) == text


def test_what_is_cut_off_at_the_end_is_shown_and_colours_end() -> None:
    assert tamed(b"\x1b[31") == b"\\x1b[31"
    assert tamed(b"\xf0\x9f") == b"\\xf0\\x9f"
    assert tamed(b"\x1b[31mred") == b"\x1b[31mred\x1b[0m"


def test_bytes_without_end_in_a_sequence_are_not_held_back() -> None:
    tame = Tame()
    tame.take(b"\x1b[" + b"1;" * 1000)
    assert len(tame.end()) < 100


def at_a_terminal(server: Server, cwd: Path, *words: str) -> bytes:
    """What a terminal gets from a command line whose stdout and stderr it is."""
    near, far = pty.openpty()
    try:
        child = subprocess.Popen(
            [*SKERRY, *words], stdin=subprocess.DEVNULL, stdout=far, stderr=far,
            env=environment(SKERRY_SERVER=server.address, TERM="xterm"), start_new_session=True, cwd=cwd,
        )  # fmt: skip
        os.close(far)
        got = b""
        with suppress(OSError):  # EIO: nobody has it open any more
            while piece := os.read(near, 65536):
                got += piece
        child.wait(60)
        return got
    finally:
        os.close(near)


WAYS: dict[str, Callable[[str, str], list[str]]] = {
    "exec": lambda box, _: ["exec", box, "cat", "/tmp/evil"],
    "exec in a session": lambda box, _: ["exec", "--session", "s", box, "cat /tmp/evil >&2"],
    "logs": lambda box, process: ["logs", box, process],
    "logs -f": lambda box, process: ["logs", "-f", box, process],
    "attach without a terminal": lambda box, process: ["attach", "--no-stdin", box, process],
    "cp to stdout": lambda box, _: ["cp", f"{box}:/tmp/evil", "-"],
    "ps": lambda box, _: ["ps", box],
    "events": lambda box, _: ["events", "--sandbox", box],
    "an error": lambda box, _: ["cp", f"{box}:/tmp/none{EVIL.decode('latin-1')}", "-"],
    "names that are left out": lambda box, _: ["cp", "-r", f"{box}:/tmp/names", "out"],
}


@pytest.fixture(scope="module")
def speaker(server: Server) -> Sandbox:
    """A sandbox in which everything that has a name or a voice speaks to terminals."""
    box = Sandbox.create(server=server.address)
    box.files.write("/tmp/evil", EVIL)
    box.files.write("/tmp/names/a\x1b]0;owned\x07b", b"x")
    box.run(["mkfifo", "/tmp/names/\x1b]0;owned\x07"], check=True)
    return box


@pytest.mark.parametrize("way", WAYS)
def test_nothing_inside_speaks_to_the_terminal(server: Server, speaker: Sandbox, tmp_path: Path, way: str) -> None:
    process = speaker.spawn(["sh", "-c", "cat /tmp/evil", "\x1b]0;owned\x07"])
    process.wait()
    shown = at_a_terminal(server, tmp_path, *WAYS[way](speaker.id, process.id))
    assert shown
    harm = (b"\x1b]", b"\x1bP", b"\x07", b"\xc2\x9b", b"\x1b[c", b"\x1b[6n", b"\x1b[?2004")
    assert [code for code in harm if code in shown] == []


def test_a_pipe_gets_every_byte(server: Server, speaker: Sandbox) -> None:
    assert skerry("exec", speaker.id, "cat", "/tmp/evil", server=server.address).stdout == EVIL
