"""Output of programs on a terminal: colours are kept, other control sequences are escaped."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.cli import SKERRY, environment, skerry
from support.server import Server

from skerry import Sandbox
from skerry.cli.output import TerminalFilter

TITLE = b"\x1b]0;owned\x07"
CLIPBOARD = b"\x1b]52;c;ZXZpbA==\x07"
QUESTIONS = b"\x1b[c\x1b[6n\x1bP$qm\x1b\\\x1b[?2004h\x05\xc2\x9b21t\x9b21t"
EVIL = TITLE + CLIPBOARD + QUESTIONS


def tamed(*pieces: bytes) -> bytes:
    tame = TerminalFilter()
    return b"".join([*map(tame.feed, pieces), tame.flush()])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_escape_codes_are_escaped_at_any_split(size: int) -> None:
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
def test_colours_and_lines_are_kept(text: bytes) -> None:
    assert TerminalFilter().feed(text) == text


def test_incomplete_end_is_shown_and_colours_are_reset() -> None:
    assert tamed(b"\x1b[31") == b"\\x1b[31"
    assert tamed(b"\xf0\x9f") == b"\\xf0\\x9f"
    assert tamed(b"\x1b[31mred") == b"\x1b[31mred\x1b[0m"


def test_endless_sequence_is_not_held_back() -> None:
    tame = TerminalFilter()
    tame.feed(b"\x1b[" + b"1;" * 1000)
    assert len(tame.flush()) < 100


def at_a_terminal(server: Server, cwd: Path, *words: str) -> bytes:
    """Return the bytes that a terminal receives from a command line."""
    near, far = pty.openpty()
    try:
        child = subprocess.Popen(
            [*SKERRY, *words], stdin=subprocess.DEVNULL, stdout=far, stderr=far,
            env=environment(SKERRY_SERVER=server.address, TERM="xterm"), start_new_session=True, cwd=cwd,
        )  # fmt: skip
        os.close(far)
        got = b""
        with suppress(OSError):  # EIO: the other end is closed
            while piece := os.read(near, 65536):
                got += piece
        child.wait(60)
        return got
    finally:
        os.close(near)


WAYS: dict[str, Callable[[str, str], list[str]]] = {
    "exec": lambda sandbox, _: ["exec", sandbox, "cat", "/tmp/evil"],
    "exec in a session": lambda sandbox, _: ["exec", "--session", "s", sandbox, "cat /tmp/evil >&2"],
    "logs": lambda sandbox, process: ["logs", sandbox, process],
    "logs -f": lambda sandbox, process: ["logs", "-f", sandbox, process],
    "attach without a terminal": lambda sandbox, process: ["attach", "--no-stdin", sandbox, process],
    "cp to stdout": lambda sandbox, _: ["cp", f"{sandbox}:/tmp/evil", "-"],
    "ps": lambda sandbox, _: ["ps", sandbox],
    "events": lambda sandbox, _: ["events", "--sandbox", sandbox],
    "an error": lambda sandbox, _: ["cp", f"{sandbox}:/tmp/none{EVIL.decode('latin-1')}", "-"],
    "names that are left out": lambda sandbox, _: ["cp", "-r", f"{sandbox}:/tmp/names", "out"],
}


@pytest.fixture(scope="module")
def speaker(server: Server) -> Sandbox:
    """A sandbox with escape codes in all names and outputs."""
    sandbox = Sandbox.create(server=server.address)
    sandbox.files.write("/tmp/evil", EVIL)
    sandbox.files.write("/tmp/names/a\x1b]0;owned\x07b", b"x")
    sandbox.run(["mkfifo", "/tmp/names/\x1b]0;owned\x07"], check=True)
    return sandbox


@pytest.mark.parametrize("way", WAYS)
def test_hostile_output_is_escaped_on_the_terminal(server: Server, speaker: Sandbox, tmp_path: Path, way: str) -> None:
    process = speaker.spawn(["sh", "-c", "cat /tmp/evil", "\x1b]0;owned\x07"])
    process.wait()
    shown = at_a_terminal(server, tmp_path, *WAYS[way](speaker.id, process.id))
    assert shown
    harm = (b"\x1b]", b"\x1bP", b"\x07", b"\xc2\x9b", b"\x1b[c", b"\x1b[6n", b"\x1b[?2004")
    assert [code for code in harm if code in shown] == []


def test_pipe_receives_every_byte(server: Server, speaker: Sandbox) -> None:
    assert skerry("exec", speaker.id, "cat", "/tmp/evil", server=server.address).stdout == EVIL
