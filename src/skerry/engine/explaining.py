"""Why a hunk is there: the commands that made it, and what they printed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from skerry.errors import NotFound
from skerry.keeper import Gap, Keeper
from skerry.review.origins import origins
from skerry.review.showing import Showing
from skerry.review.survey import Chosen, Ground, survey
from skerry.types import Hunk, LedgerEntry

PRINTED_MOST = 16 << 10  # bytes of one command's output
NAMED_MOST = 20  # commands whose output is told
PATIENCE_S = 10.0
ASLEEP = "(its output is in the sandbox, which is not running)"
GONE = "(its output is no longer kept)"
SILENT = "(its output could not be read in time)"


def origin(ground: Ground, chosen: Chosen | None, name: str) -> tuple[Hunk, list[LedgerEntry]] | None:
    """Blocking."""
    for changed in survey(ground, chosen):
        for unit in changed.units:
            if unit.id == name:
                return Showing(changed).hunk(unit), origins(ground.ledger, changed, unit)
    return None


def named(entries: Sequence[LedgerEntry]) -> list[str]:
    """The newest commands, newest last."""
    processes = dict.fromkeys(process for entry in reversed(entries) for process in reversed(entry.processes))
    return list(processes)[:NAMED_MOST][::-1]


async def printed(keeper: Keeper, process: str) -> str:
    """Its end, if it is long."""
    pieces: list[bytes] = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            stream = await keeper.output(process, -PRINTED_MOST, limit=PRINTED_MOST)
            try:
                if stream.offset > 0:
                    pieces.append(b"[%d bytes before this]\n" % stream.offset)
                async for piece in stream:
                    pieces.append(b"[%d bytes are gone]\n" % piece.missing if isinstance(piece, Gap) else piece[1])
            finally:
                await stream.aclose()
    except NotFound:
        return GONE
    except TimeoutError:
        return SILENT
    return b"".join(pieces).decode("utf-8", "replace")
