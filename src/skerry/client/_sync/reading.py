# Generated from client/_async/reading.py by scripts/generate_sync.py. Do not edit.
"""Reading files of a sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from skerry.client import file_requests as requests
from skerry.client.content import cut
from skerry.client.file_requests import InsidePath
from skerry.client.responses import Checksum
from skerry.errors import InvalidRequest
from skerry.types import Lines

if TYPE_CHECKING:
    from skerry.client._sync.sandbox import Sandbox


class FileReading:
    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def read_bytes(
        self, path: InsidePath, *, offset: int = 0, length: int | None = None, user: str | None = None
    ) -> bytes:
        """A file's content, or the part of it from `offset` on, at most `length` bytes."""
        return b"".join([piece for piece in self.stream(path, offset=offset, length=length, user=user)])

    def read_text(
        self, path: InsidePath, *, encoding: str = "utf-8", errors: str = "strict", user: str | None = None
    ) -> str:
        return (self.read_bytes(path, user=user)).decode(encoding, errors)

    def stream(
        self, path: InsidePath, *, offset: int = 0, length: int | None = None, user: str | None = None
    ) -> Iterator[bytes]:
        """A file's bytes, or a part of them, piece by piece: for what does not fit into memory."""
        sandbox = self._sandbox
        request = requests.read_file(sandbox.id, path, offset=offset, length=length, user=user)
        try:
            with sandbox.client.answer(request) as response:
                # the files of /proc say that they are empty, and are given whole
                part = cut(offset, length) if response.status_code == 200 else cut(0, length)
                for piece in response.iter_raw():
                    if wanted := part(piece):
                        yield wanted
        except InvalidRequest as error:
            if not request.more_headers or "size" not in error.details:
                raise
            # Beyond the end there is nothing, as everywhere in Python.

    def read_lines(
        self, path: InsidePath, start: int = 1, end: int | None = None, *, user: str | None = None
    ) -> Lines:
        """Lines `start` to `end`, both included and counted from 1; at most 1 MiB of them: `.more` says that the file
        goes on, and then `.end + 1` is the next line to ask for."""
        sandbox = self._sandbox
        request = requests.look(sandbox.id, "lines", path, user, start=start, end=end)
        return sandbox.client.value(request, Lines)

    def checksum(
        self,
        path: InsidePath,
        algorithm: Literal["sha256", "sha512", "sha1", "md5"] = "sha256",
        *,
        user: str | None = None,
    ) -> str:
        """A checksum of a file's content, as hexadecimal digits."""
        sandbox = self._sandbox
        request = requests.look(sandbox.id, "checksum", path, user, algorithm=algorithm)
        return (sandbox.client.value(request, Checksum)).checksum
