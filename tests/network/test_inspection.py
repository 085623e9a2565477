"""TLS ended and opened by the worker, over real sockets, with real peers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import warnings
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skerry.network import authority
from skerry.network.authority import Minter
from skerry.network.hosts import Name
from skerry.network.messages import Authority, Rules
from skerry.network.worker.exchange import Upstream
from skerry.network.worker.inspection import Inspector, TlsStream
from skerry.network.worker.reach import Reached
from skerry.network.worker.streams import Stream, Wire

LIMIT_S = 20.0
HOST = "api.example.com"


@pytest.fixture(scope="module")
def inside() -> Authority:
    return authority.make("sb-aaaaaaaaaa", 3600)


@pytest.fixture(scope="module")
def outside() -> Authority:
    """A CA of the world."""
    return authority.make("the world", 3600)


def wires() -> tuple[Wire, Wire]:
    one, other = socket.socketpair()
    return Wire(one), Wire(other)


@contextlib.asynccontextmanager
async def client_of(inspector: Inspector, context: ssl.SSLContext, host: str = HOST) -> AsyncIterator[
    tuple[asyncio.StreamReader, asyncio.StreamWriter, Stream]
]:  # fmt: skip
    """asyncio's own TLS on the one side, ours on the other."""
    theirs, ours = socket.socketpair()
    theirs.setblocking(False)
    async with asyncio.timeout(LIMIT_S):
        accepting = asyncio.create_task(inspector.accept(Wire(ours), host))
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


async def test_a_client_that_trusts_the_sandboxs_ca_speaks_with_the_host_it_meant(inside: Authority) -> None:
    context = ssl.create_default_context(cadata=inside.certificate)
    context.set_alpn_protocols(["h2", "http/1.1"])
    async with client_of(Inspector(Rules(authority=inside)), context) as (reader, writer, stream):
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        writer.write(b"hello")
        assert await stream.read() == b"hello"
        _, got = await asyncio.gather(stream.write(b"x" * 1_000_000), reader.readexactly(1_000_000))
        assert got == b"x" * 1_000_000
        await stream.finish()
        assert await reader.read() == b""


async def test_a_client_that_does_not_trust_it_is_told_so(inside: Authority) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        async with client_of(Inspector(Rules(authority=inside)), ssl.create_default_context()):
            pass


async def test_old_tls_is_refused(inside: Authority) -> None:
    context = ssl.create_default_context(cadata=inside.certificate)
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore"):
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        async with client_of(Inspector(Rules(authority=inside)), context):
            pass


async def served(leaf: bytes, place: Path, rules: Rules, host: str = HOST) -> tuple[Stream, ssl.SSLSocket | None]:
    """Our side of a connection to a server that shows this leaf."""
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
            return await Inspector(rules).connect(Wire(ours), host), await answering
    except BaseException:
        ours.close()
        await answering
        raise


async def test_a_host_is_trusted_by_the_certificates_that_the_rules_carry(outside: Authority, tmp_path: Path) -> None:
    rules = Rules(certificates=outside.certificate)
    stream, server = await served(Minter(outside).leaf(HOST).pem, tmp_path / "leaf", rules)
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
async def test_a_host_without_a_certificate_of_its_own_is_refused(
    outside: Authority, tmp_path: Path, carried: bool, shown: str
) -> None:
    rules = Rules(certificates=outside.certificate if carried else "")
    with pytest.raises(ConnectionError, match=r"api\.example\.com shows no certificate that is trusted here"):
        await served(Minter(outside).leaf(shown).pem, tmp_path / "leaf", rules)


async def test_the_sandboxs_own_ca_proves_nothing_outside(inside: Authority, tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match="no certificate that is trusted"):
        await served(Minter(inside).leaf(HOST).pem, tmp_path / "leaf", Rules(authority=inside))


async def test_a_cut_is_not_taken_for_the_end(outside: Authority, tmp_path: Path) -> None:
    rules = Rules(certificates=outside.certificate)
    stream, server = await served(Minter(outside).leaf(HOST).pem, tmp_path / "leaf", rules)
    assert server is not None
    server.sendall(b"half of")
    socket.socket(fileno=server.detach()).close()
    assert await stream.read() == b"half of"
    with pytest.raises(ConnectionResetError):
        await stream.read()
    stream.close()


async def test_bytes_that_follow_an_answer_are_not_the_next_one(outside: Authority, tmp_path: Path) -> None:
    stream, server = await served(
        Minter(outside).leaf(HOST).pem, tmp_path / "leaf", Rules(certificates=outside.certificate)
    )
    assert isinstance(stream, TlsStream)
    assert isinstance(stream._below, Wire)
    assert server is not None
    upstream = Upstream((Name(HOST), 443), stream, Reached(stream._below))
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


async def test_both_ways_are_used_at_once(inside: Authority) -> None:
    context = ssl.create_default_context(cadata=inside.certificate)
    size = 8 << 20
    async with client_of(Inspector(Rules(authority=inside)), context) as (reader, writer, stream):

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


async def test_leaves_are_kept_but_not_without_end(inside: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skerry.network.worker.inspection.LEAVES_MOST", 3)
    inspector = Inspector(Rules(authority=inside))
    first = inspector._leaf("a.example")
    assert inspector._leaf("a.example") is first
    for name in "bcd":
        inspector._leaf(f"{name}.example")
    assert len(inspector._leaves) == 3
    assert inspector._leaf("a.example") is not first


async def test_a_sandbox_without_a_ca_is_not_inspected() -> None:
    ours, theirs = wires()
    with pytest.raises(ConnectionError):
        await Inspector(Rules()).accept(ours, HOST)
    ours.close()
    theirs.close()


def test_the_shape_is_that_of_a_stream(inside: Authority) -> None:
    ours, theirs = wires()
    context = ssl.create_default_context()
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    stream: Stream = TlsStream(ours, context.wrap_bio(into, out, server_hostname=HOST), into, out)
    stream.abort()
    theirs.close()
