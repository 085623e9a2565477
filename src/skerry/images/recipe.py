"""What the image `base` is made of: its packages, how they are installed, and a digest of all that is ours in it."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

PACKAGES = (
    *("bash", "mount", "passwd", "adduser", "procps", "tzdata", "ca-certificates"),
    *("python3", "python3-pip", "python3-venv", "git", "curl", "vim-tiny", "tmux", "less"),
)
# Taken where the archive has them: Ubuntu keeps some in a component that a host may not have enabled.
EXTRAS = (
    *("ripgrep", "nano", "htop", "jq", "file", "patch", "unzip", "zip", "xz-utils", "openssh-client"),
    *("python-is-python3", "netbase", "wget", "make", "tree"),
)
BOOTSTRAP = ("--mode=root", "--variant=apt", "--format=directory", "--skip=update,check/signed-by", "--verbose")
DPKG_OPTIONS = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-include=/usr/share/locale/locale.alias",
    "path-exclude=/usr/lib/python3*/EXTERNALLY-MANAGED",
)

_MODULES = ("recipe.py", "finish.py", "bytecode.py", "node.py")


@cache
def recipe_digest() -> str:
    """A digest of what makes the image what it is, but for the state of the archive: an image with another one in its
    record was made by another version of Skerry. It is taken of the modules themselves, which nobody has to remember
    to number; so a changed comment counts too, and costs a build."""
    whole = hashlib.sha256(b"skerry-recipe-1\n")
    for name in _MODULES:
        source = (Path(__file__).parent / name).read_bytes()
        whole.update(b"%s %d\n" % (name.encode(), len(source)) + source)
    return f"sha256:{whole.hexdigest()}"
