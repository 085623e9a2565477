"""A large file into a sandbox and out again, in turns with `cp` between the same two disks."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from bench.measure import Figure, Part, Row, side_by_side
from skerry import Client, Options, Sandbox
from skerry.config import load

SIZE = 1 << 30
WRITE_LARGE, READ_LARGE = "files.write, 1 GiB from a file", "files.stream, 1 GiB to a file"
CP_IN, CP_OUT = "cp, 1 GiB to the sandboxes' disk", "cp, 1 GiB from there"


def large_files(_: int, rounds: int = 5) -> Part:
    """And by how many bytes the memory of the server and of this process grew at most, both together."""
    state = load().state_dir
    pool = state / "pool"
    disk = pool if pool.is_mount() else state
    with (
        tempfile.TemporaryDirectory(dir=state) as here,
        tempfile.TemporaryDirectory(dir=disk) as there,
        Client() as client,
        Sandbox(options=Options(use_pool=False), server=client) as sandbox,
    ):
        source, back, copy = Path(here, "source"), Path(here, "back"), Path(there, "copy")
        piece = os.urandom(1 << 20)
        with source.open("wb") as file:
            for _ in range(SIZE // len(piece)):
                file.write(piece)

        def write() -> None:
            with source.open("rb") as file:
                sandbox.files.write("/workspace/large", file)

        def read() -> None:
            with back.open("wb") as file:
                for piece in sandbox.files.stream("/workspace/large"):
                    file.write(piece)

        works = {
            CP_IN: lambda: subprocess.run(["cp", source, copy], check=True),
            WRITE_LARGE: write,
            CP_OUT: lambda: subprocess.run(["cp", copy, back], check=True),
            READ_LARGE: read,
        }
        memory = [Memory("self"), Memory(str(client.info()["pid"]))]
        rows = side_by_side(works, rounds, warm=1)
        grown = sum(one.grown() for one in memory)
    copied, written, copied_back, read_back = rows
    return rows, [
        share("files.write of 1 GiB, share of cp's rate", copied, written),
        share("files.stream of 1 GiB, share of cp's rate", copied_back, read_back),
        Figure("growth of server and SDK meanwhile, MB", grown / 1e6, most=64),
    ]


def share(name: str, plain: Row, ours: Row) -> Figure:
    return Figure(name, plain.p50 / ours.p50, f"{plain.p50:.0f} ms / {ours.p50:.0f} ms", least=0.3)


class Memory:
    """How far a process's resident memory rises above where it is now."""

    def __init__(self, pid: str) -> None:
        self._process = Path("/proc") / pid
        (self._process / "clear_refs").write_text("5")  # reset the peak
        self._before = self._read("VmRSS")

    def grown(self) -> int:
        return max(0, self._read("VmHWM") - self._before)

    def _read(self, name: str) -> int:
        return int((self._process / "status").read_text().partition(f"{name}:")[2].split()[0]) * 1024
