"""Export an image as an archive: an OCI image layout with one layer, which `docker load` reads too. A child process
that sees only the image's tree reads the untrusted files (`packer`)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Final

import msgspec

from skerry.errors import InvalidRequest, SkerryError
from skerry.images import child
from skerry.images.archive.layout import About
from skerry.storage.merged import merged
from skerry.types import Skipped, TransferResult

PIECE: Final = 1 << 20
_MAX_REPORT: Final = 4 << 20
_ENVIRONMENT: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


class _LeftOut(msgspec.Struct, frozen=True):
    path: str
    raw: str
    reason: str


class _Done(msgspec.Struct, frozen=True):
    files: int
    directories: int
    links: int
    bytes: int
    skipped: tuple[_LeftOut, ...]
    more: int


class _PackReport(msgspec.Struct, frozen=True):
    """The final report of the child process. It reads untrusted files, so the report is untrusted too."""

    done: _Done | None = None
    failed: str | None = None
    missing: str | None = None
    hint: str | None = None


class PackProcess:
    """Call `read` until it returns nothing, then `finish`; `close` in every case. All calls block."""

    def __init__(self, layers: Sequence[Path], about: About | None) -> None:
        """Without `about`, the archive is the tree itself, not an image."""
        self._busy = Lock()  # a cancelled call leaves a reading thread behind
        self._report = os.memfd_create("report", os.MFD_CLOEXEC)
        argv = child.isolated_argv([sys.executable, "-I", "-m", "skerry.images.archive.packer"], isolated=True)
        try:
            with merged(layers) as root, _memory(msgspec.json.encode(about)) as given:
                self._child = subprocess.Popen(
                    argv,
                    env=_ENVIRONMENT,
                    stdin=given,
                    stdout=subprocess.PIPE,
                    stderr=self._report,
                    bufsize=0,
                    start_new_session=True,
                    cwd=f"/proc/self/fd/{root}",
                )
        except BaseException:
            os.close(self._report)
            raise
        assert self._child.stdout is not None  # noqa: S101 - a pipe was asked for
        self._pipe = self._child.stdout.fileno()
        with contextlib.suppress(OSError):  # a user's pipes may be limited
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIECE)

    @property
    def pid(self) -> int:
        return self._child.pid

    def read(self) -> bytes:
        with self._busy:
            return os.read(self._pipe, PIECE) if self._report >= 0 else b""

    def finish(self) -> TransferResult:
        """Return the exported size and the skipped files."""
        status = self._child.wait()
        report = self._last_word()
        if report.missing is not None:
            raise InvalidRequest(f"path: {report.missing[:200]!r} is not a directory in the sandbox")
        if report.failed is not None:
            raise SkerryError(f"the archive could not be created: {report.failed[:2000]}", hint=report.hint)
        if status != 0 or report.done is None:
            raise SkerryError("the archive could not be created: the packer exited without a report")
        done = report.done
        skipped = tuple(Skipped(path=one.path, reason=one.reason, raw_path=_raw(one)) for one in done.skipped)
        return TransferResult(
            files=done.files, directories=done.directories, links=done.links, bytes=done.bytes,
            skipped=skipped, more=done.more,
        )  # fmt: skip

    def _last_word(self) -> _PackReport:
        lines = os.pread(self._report, _MAX_REPORT, 0).splitlines()
        try:
            return msgspec.json.decode(lines[-1], type=_PackReport) if lines else _PackReport()
        except msgspec.MsgspecError:
            return _PackReport()

    def close(self) -> None:
        """Idempotent; may be called from another thread than the reader, which then gets the end of the data."""
        if self._child.poll() is None:
            os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
        with self._busy:
            if self._report >= 0:
                os.close(self._report)
                self._report = -1
                assert self._child.stdout is not None  # noqa: S101 - a pipe was asked for
                self._child.stdout.close()


def _raw(one: _LeftOut) -> bytes | None:
    raw = bytes.fromhex(one.raw)
    return raw if raw.decode("utf-8", "replace").encode() != raw else None


@contextlib.contextmanager
def _memory(content: bytes) -> Iterator[int]:
    fd = os.memfd_create("about", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)
