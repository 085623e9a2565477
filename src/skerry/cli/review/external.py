"""The user's editor and pager."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from skerry.errors import InvalidRequest

_EDITORS = ("editor", "nano", "vim", "vi")
MAX_EDITED = 8 << 20


def editor() -> list[str]:
    """Return the editor that git would use."""
    for name in ("GIT_EDITOR", "VISUAL", "EDITOR"):
        if words := shlex.split(os.environ.get(name, "")):
            return words
    for known in _EDITORS:
        if found := shutil.which(known):
            return [found]
    raise InvalidRequest("no editor found", hint="set the variable EDITOR")


def edit(text: str, suffix: str) -> str | None:
    """Edit text; return None if it was not changed. The file is in a directory that only this user can enter."""
    with tempfile.TemporaryDirectory(prefix="skerry-") as place:
        path = Path(place, f"new-lines{suffix}")
        path.write_bytes(text.encode())
        with _ignore_interrupt():
            done = subprocess.run([*editor(), str(path)], check=False)
        if done.returncode != 0:
            raise InvalidRequest(f"the editor exited with code {done.returncode}: nothing was changed")
        with open(path, "rb") as file:
            data = file.read(MAX_EDITED + 1)
    if len(data) > MAX_EDITED:
        raise InvalidRequest("the edited text is larger than 8 MiB")
    try:
        found = data.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("the edited text is not UTF-8: nothing was changed") from None
    return None if found == text else found


def suffix_of(path: str) -> str:
    """Return the suffix of a path, by which the editor knows the language; `.txt` if it has unusual characters."""
    suffix = Path(path).suffix
    return suffix if suffix[1:].isascii() and suffix[1:].isalnum() and len(suffix) < 16 else ".txt"


def pager() -> list[str] | None:
    """Return the pager that git would use, or None if none is installed or it is disabled."""
    for name in ("SKERRY_PAGER", "GIT_PAGER", "PAGER"):
        if name in os.environ:
            words = shlex.split(os.environ[name])
            return words if words and words != ["cat"] else None
    found = shutil.which("less")
    return [found] if found else None


def page(chunks: Iterable[bytes], words: list[str]) -> None:
    """Show chunks in the pager until the user quits it. `less` shows colours, and exits if the text fits the screen."""
    environ = {"LESS": "FRX", "LV": "-c", **os.environ}
    try:
        with _ignore_interrupt(), subprocess.Popen(words, stdin=subprocess.PIPE, env=environ) as child:
            if child.stdin is not None:
                _feed(child.stdin, chunks)
    except FileNotFoundError:
        raise InvalidRequest(f"pager not found: {words[0]}", hint="set the variable PAGER, or use --no-pager") from None


def _feed(stdin: IO[bytes], chunks: Iterable[bytes]) -> None:
    with contextlib.suppress(BrokenPipeError):
        for chunk in chunks:
            stdin.write(chunk)
    with contextlib.suppress(BrokenPipeError):
        stdin.close()


@contextlib.contextmanager
def _ignore_interrupt() -> Iterator[None]:
    """Leave Ctrl-C to the foreground program. A handler, not SIG_IGN: the program would inherit an ignored signal."""
    old = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old)
