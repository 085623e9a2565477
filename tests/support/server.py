"""A real server on a temporary state directory, bounded waiting, and a count of leftovers."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

import httpx2
import pytest

from skerry.config import run_dir, socket_path
from support.fork_server import Forked, can_fork, fork

T = TypeVar("T")
WAIT_S = 60.0


def wait_until(condition: Callable[[], object], what: str, limit_s: float = WAIT_S) -> None:
    """Wait, bounded, for a condition without an event. Poll less often over time: a check may be expensive."""
    pause = Event()
    began = time.monotonic()
    while not condition():
        if (waited := time.monotonic() - began) > limit_s:
            pytest.fail(f"waited {limit_s} s for: {what}")
        pause.wait(min(0.01 + waited / 20, 0.2))


def with_enough_time(run: Callable[[float], T], has_begun: Callable[[T], bool], timeout: float = 0.5) -> T:
    """Run code that ends with its timeout. Repeat with a longer timeout if the code had not begun by then: the machine
    is busy."""
    result = run(timeout)
    while not has_begun(result) and timeout < WAIT_S / 4:
        timeout *= 3
        result = run(timeout)
    return result


def spare_states(beside: Path) -> list[Path]:
    """Where servers that are gone leave their images for the next ones: they are links to thousands of files."""
    return [beside / f"skerry-test-{os.getpid()}-spare-{number}" for number in range(3)]


FRUGAL = {"SKERRY_STORAGE_PREALLOCATE": "256M"}  # many servers share the disk that the tests run on


class Server:
    """`python -m skerry serve` on a state directory; in other namespaces than the test's, if `before` leads there."""

    def __init__(self, state_dir: Path, before: tuple[str, ...] = (), mounts: Path = Path("/proc/self/mounts")) -> None:
        self.state_dir, self.before, self.mounts = state_dir, before, mounts
        self.address = f"unix://{socket_path(state_dir)}"
        self.process: subprocess.Popen[bytes] | Forked | None = None
        self.log = state_dir.parent / f"{state_dir.name}.log"

    def start(self, *args: str, wait: bool = True, **env: str) -> Server:
        environment = {**os.environ, **FRUGAL, "SKERRY_STATE_DIR": str(self.state_dir), **env}
        with self.log.open("ab") as log, open(os.devnull, "rb") as null:
            if can_fork(environment, self.before):
                stdio = null.fileno(), log.fileno(), log.fileno()
                self.process = fork(["serve", *args], stdio, environment, session=True, before=self.before)
            else:
                self.process = subprocess.Popen(
                    [*self.before, sys.executable, "-m", "skerry", "serve", *args], env=environment,
                    stdin=null, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
        if wait:
            wait_until(self._answers, f"the server to answer; its log:\n{self.tail()}")
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            pytest.fail(f"the server ended with {self.process.returncode}:\n{self.tail()}")
        return self.answers()

    def answers(self) -> bool:
        """Return whether a server, this one or another, answers on the state directory."""
        try:
            return self.http().get("/healthz").status_code == 200
        except httpx2.TransportError:
            return False

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""

    def http(self, **options: object) -> httpx2.Client:
        path = str(socket_path(self.state_dir))
        return httpx2.Client(
            transport=httpx2.HTTPTransport(uds=path, verify=False), base_url="http://localhost", timeout=60, **options  # type: ignore[arg-type]
        )  # fmt: skip

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        return self.process.wait(WAIT_S)

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Straight from, or into, its database."""
        with contextlib.closing(sqlite3.connect(self.state_dir / "state.db", isolation_level=None)) as database:
            return database.execute(statement, values).fetchall()

    def remove_all(self) -> None:
        with self.http() as http:
            for sandbox in http.get("/v1/sandboxes").json()["sandboxes"]:
                http.delete(f"/v1/sandboxes/{sandbox['id']}?force=true&purge=true").raise_for_status()

    def retire(self) -> None:
        """Removes all that it made and all that it is, but for its images, and fails if something is left."""
        if not self.runs() and self.process is not None and self._holds():
            self.start()
        if self.runs():
            self.remove_all()
            self.end()
        with socket.socket(socket.AF_UNIX) as line:
            assert line.connect_ex(str(socket_path(self.state_dir))) != 0, "another server is on its state directory"
        left = self.leftovers()
        shutil.rmtree(run_dir(self.state_dir), ignore_errors=True)
        spare = next((one for one in spare_states(self.state_dir.parent) if not one.exists()), None)
        if spare is not None:
            spare.mkdir(mode=0o700)
            for part in ("layers", "images"):
                (self.state_dir / part).rename(spare / part)
        shutil.rmtree(self.state_dir)
        self.log.unlink(missing_ok=True)
        assert left == []

    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def _holds(self) -> bool:
        return bool(self.sql("SELECT id FROM sandboxes")) or self.leftovers() != []

    def leftovers(self) -> list[str]:
        """Everything on the host that still bears this server's instance name."""
        name = run_dir(self.state_dir).name
        found = [line for line in self.mounts.read_text().splitlines() if name in line]
        for pattern in (f"skerry/{name}/sb-*", f"*/skerry/{name}/sb-*", f"*/*/skerry/{name}/sb-*"):
            found += [str(p) for p in Path("/sys/fs/cgroup").glob(pattern)]
        held = {str(p): words_of(p) for p in Path("/run/skerry/ranges").glob("*")}
        alive = self.runs()  # then its network worker has a uid
        found += [p for p, words in held.items() if name in words and not (alive and "worker" in words)]
        found += [str(p) for where in "kmb" for p in (run_dir(self.state_dir) / where).glob("*")]
        return found


def words_of(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except FileNotFoundError:  # of another server, which has just released it
        return []
