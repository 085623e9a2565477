"""The cassette of one sandbox: exchanges are recorded into a file that the server opened, or served from it.

Requests are recorded as the program sent them, before secrets are injected, and responses as it received them, after
secrets were masked. The request's body is not stored, only its hash."""

from __future__ import annotations

import hashlib
import os
import re
from collections import deque
from typing import Final, Protocol

from skerry.codecs import cassette as codec
from skerry.codecs.cassette import ExchangeHead, RecordedExchange
from skerry.network.worker.audit import printable
from skerry.network.worker.http.filters import BodyFilter, Headers, ResponseHead
from skerry.network.worker.http.headers import ParsedRequest
from skerry.network.worker.secrets.masking import SecretPatterns, StreamMask
from skerry.types import readable_size
from skerry.types.hosts import Host, show_host

_RESERVE: Final = 4 << 10  # for the line that the cassette is full
_MIN_PIECE: Final = 16 << 10  # smaller pieces of a body are collected: each costs a line
_PLACEHOLDER: Final = re.compile(r"(skerry-secret-[A-Za-z0-9_]+)-[a-z2-7]{32}")
_DEFAULT_PORTS: Final = {True: 443, False: 80}
RECORD_AGAIN: Final = 'record it: network=Network(cassette="record") or --record-network'


def request_url(destination: tuple[Host, int], target: bytes, tls: bool) -> str:
    """Return the URL of a request. A placeholder is different in each sandbox: only the secret's name is kept."""
    host, port = destination
    place = show_host(host, None if port == _DEFAULT_PORTS[tls] else port)
    return _PLACEHOLDER.sub(r"\1", f"{'https' if tls else 'http'}://{place}{codec.text(target)}")


def _header(headers: Headers, name: bytes) -> str:
    return ", ".join(_PLACEHOLDER.sub(r"\1", codec.text(value)) for key, value in headers if key == name)


class BodyHash:
    """A filter that passes a request's body and hashes it."""

    def __init__(self, inner: BodyFilter | None = None, *, discard: bool = False) -> None:
        self._inner, self._discard = inner, discard
        self._hash = hashlib.sha256()
        self.same_length = inner is None or inner.same_length

    def feed(self, data: bytes) -> bytes:
        self._hash.update(data)
        if self._discard:
            return b""
        return data if self._inner is None else self._inner.feed(data)

    def end(self) -> bytes:
        return b"" if self._inner is None else self._inner.end()

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def _append(fd: int, data: bytes, end: int) -> bool:
    """Write at the end of a file: all of it or nothing."""
    try:
        if os.pwrite(fd, data, end) == len(data):
            return True
        os.ftruncate(fd, end)
    except OSError:  # the disk is full; a next scan leaves an incomplete line out
        return False
    return False


