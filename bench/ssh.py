"""OpenSSH beside the command line: a login, and a large file in both directions, in turns."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.files import SIZE
from bench.measure import Figure, Part, Row, row, times
from skerry import Options, Sandbox
from skerry.config import load

LOGIN, EXEC = "ssh → first byte", "skerry exec → first byte"
SKERRY = [sys.executable, "-m", "skerry"]


def ssh(count: int, rounds: int = 3) -> Part:
    with tempfile.TemporaryDirectory(dir=load().state_dir) as here, Sandbox(options=Options(use_pool=False)) as sandbox:
        os.environ["XDG_CONFIG_HOME"] = here  # separate keys
        config = Path(here, "config")
        config.write_text(subprocess.run([*SKERRY, "ssh-config"], capture_output=True, text=True, check=True).stdout)
        host = f"{sandbox.id}.skerry"
        logins = {
            LOGIN: ["ssh", "-F", str(config), host, "echo up"],
            EXEC: [*SKERRY, "exec", sandbox.id, "--", "echo", "up"],
        }
        spent: dict[str, list[float]] = {name: [] for name in logins}
        for turn in range(count + 2):
            for name, words in logins.items():
                needed = first_byte(words)
                if turn >= 2:
                    spent[name].append(needed)
        login, plain = (row(name, found) for name, found in spent.items())
        copied = copies(Path(here), ["scp", "-q", "-F", str(config)], host, sandbox.id, rounds)
    scp_in, cp_in, scp_out, cp_out = copied
    return [login, plain, *copied], [
        times(login, plain, most=3),
        share("scp of 1 GiB into a sandbox, share of skerry cp's rate", cp_in, scp_in, least=0.5),
        # Only reported: unlike the bytes of `cp`, those of a program's output also pass through its journal and trace.
        share("scp of 1 GiB out of it, share of skerry cp's rate", cp_out, scp_out),
    ]


def first_byte(words: list[str]) -> float:
    """Return the milliseconds to the first byte of a command's output."""
    start = time.perf_counter()
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        needed = (time.perf_counter() - start) * 1000
    if process.returncode:
        raise SystemExit(f"{words[0]} ended with exit code {process.returncode}")
    return needed


def copies(here: Path, scp: list[str], host: str, sandbox: str, rounds: int) -> list[Row]:
    source, back = here / "source", here / "back"
    with source.open("wb") as file:
        for _ in range(SIZE >> 20):
            file.write(os.urandom(1 << 20))
    works = {
        "scp, 1 GiB into a sandbox": [*scp, str(source), f"{host}:/workspace/large"],
        "skerry cp, 1 GiB into a sandbox": [*SKERRY, "cp", str(source), f"{sandbox}:/workspace/large"],
        "scp, 1 GiB out of a sandbox": [*scp, f"{host}:/workspace/large", str(back)],
        "skerry cp, 1 GiB out of a sandbox": [*SKERRY, "cp", f"{sandbox}:/workspace/large", str(back)],
    }
    spent: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, words in works.items():
            start = time.perf_counter()
            subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
            if turn:
                spent[name].append((time.perf_counter() - start) * 1000)
    return [row(name, found) for name, found in spent.items()]


def share(name: str, plain: Row, ours: Row, least: float | None = None) -> Figure:
    return Figure(name, plain.p50 / ours.p50, f"{plain.p50:.0f} ms / {ours.p50:.0f} ms", least=least)
