"""Unpack a layer's archive into a tree. A child process that sees only the new tree, and has no right except to change
file owners (`confine`), decompresses and reads the untrusted bytes; this side only receives reports.

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
from skerry.images.archive.tar import Damaged
from skerry.storage import tree
from skerry.storage.driver import DEFAULT_MIN_FREE

FORM: Final = 2  # format of unpacked trees; another version may turn the same archive into another tree
_MAX_OPAQUE: Final = 100_000
_MAX_PATHS: Final = 32 << 20  # bytes of their paths, which this side stores
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ENVIRONMENT: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}

__all__ = ["FORM", "Damaged", "UnpackLimits", "Unpacked", "unpack"]


class UnpackLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`bytes` and `entries` of one archive, unpacked; `ratio`: maximum growth relative to its size, beyond 1 GiB;
    `min_free`: minimum free space on the host's disk."""

    bytes: int = 64 << 30
    entries: int = 2_000_000
    ratio: int = 200
    min_free: int = DEFAULT_MIN_FREE


class Unpacked(msgspec.Struct, frozen=True, kw_only=True):
    """`digest` is that of the uncompressed archive (a registry's diff ID); `bytes` its size. `notices`: skipped items
    with the reason, at most 100, `unsaid` more."""

    entries: int
    files: int
    bytes: int
    read: int
    digest: str
    unsaid: int = 0
    notices: tuple[str, ...] = ()


class _UnpackReport(msgspec.Struct, frozen=True):
    """One line from the child process. It reads untrusted bytes, so the line is untrusted too. `opaque`: a path, in
    hex."""

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
    limits: UnpackLimits | None = None,
    layer: bool = True,
    whole: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Unpacked:
    """Read an archive (tar; plain, gzip, zstd or xz) from a descriptor, to its end, into a new directory `target`.

    `layer` False: a complete tree, in which names that start with `.wh.` are ordinary names. `whole`: also the files of
    a keeper, whose journals a root file system may contain. `progress` receives the
    number of bytes read from the source; an exception that it raises ends the work. After a failure, `target` is
    removed.
    """
    os.mkdir(target)
    os.chmod(target, 0o755)  # noqa: S103 - the root of a file system; the store above it is closed
    try:
        done = _unpack(source, target, limits or UnpackLimits(), layer, progress)
        if not whole:
            tree.forget_keeper(target)
        return done
    except BaseException:
        tree.remove(target)
        raise


def _unpack(
    source: int, target: Path, limits: UnpackLimits, layer: bool, progress: Callable[[int], None] | None
) -> Unpacked:
    argv = [sys.executable, "-I", "-m", "skerry.images.archive.unpacker"]
    argv += [msgspec.json.encode(limits).decode(), "layer" if layer else "tree"]
    done: Unpacked | None = None
    notices: list[str] = []
    opaque: list[bytes] = []
    paths = 0
    running = child.lines(argv, _ENVIRONMENT, "unpacking", stdin=source, cwd=target, isolated=True)
    with closing(running) as lines:
        for line in lines:
            report = _decode(line.text)
            _refuse(report)
            if report.read and progress is not None:
                progress(report.read)
            if report.notice:
                notices.append(report.notice[:2000])
            if report.opaque is not None:
                opaque.append(bytes.fromhex(report.opaque))
                paths += len(opaque[-1])
            if len(opaque) > _MAX_OPAQUE or len(notices) > _MAX_OPAQUE or paths > _MAX_PATHS:
                raise Damaged("the archive makes too many directories opaque", hint=f"at most {_MAX_OPAQUE}")
            done = report.done or done
    if done is None:
        raise SkerryError("the unpacker exited without a report")
    for path in opaque:
        _make_opaque(target, path)
    return msgspec.structs.replace(done, notices=tuple(notices))


def _decode(line: str | None) -> _UnpackReport:
    """Decode a report. Any other line is a message of Python's before it exits."""
    if line is None or not line.startswith("{"):
        return _UnpackReport()
    try:
        return msgspec.json.decode(line, type=_UnpackReport)
    except msgspec.MsgspecError:  # a lost whiteout would reveal files that the archive hides
        raise SkerryError("the unpacker sent an invalid report") from None


def _refuse(report: _UnpackReport) -> None:
    if report.damaged is not None:
        raise Damaged(report.damaged[:2000], hint=report.hint)
    if report.full is not None:
        raise QuotaExceeded(f"the host's disk is too full to unpack it: {report.full[:200]}", hint="free some space")
    if report.failed is not None:
        raise SkerryError(f"unpacking failed: {report.failed[:2000]}")


def _make_opaque(target: Path, path: bytes) -> None:
    """Set the attribute, for which the child process lacks the right."""
    at = os.open(target, _DIRECTORY)
    try:
        for part in path.split(b"/") if path else ():
            if part in (b"", b".", b".."):
                raise Damaged("the unpacker reported an invalid path")
            below = os.open(part, _DIRECTORY, dir_fd=at)
            os.close(at)
            at = below
        os.setxattr(at, "trusted.overlay.opaque", b"y")
    finally:
        os.close(at)