class Recorder:
    """Appends to a cassette. `fd` becomes its own."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        journal = codec.scan(lambda offset, size: os.pread(fd, size, offset))
        self._end, self._lines, self._omitted = journal.end, journal.lines, len(journal.omitted)
        self._count = len(journal.exchanges)
        self._next = max(journal.exchanges, default=0) + 1
        self.full = journal.full
        os.ftruncate(fd, journal.end)  # an incomplete line
        if not journal.end:
            self._append(codec.MAGIC, 0)

    def begin(self, request: ParsedRequest, url: str, patterns: SecretPatterns | None) -> Recording:
        """Begin an exchange. `patterns`: the secrets of the sandbox, which no cassette contains."""
        number, self._next = self._next, self._next + 1
        return Recording(self, number, request, url, patterns)

    def write(self, data: bytes, lines: int = 1, exchanges: int = 0) -> bool:
        """Append whole lines, unless a bound is reached: then the recording ends for good."""
        if self.full is None:
            if self._count + exchanges > codec.MAX_EXCHANGES:
                self._stop(f"the cassette is full: it has {codec.MAX_EXCHANGES:,} exchanges")
            elif self._end + len(data) > codec.MAX_SIZE - _RESERVE:
                self._stop(f"the cassette is full: it has {readable_size(codec.MAX_SIZE)}")
            elif self._lines + lines >= codec.MAX_LINES:
                self._stop(f"the cassette is full: it has {codec.MAX_LINES:,} lines")
            elif not self._append(data, lines):
                self.full = "the cassette could not be written"
        self._count += exchanges * (self.full is None)
        return self.full is None

    def omit(self, url: str, why: str, method: str = "") -> None:
        """List an exchange that is not recorded; beyond a number, they are not listed."""
        if self._omitted < codec.MAX_LISTED and self.write(
            codec.encode(codec.Omitted(url=url[:2048], method=method, why=why))
        ):
            self._omitted += 1

    def _stop(self, why: str) -> None:
        self.full = why
        self._append(codec.encode(codec.Full(why=why)), 1)

    def _append(self, data: bytes, lines: int) -> bool:
        """Write at the end; return whether all of it was written."""
        if not _append(self._fd, data, self._end):
            return False
        self._end += len(data)
        self._lines += lines
        return True

    def close(self) -> None:
        os.close(self._fd)


class Recording:
    """One exchange on its way into the cassette. `why`: the reason if it is not recorded."""

    def __init__(
        self, recorder: Recorder, number: int, request: ParsedRequest, url: str, patterns: SecretPatterns | None
    ) -> None:
        self._recorder, self._number, self._request = recorder, number, request
        self._patterns, self._mask = patterns, StreamMask(patterns) if patterns else None
        self._url = self._masked(url)
        self._hash: BodyHash | None = None
        self._held = bytearray()
        self._length = 0
        self.why = recorder.full

    def request_filter(self, inner: BodyFilter | None) -> BodyFilter | None:
        """Return a filter for the request's body that hashes it."""
        if not self._request.body:
            return inner
        self._hash = BodyHash(inner)
        return self._hash

    def switched(self, head: ResponseHead) -> None:
        """The connection becomes a WebSocket."""
        self.omit("it is a WebSocket")

    def start(self, head: ResponseHead, length: int | None) -> None:
        """Record the head of the response. `length`: of its body, if known."""
        if length is not None and length > codec.MAX_BODY:
            self.omit(_too_large())
        if self.why is not None:
            return
        line = ExchangeHead(
            number=self._number, method=self._request.method.decode(), url=self._url, status=head.status,
            reason=self._masked(codec.text(head.reason)),
            headers=tuple(
                (codec.text(self._mask_name(name)), self._masked(codec.text(value))) for name, value in head.headers
            ),
            accept=self._masked(_header(self._request.headers, b"accept")),
            range=self._masked(_header(self._request.headers, b"range")),
        )  # fmt: skip
        self._write(codec.encode(line), exchanges=1)

    def _masked(self, text: str) -> str:
        """Mask secrets, which may also come from a host that does not receive them."""
        return text if self._patterns is None else codec.text(self._patterns.mask(text.encode("latin-1")))

    def _mask_name(self, name: bytes) -> bytes:
        return name if self._patterns is None else self._patterns.mask_name(name)

    def data(self, data: bytes) -> None:
        """Record bytes of the response's body."""
        if self.why is not None or not data:
            return
        self._length += len(data)
        if self._length > codec.MAX_BODY:
            self.omit(_too_large())
            return
        self._held += data if self._mask is None else self._mask.feed(data)
        if len(self._held) >= _MIN_PIECE:
            self._flush()

    def finish(self, whole: bool) -> None:
        """Complete the exchange. `whole`: the whole request was sent before the response ended."""
        if not whole:
            self.omit("its response came before the whole request was sent")
        if self.why is None:
            self._held += b"" if self._mask is None else self._mask.end()
            self._flush()
            self._write(codec.encode(codec.End(number=self._number, body=self._hash.hexdigest() if self._hash else "")))

    def omit(self, why: str) -> None:
        if self.why is None:
            self.why = why
            self._held.clear()
            self._recorder.omit(self._url, why, self._request.method.decode())

    def _flush(self) -> None:
        if self._held:
            self._write(codec.encode_data(self._number, bytes(self._held)), lines=1)
            self._held.clear()

    def _write(self, data: bytes, lines: int = 1, exchanges: int = 0) -> None:
        if not self._recorder.write(data, lines, exchanges):
            self.why = self._recorder.full


