"""Progress on stderr: a bar on a terminal, plain lines elsewhere, no foreign escape codes in either."""

from __future__ import annotations

import contextlib
import io
import os
import pty
from collections.abc import Callable
from typing import TextIO

from skerry.client.host.progress import ProgressBar, ProgressLines, show_progress, show_stages
from skerry.types import Progress


def test_plain_lines_are_printed_per_stage_and_per_tenth() -> None:
    stream = io.StringIO()
    with show_progress("building", stream) as told:
        for done in range(0, 101, 2):
            told.update(Progress(stage="fetch\x1b[2J", done=done, total=100, eta_s=3.0))
        told.update(Progress(stage="pack", message="a\nb"))
    lines = stream.getvalue().splitlines()
    assert isinstance(told, ProgressLines)
    assert lines[0] == "building"
    assert lines[1] == r"building: fetch\x1b[2J 0 %, 3 s left"
    assert len([line for line in lines if "fetch" in line]) == 11
    assert lines[-2:] == [r"building: pack: a\nb", "building: done"]


def test_failure_is_reported() -> None:
    stream = io.StringIO()
    try:
        with show_progress("building", stream):
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert stream.getvalue().splitlines()[-1] == "building: failed"


def on_a_terminal(work: Callable[[TextIO], None]) -> bytes:
    """Return the output for a terminal."""
    leader, follower = pty.openpty()
    seen = b""
    try:
        with open(follower, "w") as stream:
            work(stream)
            os.set_blocking(leader, False)
            with contextlib.suppress(BlockingIOError):
                while piece := os.read(leader, 1 << 16):
                    seen += piece
    finally:
        os.close(leader)
    return seen


def test_terminal_gets_a_bar_with_amounts_and_no_foreign_escape_codes() -> None:
    def work(stream: TextIO) -> None:
        with show_progress("building", stream) as told:
            assert isinstance(told, ProgressBar)
            told.update(Progress(stage="fetch\x1b]0;evil\x07[red]", done=5 << 20, total=10 << 20, eta_s=3.0))

    seen = on_a_terminal(work)
    assert b"\x1b]0;" not in seen
    assert rb"fetch\x1b]0;evil\x07[red]" in seen
    assert b"5/10 MiB" in seen


def test_parallel_work_has_a_bar_for_each_part() -> None:
    def work(stream: TextIO) -> None:
        with show_stages("pulling", stream) as told:
            told.update(Progress(stage="first", message="downloading", done=5 << 20, total=10 << 20))
            told.update(Progress(stage="notice", message="left out dev/sda\x1b]0;evil\x07"))
            told.update(Progress(stage="second", message="unpacking", done=2, total=2))
            told.update(Progress(stage="first", message="done", done=10 << 20, total=10 << 20))

    seen = on_a_terminal(work)
    assert b"\x1b]0;" not in seen
    assert b"left out dev/sda" in seen
    lines = seen.splitlines()
    first = [line for line in lines if b"first" in line][-1]
    second = [line for line in lines if b"second" in line][-1]
    assert (b"10/10 MiB" in first, b"done" in first) == (True, True)
    assert (b"2/2" in second, b"unpacking" in second) == (True, True)


def test_plain_lines_of_parallel_work_are_printed_per_tenth_of_each_part() -> None:
    stream = io.StringIO()
    with show_stages("pulling", stream) as told:
        for done in range(0, 100, 5):
            for stage in ("one", "two"):
                told.update(Progress(stage=stage, done=done, total=100))
        for name in ("a", "b"):
            told.update(Progress(stage="notice", message=f"left out {name}"))
    lines = stream.getvalue().splitlines()
    assert len([line for line in lines if " one " in line]) == 10
    assert [line for line in lines if "notice" in line] == [
        "pulling: notice: left out a", "pulling: notice: left out b"
    ]  # fmt: skip
