"""Servers of object storage on the loopback interface: moto, from the package index, in its own environment, which does
not check signatures; and an empty bucket that does."""

from __future__ import annotations

import hashlib
import hmac
import http.server
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


class SignedBucket(http.server.BaseHTTPRequestHandler):
    """Answers to every request whose signature (version 4) was made with KEYS with an empty list of objects."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self._signed():
            self._answer(200, b"<ListBucketResult/>")
        else:
            self._answer(403, b"<Error><Code>SignatureDoesNotMatch</Code><Message>wrong key</Message></Error>")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _signed(self) -> bool:
        found = re.fullmatch(
            "AWS4-HMAC-SHA256 Credential=([^/]+)/(([0-9]+)/([^/]+)/s3/aws4_request), ?SignedHeaders=([a-z0-9;-]+), ?"
            "Signature=([0-9a-f]{64})",
            self.headers.get("Authorization", ""),
        )
        key_id, _, key = KEYS.partition(":")
        if found is None or found[1] != key_id:
            return False
        path, _, query = self.path.partition("?")
        headers = "".join(f"{name}:{self.headers[name].strip()}\n" for name in found[5].split(";"))
        signed = [
            self.command, path, "&".join(sorted(query.split("&"))), headers, found[5],
            self.headers["x-amz-content-sha256"],
        ]  # fmt: skip
        digest = hashlib.sha256("\n".join(signed).encode()).hexdigest()
        secret = f"AWS4{key}".encode()
        for part in (
            *found[2].split("/"),
            "\n".join(["AWS4-HMAC-SHA256", self.headers["x-amz-date"], found[2], digest]),
        ):
            secret = hmac.digest(secret, part.encode(), "sha256")
        return hmac.compare_digest(secret.hex(), found[6])

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Print nothing."""


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
