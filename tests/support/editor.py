"""An editor's side of the Agent Client Protocol, with a real `skerry agent --acp`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.cli import SKERRY, environment


class Editor:
    def __init__(self, server: str, top: Path, *words: str, **env: str) -> None:
        self.process = subprocess.Popen(
            [*SKERRY, "agent", *words, "--acp"], cwd=top, env=environment(SKERRY_SERVER=server, **env),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.heard: list[Any] = []

    def __enter__(self) -> Editor:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def call(self, id_: int, method: str, heard: Callable[[Any], None] = lambda _: None, **params: object) -> Any:
        """Send a request; return its answer. Messages before it are kept, and passed to `heard`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        message = {"jsonrpc": "2.0", "id": id_, "method": method, "params": params}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        while line := self.process.stdout.readline():
            found = json.loads(line)
            if found.get("id") == id_ and "method" not in found:
                return found
            self.heard.append(found)
            heard(found)
        pytest.fail(f"no answer to {method}: {self.process.communicate()}")

    def end(self) -> tuple[int, bytes]:
        _, messages = self.process.communicate(timeout=60)
        return self.process.returncode, messages
