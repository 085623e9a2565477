"""`sandbox.review`: changes in the workspace, hunk by hunk, and the decisions about them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, overload

from skerry.client._async.apply import AsyncApplier, HostPath
from skerry.client._async.client import AsyncResumableStream
from skerry.client.create_options import Command
from skerry.client.results.command import Output
from skerry.client.transport import backend_async as backend
from skerry.client.transport.requests import review as requests
from skerry.client.transport.requests.review import workspace_paths
from skerry.client.transport.responses import ReviewLine, decode, to_error
from skerry.codecs.ndjson import LineDecoder
from skerry.errors import InvalidRequest, ServerUnreachable
from skerry.types import (
    WORKSPACE,
    ApplyResult,
    Attempted,
    BeginReview,
    Comparison,
    DecisionResult,
    Decisions,
    DiffStat,
    History,
    Hunk,
    HunkOrigin,
    HunkState,
    PatchSet,
    Result,
    Review,
    ReviewEvent,
    decode_path,
)

if TYPE_CHECKING:
    from skerry.client._async.sandbox import AsyncSandbox

MAX_EVENT_BYTES = 64 << 20  # bytes of an event
MAX_COMPARED = 100


class AsyncSandboxReview:
    """The review of a sandbox that was created with `repo=`. Reading needs a token of scope `use`, deciding one of
    scope `review`. Pass hunks as returned, or by their IDs. Each call is carried out completely or not at all: a hunk
    that has changed since it was returned raises Conflict."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def start(
        self,
        path: str = WORKSPACE,
        *,
        ignore: Mapping[str, Sequence[str]] = {},
        tracked: Sequence[str] = (),
        origin: str | None = None,
        head: str | None = None,
        exclude: Sequence[str] = (),
    ) -> Review:
        """Start recording changes of a directory; its current content is the base. `Sandbox(repo=…)` does this for you.
        `ignore`: lines of gitignore files by their directories, "" for the root. `exclude`: globs of files to keep
        apart like generated files."""
        rules = tuple((place, tuple(lines)) for place, lines in ignore.items())
        payload = BeginReview(
            path=path, ignore=rules, tracked=tuple(tracked), origin=origin, head=head, exclude=tuple(exclude)
        )
        return await self._sandbox.client.request_json(requests.start(self._sandbox.id, payload), Review)

    @overload
    async def diff(self, paths: str | Sequence[str] = (), *, stat: Literal[False] = False) -> str: ...

    @overload
    async def diff(self, paths: str | Sequence[str] = (), *, stat: Literal[True]) -> DiffStat: ...

    async def diff(self, paths: str | Sequence[str] = (), *, stat: bool = False) -> str | DiffStat:
        """Return the difference from the base as a patch; bytes that are not UTF-8 are in the form of `os.fsdecode`.
        `paths`: only these files or directories. `stat`: only the files and the numbers of lines."""
        if stat:
            return await self._sandbox.client.request_json(
                requests.stat(self._sandbox.id, workspace_paths(paths)), DiffStat
            )
        pieces = []
        async with self._sandbox.client.stream(requests.diff(self._sandbox.id, workspace_paths(paths))) as chunks:
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
        """Return one entry for each command, oldest first, with its exit code, duration and usage. `paths`: only
        commands that changed these files or directories; `patch`: include the changes; `since`: entries after a commit;
        `limit`: the newest entries only."""
        request = requests.history(self._sandbox.id, workspace_paths(paths), since, patch, limit)
        return await self._sandbox.client.request_json(request, History)

    def watch(self, *, since: str | None = None) -> AsyncReviewWatch:
        """Watch changes and decisions; `since`: first return the entries after that commit."""
        return AsyncReviewWatch(self._sandbox, since)

    async def changes(
        self, paths: str | Sequence[str] = (), *, state: HunkState | None = None, exclude: Sequence[str] = ()
    ) -> Review:
        """Return all differences from the base, by file and hunk. `paths`: only these files or directories, or globs;
        `state`: only hunks in that state; `exclude`: globs of files to leave out. A long hunk is shortened: `hunk`
        returns all of it. Generated files are only counted, unless `paths` names them."""
        return await self._sandbox.client.request_json(
            requests.show(self._sandbox.id, workspace_paths(paths), state, tuple(exclude)), Review
        )

    async def hunk(self, hunk: Hunk | str) -> Hunk:
        """Return one hunk with its whole text."""
        return await self._sandbox.client.request_json(requests.hunk(self._sandbox.id, _id(hunk)), Hunk)

    async def accept(self, *hunks: Hunk | str) -> tuple[Hunk, ...]:
        """Accept hunks: `apply` will write them."""
        return (await self.decide(Decisions(accept=_ids(hunks)))).hunks

    async def reject(self, *hunks: Hunk | str, reason: str | None = None) -> tuple[Hunk, ...]:
        """Reject hunks. Programs inside can read the decision and the reason in /run/skerry/review.json."""
        return (await self.decide(Decisions(reject=_ids(hunks), reason=reason))).hunks

    async def reopen(self, *hunks: Hunk | str) -> tuple[Hunk, ...]:
        """Reopen decided hunks. Open parts of a split hunk are joined again."""
        return (await self.decide(Decisions(reopen=_ids(hunks)))).hunks

    async def split(self, *hunks: Hunk | str) -> tuple[Hunk, ...]:
        """Split hunks into their smallest parts, which become separate hunks."""
        return (await self.decide(Decisions(split=_ids(hunks)))).hunks

    async def edit(self, hunk: Hunk | str, text: str, *, reason: str | None = None) -> tuple[Hunk, ...]:
        """Accept a hunk with this text from its first changed line to its last, as another `hunk.replacement`."""
        return (await self.decide(Decisions(edit={_id(hunk): text}, reason=reason))).hunks

    async def decide(self, decisions: Decisions) -> DecisionResult:
        """Make several decisions at once, or one for all hunks of some paths. That never accepts a hunk flagged with a
        risk: `held_back` lists those."""
        return await self._sandbox.client.request_json(requests.decide(self._sandbox.id, decisions), DecisionResult)

    async def origin(self, hunk: Hunk | str) -> HunkOrigin:
        """Return the commands that produced a hunk, newest last, with their output."""
        return await self._sandbox.client.request_json(requests.origin(self._sandbox.id, _id(hunk)), HunkOrigin)

    async def accepted(self, paths: str | Sequence[str] = ()) -> PatchSet:
        """Return the patch set: the accepted changes that `apply` would write now."""
        return await self._sandbox.client.request_json(
            requests.patch_set(self._sandbox.id, workspace_paths(paths)), PatchSet
        )

    async def apply(
        self,
        to: HostPath = ".",
        *,
        paths: str | Sequence[str] = (),
        check: Command | None = None,
        commit: bool = False,
        branch: str | None = None,
        all: bool = False,  # noqa: A002
        exclude: Sequence[str] = (),
        dry_run: bool = False,
        on_output: backend.Callback[Output] | None = None,
        on_notice: Callable[[str], None] | None = None,
    ) -> ApplyResult:
        """Apply accepted hunks to the working tree that contains `to`: all of them or, with `paths`, those of these
        files and directories. `.` must be in the directory that the sandbox was created from; any other path is used as
        given. It is all or nothing: obstacles raise Conflict before anything is written, and your other changes in a
        file stay. Your index, refs and stashes are not touched.

        `all`: first accept all open hunks, except those flagged with a risk, which `held_back` lists, and generated
        files, which `generated` counts. `exclude`: globs of files to leave out. `check`: a
        command that must succeed (otherwise CommandFailed) in a fork of the sandbox with exactly the accepted changes.
        `commit`: also commit them, as you, with their origin; `branch`: only commit them on that branch, without
        touching a working tree. `dry_run`: only return the plan; nothing is accepted. `on_notice` receives
        notices, `on_output` the output of the check.
        """
        applier = AsyncApplier(self._sandbox)
        return await applier.apply(
            to,
            paths=paths,
            check=check,
            commit=commit,
            branch=branch,
            all=all,
            exclude=exclude,
            dry_run=dry_run,
            on_output=on_output,
            on_notice=on_notice,
        )

    async def undo(self, to: HostPath = ".", *, on_notice: Callable[[str], None] | None = None) -> ApplyResult:
        """Undo the last apply of this sandbox to that tree. Raise Conflict if those lines were changed since. A commit
        of the apply stays: history is not rewritten, only the working tree is restored."""
        return await AsyncApplier(self._sandbox).undo(to, on_notice=on_notice)

    async def patch(self, paths: str | Sequence[str] = ()) -> bytes:
        """Return the accepted changes as a patch for `git apply`, relative to the state that the sandbox was created
        from."""
        return await AsyncApplier(self._sandbox).patch(paths)

    async def compare(
        self, *others: AsyncSandbox | str, check: Command | None = None, timeout: float | None = 300
    ) -> Comparison:
        """Compare this sandbox with others, usually forks of one: the changes and the cost of each and, with `check`,
        the result of that command in a fork of each. Accept hunks in any of them; applied changes of one are merged
        with those applied from another."""
        sandboxes = [self._sandbox]
        for other in others:
            cls = type(self._sandbox)
            sandboxes.append(await cls.get(other, server=self._sandbox.client) if isinstance(other, str) else other)
        if len(sandboxes) > MAX_COMPARED or len({sandbox.id for sandbox in sandboxes}) != len(sandboxes):
            raise InvalidRequest(f"compare: at most {MAX_COMPARED} sandboxes, each of them once")
        attempts = [await _attempted(sandbox, check, timeout) for sandbox in sandboxes]
        paths: dict[str, list[str]] = {}
        for attempt in attempts:
            for file in attempt.files:
                paths.setdefault(decode_path(file.path, file.raw_path), []).append(attempt.sandbox)
        return Comparison(attempts=tuple(attempts), paths={path: tuple(by) for path, by in sorted(paths.items())})


