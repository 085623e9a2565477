"""The message of a commit: what it is, and where it came from. Pure.

Trailers are the last paragraph, one a line; what comes from inside is only ever the rest of such a line, or stands
behind a dash in a paragraph before, so that it can't be taken for one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from skerry.client.applying.plan import shown
from skerry.client.harmless import harmless
from skerry.types.review import Accepted

LINE_MOST: Final = 300
LISTED: Final = 20


def message(accepted: Accepted, name: str | None, paths: Sequence[bytes]) -> bytes:
    who = name or accepted.sandbox
    count = f"{len(paths)} files" if len(paths) != 1 else "1 file"
    rest = [f"- and {len(paths) - LISTED} more"] if len(paths) > LISTED else []
    listed = [f"- {_line(shown(path))}" for path in paths[:LISTED]] + rest
    return "\n".join([f"Apply {_line(who)}: {count}", "", *listed, "", *_trailers(accepted, name), ""]).encode()


def _trailers(accepted: Accepted, name: str | None) -> list[str]:
    who = f"{name} ({accepted.sandbox})" if name else accepted.sandbox
    lines = [_trailer("Sandbox", who)]
    for entry in accepted.entries[-LISTED:]:
        lines.append(_trailer("Command", entry.command or f"({entry.kind})"))
        if entry.hosts:
            lines.append(_trailer("Hosts", ", ".join(entry.hosts)))
    if len(accepted.entries) > LISTED:
        lines.append(_trailer("Commands-Before", str(len(accepted.entries) - LISTED)))
    return [*lines, _trailer("Base", accepted.base), _trailer("Tip", accepted.tip), _trailer("Digest", accepted.digest)]


def _trailer(key: str, value: str) -> str:
    return f"Skerry-{key}: {_line(value)}".rstrip()


def _line(text: str) -> str:
    """One line, bounded, that shows what it is."""
    told = harmless(text.encode("utf-8", "backslashreplace").decode())
    return told if len(told) <= LINE_MOST else f"{told[:LINE_MOST]}…"
