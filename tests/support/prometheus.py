"""A real Prometheus."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import httpx2
import pytest

from support.debian_programs import program
from support.server import wait_until


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
