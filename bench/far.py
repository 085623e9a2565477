"""python -m bench.far DIRECTORY: the server of the network benchmarks: an echo, and 'GET /N' for N bytes, plain and
with TLS. It listens on the address of this machine's name and prints its ports."""

from __future__ import annotations

import datetime
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PIECE = memoryview(bytes(1 << 20))


def address() -> tuple[str, str]:
    """This machine's own name, and the address that it has."""
    name = socket.gethostname().lower()
    return name, socket.getaddrinfo(name, None, socket.AF_INET)[0][4][0]  # type: ignore[return-value]


def certificate(directory: Path, name: str) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    named = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder().subject_name(named).issuer_name(named).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    (directory / "certificate.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    (directory / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    )


def echo(connection: socket.socket) -> None:
    while data := connection.recv(1 << 16):
        connection.sendall(data)


def serve_file(connection: socket.socket) -> None:
    """Requests one after another, each for so many bytes."""
    held = b""
    while True:
        while b"\r\n\r\n" not in held:
            data = connection.recv(1 << 16)
            if not data:
                return
            held += data
        head, _, held = held.partition(b"\r\n\r\n")
        left = int(head.split()[1].strip(b"/") or 0)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % left)
        while left > 0:
            connection.sendall(PIECE[: min(left, len(PIECE))])
            left -= min(left, len(PIECE))


def listen(where: str, answer: Callable[[socket.socket], None], tls: ssl.SSLContext | None = None) -> int:
    listener = socket.create_server((where, 0), backlog=1024)

    def one(connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with tls.wrap_socket(connection, server_side=True) if tls else connection as talking:
                answer(talking)
        except OSError:
            return

    def accept() -> None:
        while True:
            threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return int(listener.getsockname()[1])


def main() -> None:
    directory = Path(sys.argv[1])
    name, where = address()
    certificate(directory, name)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(directory / "certificate.pem", directory / "key.pem")
    print(listen(where, echo), listen(where, serve_file), listen(where, serve_file, tls), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
