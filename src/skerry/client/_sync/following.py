# Generated from client/_async/following.py by scripts/generate_sync.py. Do not edit.
"""A process's output from one byte on, through broken connections: nothing is lost, nothing comes twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from skerry.client import backend_sync as backend
from skerry.client import requests
from skerry.client.frames import ERROR, EXIT, MISSING, PAUSE, STARTED, STDOUT, FrameDecoder
from skerry.client.outcome import Output
from skerry.client.patience import Patience
from skerry.client.responses import Gap, Pause, Started, decode, error_frame
from skerry.errors import ServerUnreachable
from skerry.types import RunResult

if TYPE_CHECKING:
    from skerry.client._sync.sandbox import Sandbox


class Following:
    """`offset` is where the next byte stands; `end` how the process ended, once that was read; `more`: what is there
    already did not fit into `limit`."""

    def __init__(self, sandbox: Sandbox, process: str, since: int, *, limit: int | None = None) -> None:
        self.offset = since
        self.end: RunResult | None = None
        self.more = False
        self._sandbox = sandbox
        self._process = process
        self._limit = limit
        self._paused = False

    def pieces(self, *, follow: bool = True, within: float | None = None) -> Iterator[Output]:
        """What there is; and, to follow, what comes, to the end of the process or of the time."""
        patience = Patience()
        until = None if within is None else time.monotonic() + within
        while self.end is None and not self._paused:
            try:
                left = None if until is None else max(0.0, until - time.monotonic())
                for piece in self._once(follow, left):
                    patience.renew()
                    yield piece
            except ServerUnreachable as error:
                pause = patience.pause(error)
                if until is not None and time.monotonic() + pause > until:
                    raise
                backend.sleep(pause)

    def _once(self, follow: bool, within: float | None) -> Iterator[Output]:
        """One connection's worth. An answer that just stops was cut off."""
        sandbox, decoder = self._sandbox, FrameDecoder()
        request = requests.output(
            sandbox.id, self._process, since=self.offset, follow=follow, limit=self._limit, timeout=within
        )
        with sandbox.client.stream(request) as chunks:
            for chunk in chunks:
                for kind, payload in decoder.feed(chunk):
                    piece = self._take(kind, payload)
                    if piece is not None:
                        yield piece
        if self.end is None and not self._paused:
            raise ServerUnreachable("the output ended before the process did", hint="`skerry server logs`")

    def _take(self, kind: int, payload: bytes) -> Output | None:
        if kind == STARTED:
            self.offset = decode(payload, Started).offset
        elif kind == MISSING:
            missing = decode(payload, Gap).missing
            self.offset += missing
            return Output(stream="both", data=b"", offset=self.offset, missing=missing)
        elif kind == EXIT:
            self.end = decode(payload, RunResult)
        elif kind == PAUSE:
            self._paused, self.more = True, decode(payload, Pause).more
        elif kind == ERROR:
            raise error_frame(payload)
        else:
            self.offset += len(payload)
            if self._limit is not None:
                self._limit = max(1, self._limit - len(payload))
            return Output(stream="stdout" if kind == STDOUT else "stderr", data=payload, offset=self.offset)
        return None
