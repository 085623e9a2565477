"""File names from a sandbox: those that a repository can hold, and those that are a `.git` in disguise.

Pure, and shared by the server, which writes them into a ledger, and the client, which writes them to a disk.
"""

from __future__ import annotations

import re
import unicodedata

from skerry.types.values import MAX_PATH

MAX_PART = 255
MAX_DEPTH = 1024  # git gives up at 2048

_GIT = re.compile(r"(?:\.git|git~[0-9]+)[. ]*(?::.*)?", re.DOTALL)
_MODULES = re.compile(r"(?:\.gitmodules|gitmod~[0-9]+|gi7eba~[0-9]+|gi7[0-9a-f]{0,4}~[0-9]+)[. ]*(?::.*)?", re.DOTALL)
_SEPARATORS = re.compile(r"[/\\]")


def refused(path: bytes, *, link: bool = False) -> str | None:
    """Return why a path cannot be stored, or None. The path is relative, in bytes, with `/` as separator. `link`: it is
    a symbolic link."""
    if not path or b"\0" in path:
        return "its name is not a valid file name"
    if len(path) > MAX_PATH:
        return f"its path is longer than {MAX_PATH} bytes"
    parts = path.split(b"/")
    if len(parts) > MAX_DEPTH:
        return f"it is nested deeper than {MAX_DEPTH} directories"
    for part in parts:
        if part in (b"", b".", b".."):
            return "its path leaves the tree, or names nothing in it"
        if len(part) > MAX_PART:
            return f"a part of its path is longer than {MAX_PART} bytes"
    if _suspicious(path):
        if any(map(is_git, parts)):
            return "its name is .git, or equivalent to it on some file system"
        if link and _spelled(_MODULES, parts[-1]):
            return "it is a link named .gitmodules, which git rejects"
    return None


def is_git(part: bytes) -> bool:
    r"""Return whether the name is `.git`, or whether a file system opens `.git` by it. HFS+ and APFS ignore invisible
    characters, case and composition; NTFS has short names (`git~1`), ignores trailing dots and spaces, treats the text
    after a colon as a stream, and `\` as a separator (CVE-2014-9390, CVE-2019-1352, -1353)."""
    return _suspicious(part) and _spelled(_GIT, part)


def folded(path: bytes) -> str:
    """Return the same text for two paths that are one file on a disk that ignores case and composition."""
    text = path.decode("utf-8", "surrogateescape")
    return (
        text.lower() if text.isascii() else unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())
    )


def _suspicious(name: bytes) -> bool:
    return not name.isascii() or b"gi" in name.lower()


def _spelled(what: re.Pattern[str], part: bytes) -> bool:
    return any(what.fullmatch(piece) for piece in _SEPARATORS.split(_bare(part)))


def _bare(part: bytes) -> str:
    """Return the name in lower case, decomposed, without marks and invisible characters: coarser than any file
    system."""
    text = part.decode("utf-8", "surrogateescape").casefold()
    if text.isascii():
        return text
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return "".join(c for c in plain if unicodedata.category(c) not in ("Cf", "Mn", "Me"))
