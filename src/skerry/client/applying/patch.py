"""Wishes as a patch that `git apply` takes. Made in a repository of its own that is gone afterwards."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from skerry.client.applying.content import MERGE_MOST, Contents
from skerry.client.applying.git import git_alone
from skerry.client.applying.plan import Side, Trouble, Wish, impossible, refuse


def patch(wishes: Sequence[Wish], contents: Contents) -> bytes:
    """Of what was accepted, from what the sandbox was made of on."""
    refuse([Trouble(wish.path, why) for wish in wishes if (why := _unfit(wish, contents)) is not None], "patch")
    with tempfile.TemporaryDirectory(prefix="skerry-patch-") as name:
        place = Path(name)
        git_alone(place, "init", "-q", "--bare", "--template=", ".")
        sides = [side for wish in wishes for side in (wish.base, wish.new) if side is not None]
        files = b"".join(os.fsencode(contents.path(side.oid).absolute()) + b"\n" for side in sides)
        git_alone(place, "--git-dir=.", "hash-object", "-w", "--no-filters", "--stdin-paths", stdin=files)
        old = _tree(place, "old", [(wish.source or wish.path, wish.base) for wish in wishes])
        new = _tree(place, "new", [(wish.path, wish.new) for wish in wishes])
        return git_alone(
            place, "--git-dir=.", "diff-tree", "-p", "--binary", "--full-index", "-M", "-r", "--no-color",
            "--no-ext-diff", "--no-textconv", old, new,
        )[1]  # fmt: skip


def _unfit(wish: Wish, contents: Contents) -> str | None:
    if (why := impossible(wish, ())) is not None:
        return why
    for side in filter(None, (wish.base, wish.new)):
        if side.sha256 or contents.size(side.oid) > MERGE_MOST:
            return f"it is larger than {MERGE_MOST >> 20} MiB"
    return None


def _tree(place: Path, index: str, entries: Sequence[tuple[bytes, Side | None]]) -> str:
    env = {"GIT_INDEX_FILE": str(place / index)}
    lines = [b"%b %b 0\t%b" % (mode_of(side), side.oid.encode(), path) for path, side in entries if side is not None]
    git_alone(place, "--git-dir=.", "update-index", "-z", "--index-info", stdin=b"\0".join([*lines, b""]), env=env)
    return git_alone(place, "--git-dir=.", "write-tree", env=env)[1].decode().strip()


def mode_of(side: Side) -> bytes:
    return b"120000" if side.kind == "link" else b"100755" if side.executable else b"100644"
