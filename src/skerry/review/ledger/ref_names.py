"""Check names that come from the sandbox: paths (see `types.paths`) and refs of the agent's repository."""

from __future__ import annotations

import re
from collections.abc import Iterable

from skerry.types.paths import folded, is_git, refused

__all__ = ["MAX_REFS", "check_refs", "folded", "is_git", "ref_problem", "refused"]

MAX_REFS = 1000
_MAX_NAME = 200
_MAX_DEPTH = 12
_KINDS = ("refs/heads/", "refs/tags/")
_PART = re.compile(r"[A-Za-z0-9_#@+][A-Za-z0-9_.+=@#,%-]*")
_OBJECT = re.compile(r"[0-9a-fA-F]{40}|[0-9a-fA-F]{64}")
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)


def ref_problem(name: str) -> str | None:
    """Return why a ref cannot be imported, or None. Stricter than git: these names become files here and again in the
    user's repository, on any file system."""
    if not name.startswith(_KINDS):
        return "it is neither a branch nor a tag"
    parts = name.split("/")[2:]
    if len(name) > _MAX_NAME or len(parts) > _MAX_DEPTH:
        return "its name is too long"
    for part in parts:
        if not _PART.fullmatch(part) or ".." in part or "@{" in part:
            return "its name has characters other than letters, digits and . _ - + = @ # , %"
        if part.endswith((".", ".lock")) or part in ("@", "HEAD") or _DEVICES.fullmatch(part):
            return "its name has a special meaning for git or a file system"
        if _OBJECT.fullmatch(part) or is_git(part.encode()):
            return "its name looks like a commit or like .git"
    return None


def check_refs(names: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Return the refs that can be imported together, and the reasons for the others."""
    good: dict[str, str] = {}
    bad: dict[str, str] = {}
    above: set[str] = set()
    for name in sorted(names):
        reason, key = ref_problem(name), name.lower()
        over = {key[:at] for at, c in enumerate(key) if c == "/"}
        if reason is None and len(good) >= MAX_REFS:
            reason = f"there are more than {MAX_REFS}"
        if reason is None and (key in good or key in above or not over.isdisjoint(good)):
            reason = "its name collides with another ref on some file systems"
        if reason is None:
            good[key] = name
            above |= over
        else:
            bad[name] = reason
    return list(good.values()), bad
