"""Names of files that come out of a sandbox: which of them a repository can carry, and which are a `.git` in disguise.

Pure, and the same for the server, which writes them into a ledger, and for the client, which writes them to a disk.
"""

from __future__ import annotations

import re
import unicodedata

from skerry.types.values import PATH_MOST

PART_MOST = 255
DEPTH_MOST = 1024  # git gives up at 2048

_GIT = re.compile(r"(?:\.git|git~[0-9]+)[. ]*(?::.*)?", re.DOTALL)
_MODULES = re.compile(r"(?:\.gitmodules|gitmod~[0-9]+|gi7eba~[0-9]+|gi7[0-9a-f]{0,4}~[0-9]+)[. ]*(?::.*)?", re.DOTALL)
_SEPARATORS = re.compile(r"[/\\]")


def refused(path: bytes, *, link: bool = False) -> str | None:
    """Why a path can't be carried, or None: relative, as bytes, with `/` between its parts. `link`: it is one."""
    if not path or b"\0" in path:
        return "it has no name that a file can have"
    if len(path) > PATH_MOST:
        return f"its path is longer than {PATH_MOST} bytes"
    parts = path.split(b"/")
    if len(parts) > DEPTH_MOST:
        return f"it lies deeper than {DEPTH_MOST} directories"
    for part in parts:
        if part in (b"", b".", b".."):
            return "its path leaves the tree, or names nothing in it"
        if len(part) > PART_MOST:
            return f"a part of its path is longer than {PART_MOST} bytes"
    if _suspicious(path):
        if any(map(is_git, parts)):
            return "it is called .git, or what some file system takes for it"
        if link and _spelled(_MODULES, parts[-1]):
            return "it is a link called .gitmodules, which git itself refuses"
    return None


def is_git(part: bytes) -> bool:
    """Is it `.git`, or would some file system open `.git` by that name? HFS+ and APFS leave out invisible characters
    and don't tell cases or ways of composing apart; NTFS has short names (`git~1`), leaves out dots and spaces at the
    end, takes what follows a colon for a stream, and `\\` for a separator (CVE-2014-9390, CVE-2019-1352, -1353)."""
    return _suspicious(part) and _spelled(_GIT, part)


def folded(path: bytes) -> str:
    """The same for two paths that are one file on a disk that tells neither cases nor ways of composing apart."""
    text = path.decode("utf-8", "surrogateescape")
    return (
        text.lower() if text.isascii() else unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())
    )


def _suspicious(name: bytes) -> bool:
    return not name.isascii() or b"gi" in name.lower()


def _spelled(what: re.Pattern[str], part: bytes) -> bool:
    return any(what.fullmatch(piece) for piece in _SEPARATORS.split(_bare(part)))


def _bare(part: bytes) -> str:
    """In small letters, decomposed, without marks and invisible characters: coarser than any file system is."""
    text = part.decode("utf-8", "surrogateescape").casefold()
    if text.isascii():
        return text
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return "".join(c for c in plain if unicodedata.category(c) not in ("Cf", "Mn", "Me"))
