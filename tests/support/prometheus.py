"""A real Prometheus: of this machine, or the Debian package in a separate directory, without an installation."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import httpx2
import pytest

from support.server import wait_until

CACHE = Path(__file__).parents[2] / ".venv" / "prometheus"


def program(name: str) -> str:
    """Return the path of `prometheus` or `promtool`. Skip the test if neither this machine nor its packages have it."""
    if found := shutil.which(name):
        return found
    if not CACHE.exists():
        _unpack()
    return str(CACHE / "usr" / "bin" / name)


def _unpack() -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("no prometheus here, and no apt-get to download it")
    CACHE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE.parent) as scratch:
        download = ["timeout", "60", "apt-get", "download", "-o", "APT::Sandbox::User=root", "prometheus"]
        got = subprocess.run(download, cwd=scratch, capture_output=True, text=True, check=False)
        packages = list(Path(scratch).glob("*.deb"))
        if got.returncode or not packages:
            pytest.skip(f"no prometheus here, and its package is not available: {got.stderr[-200:]}")
        subprocess.run(["dpkg-deb", "-x", str(packages[0]), f"{scratch}/tree"], check=True, timeout=100)
        if not CACHE.exists():
            os.rename(f"{scratch}/tree", CACHE)


class Prometheus:
    """A server with one configuration. It listens on a free port of the loopback interface."""

    def __init__(self, directory: Path, configuration: str) -> None:
        self._log = directory / "prometheus.log"
        (directory / "prometheus.yml").write_text(configuration)
        command = [
            program("prometheus"), f"--config.file={directory}/prometheus.yml",
            f"--storage.tsdb.path={directory}/data", "--web.listen-address=127.0.0.1:0",
        ]  # fmt: skip
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            wait_until(self._port, "Prometheus to listen")
        except BaseException:
            self.close()
            raise
        self._http = httpx2.Client(base_url=f"http://127.0.0.1:{self._port()}", timeout=60)

    def _port(self) -> str | None:
        text = self._log.read_text()
        if self._process.poll() is not None:
            pytest.fail(f"Prometheus ended: {text[-2000:]}")
        found = re.search(r'msg="Listening on" address=\S+?:([0-9]+)', text)
        return found[1] if found else None

    def query(self, expression: str) -> list[dict[str, Any]]:
        answer = self._http.get("/api/v1/query", params={"query": expression}).raise_for_status().json()
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def targets(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (
            self._http.get("/api/v1/targets").raise_for_status().json()["data"]["activeTargets"]
        )
        return found

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(60)
