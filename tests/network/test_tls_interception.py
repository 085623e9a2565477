"""TLS terminated by the worker, over real sockets, with real peers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import warnings
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skerry.network import ca
from skerry.network.ca import LeafIssuer
from skerry.network.messages import CaKeyPair, InjectedSecret, Rules
from skerry.network.worker.dial import DialedUpstream
from skerry.network.worker.http.exchange import HttpUpstream
from skerry.network.worker.streams import ByteStream, SocketStream
from skerry.network.worker.tls.interception import TlsInterceptor, TlsStream
from skerry.types.hosts import Name

LIMIT_S = 20.0
HOST = "api.example.com"


@pytest.fixture(scope="module")
def inside() -> CaKeyPair:
    return ca.create_ca("sb-aaaaaaaaaa", 3600)


@pytest.fixture(scope="module")
def outside() -> CaKeyPair:
    """A CA of the outside world."""
    return ca.create_ca("the world", 3600)


def wires() -> tuple[SocketStream, SocketStream]:
    one, other = socket.socketpair()
    return SocketStream(one), SocketStream(other)


@contextlib.asynccontextmanager
async def client_of(inspector: TlsInterceptor, context: ssl.SSLContext, host: str = HOST) -> AsyncIterator[
    tuple[asyncio.StreamReader, asyncio.StreamWriter, ByteStream]
]:  # fmt: skip
    """asyncio's TLS on one side, ours on the other."""
    theirs, ours = socket.socketpair()
    theirs.setblocking(False)
    async with asyncio.timeout(LIMIT_S):
        accepting = asyncio.create_task(inspector.accept(SocketStream(ours), host))
        try:
            reader, writer = await asyncio.open_connection(sock=theirs, ssl=context, server_hostname=host)
        except BaseException:
            accepting.cancel()
            with contextlib.suppress(BaseException):
                await accepting
            ours.close()
            raise
        stream = await accepting
        try:
            yield reader, writer, stream
        finally:
            stream.close()
            writer.close()


async def test_a_client_that_trusts_the_sandboxs_ca_speaks_with_the_host_it_meant(inside: CaKeyPair) -> None:
    context = ssl.create_default_context(cadata=inside.certificate)
    context.set_alpn_protocols(["h2", "http/1.1"])
    async with client_of(TlsInterceptor(Rules(ca=inside)), context) as (reader, writer, stream):
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        writer.write(b"hello")
        assert await stream.read() == b"hello"
        _, got = await asyncio.gather(stream.write(b"x" * 1_000_000), reader.readexactly(1_000_000))
        assert got == b"x" * 1_000_000
        await stream.finish()
        assert await reader.read() == b""


async def test_client_that_does_not_trust_the_ca_gets_an_alert(inside: CaKeyPair) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        async with client_of(TlsInterceptor(Rules(ca=inside)), ssl.create_default_context()):
            pass


async def test_old_tls_is_refused(inside: CaKeyPair) -> None:
    context = ssl.create_default_context(cadata=inside.certificate)
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore"):
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        async with client_of(TlsInterceptor(Rules(ca=inside)), context):
            pass


async def served(leaf: bytes, place: Path, rules: Rules, host: str = HOST) -> tuple[ByteStream, ssl.SSLSocket | None]:
    """Our side of a connection to a server with this leaf."""
    place.write_bytes(leaf)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(place)
    context.set_alpn_protocols(["h2", "http/1.1"])
    theirs, ours = socket.socketpair()
    theirs.settimeout(LIMIT_S)

    def shake() -> ssl.SSLSocket | None:
        try:
            return context.wrap_socket(theirs, server_side=True)
        except OSError:
            theirs.close()
            return None

    answering = asyncio.create_task(asyncio.to_thread(shake))
    try:
        async with asyncio.timeout(LIMIT_S):
            return await TlsInterceptor(rules).connect(SocketStream(ours), host, 443), await answering
    except BaseException:
        ours.close()
        await answering
        raise


async def test_a_host_is_trusted_by_the_certificates_that_the_rules_carry(outside: CaKeyPair, tmp_path: Path) -> None:
    rules = Rules(certificates=outside.certificate)
    stream, server = await served(LeafIssuer(outside).leaf(HOST).pem, tmp_path / "leaf", rules)
    assert server is not None
    assert server.selected_alpn_protocol() == "http/1.1"
    await stream.write(b"hello")
    assert await asyncio.to_thread(server.recv, 100) == b"hello"
    stream.close()
    assert await asyncio.to_thread(server.recv, 100) == b""
    server.close()


