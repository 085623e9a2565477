"""Cassettes in files of this host."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from skerry.codecs.cassette import MAX_SIZE
from skerry.errors import InvalidRequest
from skerry.types import Network, readable_size


def check_cassette(network: Network | None, path: str | os.PathLike[str] | None) -> bytes | None:
    """Return the cassette to replay; None if there is nothing to replay. Raise InvalidRequest if the network does
    neither record nor replay."""
    if path is None:
        return None
    if network is None or network.cassette is None:
        raise InvalidRequest("cassette: the network neither records nor replays", hint='Network(cassette="replay")')
    return read_cassette(path) if network.cassette == "replay" else None


def read_cassette(path: str | os.PathLike[str]) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_SIZE + 1)
    except OSError as error:
        raise InvalidRequest(f"cassette: {os.fspath(path)!r} cannot be read: {error.strerror}") from error
    if len(content) > MAX_SIZE:
        raise InvalidRequest(f"cassette: {os.fspath(path)!r} is larger than {readable_size(MAX_SIZE)}")
    return content


def save_cassette(path: str | os.PathLike[str], content: bytes) -> None:
    """Write the file completely or not at all."""
    target = Path(path)
    fd, draft = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
        os.replace(draft, target)
    except BaseException:
        os.unlink(draft)
        raise
