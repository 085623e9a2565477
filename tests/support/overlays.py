"""Real overlays for tests of layers: change a mounted root as a sandbox does."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skerry.storage import tree
from skerry.storage.merged import merged
from skerry.storage.skerry_paths import MOUNT_POINTS, is_skerry_path


@contextmanager
def written(home: Path, layers: list[Path]) -> Iterator[Path]:
    """Mounts a writable overlay on these layers (top first); afterwards `home/upper` is the layer on top of them."""
    for name in ("upper", "work", "root"):
        (home / name).mkdir(parents=True)
    lower = ":".join(str(layer) for layer in layers)
    options = (
        f"lowerdir={lower},upperdir={home}/upper,workdir={home}/work,redirect_dir=on,metacopy=off,index=off,volatile"
    )
    subprocess.run(["mount", "-t", "overlay", "-o", options, "skerry-test", str(home / "root")], check=True)
    try:
        yield home / "root"
    finally:
        subprocess.run(["umount", str(home / "root")], check=True)


def facts(layers: list[Path]) -> dict[str, tuple[object, ...]]:
    """All of a merged tree, read whole."""
    found: dict[str, tuple[object, ...]] = {}
    with merged(layers) as root:
        for entry in tree.walk(root, is_skerry_path):
            path = "/" if entry.path == b"." else "/" + os.fsdecode(entry.path)
            mode = entry.stat.st_mode
            content: object = None
            if stat.S_ISREG(mode):
                with open(os.open(entry.name, os.O_RDONLY, dir_fd=entry.parent), "rb") as file:
                    content = file.read()
            elif stat.S_ISLNK(mode):
                content = os.readlink(entry.name, dir_fd=entry.parent)
            attributes = tuple(tree.xattrs(entry.parent, entry.name))
            found[path] = (mode, entry.stat.st_uid, entry.stat.st_gid, content, attributes)
    return found


def differences(before: list[Path], after: list[Path]) -> dict[str, str]:
    """Return the same as `changes`, by reading everything."""
    old, new = facts(before), facts(after)
    return {
        **dict.fromkeys((path for path in old.keys() - new.keys() if not _is_scaffold(path, old)), "deleted"),
        **dict.fromkeys((path for path in new.keys() - old.keys() if not _is_scaffold(path, new)), "added"),
        **{path: "modified" for path in old.keys() & new.keys() if old[path] != new[path]},
    }


def _is_scaffold(path: str, found: dict[str, tuple[object, ...]]) -> bool:
    inside = [below for below in found if below.startswith(f"{path}/")]
    is_directory = stat.S_ISDIR(int(str(found[path][0])))
    return path[1:].encode() in MOUNT_POINTS and is_directory and all(_is_scaffold(below, found) for below in inside)
