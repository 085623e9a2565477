"""TLS that the worker ends itself, for hosts whose requests have to be seen: towards the inside with a leaf of the
sandbox's own CA, towards the host with the checks that any client does. Both sides speak HTTP/1.1 and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import ssl
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from skerry.network import authority
from skerry.network.authority import BUNDLES, Minter
from skerry.network.messages import Rules
from skerry.network.worker.brokering import Broker, BrokeringHooks, WireFilter
from skerry.network.worker.streams import CHUNK, Stream, Wire

HANDSHAKE_S: Final = 15.0
LEAVES_MOST: Final = 32  # of one sandbox
_PROTOCOLS: Final = ["http/1.1"]
_Wrap = Callable[[ssl.MemoryBIO, ssl.MemoryBIO], ssl.SSLObject]


def inspection(rules: Rules) -> Inspector | None:
    """None for a sandbox in whose connections nobody has to look."""
    return Inspector(rules) if rules.secrets or rules.authority is not None else None


class Inspector:
    """What inspection needs to know of one sandbox. New rules make a new one; what is open keeps the old."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._minter: Minter | None = None
        self._leaves: OrderedDict[str, ssl.SSLContext] = OrderedDict()
        self.broker = Broker(rules.secrets)

    async def accept(self, client: Stream, host: str) -> Stream:
        """TLS as that host would speak it."""
        return await _shaken(client, lambda i, o: self._leaf(host).wrap_bio(i, o, server_side=True))

    async def connect(self, upstream: Stream, host: str) -> Stream:
        context = _trusting(self._rules.certificates)
        try:
            return await _shaken(upstream, lambda i, o: context.wrap_bio(i, o, server_hostname=host))
        except ssl.SSLCertVerificationError as error:
            raise ConnectionError(
                f"{host} shows no certificate that is trusted here: {error.verify_message}"
            ) from error
        except ssl.SSLError as error:
            raise ConnectionError(f"{host} does not speak TLS as it should: {error.reason or error}") from error

    def hooks(self, host: str, port: int, tls: bool) -> BrokeringHooks | None:
        """None: no request needs to be changed or stopped there."""
        return self.broker.hooks(host, port, tls=tls) if self.broker else None

    def wire(self) -> WireFilter | None:
        return self.broker.wire()

    def _leaf(self, host: str) -> ssl.SSLContext:
        if host in self._leaves:
            self._leaves.move_to_end(host)
            return self._leaves[host]
        if self._minter is None:
            if self._rules.authority is None:
                raise ConnectionError("this sandbox has no CA")
            self._minter = Minter(self._rules.authority)
        self._leaves[host] = _serving(self._minter.leaf(host).pem)
        if len(self._leaves) > LEAVES_MOST:
            self._leaves.popitem(last=False)
        return self._leaves[host]


def _serving(pem: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_PROTOCOLS)
    fd = os.memfd_create("leaf", os.MFD_CLOEXEC)  # ssl takes keys from files only; this one is in no directory
    try:
        os.write(fd, pem)
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
    return context


@functools.lru_cache(maxsize=32)
def _trusting(certificates: str) -> ssl.SSLContext:
    """As the worker's own machine trusts, and, beside that, what the sandbox's presets carry."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_PROTOCOLS)
    if not context.cert_store_stats()["x509_ca"]:  # this Python's OpenSSL looks elsewhere than this machine does
        for path in filter(os.path.exists, BUNDLES):
            context.load_verify_locations(path)
    readable = authority.readable(certificates)
    if readable:
        context.load_verify_locations(cadata=readable)
    return context


async def _shaken(below: Stream, wrap: _Wrap) -> TlsStream:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    stream = TlsStream(below, wrap(incoming, outgoing), incoming, outgoing)
    async with asyncio.timeout(HANDSHAKE_S):  # TimeoutError is an OSError
        await stream.shake()
    return stream


class TlsStream:
    """TLS over another stream, with the same shape. One reader and one writer at a time."""

    def __init__(self, below: Stream, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self._below = below
        self._tls = tls
        self._in = incoming
        self._out = outgoing
        self._pending = b""
        self._ended = False
        self._flushing = asyncio.Lock()  # a reader answers key updates while the writer writes

    async def shake(self) -> None:
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
                    await self._flush()  # the alert that says why
                raise

    async def read(self, most: int = CHUNK) -> bytes:
        if self._pending:
            data, self._pending = self._pending[:most], self._pending[most:]
            return data
        while True:
            data = self._decrypted(min(most, CHUNK))
            if self._out.pending:
                await self._flush()
            if data or self._ended:
                return data
            await self._fill()

    def _decrypted(self, most: int) -> bytes:
        """All records that are here, as one piece. No stream keeps a buffer: there may be thousands that wait."""
        most = min(most, self._in.pending + self._tls.pending() + 1)
        buffer = memoryview(bytearray(most))
        got = 0
        try:
            while got < most:
                count = int(self._tls.read(most - got, buffer[got:]))
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
    def ahead(self) -> bool:
        """Whether something came that nobody has read yet."""
        return bool(self._pending or self._in.pending or self._tls.pending())

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        if data:
            self._tls.write(data)  # into memory: all of it, in one call
            await self._flush()

    async def finish(self) -> None:
        self._say_end()
        with contextlib.suppress(OSError):
            await self._flush()
            await self._below.finish()

    def close(self) -> None:
        """With a proper end if it can be sent at once: without one, the other side can't tell it from a cut."""
        self._say_end()
        if isinstance(self._below, Wire) and not self._below.closed and not self._flushing.locked():
            with contextlib.suppress(OSError):
                self._below.sock.send(self._out.read())
        self._below.close()

    def abort(self) -> None:
        self._below.abort()

    def _say_end(self) -> None:
        with contextlib.suppress(ssl.SSLError, ValueError):
            self._tls.unwrap()

    async def _fill(self) -> None:
        data = await self._below.read(CHUNK)
        if not data:
            raise ConnectionResetError("TLS ended without saying so")
        self._in.write(data)

    async def _flush(self) -> None:
        if self._out.pending:
            async with self._flushing:
                await self._below.write(self._out.read())
