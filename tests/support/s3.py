"""A server of object storage on the loopback interface: moto, from the package index, in its own environment."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx2
import pytest

from support.server import wait_until

HOME = Path(__file__).parents[2] / ".venv" / "moto"
PACKAGES = ["moto~=5.2", "flask", "flask-cors"]
KEYS = "test-key-0123456789:a-secret-key-that-stays-outside"


def _program() -> str:
    """Return moto's server. Skip the test if it can't be installed here."""
    if not HOME.exists():
        HOME.parent.mkdir(exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=HOME.parent))
        try:
            subprocess.run([sys.executable, "-m", "venv", str(draft)], check=True, timeout=300)
            pip = [str(draft / "bin/python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES]
            got = subprocess.run(pip, capture_output=True, text=True, timeout=300, check=False)
            if got.returncode:
                pytest.skip(f"moto can't be installed here: {got.stderr[-200:]}")
            draft.rename(HOME)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return str(HOME / "bin" / "python")


class S3Server:
    """`stop` and `go_on`: the server hangs in between, with its connections open."""

    def __init__(self, log: Path) -> None:
        environment = {"PATH": os.environ["PATH"], "HOME": str(log.parent), "PYTHONUNBUFFERED": "1"}
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [_program(), "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
                env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip
        self._log = log
        try:
            wait_until(self._port, "the S3 server to listen")
        except BaseException:
            self.close()
            raise
        self.url = f"http://127.0.0.1:{self._port()}"
        # moto denies anonymous readers, and does not check the signature.
        scope = f"Credential={KEYS.partition(':')[0]}/20260101/us-east-1/s3/aws4_request"
        signed = {"Authorization": f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=0"}
        self.http = httpx2.Client(base_url=self.url, headers=signed, timeout=60, trust_env=False)

    def _port(self) -> str | None:
        if self._process.poll() is not None:
            pytest.fail(f"the S3 server ended: {self._log.read_text()[-2000:]}")
        found = re.search(r"Running on http://127\.0\.0\.1:([0-9]+)", self._log.read_text())
        return found[1] if found else None

    def put(self, path: str, content: bytes = b"") -> None:
        assert self.http.put(path, content=content).status_code == 200

    def get(self, path: str) -> bytes:
        return self.http.get(path).content

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if hasattr(self, "http"):
            self.http.close()
        self._process.kill()
        self._process.wait()
