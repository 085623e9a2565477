"""The only module of the server that runs git. git runs as root on untrusted data, so no configuration, attribute, hook
or argument comes from that data, and its time, memory and output are limited."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from skerry.errors import HostUnsupported, SkerryError

EMPTY_TREE: Final = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
TIMEOUT_S: Final = 120.0
MAX_MEMORY: Final = 2 << 30
_PIECE: Final = 256 << 10
_MAX_STDERR: Final = 2000

# Attributes could come from the tree itself: git 2.43 to 2.45 read those of HEAD in a bare repository. The ledger's
# info/attributes, which overrides any tree's, repeats the setting.
_ENVIRONMENT: Final = {
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_SYSTEM": "/dev/null", "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_COUNT": "0", "GIT_ATTR_NOSYSTEM": "1", "GIT_ATTR_SOURCE": EMPTY_TREE, "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_LITERAL_PATHSPECS": "1",
    "GIT_ADVICE": "0", "HOME": "/nonexistent", "XDG_CONFIG_HOME": "/nonexistent", "LC_ALL": "C", "TZ": "UTC",
}  # fmt: skip
_SETTINGS: Final = (
    "core.hooksPath=/dev/null", "core.attributesFile=/dev/null", "core.excludesFile=/dev/null", "core.fsmonitor=false",
    "core.pager=cat", "core.quotePath=true", "core.abbrev=40", "core.autocrlf=false",
    "core.logAllRefUpdates=false", "core.multiPackIndex=false", "core.commitGraph=false", "core.compression=1",
    "core.fsync=loose-object,pack,pack-metadata,reference", "core.fsyncMethod=fsync", "core.packedGitLimit=256m",
    "core.packedGitWindowSize=32m", "core.deltaBaseCacheLimit=64m", "core.bigFileThreshold=64m",
    "core.maxTreeDepth=2048", "attr.tree=" + EMPTY_TREE, "safe.bareRepository=explicit", "protocol.allow=never",
    "submodule.recurse=false", "gc.auto=0", "maintenance.auto=false", "pack.compression=1", "pack.threads=1",
    "pack.windowMemory=64m", "pack.writeReverseIndex=false", "pack.packSizeLimit=0", "repack.writeBitmaps=false",
    "repack.useDeltaBaseOffset=true", "log.mailmap=false", "log.showSignature=false", "log.showRoot=false",
    "diff.renames=true", "diff.algorithm=myers", "diff.indentHeuristic=true", "diff.noprefix=false",
    "diff.mnemonicPrefix=false", "diff.suppressBlankEmpty=false", "diff.orderFile=/dev/null", "diff.submodule=short",
    "diff.ignoreSubmodules=none", "diff.interHunkContext=0", "color.ui=false", "i18n.commitEncoding=UTF-8",
    "i18n.logOutputEncoding=UTF-8",
)  # fmt: skip
_OPTIONS: Final = tuple(word for setting in _SETTINGS for word in ("-c", setting))
DIFF: Final = ("--no-textconv", "--no-ext-diff", "--no-color", "--submodule=short")


class LedgerGitError(SkerryError):
    """git failed or was killed. `full`: the disk is full; `late`: it timed out; `memory`: it ran out of memory."""

    def __init__(self, what: str, said: str, *, late: bool = False) -> None:
        self.late, self.memory = late, "ut of memory" in said or "malloc failed" in said
        self.full = "No space left" in said or "Disk quota exceeded" in said
        super().__init__(
            f"git {what} failed: {said or 'no error message'}",
            hint="the server's disk is full" if self.full else None,
        )


class GitProcess:
    """A running git. Use as a context manager, which kills it and its children on exit."""

    def __init__(self, process: subprocess.Popen[bytes], what: str, said: int, deadline: float) -> None:
        self._process, self._what, self._said = process, what, said
        self._late = False
        self._timer = threading.Timer(deadline, self._end_late)
        self._timer.daemon = True
        self._timer.start()

    @property
    def stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        return self._process.stdout

    def bound(self, *, file: int | None = None, cpu: int | None = None, memory: int | None = None) -> None:
        for what, max_bytes in (
            (resource.RLIMIT_FSIZE, file),
            (resource.RLIMIT_CPU, cpu),
            (resource.RLIMIT_DATA, memory),
        ):
            if max_bytes is not None:
                resource.prlimit(self._process.pid, what, (max_bytes, max_bytes))

    def finish(self, *, allowed: tuple[int, ...] = (0,)) -> int:
        """Wait for the end; raise if git failed."""
        status = self._process.wait()
        self._timer.cancel()
        if status not in allowed:
            raise LedgerGitError(self._what, self.said(), late=self._late)
        return status

    def said(self) -> str:
        if self._late:
            return "it timed out"
        text = os.pread(self._said, _MAX_STDERR, 0).decode("utf-8", "replace")
        shown = "".join(c if c.isprintable() or c == "\n" else "?" for c in text).strip()
        if not shown and (self._process.returncode or 0) < 0:
            shown = f"it was killed by {signal.Signals(-self._process.returncode).name}"
        return shown

    def close(self) -> None:
        self._timer.cancel()
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):  # unwritten buffered data has no receiver
                    stream.close()
        os.close(self._said)

    def _end_late(self) -> None:
        if self._process.poll() is None:
            self._late = True
            os.killpg(self._process.pid, signal.SIGKILL)


class LedgerGit:
    """git for one repository. `objects`: a directory for new objects, in place of the repository's own."""

    def __init__(self, directory: Path, *, objects: Path | None = None) -> None:
        self.directory = directory
        self._objects = objects

    @contextmanager
    def started(
        self, *arguments: str | bytes, stdin: bytes | int | None = None, seconds: float = TIMEOUT_S,
        memory: int = MAX_MEMORY, held: Sequence[int] = (),
    ) -> Iterator[GitProcess]:  # fmt: skip
        """Start git. `stdin`: bytes, a file, or None for a pipe. `held`: fds that git keeps open: a lock that lasts as
        long as git, even if the server dies."""
        what = os.fsdecode(arguments[0])
        given = _in_memory(stdin) if isinstance(stdin, bytes) else stdin
        said = -1
        try:
            said = os.memfd_create("git-said", os.MFD_CLOEXEC)
            process = subprocess.Popen(
                ["git", f"--git-dir={self.directory}", "--no-pager", *_OPTIONS, *arguments],
                env=self._environment(),
                cwd="/",
                stdin=subprocess.PIPE if given is None else given,
                stdout=subprocess.PIPE,
                stderr=said,
                start_new_session=True,
                umask=0o077,
                pass_fds=tuple(held),
            )
        except BaseException as error:
            if said >= 0:
                os.close(said)
            if isinstance(error, FileNotFoundError):
                raise git_missing() from None
            raise
        finally:
            if isinstance(stdin, bytes) and given is not None:
                os.close(given)
        running = GitProcess(process, what, said, seconds)
        try:
            running.bound(memory=memory)
            yield running
        finally:
            running.close()

    def run(
        self, *arguments: str | bytes, stdin: bytes | int = b"", seconds: float = TIMEOUT_S, max_bytes: int = 256 << 20,
        allowed: tuple[int, ...] = (0,), held: Sequence[int] = (),
    ) -> bytes:  # fmt: skip
        """Return the output; raise if it exceeds `max_bytes`."""
        with self.started(*arguments, stdin=stdin, seconds=seconds, held=held) as git:
            out = git.stdout.read(max_bytes + 1)
            if len(out) > max_bytes:
                raise LedgerGitError(os.fsdecode(arguments[0]), f"it printed more than {max_bytes} bytes")
            git.finish(allowed=allowed)
        return out

    def stream(
        self,
        *arguments: str | bytes,
        stdin: bytes | int = b"",
        seconds: float = TIMEOUT_S,
        max_bytes: int | None = None,
    ) -> Iterator[bytes]:
        """Stream the output in pieces; cut it after `max_bytes`."""
        with self.started(*arguments, stdin=stdin, seconds=seconds) as git:
            left = max_bytes
            while left is None or left > 0:
                piece = git.stdout.read1(_PIECE if left is None else min(_PIECE, left))  # type: ignore[attr-defined]
                if not piece:
                    git.finish()
                    return
                left = None if left is None else left - len(piece)
                yield piece

    def _environment(self) -> dict[str, str]:
        env = {"PATH": os.environ.get("PATH", os.defpath), **_ENVIRONMENT}
        if self._objects is not None:
            env["GIT_OBJECT_DIRECTORY"] = str(self._objects)
        return env


def git_version() -> str:
    """Return the version of git on this host; raise HostUnsupported if it is missing."""
    try:
        done = subprocess.run(
            ["git", "--version"], capture_output=True, timeout=30, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        raise git_missing() from None
    return done.stdout.decode("utf-8", "replace").strip().removeprefix("git version ")


def git_missing() -> HostUnsupported:
    return HostUnsupported(
        "git, which keeps the ledger of changes, is not installed on the server", hint="install the package `git` there"
    )


def _in_memory(data: bytes) -> int:
    """Return the data as a file: a pipe would have to be filled while the output is read."""
    fd = os.memfd_create("git-stdin", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(data)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd
