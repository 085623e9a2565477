"""The origin of a workspace: recognisable on this machine, opaque elsewhere."""

from __future__ import annotations

import hashlib
import os


def origin_of(top: str | os.PathLike[str]) -> str:
    """Return a stable, opaque ID of a directory on this machine."""
    path = os.fsencode(os.path.realpath(top))
    return hashlib.sha256(b"skerry\0" + _machine() + b"\0" + path).hexdigest()


def _machine() -> bytes:
    for name in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            with open(name, "rb") as file:
                return file.read(64).strip()
        except OSError:
            continue
    return os.fsencode(os.uname().nodename)
