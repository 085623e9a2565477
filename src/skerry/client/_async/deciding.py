"""`sandbox.review`, deciding: hunks, accepted or rejected."""

from __future__ import annotations

from collections.abc import Sequence

from skerry.client import decision_requests as requests
from skerry.client._async.ledger import AsyncLedger
from skerry.client.review_paths import relative
from skerry.errors import InvalidRequest
from skerry.types import Accepted, Decided, DecideRequest, Hunk, HunkState, Review, Why


class AsyncDeciding(AsyncLedger):
    """Hunks are given as they were told, or by their ids. Each call is carried out whole, or not at all: a hunk that
    changed since it was told is a Conflict."""

    async def changes(self, paths: str | Sequence[str] = (), *, state: HunkState | None = None) -> Review:
        """All that differs from what you have, file by file, hunk by hunk. `paths`: only these files or directories;
        `state`: only hunks that are so. A long hunk is cut: `hunk` has the whole of it."""
        return await self._sandbox.client.value(requests.show(self._sandbox.id, relative(paths), state), Review)

    async def hunk(self, hunk: Hunk | str) -> Hunk:
        """One hunk, all of its text."""
        return await self._sandbox.client.value(requests.hunk(self._sandbox.id, _id(hunk)), Hunk)

    async def accept(self, *hunks: Hunk | str) -> tuple[Hunk, ...]:
        """They are to land."""
        return (await self.decide(DecideRequest(accept=_ids(hunks)))).hunks

    async def reject(self, *hunks: Hunk | str, reason: str | None = None) -> tuple[Hunk, ...]:
        """They are not. Who works inside can read it, and the reason, in /run/skerry/review.json."""
        return (await self.decide(DecideRequest(reject=_ids(hunks), reason=reason))).hunks

    async def reopen(self, *hunks: Hunk | str) -> tuple[Hunk, ...]:
        """Take a decision back. Parts of a split hunk that are open become one again."""
        return (await self.decide(DecideRequest(reopen=_ids(hunks)))).hunks

    async def split(self, *hunks: Hunk | str) -> tuple[Hunk, ...]:
        """Into their smallest parts, which are hunks of their own then."""
        return (await self.decide(DecideRequest(split=_ids(hunks)))).hunks

    async def edit(self, hunk: Hunk | str, text: str, *, reason: str | None = None) -> tuple[Hunk, ...]:
        """Accept it, with this text from its first changed line to its last: another `hunk.replacement`."""
        return (await self.decide(DecideRequest(edit={_id(hunk): text}, reason=reason))).hunks

    async def decide(self, wish: DecideRequest) -> Decided:
        """Several of these at once, or one to all hunks of some paths. What is flagged with a risk is not accepted that
        way: it is in `held_back`."""
        return await self._sandbox.client.value(requests.decide(self._sandbox.id, wish), Decided)

    async def why(self, hunk: Hunk | str) -> Why:
        """The commands that made it, newest last, and what they printed."""
        return await self._sandbox.client.value(requests.why(self._sandbox.id, _id(hunk)), Why)

    async def accepted(self, paths: str | Sequence[str] = ()) -> Accepted:
        """What `apply` would land now."""
        return await self._sandbox.client.value(requests.accepted(self._sandbox.id, relative(paths)), Accepted)


def _id(hunk: Hunk | str) -> str:
    return hunk if isinstance(hunk, str) else hunk.id


def _ids(hunks: tuple[Hunk | str, ...]) -> tuple[str, ...]:
    if not hunks:
        raise InvalidRequest("no hunk was given", hint="like accept(*review.hunks)")
    if isinstance(hunks[0], (list, tuple)):
        raise InvalidRequest("hunks are given one after the other, not as a list", hint="put a star before it: *hunks")
    return tuple(map(_id, hunks))
