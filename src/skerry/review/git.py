"""The one place where the server calls git. It runs as root over what came from inside, so nothing but our own words
is configuration, attribute, hook or argument to it, and what it takes is bounded.
"""

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
SECONDS: Final = 120.0
MEMORY: Final = 2 << 30
_PIECE: Final = 256 << 10
_SAID: Final = 2000

# Attributes would come from the tree itself: git 2.43 to 2.45 read those of HEAD in a bare repository. The ledger's
# own info/attributes, which is stronger than any tree's, says the same again.
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


class GitFailed(SkerryError):
    """git ended with an error, or was ended. `full`: the disk is; `late`: it took too long; `memory`: it took too much
    of that."""

    def __init__(self, what: str, said: str, *, late: bool = False) -> None:
        self.late, self.memory = late, "ut of memory" in said or "malloc failed" in said
        self.full = "No space left" in said or "Disk quota exceeded" in said
        super().__init__(
            f"git {what} failed: {said or 'it said nothing'}",
            hint="the disk of the server is full" if self.full else None,
        )


class Running:
    """A git that runs. Use as a context: it is gone afterwards, with all that it started."""

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
        for what, most in ((resource.RLIMIT_FSIZE, file), (resource.RLIMIT_CPU, cpu), (resource.RLIMIT_DATA, memory)):
            if most is not None:
                resource.prlimit(self._process.pid, what, (most, most))

    def finish(self, *, allowed: tuple[int, ...] = (0,)) -> int:
        """Waits for its end; raises if that was not good."""
        status = self._process.wait()
        self._timer.cancel()
        if status not in allowed:
            raise GitFailed(self._what, self.said(), late=self._late)
        return status

    def said(self) -> str:
        if self._late:
            return "it took too long and was ended"
        text = os.pread(self._said, _SAID, 0).decode("utf-8", "replace")
        shown = "".join(c if c.isprintable() or c == "\n" else "?" for c in text).strip()
        if not shown and (self._process.returncode or 0) < 0:
            shown = f"it was ended by {signal.Signals(-self._process.returncode).name}"
        return shown

    def close(self) -> None:
        self._timer.cancel()
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):  # what is left in its buffer has nobody to go to
                    stream.close()
        os.close(self._said)

    def _end_late(self) -> None:
        if self._process.poll() is None:
            self._late = True
            os.killpg(self._process.pid, signal.SIGKILL)


class Git:
    """git over one repository. `objects`: where it writes objects in place of the repository's own directory."""

    def __init__(self, directory: Path, *, objects: Path | None = None) -> None:
        self.directory = directory
        self._objects = objects

    @contextmanager
    def started(
        self, *arguments: str | bytes, stdin: bytes | int | None = None, seconds: float = SECONDS,
        memory: int = MEMORY, held: Sequence[int] = (),
    ) -> Iterator[Running]:  # fmt: skip
        """`stdin`: bytes, a file, or None for a pipe. `held`: fds that it keeps open: a lock that lasts as long as it
        does, whatever becomes of us."""
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
                raise missing() from None
            raise
        finally:
            if isinstance(stdin, bytes) and given is not None:
                os.close(given)
        running = Running(process, what, said, seconds)
        try:
            running.bound(memory=memory)
            yield running
        finally:
            running.close()

    def run(
        self, *arguments: str | bytes, stdin: bytes | int = b"", seconds: float = SECONDS, most: int = 256 << 20,
        allowed: tuple[int, ...] = (0,), held: Sequence[int] = (),
    ) -> bytes:  # fmt: skip
        """All that it prints, if that is at most so much."""
        with self.started(*arguments, stdin=stdin, seconds=seconds, held=held) as git:
            out = git.stdout.read(most + 1)
            if len(out) > most:
                raise GitFailed(os.fsdecode(arguments[0]), f"it printed more than {most} bytes")
            git.finish(allowed=allowed)
        return out

    def stream(
        self, *arguments: str | bytes, stdin: bytes | int = b"", seconds: float = SECONDS, most: int | None = None
    ) -> Iterator[bytes]:
        """What it prints, in pieces, as it comes; cut after `most`."""
        with self.started(*arguments, stdin=stdin, seconds=seconds) as git:
            left = most
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


def version() -> str:
    """Which git this host has; HostUnsupported if none."""
    try:
        done = subprocess.run(
            ["git", "--version"], capture_output=True, timeout=30, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        raise missing() from None
    return done.stdout.decode("utf-8", "replace").strip().removeprefix("git version ")


def missing() -> HostUnsupported:
    return HostUnsupported(
        "the server's host has no git, which keeps the ledger of changes", hint="install the package `git` there"
    )


def _in_memory(data: bytes) -> int:
    """As a file: a pipe would have to be filled while the answer is read."""
    fd = os.memfd_create("git-stdin", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(data)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd
