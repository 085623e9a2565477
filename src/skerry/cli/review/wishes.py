"""What a review asks of the world, and has to be told about: nothing else leaves it."""

from __future__ import annotations

from dataclasses import dataclass

from skerry.types import DecideRequest, Hunk


@dataclass(frozen=True)
class Decide:
    """Tell the server; answered by `decided`. `undo`: what brings it back; `undoes`: this is such a step itself."""

    request: DecideRequest
    said: str
    undo: DecideRequest | None = None
    undoes: bool = False


@dataclass(frozen=True)
class Ask:
    """Where a hunk came from; answered by `told`."""

    hunk: str


@dataclass(frozen=True)
class Whole:
    """More of a hunk than its list had; answered by `whole`."""

    hunk: str


@dataclass(frozen=True)
class Reload:
    """Everything anew; answered by `loaded`."""


@dataclass(frozen=True)
class Edit:
    """The new lines in an editor; answered by `edited`."""

    hunk: Hunk
    text: str


@dataclass(frozen=True)
class View:
    """All of a hunk in the pager."""

    hunk: Hunk


@dataclass(frozen=True)
class Suspend:
    """Ctrl-Z."""


@dataclass(frozen=True)
class Leave:
    code: int = 0


Wish = Decide | Ask | Whole | Reload | Edit | View | Suspend | Leave
