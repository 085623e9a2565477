"""Progress on stderr: a bar where somebody looks, plain lines elsewhere, nobody else's escape codes in either."""

from __future__ import annotations

import contextlib
import io
import os
import pty

from skerry.client.progress import Bar, Lines, shown
from skerry.types import Progress


def test_plain_lines_come_once_a_stage_and_once_a_tenth() -> None:
    stream = io.StringIO()
    with shown("building", stream) as told:
        for done in range(0, 101, 2):
            told.update(Progress(stage="fetch\x1b[2J", done=done, total=100, eta_s=3.0))
        told.update(Progress(stage="pack", message="a\nb"))
    lines = stream.getvalue().splitlines()
    assert isinstance(told, Lines)
    assert lines[0] == "building"
    assert lines[1] == r"building: fetch\x1b[2J 0 %, 3 s left"
    assert len([line for line in lines if "fetch" in line]) == 11
    assert lines[-2:] == [r"building: pack: a\nb", "building: done"]


def test_a_failure_is_told_too() -> None:
    stream = io.StringIO()
    try:
        with shown("building", stream):
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert stream.getvalue().splitlines()[-1] == "building: failed"


def test_a_terminal_gets_a_bar_with_amounts_and_nobody_elses_escape_codes() -> None:
    leader, follower = pty.openpty()
    with open(follower, "w") as stream:
        with shown("building", stream) as told:
            assert isinstance(told, Bar)
            told.update(Progress(stage="fetch\x1b]0;evil\x07[red]", done=5 << 20, total=10 << 20, eta_s=3.0))
        os.set_blocking(leader, False)
        seen = b""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(leader, 1 << 16):
                seen += piece
    os.close(leader)
    assert b"\x1b]0;" not in seen
    assert rb"fetch\x1b]0;evil\x07[red]" in seen
    assert b"5/10 MiB" in seen
