"""The subset of HTTP/1.1 that keeper and host use. Bytes in, values out; no I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote, urlencode

from skerry.keeper.errors import KeeperProtocolError

MAX_HEAD: Final = 16 << 10
_STATUS = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) [ -~]{0,64}")
_HEADER = re.compile(rb"([A-Za-z][A-Za-z0-9-]{0,63}): ([ -~]{0,1024})")
_SIZE = re.compile(r"0|[1-9][0-9]{0,17}")
_CHUNK = re.compile(rb"[0-9a-fA-F]{1,8}")
_TOTAL = re.compile(r"(?:bytes (?:\*|[0-9]{1,18}-[0-9]{1,18})/)?([0-9]{1,18})")


Query = Mapping[str, str] | Sequence[tuple[str, str]]


class Head(NamedTuple):
    """A response's status and headers; names are lower case."""

    status: int
    headers: Mapping[str, str]

    @property
    def length(self) -> int | None:
        """The body's length; None: the body is chunked."""
        if "transfer-encoding" in self.headers:
            if self.headers["transfer-encoding"] != "chunked" or "content-length" in self.headers:
                raise KeeperProtocolError("the keeper sent a body with an unknown encoding")
            return None
        text = self.headers.get("content-length", "0")
        if not _SIZE.fullmatch(text):
            raise KeeperProtocolError("the keeper sent an invalid Content-Length")
        return int(text)

    @property
    def total(self) -> int:
        """The whole file's size."""
        match = _TOTAL.fullmatch(self.headers.get("content-range") or self.headers.get("skerry-size", ""))
        if match is None:
            raise KeeperProtocolError("the keeper did not send the size of the file")
        return int(match[1])


def request(method: str, path: str, query: Query | None = None, *, headers: str = "", body: bytes = b"") -> bytes:
    target = f"{path}?{urlencode(query, quote_via=quote, errors='surrogateescape')}" if query else path
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    return f"{method} {target} HTTP/1.1\r\nHost: keeper\r\n{headers}{length}\r\n".encode("ascii") + body


def decode_head(buffer: bytearray) -> Head | None:
    """Take a response's head off the front of the buffer, or return None if it is incomplete."""
    end = buffer.find(b"\r\n\r\n", 0, MAX_HEAD)
    if end < 0:
        if len(buffer) >= MAX_HEAD:
            raise KeeperProtocolError("the keeper sent a head without end")
        return None
    lines = bytes(buffer[:end]).split(b"\r\n")
    del buffer[: end + 4]
    status = _STATUS.fullmatch(lines[0])
    if status is None:
        raise KeeperProtocolError("the keeper did not send an HTTP response")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        match = _HEADER.fullmatch(line)
        name = match[1].decode().lower() if match else ""
        if match is None or name in headers:
            raise KeeperProtocolError("the keeper sent an invalid header")
        headers[name] = match[2].decode()
    return Head(int(status[1]), headers)


def decode_chunk_size(buffer: bytearray) -> int | None:
    """Take a chunk's size line off the front of the buffer, or return None if it is incomplete."""
    end = buffer.find(b"\r\n", 0, 10)
    if end < 0:
        if len(buffer) >= 10:
            raise KeeperProtocolError("the keeper sent an invalid chunk")
        return None
    line = bytes(buffer[:end])
    del buffer[: end + 2]
    if not _CHUNK.fullmatch(line):
        raise KeeperProtocolError("the keeper sent an invalid chunk")
    return int(line, 16)
