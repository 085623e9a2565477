"""Accepted changes as a patch for `git apply`, made in a temporary repository."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from skerry.client.apply.content import MAX_MERGE_BYTES, Contents
from skerry.client.apply.plan import PlannedEdit, Problem, Side, raise_problems, why_impossible
from skerry.client.host.git import isolated_git


def patch(edits: Sequence[PlannedEdit], contents: Contents) -> bytes:
    """Return the accepted changes as a patch against the state that the sandbox was created from."""
    raise_problems([Problem(edit.path, why) for edit in edits if (why := _unfit(edit, contents)) is not None], "patch")
    with tempfile.TemporaryDirectory(prefix="skerry-patch-") as name:
        place = Path(name)
        isolated_git(place, "init", "-q", "--bare", "--template=", ".")
        sides = [side for edit in edits for side in (edit.base, edit.new) if side is not None]
        files = b"".join(os.fsencode(contents.path(side.oid).absolute()) + b"\n" for side in sides)
        isolated_git(place, "--git-dir=.", "hash-object", "-w", "--no-filters", "--stdin-paths", stdin=files)
        old = _tree(place, "old", [(edit.source or edit.path, edit.base) for edit in edits])
        new = _tree(place, "new", [(edit.path, edit.new) for edit in edits])
        return isolated_git(
            place, "--git-dir=.", "diff-tree", "-p", "--binary", "--full-index", "-M", "-r", "--no-color",
            "--no-ext-diff", "--no-textconv", old, new,
        )[1]  # fmt: skip


def _unfit(edit: PlannedEdit, contents: Contents) -> str | None:
    if (why := why_impossible(edit, ())) is not None:
        return why
    for side in filter(None, (edit.base, edit.new)):
        if side.sha256 or contents.size(side.oid) > MAX_MERGE_BYTES:
            return f"it is larger than {MAX_MERGE_BYTES >> 20} MiB"
    return None


def _tree(place: Path, index: str, entries: Sequence[tuple[bytes, Side | None]]) -> str:
    env = {"GIT_INDEX_FILE": str(place / index)}
    lines = [b"%b %b 0\t%b" % (mode_of(side), side.oid.encode(), path) for path, side in entries if side is not None]
    isolated_git(place, "--git-dir=.", "update-index", "-z", "--index-info", stdin=b"\0".join([*lines, b""]), env=env)
    return isolated_git(place, "--git-dir=.", "write-tree", env=env)[1].decode().strip()


def mode_of(side: Side) -> bytes:
    return b"120000" if side.kind == "link" else b"100755" if side.executable else b"100644"
