"""The effects of the review model: requests to the server, the editor, the pager and the terminal."""

from __future__ import annotations

from dataclasses import dataclass

from skerry.types import Decisions, Hunk


@dataclass(frozen=True)
class Decide:
    """Send decisions to the server; answered by `decided`.

    `label` describes it, `undo` are the decisions that revert it, and `undoes` marks such a reversal."""

    request: Decisions
    label: str
    undo: Decisions | None = None
    undoes: bool = False


@dataclass(frozen=True)
class LoadOrigin:
    """Load the origin of a hunk; answered by `origin_loaded`."""

    hunk: str


@dataclass(frozen=True)
class LoadHunk:
    """Load the whole hunk, which the list truncated; answered by `hunk_loaded`."""

    hunk: str


@dataclass(frozen=True)
class Reload:
    """Load the review again; answered by `loaded`."""


@dataclass(frozen=True)
class Edit:
    """Edit the new lines in an editor; answered by `edited`."""

    hunk: Hunk
    text: str


@dataclass(frozen=True)
class OpenPager:
    """Show the whole hunk in the pager."""

    hunk: Hunk


@dataclass(frozen=True)
class Suspend:
    """Suspend the program (Ctrl-Z)."""


@dataclass(frozen=True)
class Exit:
    """End the review with this exit code."""

    code: int = 0


Effect = Decide | LoadOrigin | LoadHunk | Reload | Edit | OpenPager | Suspend | Exit