class AsyncReviewWatch(AsyncResumableStream[ReviewEvent]):
    """Iterate with `async for event in watch`, until the sandbox is deleted. `tip` is the commit of the last event:
    `watch(since=watch.tip)` continues."""

    def __init__(self, sandbox: AsyncSandbox, since: str | None) -> None:
        super().__init__()
        self.tip = since
        self._sandbox = sandbox

    async def _once(self) -> AsyncGenerator[ReviewEvent | None, None]:
        """Yield the events of one connection; None: the watch is established. A response without an end was
        interrupted."""
        sandbox, lines = self._sandbox, LineDecoder(MAX_EVENT_BYTES)
        async with sandbox.client.stream(requests.watch(sandbox.id, self.tip)) as chunks:
            async for chunk in chunks:
                for line in lines.feed(chunk):
                    first = decode(line, ReviewLine)
                    if first.error is not None:
                        raise to_error(first.error)
                    self.tip = first.tip or self.tip
                    self._ended = first.type == "end"
                    if first.type == "ready":
                        yield None
                    elif not self._ended:
                        yield decode(line, ReviewEvent)
        if not self._ended:
            raise ServerUnreachable("the watch ended early", hint="`skerry server status`")


def _id(hunk: Hunk | str) -> str:
    return hunk if isinstance(hunk, str) else hunk.id


