"""The user's own programs: an editor and a pager."""

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
EDITED_MOST = 8 << 20


def editor() -> list[str]:
    """As git chooses it."""
    for name in ("GIT_EDITOR", "VISUAL", "EDITOR"):
        if words := shlex.split(os.environ.get(name, "")):
            return words
    for known in _EDITORS:
        if found := shutil.which(known):
            return [found]
    raise InvalidRequest("there is no editor", hint="name one in the variable EDITOR")


def edited(text: str, suffix: str) -> str | None:
    """None: it was left as it was. The file is in a directory that only this user may enter."""
    with tempfile.TemporaryDirectory(prefix="skerry-") as place:
        path = Path(place, f"new-lines{suffix}")
        path.write_bytes(text.encode())
        with _unheard():
            done = subprocess.run([*editor(), str(path)], check=False)
        if done.returncode != 0:
            raise InvalidRequest(f"the editor ended with code {done.returncode}: nothing was changed")
        with open(path, "rb") as file:
            data = file.read(EDITED_MOST + 1)
    if len(data) > EDITED_MOST:
        raise InvalidRequest("that is more than 8 MiB")
    try:
        found = data.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("what the editor wrote is not UTF-8: nothing was changed") from None
    return None if found == text else found


def suffix_of(path: str) -> str:
    """So that the editor knows the language; of letters that no program stumbles over."""
    suffix = Path(path).suffix
    return suffix if suffix[1:].isascii() and suffix[1:].isalnum() and len(suffix) < 16 else ".txt"


def pager() -> list[str] | None:
    """As git chooses it; None: there is none, or none is wanted."""
    for name in ("SKERRY_PAGER", "GIT_PAGER", "PAGER"):
        if name in os.environ:
            words = shlex.split(os.environ[name])
            return words if words and words != ["cat"] else None
    found = shutil.which("less")
    return [found] if found else None


def page(chunks: Iterable[bytes], words: list[str]) -> None:
    """Until all was read or the pager was left. `less` shows colours, and leaves by itself if it fits the screen."""
    environ = {"LESS": "FRX", "LV": "-c", **os.environ}
    try:
        with _unheard(), subprocess.Popen(words, stdin=subprocess.PIPE, env=environ) as child:
            if child.stdin is not None:
                _feed(child.stdin, chunks)
    except FileNotFoundError:
        raise InvalidRequest(f"no such pager: {words[0]}", hint="the variable PAGER, or --no-pager") from None


def _feed(stdin: IO[bytes], chunks: Iterable[bytes]) -> None:
    with contextlib.suppress(BrokenPipeError):
        for chunk in chunks:
            stdin.write(chunk)
    with contextlib.suppress(BrokenPipeError):
        stdin.close()


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Ctrl-C is for the program in front, which must not inherit that it is ignored here."""
    old = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old)