@pytest.mark.parametrize(
    ("carried", "shown"), [(False, HOST), (True, "evil.example.com")], ids=["unknown authority", "another's name"]
)
async def test_host_without_a_valid_certificate_is_rejected(
    outside: CaKeyPair, tmp_path: Path, carried: bool, shown: str
) -> None:
    rules = Rules(certificates=outside.certificate if carried else "")
    with pytest.raises(ConnectionError, match=r"api\.example\.com has no certificate that is trusted here"):
        await served(LeafIssuer(outside).leaf(shown).pem, tmp_path / "leaf", rules)


async def test_attack_certificates_of_a_preset_make_no_host_trusted_with_secrets(
    outside: CaKeyPair, tmp_path: Path
) -> None:
    """A caller that may not read the secret can set the preset and its proxy."""
    for secret_host in (HOST, "*.example.com"):
        secret = InjectedSecret(name="TOKEN", hosts=(secret_host,), placeholder="placeholder-x", value="v" * 20)
        rules = Rules(certificates=outside.certificate, secrets=(secret,))
        with pytest.raises(ConnectionError, match="trusted by the server's machine, which a host of a secret needs"):
            await served(LeafIssuer(outside).leaf(HOST).pem, tmp_path / "leaf", rules)
    elsewhere = InjectedSecret(name="TOKEN", hosts=(f"{HOST}:8443",), placeholder="placeholder-x", value="v" * 20)
    rules = Rules(certificates=outside.certificate, secrets=(elsewhere,))
    stream, server = await served(LeafIssuer(outside).leaf(HOST).pem, tmp_path / "leaf", rules)
    assert server is not None, "the control: no secret goes to this port"
    stream.close()
    server.close()


async def test_the_sandboxs_own_ca_proves_nothing_outside(inside: CaKeyPair, tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match="no certificate that is trusted"):
        await served(LeafIssuer(inside).leaf(HOST).pem, tmp_path / "leaf", Rules(ca=inside))


async def test_truncation_is_not_taken_for_the_end(outside: CaKeyPair, tmp_path: Path) -> None:
    rules = Rules(certificates=outside.certificate)
    stream, server = await served(LeafIssuer(outside).leaf(HOST).pem, tmp_path / "leaf", rules)
    assert server is not None
    server.sendall(b"half of")
    socket.socket(fileno=server.detach()).close()
    assert await stream.read() == b"half of"
    with pytest.raises(ConnectionResetError):
        await stream.read()
    stream.close()


async def test_bytes_that_follow_an_answer_are_not_the_next_one(outside: CaKeyPair, tmp_path: Path) -> None:
    stream, server = await served(
        LeafIssuer(outside).leaf(HOST).pem, tmp_path / "leaf", Rules(certificates=outside.certificate)
    )
    assert isinstance(stream, TlsStream)
    assert isinstance(stream._below, SocketStream)
    assert server is not None
    upstream = HttpUpstream((Name(HOST), 443), stream, DialedUpstream(stream._below))
    await asyncio.to_thread(server.sendall, b"the answer")
    assert await stream.read() == b"the answer"
    assert not upstream.stale
    await asyncio.to_thread(server.sendall, b"the answer, and more of it")
    assert await stream.read(10) == b"the answer"
    assert upstream.stale
    stream.unread(b"x")
    assert upstream.stale
    stream.close()
    server.close()


async def test_both_ways_are_used_at_once(inside: CaKeyPair) -> None:
    context = ssl.create_default_context(cadata=inside.certificate)
    size = 8 << 20
    async with client_of(TlsInterceptor(Rules(ca=inside)), context) as (reader, writer, stream):

        async def take() -> int:
            got = 0
            while got < size:
                got += len(await stream.read())
            return got

        async def send() -> None:
            writer.write(b"c" * size)
            await writer.drain()

        results = await asyncio.gather(take(), stream.write(b"s" * size), reader.readexactly(size), send())
        assert results[0] == size
        assert results[2] == b"s" * size


async def test_leaves_are_kept_but_not_without_end(inside: CaKeyPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skerry.network.worker.tls.interception.MAX_LEAVES", 3)
    inspector = TlsInterceptor(Rules(ca=inside))
    first = inspector._leaf_context("a.example")
    assert inspector._leaf_context("a.example") is first
    for name in "bcd":
        inspector._leaf_context(f"{name}.example")
    assert len(inspector._leaves) == 3
    assert inspector._leaf_context("a.example") is not first


async def test_sandbox_without_a_ca_has_no_interceptor() -> None:
    ours, theirs = wires()
    with pytest.raises(ConnectionError):
        await TlsInterceptor(Rules()).accept(ours, HOST)
    ours.close()
    theirs.close()


def test_tls_stream_has_the_interface_of_a_byte_stream(inside: CaKeyPair) -> None:
    ours, theirs = wires()
    context = ssl.create_default_context()
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    stream: ByteStream = TlsStream(ours, context.wrap_bio(into, out, server_hostname=HOST), into, out)
    stream.abort()
    theirs.close()
