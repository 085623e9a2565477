"""Where the keeper's binary is, and which one it has to be."""

from __future__ import annotations

import os
from pathlib import Path

from skerry.errors import HostUnsupported

_BIN = Path(__file__).parent / "bin"
_HINT = "run `make keeper` in a clone, or install the package again"


def binary() -> Path:
    """The keeper for this machine. SKERRY_KEEPER names another one; it still has to be of the same build."""
    override = os.environ.get("SKERRY_KEEPER")
    path = Path(override) if override else _BIN / "skerry-keeper"
    if not path.is_file():
        raise HostUnsupported(f"there is no keeper at {path}", hint=_HINT)
    return path


def build_id() -> str:
    """The build that every keeper has to say it is."""
    try:
        return (_BIN / "build").read_text(encoding="ascii").strip()
    except OSError as error:
        raise HostUnsupported(f"the keeper was not built: {error}", hint=_HINT) from None
