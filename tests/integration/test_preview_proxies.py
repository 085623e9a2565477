"""Previews behind the web servers of the guide, with its configuration and a wildcard certificate."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import re
import signal
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from integration.test_previews import serve_inside
from support.debian_programs import program
from support.server import Server, wait_until
from websockets.sync.client import connect

from skerry import Preview, Sandbox

GUIDE = Path(__file__).parents[2] / "docs/guides/previews.md"
DOMAIN = "preview.example.com"
PROGRAMS: dict[str, Callable[[Path], list[str]]] = {
    "nginx": lambda home: ["-p", str(home), "-c", "nginx.conf", "-e", "stderr", "-g", "daemon off; user root;"],
    "caddy": lambda home: ["run", "--config", str(home / "Caddyfile"), "--adapter", "caddyfile"],
}
CONFIGS = {"nginx": "nginx.conf", "caddy": "Caddyfile"}


def config_of(name: str) -> str:
    """The block of the guide that begins with the file's name."""
    (found,) = re.findall(rf"```\w+\n# {CONFIGS[name]}\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    return str(found)


def write_certificate(home: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "skerry tests")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(f"*.{DOMAIN}")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (home / "wildcard.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (home / "wildcard-key.pem").write_bytes(key.private_bytes(*form))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
        return True
    return False


class Proxied:
    """A named preview of a server behind a web server, and clients that trust the certificate."""

    def __init__(self, home: Path, port: int, preview: Preview) -> None:
        self.home, self.port, self.preview = home, port, preview

    @property
    def host(self) -> str:
        return self.preview.url.removeprefix("https://").partition(":")[0]

    def curl(self, *args: str, url: str | None = None) -> str:
        done = subprocess.run(
            ["curl", "-sS", "--max-time", "60", "--cacert", str(self.home / "wildcard.pem"), "--resolve",
             f"{self.host}:{self.port}:127.0.0.1", *args, url or self.preview.url],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout


@pytest.fixture(scope="module", params=PROGRAMS)
def proxied(
    request: pytest.FixtureRequest, make_server: Callable[[], Server], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxied]:
    web_server = program(request.param)
    home, port, listener = tmp_path_factory.mktemp("proxy"), free_port(), free_port()
    write_certificate(home)
    config = config_of(request.param).replace("443", str(port), 1).replace(":7470", f":{listener}")
    config = config.replace("wildcard.pem", f"{home}/wildcard.pem").replace(
        "wildcard-key.pem", f"{home}/wildcard-key.pem"
    )
    (home / CONFIGS[request.param]).write_text(config)
    server = make_server().start(
        SKERRY_PREVIEW_URL=f"https://*.{DOMAIN}:{port}", SKERRY_PREVIEW_LISTEN=f"127.0.0.1:{listener}"
    )
    environment = {**os.environ, "HOME": str(home), "XDG_DATA_HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    with (home / "log").open("wb") as log:
        web = subprocess.Popen(
            [web_server, *PROGRAMS[request.param](home)], cwd=home, env=environment, stdout=log, stderr=log
        )
    try:
        wait_until(lambda: is_open(port) or web.poll() is not None, "the web server to listen")
        assert web.poll() is None, (home / "log").read_text()
        with Sandbox(server=server.address) as sandbox:
            serve_inside(sandbox, 8000)
            yield Proxied(home, port, sandbox.expose(8000, name="web"))
    finally:
        web.send_signal(signal.SIGTERM)
        web.wait(60)
        server.retire()


def test_link_opens_in_a_browser_with_a_cookie_for_tls_only(proxied: Proxied, tmp_path: Path) -> None:
    jar = str(tmp_path / "jar")
    assert proxied.preview.url == f"https://{proxied.host}:{proxied.port}/"
    head = proxied.curl("-D", "-", "-o", os.devnull, url=proxied.preview.link).lower()
    assert "set-cookie: __host-skerry_preview=" in head
    assert "; secure" in head
    page = proxied.curl("-L", "-c", jar, "-b", jar, url=f"{proxied.preview.link}")
    assert page.startswith("/\n")
    assert "x-forwarded-proto: https" in page.lower()
    assert f"host: {proxied.host}:{proxied.port}" in page.lower()


def test_preview_without_its_token_is_not_found(proxied: Proxied) -> None:
    assert proxied.curl("-o", os.devnull, "-w", "%{http_code}") == "404"


def test_uploads_and_websockets_pass(proxied: Proxied, tmp_path: Path) -> None:
    token = f"X-Skerry-Preview-Token: {proxied.preview.token}"
    (tmp_path / "file").write_bytes(content := os.urandom(3 << 20))
    assert proxied.curl("-T", str(tmp_path / "file"), "-H", token) == hashlib.sha256(content).hexdigest()
    context = ssl.create_default_context(cafile=str(proxied.home / "wildcard.pem"))
    with (
        socket.create_connection(("127.0.0.1", proxied.port), 60) as sock,
        connect(
            proxied.preview.url.replace("https", "wss"),
            sock=sock,
            ssl=context,
            additional_headers={"X-Skerry-Preview-Token": proxied.preview.token or ""},
        ) as web,
    ):
        web.send("through the proxy")
        assert web.recv(60) == "through the proxy"
