"""Image registries: Debian's real one, and a test registry that misbehaves on request."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils
from world import certificates

from support.archives import gzipped
from support.server import wait_until

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
ZSTD = "application/vnd.oci.image.layer.v1.tar+zstd"
DOCKER = {
    MANIFEST: "application/vnd.docker.distribution.manifest.v2+json",
    INDEX: "application/vnd.docker.distribution.manifest.list.v2+json",
    CONFIG: "application/vnd.docker.container.image.v1+json",
    LAYER: "application/vnd.docker.image.rootfs.diff.tar.gzip",
}
USER, PASSWORD, IDENTITY = "reader", "plover-xyzzy-4711", "identity-of-ann"
_BCRYPT = "$2b$04$Jv5iAUwReQjiJ/Ii2jTaNO/qoaDv/Abk2Oo2gpIq1K2o7a9sGaypy"


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass
class Made:
    """An image in pieces, as a registry stores it. `plain`: its layers' archives, bottom first."""

    plain: Sequence[bytes]
    packed: Callable[[bytes], bytes] = gzipped
    layer_type: str = LAYER
    config: dict[str, Any] = field(default_factory=dict)
    platform: tuple[str, str] = ("linux", "amd64")
    docker: bool = False

    def __post_init__(self) -> None:
        system, architecture = self.platform
        self.layers = [self.packed(layer) for layer in self.plain]
        self.settings = json.dumps(
            {
                "architecture": architecture, "os": system, "config": self.config,
                "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in self.plain]},
            }
        ).encode()  # fmt: skip
        kind = DOCKER.get if self.docker else (lambda name, _: name)
        self.kind = kind(MANIFEST, "")
        self.manifest = json.dumps(
            {
                "schemaVersion": 2, "mediaType": self.kind, "config": _described(self.settings, kind(CONFIG, "")),
                "layers": [_described(layer, kind(self.layer_type, self.layer_type)) for layer in self.layers],
            }
        ).encode()  # fmt: skip

    @property
    def blobs(self) -> list[bytes]:
        return [self.settings, *self.layers]


def _described(data: bytes, kind: str | None) -> dict[str, Any]:
    return {"mediaType": kind, "digest": digest(data), "size": len(data)}


def index_of(*images: Made, attested: bool = True) -> bytes:
    """`attested`: with a manifest that is for no machine, as builders add it."""
    described = []
    for image in images:
        system, architecture = image.platform
        entry = _described(image.manifest, image.kind)
        described.append({**entry, "platform": {"os": system, "architecture": architecture}})
    attestation = {**_described(b"{}", MANIFEST), "platform": {"os": "unknown", "architecture": "unknown"}}
    described = [attestation, *described] if attested else described
    return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": described}).encode()


class Real:
    """Debian's docker-registry on loopback."""

    def __init__(self, directory: Path, auth: dict[str, Any] | None = None) -> None:
        self.port = _free_port()
        self.host = f"127.0.0.1:{self.port}"
        self.directory, self.auth = directory, auth
        self.login: tuple[str, str] | None = None
        self.headers: dict[str, str] = {}

    @contextmanager
    def running(self) -> Iterator[Real]:
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = {
            "version": "0.1", "log": {"level": "warn", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(self.directory / "data")}},
            "http": {"addr": self.host}, **({"auth": self.auth} if self.auth else {}),
        }  # fmt: skip
        (self.directory / "config.yml").write_text(json.dumps(settings))  # JSON is YAML
        process = subprocess.Popen(
            ["docker-registry", "serve", str(self.directory / "config.yml")],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            wait_until(self._answers, "the registry to answer")
            yield self
        finally:
            process.kill()
            process.wait()

    def _answers(self) -> bool:
        try:
            return httpx2.get(f"http://{self.host}/v2/").status_code in (200, 401)
        except httpx2.TransportError:
            return False

    def push(self, name: str, image: Made, tag: str = "latest") -> str:
        """Gives the manifest's digest."""
        with self._http() as http:
            for blob in image.blobs:
                if http.head(f"/v2/{name}/blobs/{digest(blob)}").status_code != 200:
                    place = http.post(f"/v2/{name}/blobs/uploads/").raise_for_status().headers["location"]
                    http.put(f"{place}&digest={digest(blob)}", content=blob).raise_for_status()
        return self.put(name, tag, image.manifest, image.kind)

    def put(self, name: str, tag: str, manifest: bytes, kind: str) -> str:
        with self._http() as http:
            answer = http.put(f"/v2/{name}/manifests/{tag}", content=manifest, headers={"Content-Type": kind})
            answer.raise_for_status()
        return digest(manifest)

    def _http(self) -> httpx2.Client:
        return httpx2.Client(base_url=f"http://{self.host}", auth=self.login, headers=self.headers, timeout=30)


def with_password(directory: Path) -> Real:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "htpasswd").write_text(f"{USER}:{_BCRYPT}\n")
    found = Real(directory, {"htpasswd": {"realm": "the tests", "path": str(directory / "htpasswd")}})
    found.login = (USER, PASSWORD)
    return found


