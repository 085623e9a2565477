"""The processes of a build end with it in every case, and their mounts are never visible on the host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from skerry.errors import SkerryError
from skerry.images import child

PATH = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
DAEMONS = "setsid sleep 600 & (setsid sh -c 'sleep 600 & sleep 600' &) ; echo ready; sleep 600"


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still not after {seconds} s: {what}"
        time.sleep(0.02)


def marked(mark: str) -> list[int]:
    """Every process on the host that carries this value in its environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(int(pid))
        except OSError:
            continue
    return found


def test_output_comes_line_by_line_from_both_streams() -> None:
    lines = child.output(["sh", "-c", "echo one; echo two >&2; printf three"], PATH, "a test")
    assert lines == ["one", "two", "three"]


def test_a_failure_reports_the_command_and_its_last_output() -> None:
    with pytest.raises(SkerryError, match=r"making tea failed \(exit status 3\):\nno water"):
        child.output(["sh", "-c", "echo no water >&2; exit 3"], PATH, "making tea")


def test_a_timed_out_command_is_killed_with_its_children() -> None:
    mark = uuid.uuid4().hex
    with pytest.raises(SkerryError, match="timed out"):
        child.output(["sh", "-c", DAEMONS], PATH | {"MARK": mark}, "a test", timeout=0.5)
    assert marked(mark) == []


def test_a_cancelled_build_leaves_no_process() -> None:
    mark = uuid.uuid4().hex

    def cancel() -> None:
        for line in child.lines(["sh", "-c", DAEMONS], PATH | {"MARK": mark}, "a test"):
            if line.text == "ready":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cancel()
    assert marked(mark) == []


def test_a_builder_that_is_killed_leaves_no_process() -> None:
    mark = uuid.uuid4().hex
    code = f"""if True:
        from skerry.images import child
        for line in child.lines(["sh", "-c", {DAEMONS!r}], {PATH | {"MARK": mark}!r}, "a test"):
            print(line.text, flush=True)
    """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as builder:
        assert builder.stdout is not None
        assert next(line for line in builder.stdout if line == "ready\n")
        assert len(marked(mark)) >= 4
        builder.send_signal(signal.SIGKILL)
        builder.wait()
        wait_until(lambda: marked(mark) == [], "the builder's processes are gone")


def test_mounts_of_a_build_are_not_the_hosts(tmp_path: Path) -> None:
    script = f"mount -t tmpfs none {tmp_path} && touch {tmp_path}/inside && ls {tmp_path}"
    assert child.output(["sh", "-c", script], PATH, "a test") == ["inside"]
    assert os.listdir(tmp_path) == []


def test_an_endless_line_does_not_fill_the_memory() -> None:
    lines = child.output(["sh", "-c", "head -c 30000000 /dev/zero | tr '\\0' x"], PATH, "a test")
    assert sum(map(len, lines)) < 1 << 20
