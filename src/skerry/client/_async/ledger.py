"""`sandbox.review`, reading: what the ledger of a workspace tells."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, overload

from skerry.client import review_requests as requests
from skerry.client._async.resumed import AsyncResumed
from skerry.client.lines import LineDecoder
from skerry.client.responses import ReviewLine, decode, raised
from skerry.client.review_paths import relative
from skerry.errors import ServerUnreachable
from skerry.types import WORKSPACE, BeginReview, DiffStat, History, Review, ReviewEvent

if TYPE_CHECKING:
    from skerry.client._async.sandbox import AsyncSandbox

LONGEST = 64 << 20  # bytes of an event


class AsyncLedger:
    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def begin(
        self,
        path: str = WORKSPACE,
        *,
        ignore: Mapping[str, Sequence[str]] = {},
        tracked: Sequence[str] = (),
        origin: str | None = None,
        head: str | None = None,
    ) -> Review:
        """What is in the directory now is what you have; from here on its changes are kept. `Sandbox(repo=…)` does
        this for you. `ignore`: lines of gitignore files, by the directory that they count in, "" for the root."""
        rules = tuple((place, tuple(lines)) for place, lines in ignore.items())
        wish = BeginReview(path=path, ignore=rules, tracked=tuple(tracked), origin=origin, head=head)
        return await self._sandbox.client.value(requests.begin(self._sandbox.id, wish), Review)

    @overload
    async def diff(self, paths: str | Sequence[str] = (), *, stat: Literal[False] = False) -> str: ...

    @overload
    async def diff(self, paths: str | Sequence[str] = (), *, stat: Literal[True]) -> DiffStat: ...

    async def diff(self, paths: str | Sequence[str] = (), *, stat: bool = False) -> str | DiffStat:
        """All that differs from what you have, as a patch; bytes that are no UTF-8 are as `os.fsdecode` has them.
        `paths`: only these files or directories. `stat`: only which files, and by how much."""
        if stat:
            return await self._sandbox.client.value(requests.stat(self._sandbox.id, relative(paths)), DiffStat)
        pieces = []
        async with self._sandbox.client.stream(requests.diff(self._sandbox.id, relative(paths))) as chunks:
            async for chunk in chunks:
                pieces.append(chunk)
        return b"".join(pieces).decode("utf-8", "surrogateescape")

    async def history(
        self,
        paths: str | Sequence[str] = (),
        *,
        patch: bool = False,
        since: str | None = None,
        limit: int | None = None,
    ) -> History:
        """One entry for each command that changed something, oldest first. `patch`: with what it changed; `since`:
        those after a commit; `limit`: the newest so many."""
        request = requests.history(self._sandbox.id, relative(paths), since, patch, limit)
        return await self._sandbox.client.value(request, History)

    def watch(self, *, since: str | None = None) -> AsyncReviewWatch:
        """Changes and decisions as they come; `since`: first the entries after that commit."""
        return AsyncReviewWatch(self._sandbox, since)


class AsyncReviewWatch(AsyncResumed[ReviewEvent]):
    """`async for event in watch`, until the sandbox is deleted. `tip` is the commit up to which all was told:
    `watch(since=watch.tip)` goes on."""

    def __init__(self, sandbox: AsyncSandbox, since: str | None) -> None:
        super().__init__()
        self.tip = since
        self._sandbox = sandbox

    async def _once(self) -> AsyncGenerator[ReviewEvent | None, None]:
        """One connection's worth; None: the watch stands. An answer that just stops was cut off."""
        sandbox, lines = self._sandbox, LineDecoder(LONGEST)
        async with sandbox.client.stream(requests.watch(sandbox.id, self.tip)) as chunks:
            async for chunk in chunks:
                for line in lines.feed(chunk):
                    first = decode(line, ReviewLine)
                    if first.error is not None:
                        raise raised(first.error)
                    self.tip = first.tip or self.tip
                    self._ended = first.type == "end"
                    if first.type == "ready":
                        yield None
                    elif not self._ended:
                        yield decode(line, ReviewEvent)
        if not self._ended:
            raise ServerUnreachable("the watch ended before its sandbox did", hint="`skerry server status`")
