"""/v1/sandboxes/{ref}/review: changes by command, hunks, decisions, the patch set, applies, and the git remote."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from skerry.engine.review.views import MAX_HISTORY
from skerry.errors import InvalidRequest, NotFound
from skerry.server.http.call import Call, Empty
from skerry.server.http.responses import BYTES, DIFF, JSON, NDJSON, PACK, StreamResponse
from skerry.types import (
    HUNK_ID,
    OBJECT_ID,
    AppliedRequest,
    BeginReview,
    DecisionResult,
    Decisions,
    DeletedSandboxList,
    DiffStat,
    History,
    Hunk,
    HunkOrigin,
    HunkState,
    PackRequest,
    PatchSet,
    PathText,
    PullResult,
    RepoCopies,
    Review,
    ReviewRefsList,
    SandboxInfo,
    UndeleteRequest,
    Value,
    check_path,
    check_text,
)
from skerry.types.globs import check_globs

if TYPE_CHECKING:
    from skerry.engine.review.subscribers import ReviewSubscriber

START_LIMIT = 4 << 20  # all lines of a project's ignore files, and tracked paths that they would ignore; escaped
_encoder = msgspec.json.Encoder()
DECIDE_LIMIT = 12 << 20  # ten thousand hunks, or edits of 8 MiB
_APPLY = re.compile(r"[0-9a-f]{32}")


class PathsQuery(Value, frozen=True, kw_only=True):
    """`paths` (repeatable): files or directories relative to the workspace. Default: all."""

    paths: tuple[PathText, ...] = ()

    def __post_init__(self) -> None:
        for path in self.paths:
            check_path("paths", path)
            if path.startswith("/") or ".." in path.split("/"):
                raise InvalidRequest(f"paths: {path[:80]!r} is not below the workspace", hint="like src/app.py")

    @property
    def spelled(self) -> Sequence[bytes]:
        """Return the paths as git spells them; the workspace itself selects everything."""
        named = [os.fsencode(posixpath.normpath(path)) for path in self.paths]
        return () if b"." in named else named


class DiffQuery(PathsQuery, frozen=True, kw_only=True):
    """`stat=true`: return only changed files and line counts, as JSON."""

    stat: bool = False


class HistoryQuery(PathsQuery, frozen=True, kw_only=True):
    """`since`: entries after this commit. `patch=true`: include patches. `limit`: the newest N entries."""

    since: str | None = None
    patch: bool = False
    limit: Annotated[int, Meta(ge=1, le=MAX_HISTORY)] = MAX_HISTORY

    def __post_init__(self) -> None:
        PathsQuery.__post_init__(self)
        _check_commit(self.since)


class ReviewWatchQuery(Value, frozen=True, kw_only=True):
    """`since`: first send the changes after this commit."""

    since: str | None = None

    def __post_init__(self) -> None:
        _check_commit(self.since)


def _check_commit(commit: str | None) -> None:
    if commit is not None and not OBJECT_ID.fullmatch(commit):
        raise InvalidRequest(f"since: {commit[:80]!r} is not a commit", hint="forty hexadecimal digits, as in `tip`")


async def begin(call: Call[Empty, BeginReview]) -> Review:
    return await call.engine.reviews.begin(call.caller, call.ref, call.body)


async def diff(call: Call[DiffQuery, Empty]) -> StreamResponse | DiffStat:
    reviews, query = call.engine.reviews, call.query
    call.accepts(JSON if query.stat else DIFF)
    if query.stat:
        return await reviews.stat(call.caller, call.ref, query.spelled)
    return StreamResponse(DIFF, await reviews.diff(call.caller, call.ref, query.spelled))


async def history(call: Call[HistoryQuery, Empty]) -> History:
    query = call.query
    return await call.engine.reviews.history(
        call.caller, call.ref, query.since, query.spelled, query.limit, query.patch
    )  # fmt: skip


async def watch(call: Call[ReviewWatchQuery, Empty]) -> StreamResponse:
    call.accepts(NDJSON)
    subscriber = await call.engine.reviews.watch(call.caller, call.ref, call.query.since)
    return StreamResponse(NDJSON, _lines(subscriber), subscriber.aclose, endless=True)


async def _lines(subscriber: ReviewSubscriber) -> AsyncGenerator[bytes, None]:
    """Send `ready` first, and `end` last if the sandbox is deleted."""
    yield _encoder.encode({"type": "ready", "tip": subscriber.tip}) + b"\n"
    async for event in subscriber:
        yield _encoder.encode(event) + b"\n"
    yield b'{"type":"end"}\n'


class SelectionQuery(PathsQuery, frozen=True, kw_only=True):
    """`paths` may be globs (`*`, `?`, `**`). `exclude` (repeatable): globs of files to leave out."""

    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        PathsQuery.__post_init__(self)
        check_globs("exclude", self.exclude)
        check_text("exclude", *self.exclude)


class ReviewQuery(SelectionQuery, frozen=True, kw_only=True):
    """`state`: only hunks in this state."""

    state: HunkState | None = None


async def show(call: Call[ReviewQuery, Empty]) -> Review:
    query = call.query
    return await call.engine.decisions.review(call.caller, call.ref, query.spelled, query.exclude, query.state)


async def hunk(call: Call[Empty, Empty]) -> Hunk:
    return await call.engine.decisions.hunk(call.caller, call.ref, hunk_of(call))


async def origin(call: Call[Empty, Empty]) -> HunkOrigin:
    return await call.engine.decisions.why(call.caller, call.ref, hunk_of(call))


async def decide(call: Call[Empty, Decisions]) -> DecisionResult:
    return await call.engine.decisions.decide(call.caller, call.ref, call.body)


class PatchSetQuery(SelectionQuery, frozen=True, kw_only=True):
    """`open=true`: a preview as if all open hunks were accepted, except those flagged with a risk. It decides
    nothing, and no apply can name its digest."""

    open: bool = False


async def patch_set(call: Call[PatchSetQuery, Empty]) -> PatchSet:
    decisions, query = call.engine.decisions, call.query
    if query.open:
        return await decisions.preview(call.caller, call.ref, query.spelled, query.exclude)
    return await decisions.accepted(call.caller, call.ref, query.spelled, query.exclude)


async def blob(call: Call[Empty, Empty]) -> StreamResponse:
    oid = call.parameters["oid"]
    if not OBJECT_ID.fullmatch(oid):
        raise NotFound(f"content {oid[:80]!r} not found")
    call.accepts(BYTES)
    size, pieces = await call.engine.decisions.blob(call.caller, call.ref, oid)
    return StreamResponse(BYTES, pieces, pieces.aclose, length=size)


async def record_apply(call: Call[Empty, AppliedRequest]) -> None:
    await call.engine.decisions.applied(call.caller, call.ref, call.body)


async def record_undo(call: Call[Empty, Empty]) -> None:
    apply = call.parameters["apply"]
    if not _APPLY.fullmatch(apply):
        raise NotFound(f"apply {apply[:80]!r} not found")
    await call.engine.decisions.unapplied(call.caller, call.ref, AppliedRequest(id=apply))


async def tree(call: Call[PathsQuery, Empty]) -> StreamResponse:
    call.accepts(NDJSON)
    pieces = await call.engine.pulls.tree(call.caller, call.ref, call.query.spelled)
    return StreamResponse(NDJSON, pieces, pieces.aclose)


async def pull(call: Call[Empty, Empty]) -> PullResult:
    return await call.engine.pulls.pull(call.caller, call.ref, call.recorded_chunks())


def hunk_of(call: Call[Any, Any]) -> str:
    """Return the hunk's ID from the path; an invalid ID is not found."""
    name = call.parameters["hunk"]
    if not HUNK_ID.fullmatch(name):
        raise NotFound(f"hunk {name[:80]!r} not found")
    return name


