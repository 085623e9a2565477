"""Archives on their way: from one sandbox to another, and those of this host that ADD unpacks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO, Final

from skerry.client.building.sources import Match, open_match
from skerry.client.frames import ERROR, EXIT, STDOUT, FrameDecoder
from skerry.client.responses import error_frame
from skerry.client.tar import Entry, Reader
from skerry.errors import SandboxUnavailable

_MAGIC: Final = ((b"\x1f\x8b", "-z"), (b"BZh", "-j"), (b"\xfd7zXZ\0", "-J"))
_TAR: Final = slice(257, 262)


class Passing:
    """The frames of a directory's archive in, the archive out, as it comes. `names` are what was in it, and whether
    each is a link."""

    def __init__(self) -> None:
        self.names: list[tuple[str, bool]] = []
        self._frames = FrameDecoder()
        self._reader = Reader()
        self._ended = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        for kind, payload in self._frames.feed(chunk):
            if kind == ERROR:
                raise error_frame(payload)
            if kind == EXIT:
                self._ended = True
            elif kind == STDOUT:
                for one in self._reader.feed(payload):
                    if isinstance(one, Entry) and one.name:
                        self.names.append((os.fsdecode(one.name), one.kind == "link"))
                yield payload

    def finish(self) -> None:
        """Half a directory must not pass for a whole one."""
        if not self._ended:
            raise SandboxUnavailable("the archive of the other stage broke off", hint="build again")


def compression(match: Match) -> tuple[BinaryIO | None, tuple[str, ...]]:
    """A file that is an archive, with tar's option for how it is packed; None if it is none."""
    if match.is_directory:
        return None, ()
    file = open_match(match)
    head = file.read(512)
    file.seek(0)
    for magic, option in _MAGIC:
        if head.startswith(magic):
            return file, (option,)
    if head[_TAR] == b"ustar":
        return file, ()
    file.close()
    return None, ()
