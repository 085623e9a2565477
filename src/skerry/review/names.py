"""Names that come from inside: paths (see `types.paths`) and refs of the agent's own repository."""

from __future__ import annotations

import re
from collections.abc import Iterable

from skerry.types.paths import folded, is_git, refused

__all__ = ["REFS_MOST", "folded", "is_git", "judged", "refused", "refused_ref"]

REFS_MOST = 1000
_REF_MOST = 200
_DEPTH_MOST = 12
_KINDS = ("refs/heads/", "refs/tags/")
_PART = re.compile(r"[A-Za-z0-9_#@+][A-Za-z0-9_.+=@#,%-]*")
_OBJECT = re.compile(r"[0-9a-fA-F]{40}|[0-9a-fA-F]{64}")
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)


def refused_ref(name: str) -> str | None:
    """Why a ref can't come out, or None. Stricter than git: these names become files here, and again in the user's
    repository, on whatever file system that lies."""
    if not name.startswith(_KINDS):
        return "it is neither a branch nor a tag"
    parts = name.split("/")[2:]
    if len(name) > _REF_MOST or len(parts) > _DEPTH_MOST:
        return "its name is too long"
    for part in parts:
        if not _PART.fullmatch(part) or ".." in part or "@{" in part:
            return "its name has characters other than letters, digits and . _ - + = @ # , %"
        if part.endswith((".", ".lock")) or part in ("@", "HEAD") or _DEVICES.fullmatch(part):
            return "its name means something else to git or to a file system"
        if _OBJECT.fullmatch(part) or is_git(part.encode()):
            return "its name looks like a commit, or like .git"
    return None


def judged(names: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Those that can come out together, and why the others can't."""
    good: dict[str, str] = {}
    bad: dict[str, str] = {}
    above: set[str] = set()
    for name in sorted(names):
        reason, key = refused_ref(name), name.lower()
        over = {key[:at] for at, c in enumerate(key) if c == "/"}
        if reason is None and len(good) >= REFS_MOST:
            reason = f"there are more than {REFS_MOST}"
        if reason is None and (key in good or key in above or not over.isdisjoint(good)):
            reason = "another's name is the same on some file system, or a directory of it"
        if reason is None:
            good[key] = name
            above |= over
        else:
            bad[name] = reason
    return list(good.values()), bad
