"""The real command line in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support import fork_server

SKERRY = [sys.executable, "-m", "skerry"]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SKERRY_")}
    keys = os.environ["SKERRY_AUDIT_KEY_DIR"]
    return {**kept, "SKERRY_POOL_PER_IMAGE": "0", "SKERRY_AUDIT_KEY_DIR": keys, **more}


def shell_environment(server: str) -> dict[str, str]:
    """Return the environment of a shell whose `skerry` uses this server."""
    path = f"{fork_server.bin_directory()}:{Path(sys.executable).parent}:/usr/bin:/bin"
    return environment(SKERRY_SERVER=server, PATH=path)


def skerry(
    *words: str,
    server: str | None = None,
    stdin: bytes | None = None,
    cwd: Path | None = None,
    timeout: float = 100,
    **env: str,
) -> subprocess.CompletedProcess[bytes]:
    named = {"SKERRY_SERVER": server} if server else {}
    if fork_server.can_fork(told := environment(**named, **env)):
        return fork_server.run(words, stdin, told, cwd, timeout=timeout)
    given = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
    return subprocess.run(
        [*SKERRY, *words], capture_output=True, env=told, timeout=timeout, cwd=cwd, check=False,
        **given,  # type: ignore[arg-type]
    )  # fmt: skip