def _ids(hunks: tuple[Hunk | str, ...]) -> tuple[str, ...]:
    if not hunks:
        raise InvalidRequest("no hunk given", hint="like accept(*review.hunks)")
    if isinstance(hunks[0], (list, tuple)):
        raise InvalidRequest("hunks are separate arguments, not a list", hint="put a star before it: *hunks")
    return tuple(map(_id, hunks))


async def _attempted(sandbox: AsyncSandbox, check: Command | None, timeout: float | None) -> Attempted:
    changed = await sandbox.review.diff(stat=True)
    history = await sandbox.review.history()
    totals, running = history.totals, sum(entry.running for entry in history.entries)
    usage = await sandbox.usage()
    return Attempted(
        sandbox=sandbox.id, name=sandbox.name, files=changed.files,
        added=sum(file.added or 0 for file in changed.files), removed=sum(file.removed or 0 for file in changed.files),
        commands=totals.commands + running, failed=totals.failed, duration_s=totals.duration_s, cpu_s=totals.cpu_s,
        memory_peak=max(filter(None, (totals.memory_peak, usage.memory_peak)), default=None),
        check=await _run_check(sandbox, check, timeout) if check is not None else None,
    )  # fmt: skip


async def _run_check(sandbox: AsyncSandbox, check: Command, timeout: float | None) -> Result:
    """Run the check in a fork, so that its files are not part of the attempt."""
    (fork,) = await sandbox.fork()
    try:
        return await fork.run(check, timeout=timeout)
    finally:
        await fork.delete(force=True, purge=True)
