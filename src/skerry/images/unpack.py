"""A layer's archive becomes a tree. Decompressing and reading what strangers wrote is the work of a child process that
sees nothing but the new tree and has no right but to give files away (`confine`); this side only hears how it went.

Whiteouts become overlayfs's own: a character device 0:0, and the attribute trusted.overlay.opaque.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from skerry.errors import QuotaExceeded, SkerryError
from skerry.images import child
from skerry.images.tar import Damaged
from skerry.storage import tree
from skerry.storage.driver import DEFAULT_RESERVE

FORM: Final = 2  # of trees made from archives; with another one the same archive may become another tree
_OPAQUE_MOST: Final = 100_000
_PATHS_MOST: Final = 32 << 20  # bytes of their paths, which this side holds
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ENVIRONMENT: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}

__all__ = ["FORM", "Bounds", "Damaged", "Unpacked", "unpack"]


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """`bytes` and `entries` of one archive, unpacked; `ratio`: how many times its size it may grow to, beyond 1 GiB;
    `reserve`: what stays free on the host's disk."""

    bytes: int = 64 << 30
    entries: int = 2_000_000
    ratio: int = 200
    reserve: int = DEFAULT_RESERVE


class Unpacked(msgspec.Struct, frozen=True, kw_only=True):
    """`digest` is of the archive without its compression, what a registry calls the diff id; `bytes` its size.
    `notices`: what was left out and why, 100 at most, `unsaid` more."""

    entries: int
    files: int
    bytes: int
    read: int
    digest: str
    unsaid: int = 0
    notices: tuple[str, ...] = ()


class _Told(msgspec.Struct, frozen=True):
    """One line from the child. It read what strangers wrote: nothing of this is trusted. `opaque`: a path, in hex."""

    read: int = 0
    notice: str = ""
    opaque: str | None = None
    damaged: str | None = None
    hint: str | None = None
    full: str | None = None
    failed: str | None = None
    done: Unpacked | None = None


def unpack(
    source: int,
    target: Path,
    *,
    bounds: Bounds | None = None,
    layer: bool = True,
    progress: Callable[[int], None] | None = None,
) -> Unpacked:
    """Reads an archive (tar; plain, gzip, zstd or xz) from a descriptor, to its end, into a new directory `target`.

    `layer` False: not one of several, so names that begin with `.wh.` are just names. `progress` hears how many bytes
    of the source have been read; what it raises ends the work. If anything is wrong, `target` is gone again.
    """
    os.mkdir(target)
    os.chmod(target, 0o755)  # noqa: S103 - the root of a file system; the store above it is closed
    try:
        done = _unpack(source, target, bounds or Bounds(), layer, progress)
        tree.forget_keeper(target)  # where it comes from a keeper may have kept its journals
        return done
    except BaseException:
        tree.remove(target)
        raise


def _unpack(source: int, target: Path, bounds: Bounds, layer: bool, progress: Callable[[int], None] | None) -> Unpacked:
    argv = [sys.executable, "-I", "-m", "skerry.images.unpacker"]
    argv += [msgspec.json.encode(bounds).decode(), "layer" if layer else "tree"]
    done: Unpacked | None = None
    notices: list[str] = []
    opaque: list[bytes] = []
    paths = 0
    running = child.lines(argv, _ENVIRONMENT, "unpacking", stdin=source, cwd=target, isolated=True)
    with closing(running) as lines:
        for line in lines:
            told = _decode(line.text)
            _refuse(told)
            if told.read and progress is not None:
                progress(told.read)
            if told.notice:
                notices.append(told.notice[:2000])
            if told.opaque is not None:
                opaque.append(bytes.fromhex(told.opaque))
                paths += len(opaque[-1])
            if len(opaque) > _OPAQUE_MOST or len(notices) > _OPAQUE_MOST or paths > _PATHS_MOST:
                raise Damaged("the archive makes too many directories opaque", hint=f"at most {_OPAQUE_MOST}")
            done = told.done or done
    if done is None:
        raise SkerryError("unpacking ended without a word")
    for path in opaque:
        _make_opaque(target, path)
    return msgspec.structs.replace(done, notices=tuple(notices))


def _decode(line: str | None) -> _Told:
    """A line that is none of its own is a word of Python's, on its way out."""
    if line is None or not line.startswith("{"):
        return _Told()
    try:
        return msgspec.json.decode(line, type=_Told)
    except msgspec.MsgspecError:  # a mark that is lost would show what the archive hides
        raise SkerryError("unpacking told something that can't be read") from None


def _refuse(told: _Told) -> None:
    if told.damaged is not None:
        raise Damaged(told.damaged[:2000], hint=told.hint)
    if told.full is not None:
        raise QuotaExceeded(f"the host's disk is too full to unpack it: {told.full[:200]}", hint="free some space")
    if told.failed is not None:
        raise SkerryError(f"unpacking failed: {told.failed[:2000]}")


def _make_opaque(target: Path, path: bytes) -> None:
    """The child has not the right to set this one."""
    at = os.open(target, _DIRECTORY)
    try:
        for part in path.split(b"/") if path else ():
            if part in (b"", b".", b".."):
                raise Damaged("the archive's reader told a path that is none")
            below = os.open(part, _DIRECTORY, dir_fd=at)
            os.close(at)
            at = below
        os.setxattr(at, "trusted.overlay.opaque", b"y")
    finally:
        os.close(at)
