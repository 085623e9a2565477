"""The complete output of a command, and its exit code as a shell reports it: the frameworks expect both."""

from __future__ import annotations

import posixpath
import signal

from skerry import Output, Result

MAX_OUTPUT = 10 << 20  # bytes of a stream


class FullOutput:
    """Collects the output of a run: `sandbox.run(cmd, on_output=output.add)`. A result has only its head and tail.

    The first `limit` bytes of each stream are kept; `exceeded` is set if there were more."""

    def __init__(self, limit: int = MAX_OUTPUT) -> None:
        self.exceeded = False
        self._limit = limit
        self._streams = {"stdout": bytearray(), "stderr": bytearray()}
        self._both = bytearray()

    def add(self, piece: Output) -> None:
        kept = self._streams[piece.stream]
        part = piece.data[: self._limit - len(kept)]
        self.exceeded = self.exceeded or len(part) < len(piece.data)
        kept += part
        self._both += part

    @property
    def stdout_bytes(self) -> bytes:
        return bytes(self._streams["stdout"])

    @property
    def stderr_bytes(self) -> bytes:
        return bytes(self._streams["stderr"])

    @property
    def stdout(self) -> str:
        return self._streams["stdout"].decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self._streams["stderr"].decode("utf-8", "replace")

    @property
    def text(self) -> str:
        """Both streams in the order of their arrival."""
        return self._both.decode("utf-8", "replace")


def exit_code(result: Result) -> int:
    """Return the exit code; 128 and the signal's number after a signal; 124 after a timeout, as `timeout` returns."""
    if result.timed_out:
        return 124
    if result.exit_code is not None:
        return result.exit_code
    return 128 + int(getattr(signal, f"SIG{result.signal}", signal.SIGKILL))


def absolute(path: str | None, base: str) -> str:
    """Return a path below a directory as an absolute one."""
    return posixpath.normpath(posixpath.join(base, path or "."))
