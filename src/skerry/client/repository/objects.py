"""All objects that a state reaches, in one pack, written by git beside whatever else goes on."""

from __future__ import annotations

import os
import subprocess
import tempfile
from typing import Final

from skerry.client.repository.state import State

# No search for new deltas, and quick compression: it is read once, by a neighbour.
_WORDS: Final = ("pack-objects", "-q", "--revs", "--window=0", "--compression=1", "--delta-base-offset")
_WITH_GAPS: Final = ("--indexed-objects", "--missing=allow-promisor")
_SETTINGS: Final = ("-c", "pack.packSizeLimit=0", "-c", "core.bigFileThreshold=32m")


class ObjectPack:
    """`directory`: an empty one of ours, which gets the pack. It lies on disk because its size stands before it in an
    archive; `TMPDIR` says where."""

    def __init__(self, state: State, directory: str) -> None:
        self.directory = directory
        self._partial = state.settings.partial
        self._git = state.git().also(*_SETTINGS)
        self._name: bytes | None = None
        self._wrong = tempfile.TemporaryFile()  # noqa: SIM115
        more = _WITH_GAPS if self._partial else ()
        words = (*_WORDS, *more, f"{directory}/pack")
        with open(state.wanted, "rb") as wanted:
            self._process = self._git.start(*words, given=wanted, wrong=self._wrong)

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, after so long at most."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def names(self) -> list[str]:
        """Its files, once they are whole."""
        name, code = self._said().strip(), self._process.wait()
        if code:
            raise self._git.failed(self._wrong, code)
        if self._partial:  # what is missing in it is then not an error, to git
            with open(f"{self.directory}/pack-{name.decode()}.promisor", "ab"):
                pass
        return sorted(os.listdir(self.directory))

    def _said(self) -> bytes:
        if self._name is None:
            assert self._process.stdout is not None  # noqa: S101
            with self._process.stdout as stdout:
                self._name = stdout.read()
        return self._name

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._said()
        self._process.wait()
        self._wrong.close()
