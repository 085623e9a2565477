"""TLS that the worker terminates, for hosts whose requests must be seen: towards the sandbox with a leaf of the
sandbox's CA, towards the host with the checks of any client. Both sides speak only HTTP/1.1."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import ssl
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from skerry.network import ca
from skerry.network.ca import SYSTEM_BUNDLES, LeafIssuer
from skerry.network.messages import Rules
from skerry.network.worker.secrets.injection import InjectionFilters, PlaceholderFilter, SecretInjector
from skerry.network.worker.secrets.masking import SecretPatterns
from skerry.network.worker.streams import CHUNK, ByteStream, SocketStream

HANDSHAKE_TIMEOUT_S: Final = 15.0
MAX_LEAVES: Final = 32  # per sandbox
_ALPN_PROTOCOLS: Final = ["http/1.1"]
_Wrap = Callable[[ssl.MemoryBIO, ssl.MemoryBIO], ssl.SSLObject]


def interceptor_for(rules: Rules) -> TlsInterceptor | None:
    """Return an interceptor, or None if the sandbox needs none."""
    return TlsInterceptor(rules) if rules.secrets or rules.ca is not None else None


class TlsInterceptor:
    """TLS interception for one sandbox. New rules create a new one; open connections keep the old."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._issuer: LeafIssuer | None = None
        self._leaves: OrderedDict[str, ssl.SSLContext] = OrderedDict()
        self.injector = SecretInjector(rules.secrets)

    async def accept(self, client: ByteStream, host: str) -> ByteStream:
        """Accept TLS as that host would."""
        return await _handshake(client, lambda i, o: self._leaf_context(host).wrap_bio(i, o, server_side=True))

    async def connect(self, upstream: ByteStream, host: str, port: int) -> ByteStream:
        """Verify a host that receives secrets only with the authorities of the worker's host: a caller that may not
        read a secret can set the certificates and proxies of presets."""
        receives_secrets = bool(self.injector.allowed_for(host, port))
        context = _client_context("" if receives_secrets else self._rules.certificates)
        try:
            return await _handshake(upstream, lambda i, o: context.wrap_bio(i, o, server_hostname=host))
        except ssl.SSLCertVerificationError as error:
            where = "by the server's machine, which a host of a secret needs" if receives_secrets else "here"
            raise ConnectionError(
                f"{host} has no certificate that is trusted {where}: {error.verify_message}"
            ) from error
        except ssl.SSLError as error:
            raise ConnectionError(f"{host} failed the TLS handshake: {error.reason or error}") from error

    def filters(self, host: str, port: int, tls: bool) -> InjectionFilters | None:
        """Return the filters for a connection; None if no request needs to be changed or blocked there."""
        return self.injector.filters(host, port, tls=tls) if self.injector else None

    def patterns(self) -> SecretPatterns | None:
        return self.injector.patterns or None

    def raw_filter(self) -> PlaceholderFilter | None:
        return self.injector.raw_filter()

    def _leaf_context(self, host: str) -> ssl.SSLContext:
        if host in self._leaves:
            self._leaves.move_to_end(host)
            return self._leaves[host]
        if self._issuer is None:
            if self._rules.ca is None:
                raise ConnectionError("this sandbox has no CA")
            self._issuer = LeafIssuer(self._rules.ca)
        self._leaves[host] = _server_context(self._issuer.leaf(host).pem)
        if len(self._leaves) > MAX_LEAVES:
            self._leaves.popitem(last=False)
        return self._leaves[host]


def _server_context(pem: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_ALPN_PROTOCOLS)
    fd = os.memfd_create("leaf", os.MFD_CLOEXEC)  # ssl loads keys only from files; this one is in no directory
    try:
        os.write(fd, pem)
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
    return context


@functools.lru_cache(maxsize=32)
def _client_context(certificates: str) -> ssl.SSLContext:
    """Trust the certificates of the worker's host and those of the sandbox's presets."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_ALPN_PROTOCOLS)
    if not context.cert_store_stats()["x509_ca"]:  # this Python's OpenSSL searches other paths than this system uses
        for path in filter(os.path.exists, SYSTEM_BUNDLES):
            context.load_verify_locations(path)
    readable = ca.only_certificates(certificates)
    if readable:
        context.load_verify_locations(cadata=readable)
    return context


async def _handshake(below: ByteStream, wrap: _Wrap) -> TlsStream:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    stream = TlsStream(below, wrap(incoming, outgoing), incoming, outgoing)
    async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):  # TimeoutError is an OSError
        await stream.handshake()
    return stream


class TlsStream:
    """TLS over another stream, with the same interface. One reader and one writer at a time."""

    def __init__(self, below: ByteStream, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self._below = below
        self._tls = tls
        self._in = incoming
        self._out = outgoing
        self._pending = b""
        self._ended = False
        self._flushing = asyncio.Lock()  # a reader answers key updates while the writer writes

    async def handshake(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
                await self._flush()
                return
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    await self._flush()  # the alert with the reason
                raise

    async def read(self, max_bytes: int = CHUNK) -> bytes:
        if self._pending:
            data, self._pending = self._pending[:max_bytes], self._pending[max_bytes:]
            return data
        while True:
            data = self._read_decrypted(min(max_bytes, CHUNK))
            if self._out.pending:
                await self._flush()
            if data or self._ended:
                return data
            await self._fill()

    def _read_decrypted(self, max_bytes: int) -> bytes:
        """Return all received records as one piece. No stream keeps a buffer: thousands may be waiting."""
        max_bytes = min(max_bytes, self._in.pending + self._tls.pending() + 1)
        buffer = memoryview(bytearray(max_bytes))
        got = 0
        try:
            while got < max_bytes:
                count = int(self._tls.read(max_bytes - got, buffer[got:]))
                if not count:
                    self._ended = True
                    break
                got += count
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._ended = True
        return bytes(buffer[:got])

    def unread(self, data: bytes) -> None:
        self._pending = data + self._pending

    @property
    def has_unread(self) -> bool:
        """Whether received data waits to be read."""
        return bool(self._pending or self._in.pending or self._tls.pending())

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        if data:
            self._tls.write(data)  # into memory: all of it, in one call
            await self._flush()

    async def finish(self) -> None:
        self._send_close_notify()
        with contextlib.suppress(OSError):
            await self._flush()
            await self._below.finish()

    def close(self) -> None:
        """Close, with close_notify if it can be sent at once: without it, the peer cannot distinguish the end from a
        truncation."""
        self._send_close_notify()
        if isinstance(self._below, SocketStream) and not self._below.closed and not self._flushing.locked():
            with contextlib.suppress(OSError):
                self._below.sock.send(self._out.read())
        self._below.close()

    def abort(self) -> None:
        self._below.abort()

    def _send_close_notify(self) -> None:
        with contextlib.suppress(ssl.SSLError, ValueError):
            self._tls.unwrap()

    async def _fill(self) -> None:
        data = await self._below.read(CHUNK)
        if not data:
            raise ConnectionResetError("TLS ended without close_notify")
        self._in.write(data)

    async def _flush(self) -> None:
        if self._out.pending:
            async with self._flushing:
                await self._below.write(self._out.read())
