"""The keeper's binary: its path and its build."""

from __future__ import annotations

import os
from pathlib import Path

from skerry.errors import HostUnsupported

_BIN = Path(__file__).parent / "bin"
_HINT = (
    "run `make keeper` in a clone; otherwise install the wheel for Linux on x86-64 or arm64, "
    "because the wheel for any platform is only a client"
)


def binary() -> Path:
    """Return the keeper for this machine. SKERRY_KEEPER names another one; it must have the same build."""
    override = os.environ.get("SKERRY_KEEPER")
    path = Path(override) if override else _BIN / "skerry-keeper"
    if not path.is_file():
        raise HostUnsupported(f"keeper not found at {path}", hint=_HINT)
    return path


def build_id() -> str:
    """Return the build that every keeper must report."""
    try:
        return (_BIN / "build").read_text(encoding="ascii").strip()
    except OSError as error:
        raise HostUnsupported(f"the keeper was not built: {error}", hint=_HINT) from None