async def deleted(call: Call[Empty, Empty]) -> DeletedSandboxList:
    return DeletedSandboxList(sandboxes=call.engine.reviews.deleted.list(call.caller))


async def undelete(call: Call[Empty, UndeleteRequest]) -> SandboxInfo:
    return await call.engine.undeletes.undelete(call.caller, call.ref, call.body)


class RefsQuery(Value, frozen=True, kw_only=True):
    """`origin`: only reviews of this origin."""

    origin: str | None = None

    def __post_init__(self) -> None:
        check_text("origin", self.origin or "")


async def refs(call: Call[RefsQuery, Empty]) -> ReviewRefsList:
    await call.engine.adoption.wait_for_all()
    return ReviewRefsList(reviews=await call.engine.remotes.list(call.caller, call.query.origin))


async def copies(call: Call[RefsQuery, Empty]) -> RepoCopies:
    await call.engine.adoption.wait_for_all()
    return RepoCopies(copies=tuple(await call.engine.pulls.copies(call.caller, call.query.origin)))


async def pack(call: Call[Empty, PackRequest]) -> StreamResponse:
    call.accepts(PACK)
    pieces = await call.engine.remotes.pack(call.caller, call.ref, call.body)
    return StreamResponse(PACK, pieces, pieces.aclose)
