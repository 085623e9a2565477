"""An image goes out as an archive: an OCI image layout with one layer, which `docker load` reads too. The reading of
files that strangers made is the work of a child process that sees nothing but their tree (`packer`)."""

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

from skerry.errors import SkerryError
from skerry.images import child
from skerry.images.layout import About
from skerry.storage.merged import merged
from skerry.types import Skipped, Transfer

PIECE: Final = 1 << 20
_TOLD_MOST: Final = 4 << 20
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


class _Told(msgspec.Struct, frozen=True):
    """What the child says in the end. It read what strangers wrote: nothing of this is trusted."""

    done: _Done | None = None
    failed: str | None = None
    hint: str | None = None


class Packing:
    """`read` until nothing comes, then `finish`; `close` in every case. All calls block."""

    def __init__(self, layers: Sequence[Path], about: About) -> None:
        self._busy = Lock()  # read in a thread that a cancelled call leaves behind
        self._told = os.memfd_create("told", os.MFD_CLOEXEC)
        argv = child.walled([sys.executable, "-I", "-m", "skerry.images.packer"], isolated=True)
        try:
            with merged(layers) as root, _memory(msgspec.json.encode(about)) as given:
                self._child = subprocess.Popen(
                    argv,
                    env=_ENVIRONMENT,
                    stdin=given,
                    stdout=subprocess.PIPE,
                    stderr=self._told,
                    bufsize=0,
                    start_new_session=True,
                    cwd=f"/proc/self/fd/{root}",
                )
        except BaseException:
            os.close(self._told)
            raise
        assert self._child.stdout is not None  # noqa: S101 - a pipe was asked for
        self._pipe = self._child.stdout.fileno()
        with contextlib.suppress(OSError):  # a user's pipes may be bounded
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIECE)

    @property
    def pid(self) -> int:
        return self._child.pid

    def read(self) -> bytes:
        with self._busy:
            return os.read(self._pipe, PIECE) if self._told >= 0 else b""

    def finish(self) -> Transfer:
        """What went, and what was left out."""
        status = self._child.wait()
        told = self._last_word()
        if told.failed is not None:
            raise SkerryError(f"the archive could not be made: {told.failed[:2000]}", hint=told.hint)
        if status != 0 or told.done is None:
            raise SkerryError("the archive could not be made: its packer ended without a word")
        done = told.done
        skipped = tuple(Skipped(path=one.path, reason=one.reason, raw_path=_raw(one)) for one in done.skipped)
        return Transfer(
            files=done.files, directories=done.directories, links=done.links, bytes=done.bytes,
            skipped=skipped, more=done.more,
        )  # fmt: skip

    def _last_word(self) -> _Told:
        lines = os.pread(self._told, _TOLD_MOST, 0).splitlines()
        try:
            return msgspec.json.decode(lines[-1], type=_Told) if lines else _Told()
        except msgspec.MsgspecError:
            return _Told()

    def close(self) -> None:
        """Idempotent; also from another thread than the one that reads, which then comes to the end."""
        if self._child.poll() is None:
            os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
        with self._busy:
            if self._told >= 0:
                os.close(self._told)
                self._told = -1
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
