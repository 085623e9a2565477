"""From the create of a sandbox to the end of its first command: through E2B's SDK and through Skerry's, in turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from bench.measure import Figure, Part, Row, row, times

PROGRAM = Path(__file__).with_name("e2b_pace.py")
# `make test-e2b` installs the newest SDK there
CACHED = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "skerry/e2b/smoke-e2b/bin/python"
NAME = "create and first command through E2B's SDK / through Skerry's"
WARM = 3  # rounds that import modules and fill the pool


def e2b(count: int) -> Part:
    python = Path(sys.executable) if find_spec("e2b") is not None else CACHED
    if not python.exists():
        print("e2b: left out, because the package e2b is missing; `make test-e2b` installs it", file=sys.stderr)
        return [], []
    with served() as environment:
        rows = in_turns(python, environment, count)
    return rows, [pace(rows)]


def pace(rows: list[Row]) -> Figure:
    return times(*rows, most=2, name=NAME)


def _skerry(*words: str, **more: str) -> str:
    command = [sys.executable, "-m", "skerry", *words]
    done = subprocess.run(command, env={**os.environ, **more}, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


@contextmanager
def served() -> Iterator[dict[str, str]]:
    """Run a server with E2B's protocols in place of the one on its state directory; yield the variables of its SDKs."""
    _skerry("server", "stop")
    _skerry("serve", "--background", "--listen", "127.0.0.1:0", SKERRY_SERVER_WIRE="e2b")
    try:
        addresses = json.loads(_skerry("server", "status", "--json"))["addresses"]
        url = next(address for address in addresses if address.startswith("http://"))
        key = _skerry("token", "create", "--owner", "bench", "--e2b")
        yield {**os.environ, "E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_API_KEY": key}
    finally:
        _skerry("server", "stop")


def in_turns(python: Path, environment: dict[str, str], count: int) -> list[Row]:
    """Both clients stay open and take turns, so that both meet the same pool and the same load."""
    pythons = {"e2b": python, "skerry": Path(sys.executable)}
    seconds: dict[str, list[float]] = {name: [] for name in pythons}
    with ExitStack() as stack:
        clients = {}
        for name, interpreter in pythons.items():
            client = subprocess.Popen(
                [interpreter, "-P", PROGRAM, name], env=environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            stack.callback(client.kill)
            clients[name] = stack.enter_context(client)
        for turn in range(count + WARM):
            for name, client in clients.items():
                assert client.stdin is not None
                assert client.stdout is not None
                client.stdin.write("\n")
                client.stdin.flush()
                spent = float(client.stdout.readline())
                if turn >= WARM:
                    seconds[name].append(spent * 1000)
    return [row(f"create and first command: {name}", found) for name, found in seconds.items()]