def _too_large() -> str:
    return f"its response is larger than {readable_size(codec.MAX_BODY)}"


class BodyCopy(Protocol):
    """A receiver of a response's body."""

    def data(self, data: bytes) -> None: ...


class RecordedBody:
    """A filter that passes a response's body and records it as the client receives it."""

    def __init__(self, inner: BodyFilter | None, recording: BodyCopy) -> None:
        self._inner, self._recording = inner, recording
        self.same_length = inner is None or inner.same_length

    def feed(self, data: bytes) -> bytes:
        passed = data if self._inner is None else self._inner.feed(data)
        self._recording.data(passed)
        return passed

    def end(self) -> bytes:
        passed = b"" if self._inner is None else self._inner.end()
        self._recording.data(passed)
        return passed


class NotRecorded(Exception):
    """The cassette has no response for a request."""


class Player:
    """Serves the exchanges of a cassette, equal requests in the order of the recording. `fd` becomes its own."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        journal = codec.scan(self.read)
        os.ftruncate(fd, journal.end)  # an incomplete line
        self._end, self._room = journal.end, codec.MAX_LINES - journal.lines
        self._waiting: dict[bytes, deque[RecordedExchange]] = {}
        self._counts: dict[bytes, int] = {}
        self._places: set[bytes] = set()
        self._omitted = {codec.place_key(one.method, one.url): printable(one.why, 200) for one in journal.omitted}
        self.full = None if journal.full is None else printable(journal.full, 200)
        for exchange in journal.complete():
            head = codec.read_head(self.read, exchange)
            key = codec.request_key(head.method, head.url, head.accept, head.range, exchange.body)
            self._places.add(codec.place_key(head.method, head.url))
            self._counts[key] = self._counts.get(key, 0) + 1
            if exchange.number not in journal.used:
                self._waiting.setdefault(key, deque()).append(exchange)

    def take(self, request: ParsedRequest, url: str, body: str) -> RecordedExchange:
        """Return the next exchange of this request and mark it as used. Raise NotRecorded with the reason."""
        method, headers = request.method.decode(), request.headers
        key = codec.request_key(method, url, _header(headers, b"accept"), _header(headers, b"range"), body)
        waiting = self._waiting.get(key)
        if not waiting:
            raise NotRecorded(self._reason(key, codec.place_key(method, url)))
        exchange = waiting.popleft()
        self._mark(exchange.number)
        return exchange

    def _reason(self, key: bytes, place: bytes) -> str:
        if key in self._counts:
            number = self._counts[key]
            return f"the cassette has {number} {'response' if number == 1 else 'responses'} to this request, all used"
        if place in self._places:
            return "the cassette has this URL only with another body, Accept or Range"
        if place in self._omitted:
            return f"this request was not recorded: {self._omitted[place]}"
        return "the cassette has no response to this request" + (f"; {self.full}" if self.full else "")

    def _mark(self, number: int) -> None:
        """Note the exchange as used, for the next worker. A cassette without space serves it again then."""
        line = codec.encode(codec.Used(number=number))
        if self._room > 0 and self._end + len(line) <= codec.MAX_SIZE and _append(self._fd, line, self._end):
            self._end, self._room = self._end + len(line), self._room - 1

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._fd, size, offset)

    def close(self) -> None:
        os.close(self._fd)