class Tokens:
    """Issues tokens that a real registry accepts: with the password for everything, otherwise for `public/` only."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.given = 0
        outer = self

        class Door(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                """Quietly."""

            def do_GET(self) -> None:
                outer._answer(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Door)

    @contextmanager
    def registry(self) -> Iterator[Real]:
        """A registry that sends everybody here first."""
        self.directory.mkdir(parents=True, exist_ok=True)
        certificates.make(self.directory, ["registry.test"], ["127.0.0.1"])
        realm = f"http://127.0.0.1:{self._server.server_port}/token"
        found = Real(
            self.directory,
            {
                "token": {
                    "realm": realm, "service": "registry.test", "issuer": "the tests",
                    "rootcertbundle": str(self.directory / "ca.pem"),
                }
            },
        )  # fmt: skip
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            with found.running():
                yield found
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        asked = parse_qs(urlsplit(handler.path).query)["scope"][0]
        _, name, actions = asked.split(":")
        known = handler.headers.get("Authorization") == _basic()
        status, body = 401, b"{}"
        if known or (name.startswith("public/") and actions == "pull"):
            self.given += 1
            status, body = 200, json.dumps({"token": self.token(name, actions)}).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def token(self, name: str, actions: str) -> str:
        chain = x509.load_pem_x509_certificate((self.directory / "server.pem").read_bytes())
        key = serialization.load_pem_private_key((self.directory / "server.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        der = base64.b64encode(chain.public_bytes(serialization.Encoding.DER)).decode()
        now = int(time.time())
        claims = {
            "iss": "the tests", "sub": "", "aud": "registry.test", "exp": now + 300, "nbf": now - 10, "iat": now,
            "jti": str(self.given), "access": [{"type": "repository", "name": name, "actions": actions.split(",")}],
        }  # fmt: skip
        signed = f"{_part({'alg': 'ES256', 'typ': 'JWT', 'x5c': [der]})}.{_part(claims)}"
        r, s = utils.decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{_url_safe(r.to_bytes(32) + s.to_bytes(32))}"


def _part(value: dict[str, Any]) -> str:
    return _url_safe(json.dumps(value).encode())


def _url_safe(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class Fake:
    """A test registry: serves its content, and misbehaves as configured.

    `manners` maps a path's last part, or "*", to a function that gets the handler.
    """

    def __init__(self, certificate: Path | None = None) -> None:
        self.manifests: dict[str, tuple[str, bytes]] = {}
        self.blobs: dict[str, bytes] = {}
        self.manners: dict[str, Callable[[Handler], bool]] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.token_realm = False
        self.password = False
        outer = self

        class Bound(Handler):
            registry = outer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
        self._server.daemon_threads = True
        self.host = f"127.0.0.1:{self._server.server_port}"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate / "server.pem", certificate / "server.key")
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    @contextmanager
    def running(self) -> Iterator[Fake]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def push(self, image: Made, tag: str = "latest") -> str:
        for blob in image.blobs:
            self.blobs[digest(blob)] = blob
        self.manifests[tag] = self.manifests[digest(image.manifest)] = (image.kind, image.manifest)
        return digest(image.manifest)


class Handler(BaseHTTPRequestHandler):
    registry: Fake
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Quietly."""

    def do_GET(self) -> None:
        path = urlsplit(self.path)
        last = path.path.rpartition("/")[2]
        self.registry.asked.append((self.path, dict(self.headers)))
        if path.path == "/token":
            return self._token(parse_qs(path.query))
        if not self._may():
            return None
        manner = self.registry.manners.get(last) or self.registry.manners.get("*")
        if manner is not None and manner(self):
            return None
        if "/manifests/" in path.path and last in self.registry.manifests:
            kind, data = self.registry.manifests[last]
            return self.send(200, data, {"Content-Type": kind})
        if "/blobs/" in path.path and last in self.registry.blobs:
            return self.send_blob(self.registry.blobs[last])
        return self.send(404, b'{"errors":[{"code":"NAME_UNKNOWN"}]}', {"Content-Type": "application/json"})

    def do_POST(self) -> None:
        """A token for a token."""
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        if (form["grant_type"], form["refresh_token"]) == (["refresh_token"], [IDENTITY]):
            return self.send(200, b'{"access_token":"good"}', {"Content-Type": "application/json"})
        return self.send(401, b"{}", {})

    def _may(self) -> bool:
        given = self.headers.get("Authorization", "")
        if self.registry.token_realm and given != "Bearer good":
            realm = f'Bearer realm="http://{self.registry.host}/token",service="tests",scope="repository:app:pull"'
            self.send(401, b"{}", {"WWW-Authenticate": realm})
            return False
        if self.registry.password and given != _basic():
            self.send(401, b"{}", {"WWW-Authenticate": 'Basic realm="tests"'})
            return False
        return True

    def _token(self, query: dict[str, list[str]]) -> None:
        if self.headers.get("Authorization") != _basic() or query.get("scope") != ["repository:app:pull"]:
            return self.send(401, b"{}", {})
        return self.send(200, b'{"token":"good"}', {"Content-Type": "application/json"})

    def send(self, status: int, data: bytes, headers: dict[str, str], length: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def send_blob(self, data: bytes, upto: int | None = None) -> None:
        """All of it, or from where it was asked for; with `upto`, it breaks off there."""
        wanted = self.headers.get("Range", "")
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if wanted else {}
        self.send(206 if wanted else 200, data[start:upto], headers, len(data) - start)
        if upto is not None:
            self.close_connection = True


def _basic() -> str:
    return "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


def _free_port() -> int:
    """Return a port below the kernel's ephemeral range, so that no other process gets it first."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def stall(handler: Handler, answers: bool = True) -> bool:
    """Answers, or not even that, and then sends nothing until the other side leaves."""
    if answers:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.flush()
    deadline = time.monotonic() + 60
    handler.connection.settimeout(0.1)
    while time.monotonic() < deadline:
        try:
            if not handler.connection.recv(1):
                break
        except TimeoutError:
            continue
        except OSError:
            break
    handler.close_connection = True
    return True
