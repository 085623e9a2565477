"""A sandbox's CA, checked by the libraries that have to trust it: OpenSSL and Java."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import pkcs12

from skerry.network import ca as authority
from skerry.network.ca import LeafIssuer
from skerry.network.messages import CaKeyPair

DAY = 86400.0
JAVA = """
import java.net.URI;
import java.net.http.*;
public class Ask {
    public static void main(String[] args) throws Exception {
        var answer = HttpClient.newHttpClient().send(
            HttpRequest.newBuilder(URI.create(args[0])).build(), HttpResponse.BodyHandlers.ofString());
        System.out.println(answer.statusCode() + " " + answer.body());
    }
}
"""


def shake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """A complete handshake, in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(8):
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert ends == []


def serving(pem: bytes, place: Path) -> ssl.SSLContext:
    place.write_bytes(pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(place)
    return context


def trusting(ca: CaKeyPair) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=ca.certificate)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


@pytest.mark.parametrize("host", ["api.example.com", "127.0.0.1", "::1", "x." * 60 + "example.com"])
def test_a_leaf_is_trusted_for_its_host_by_a_strict_client(host: str, tmp_path: Path) -> None:
    ca = authority.create_ca("sb-aaaaaaaaaa", DAY)
    shake(serving(LeafIssuer(ca).leaf(host).pem, tmp_path / "leaf"), trusting(ca), host)


def test_a_leaf_is_good_for_no_other_host(tmp_path: Path) -> None:
    ca = authority.create_ca("sb-aaaaaaaaaa", DAY)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(serving(LeafIssuer(ca).leaf("api.example.com").pem, tmp_path / "leaf"), trusting(ca), "www.example.com")


def test_one_sandboxs_leaf_is_worth_nothing_in_another(tmp_path: Path) -> None:
    one, other = authority.create_ca("sb-aaaaaaaaaa", DAY), authority.create_ca("sb-bbbbbbbbbb", DAY)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(serving(LeafIssuer(one).leaf("a.example").pem, tmp_path / "leaf"), trusting(other), "a.example")


def test_a_leaf_can_sign_nothing(tmp_path: Path) -> None:
    leaf = x509.load_pem_x509_certificate(LeafIssuer(authority.create_ca("sb-aaaaaaaaaa", DAY)).leaf("a.example").pem)
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not leaf.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def test_no_two_authorities_share_a_name() -> None:
    subjects = {
        x509.load_pem_x509_certificate(authority.create_ca("sb-aaaaaaaaaa", DAY).certificate.encode()).subject
        for _ in range(20)
    }
    assert len(subjects) == 20


def test_an_authority_outlives_its_sandbox() -> None:
    for life in (60.0, DAY, 100 * DAY, 1e12, None):
        assert authority.outlives(authority.create_ca("sb-aaaaaaaaaa", life), life)
    assert not authority.outlives(authority.create_ca("sb-aaaaaaaaaa", 60.0), 30 * DAY)


def test_repr_of_ca_and_leaf_hides_the_key() -> None:
    ca = authority.create_ca("sb-aaaaaaaaaa", DAY)
    for told in (repr(ca), str(ca), f"{ca!r}", repr(LeafIssuer(ca).leaf("a.example"))):
        assert "PRIVATE" not in told


def test_text_between_certificates_is_dropped() -> None:
    ca = authority.create_ca("sb-aaaaaaaaaa", DAY)
    bundle = f"# a note\n{ca.certificate}{ca.key}garbage -----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"
    assert authority.only_certificates(bundle) == ca.certificate


def test_a_truststore_holds_each_certificate_once() -> None:
    one, other = authority.create_ca("sb-aaaaaaaaaa", DAY), authority.create_ca("sb-bbbbbbbbbb", DAY)
    store = authority.truststore(one.certificate + other.certificate, one.certificate)
    held = pkcs12.load_pkcs12(store, authority.STORE_PASSWORD.encode()).additional_certs
    assert len(held) == 2


@pytest.mark.skipif(shutil.which("java") is None, reason="this host has no java")
def test_java_trusts_a_leaf_by_the_truststore_alone(tmp_path: Path) -> None:
    ca = authority.create_ca("sb-aaaaaaaaaa", DAY)
    context = serving(LeafIssuer(ca).leaf("localhost").pem, tmp_path / "leaf")
    (tmp_path / "trust.p12").write_bytes(authority.truststore(ca.certificate))
    (tmp_path / "Ask.java").write_text(JAVA)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        answering = threading.Thread(target=answer_once, args=(listener, context), daemon=True)
        answering.start()
        asked = subprocess.run(
            ["java", str(tmp_path / "Ask.java"), f"https://localhost:{listener.getsockname()[1]}/"],
            env={
                "PATH": "/usr/bin:/bin",
                "JAVA_TOOL_OPTIONS": f"-Djavax.net.ssl.trustStore={tmp_path}/trust.p12 "
                f"-Djavax.net.ssl.trustStorePassword={authority.STORE_PASSWORD}",
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        answering.join(30)
    assert asked.stdout == "200 trusted\n", asked.stderr


def answer_once(listener: socket.socket, context: ssl.SSLContext) -> None:
    connection, _ = listener.accept()
    with context.wrap_socket(connection, server_side=True) as tls:
        tls.recv(65536)
        tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\ntrusted")
