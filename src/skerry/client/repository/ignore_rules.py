"""The files of a tree that a review leaves out: the ignore rules of this host at this moment. Changes that the sandbox
makes to its `.gitignore` files later hide nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from skerry.client.repository.locate import RepositoryPlace, read_plain
from skerry.client.repository.settings import GitSettings

Rules = tuple[str, tuple[str, ...]]
MAX_RULE_BYTES: Final = 1 << 20
MAX_RULE_FILES: Final = 10_000
_ANEW: Final = "!*"  # the rules of an outer repository do not apply in an inner one


def excludes_file(settings: GitSettings) -> str:
    """Return the user's excludes file. The repository's setting is not used: it could name any file."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.expanduser(settings.users("core.excludesfile") or f"{home}/git/ignore")


def user_excludes(settings: GitSettings) -> bytes:
    return _ended(read_plain(os.path.realpath(excludes_file(settings)), MAX_RULE_BYTES))


def own_excludes(place: RepositoryPlace) -> bytes:
    return _ended(read_plain(f"{place.common_dir}/info/exclude", MAX_RULE_BYTES)) if place.common_dir else b""


def _ended(data: bytes | None) -> bytes:
    return data + b"\n" if data and not data.endswith(b"\n") else data or b""


def rules_of(prefix: str, excludes: bytes, ignored: Iterable[tuple[str, bytes]]) -> list[Rules]:
    """Return the rules of one repository, weakest first. `prefix`: its path in the tree, '' for the tree itself;
    `ignored`: the directories of its .gitignore files, from the top of the tree, with their contents."""
    first = (*((_ANEW,) if prefix else ()), *lines_of(excludes))
    found = [(prefix, first)] if first else []
    deeper = sorted(ignored, key=lambda one: (one[0].count("/") + bool(one[0]), one[0]))
    return found + [(place, lines) for place, data in deeper if (lines := lines_of(data))]


def lines_of(data: bytes) -> tuple[str, ...]:
    """Return the effective lines. A line that is not UTF-8 cannot be sent: the files it names are shown, not hidden."""
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
    """Return one list per directory, without directories that have names that cannot be sent."""
    found: dict[str, tuple[str, ...]] = {}
    for place, lines in rules:
        if is_text(place):
            found[place] = (*found.get(place, ()), *lines)
    return tuple(found.items())


def is_text(path: str) -> bool:
    return path.isascii() or path == path.encode("utf-8", "replace").decode()
