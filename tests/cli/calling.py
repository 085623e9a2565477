"""The real command line in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import forking

SKERRY = [sys.executable, "-m", "skerry"]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SKERRY_")}
    return {**kept, "SKERRY_POOL_SIZE": "0", **more}


def skerry(
    *words: str, server: str | None = None, stdin: bytes | None = None, cwd: Path | None = None, **env: str
) -> subprocess.CompletedProcess[bytes]:
    named = {"SKERRY_SERVER": server} if server else {}
    if forking.can_fork(told := environment(**named, **env)):
        return forking.run(words, stdin, told, cwd, timeout=100)
    given = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
    return subprocess.run(
        [*SKERRY, *words], capture_output=True, env=told, timeout=100, cwd=cwd, check=False,
        **given,  # type: ignore[arg-type]
    )  # fmt: skip
