# Generated from client/_async/process.py by scripts/generate_sync.py. Do not edit.
"""`Process`: a command that goes on by itself, whoever listens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, AnyStr, Literal

from skerry.client import backend_sync as backend
from skerry.client import requests
from skerry.client._sync.following import Following
from skerry.client.content import check_source, whole
from skerry.client.description import seconds
from skerry.client.outcome import Output, ended_too_early, joined, never_came, result_of, still_runs
from skerry.client.patience import Rounds
from skerry.client.screen import REPLAY
from skerry.client.search import Search
from skerry.errors import Conflict, ServerUnreachable
from skerry.types import ProcessInfo, Result, RunResult

if TYPE_CHECKING:
    from skerry.client._sync.sandbox import Sandbox
    from skerry.client._sync.terminal import Terminal


class Stdin:
    """A process's input. Writing waits while the process does not read; once it is closed, writing is a Conflict."""

    def __init__(self, sandbox: Sandbox, process: str) -> None:
        self._sandbox = sandbox
        self._process = process

    def write(self, content: backend.AnySource) -> None:
        """Text, bytes, a file object or an iterable of them."""
        check_source(content)
        known = whole(content)
        body = known if known is not None else backend.chunks(content)
        self._send(requests.stdin(self._sandbox.id, self._process, body, close=False))

    def close(self) -> None:
        """The process sees the end of its input."""
        self._send(requests.stdin(self._sandbox.id, self._process, b"", close=True))

    def _send(self, request: requests.Request) -> None:
        self._sandbox.client.done(request)


class Process:
    """A command in a sandbox that outlives the call which started it. Its output is kept from the first byte on."""

    def __init__(self, sandbox: Sandbox, info: ProcessInfo) -> None:
        self._sandbox = sandbox
        self._info = info
        self.stdin = Stdin(sandbox, info.id)

    def __repr__(self) -> str:
        return f"<Process {self.id} {self.state}>"

    @property
    def id(self) -> str:
        return self._info.id

    @property
    def pid(self) -> int:
        """Its number inside."""
        return self._info.pid

    @property
    def state(self) -> Literal["running", "exited"]:
        """As last seen; `.info()` looks again."""
        return self._info.state

    @property
    def known(self) -> ProcessInfo:
        """All that was last seen of it; `.info()` asks again."""
        return self._info

    def info(self) -> ProcessInfo:
        """All that the server says of it, fresh."""
        sandbox = self._sandbox
        self._info = sandbox.client.value(requests.process(sandbox.id, self.id), ProcessInfo)
        return self._info

    def wait(self, timeout: float | None = None) -> Result:
        """Its end, with the head and the tail of its output. CommandTimeout if it still runs after `timeout` seconds:
        it goes on. A connection or server that goes away meanwhile is waited for."""
        sandbox, rounds = self._sandbox, Rounds(seconds(timeout))
        for left in rounds:
            try:
                end = sandbox.client.value_if_any(requests.wait(sandbox.id, self.id, left), RunResult)
                rounds.renew()
            except ServerUnreachable as error:
                backend.sleep(rounds.pause(error))
                continue
            if end is not None:
                return result_of(end)
        raise rounds.error or still_runs(self._info, timeout)

    def signal(self, name: str) -> None:
        """Send a signal, like "TERM" or "INT", to the process and its group. One that has ended is a Conflict."""
        sandbox = self._sandbox
        sandbox.client.done(requests.signal(sandbox.id, self.id, name))

    def kill(self) -> None:
        """End it with its whole tree, also what daemonised or was left behind. One that is gone already is no error."""
        try:
            self.signal("KILL")
        except Conflict:
            return

    def resize(self, cols: int, rows: int) -> None:
        """Tell its terminal a new size. One without a terminal is a Conflict."""
        sandbox = self._sandbox
        sandbox.client.done(requests.resize(sandbox.id, self.id, cols, rows))

    def terminal(self, *, replay: int = REPLAY, since: int | None = None) -> Terminal:
        """Its terminal, to watch and to type into: `with process.terminal() as terminal:`. First comes a replay
        of the last bytes that it showed; or all from byte `since` on. One without a terminal is a Conflict."""
        from skerry.client._sync.terminal import Terminal  # loads a WebSocket's parser

        return Terminal(self._sandbox, self.id, replay=replay, since=since)

    def output(self, since: int = 0, *, limit: int | None = None) -> Output:
        """What it has printed from byte `since` on, both streams as they came, at most `limit` bytes. Below 0, `since`
        counts from the end. Go on with `since=output.offset`; `missing` bytes of it were dropped."""
        following = Following(self._sandbox, self.id, since, limit=limit)
        return joined([piece for piece in following.pieces(follow=False)], following.offset)

    def follow(self, since: int = 0, *, wait: bool = True) -> Iterator[Output]:
        """Its output from byte `since` on, as it comes, to its end; with `wait=False` only what is there now. Taken up
        again where it was when the connection or the server goes away: nothing is lost, nothing comes twice."""
        for piece in Following(self._sandbox, self.id, since).pieces(follow=wait):
            yield piece

    def wait_for_output(
        self, pattern: AnyStr | re.Pattern[AnyStr], timeout: float | None = 60, *, since: int = 0
    ) -> re.Match[AnyStr]:
        """Wait until its output, from byte `since` on, matches a regular expression (text or bytes).

        CommandTimeout if that does not come in time, CommandFailed if the process ends before: both tell what was seen
        last."""
        seconds(timeout)
        search = Search(pattern)
        following = Following(self._sandbox, self.id, since)
        for piece in following.pieces(within=timeout):
            found = search.add(piece.data, after_gap=piece.missing > 0)
            if found is not None:
                return found
        if following.end is None:
            raise never_came(self._info, search, timeout)
        raise ended_too_early(self._info, search, self.wait())
