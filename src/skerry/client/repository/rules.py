"""What of a tree a review leaves out: the ignore rules as they are on this host now. What the sandbox writes into its
`.gitignore` files later hides nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from skerry.client.repository.finding import Place, read_plain
from skerry.client.repository.settings import Settings

Rules = tuple[str, tuple[str, ...]]
MOST: Final = 1 << 20
MOST_FILES: Final = 10_000
# Caches that git never shows, because they come with a .gitignore of their own.
_SELF_IGNORED: Final = ("/.pytest_cache/", "/.mypy_cache/", "/.ruff_cache/")
_ANEW: Final = "!*"  # the rules of the repository around it don't count in one that lies within


def excludes_file(settings: Settings) -> str:
    """This user's own, for all repositories. What a repository's settings call so is not read: it could be any file."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.expanduser(settings.users("core.excludesfile") or f"{home}/git/ignore")


def user_excludes(settings: Settings) -> bytes:
    return _ended(read_plain(os.path.realpath(excludes_file(settings)), MOST))


def own_excludes(place: Place) -> bytes:
    return _ended(read_plain(f"{place.common_dir}/info/exclude", MOST)) if place.common_dir else b""


def _ended(data: bytes | None) -> bytes:
    return data + b"\n" if data and not data.endswith(b"\n") else data or b""


def rules_of(prefix: str, excludes: bytes, ignored: Iterable[tuple[str, bytes]]) -> list[Rules]:
    """The rules of one repository, the weaker first. `prefix`: where it lies in the tree, '' for the tree's own;
    `ignored`: the directories of its .gitignore files, from the tree's top, with what these say."""
    first = (*((_ANEW,) if prefix else _SELF_IGNORED), *lines_of(excludes))
    found = [(prefix, first)] if first else []
    deeper = sorted(ignored, key=lambda one: (one[0].count("/") + bool(one[0]), one[0]))
    return found + [(place, lines) for place, data in deeper if (lines := lines_of(data))]


def lines_of(data: bytes) -> tuple[str, ...]:
    """Those that say something. One that is not UTF-8 can't travel: what it names is shown, not hidden."""
    texts = (line.removesuffix(b"\r") for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"))
    found = []
    for line in texts:
        try:
            text = line.decode()
        except UnicodeDecodeError:
            continue
        if text.strip() and not text.startswith("#") and "\0" not in text:
            found.append(text)
    return tuple(found)


def merged(rules: Iterable[Rules]) -> tuple[Rules, ...]:
    """One list for each directory, and none for what has no name that can travel."""
    found: dict[str, tuple[str, ...]] = {}
    for place, lines in rules:
        if is_text(place):
            found[place] = (*found.get(place, ()), *lines)
    return tuple(found.items())


def is_text(path: str) -> bool:
    return path.isascii() or path == path.encode("utf-8", "replace").decode()
