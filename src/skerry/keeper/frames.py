"""The kinds of frames that keeper and host exchange; `skerry.codecs.frames` has the format."""

from __future__ import annotations

from typing import Final

from skerry.codecs.frames import FrameKinds
from skerry.keeper.errors import KeeperProtocolError

STDOUT: Final = 1
STDERR: Final = 2
EXIT: Final = 3
STARTED: Final = 4
MISSING: Final = 5
PAUSE: Final = 6
CHANNEL: Final = 7
EXCHANGE_ENDED: Final = 8
CHANNEL_CLOSED: Final = 9
STDIN: Final = 10
STDIN_EOF: Final = 11
SIGNAL: Final = 12
RESIZE: Final = 13
END_EXCHANGE: Final = 14

OUTPUT: Final = frozenset((STDOUT, STDERR))


def _bad_frame(kind: int, size: int) -> KeeperProtocolError:
    return KeeperProtocolError(f"the keeper sent an invalid frame (type {kind}, {size} bytes)")


RUN: Final = FrameKinds(OUTPUT, OUTPUT | {EXIT, STARTED, MISSING, PAUSE}, frozenset((EXIT, PAUSE)), _bad_frame)
JOURNAL: Final = FrameKinds(OUTPUT | {CHANNEL}, RUN.known | {CHANNEL}, RUN.last, _bad_frame)
EXCHANGE: Final = FrameKinds(
    JOURNAL.output,
    JOURNAL.known - {PAUSE} | {EXCHANGE_ENDED, CHANNEL_CLOSED},
    frozenset((EXIT, EXCHANGE_ENDED)),
    _bad_frame,
)
