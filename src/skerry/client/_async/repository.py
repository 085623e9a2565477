"""A repository of this host, or of a URL, in a new sandbox's /workspace; and `sandbox.repo`: how far that copy is
behind, and the user's later edits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from skerry.client._async.client import AsyncClient
from skerry.client.apply.content import oid_of
from skerry.client.apply.tree import Tree
from skerry.client.repository.archive import RepositoryCopy
from skerry.client.repository.host_files import commits_behind, edited, quick_listing, read_host_files
from skerry.client.repository.ignore_rules import MAX_RULE_BYTES, MAX_RULE_FILES, is_text, merged, rules_of
from skerry.client.repository.locate import RepositoryPlace, check_outside_home, find_repository
from skerry.client.repository.origin import origin_of
from skerry.client.repository.pull_plan import MAX_MERGED, PullBody, PullPlan, PullPlanner, Versions, pull_conflict
from skerry.client.repository.source import ImportResult, Repo
from skerry.client.transport import backend_async as backend
from skerry.client.transport.requests import files as file_requests
from skerry.client.transport.requests import review as requests
from skerry.client.transport.responses import decode
from skerry.codecs.ndjson import LineDecoder
from skerry.errors import Conflict, FileError, FileNotFound, InvalidRequest, NotFound, SandboxUnavailable
from skerry.types import (
    MAX_PULL_FILES,
    WORKSPACE,
    BeginReview,
    PullResult,
    RepoCopies,
    RepoCopy,
    RepoStatus,
    TransferResult,
    TreeFile,
    TreeHead,
    TreeVersion,
    decode_path,
)

if TYPE_CHECKING:
    from skerry.client._async.sandbox import AsyncSandbox

HostPath = str | os.PathLike[str]
HERE = "."
TRIES = 5  # merges, if the sandbox changes the same files meanwhile
MAX_TREE_LINE = 64 << 10
MAX_TREE_FILES = 1_000_000
MAX_NAMED_BYTES = 16 << 10  # of the paths in a request, escaped; a server accepts 64 KiB


# -- the copy in a new sandbox ----------------------------------------------------------------------------------------


class AsyncImport:
    """Opened before the sandbox exists: errors come first, and git packs while the sandbox is created."""

    def __init__(self, repo: Repo, copy: RepositoryCopy | None) -> None:
        self._repo, self._copy = repo, copy

    @classmethod
    async def open(cls, repo: Repo) -> AsyncImport:
        if repo.url is not None:
            return cls(repo, None)
        place = await backend.in_thread(find_repository, repo.source)
        if not repo.include_home:
            check_outside_home(place.top)
        copy = await backend.in_thread(RepositoryCopy, place, ignored=repo.ignored, progress=repo.progress)
        return cls(repo, copy)

    async def bring(self, sandbox: AsyncSandbox) -> ImportResult:
        if self._copy is None:
            return await self._clone(sandbox, self._repo.url or "")
        await _prepare_workspace(sandbox)
        await backend.in_thread(self._copy.measure)
        request = file_requests.upload_tree(sandbox.id, WORKSPACE, backend.chunks(self._copy), None)
        moved = self._copy.with_skipped(await sandbox.client.request_json(request, TransferResult))
        if self._repo.review:
            await sandbox.client.request(requests.start(sandbox.id, self._copy.review(WORKSPACE, self._repo.exclude)))
        place = self._copy.place
        return ImportResult(place.top, place.given, self._copy.repositories, moved)

    async def _clone(self, sandbox: AsyncSandbox, url: str) -> ImportResult:
        await _prepare_workspace(sandbox)
        await sandbox.git.clone(url, WORKSPACE, timeout=None)
        if self._repo.review:
            await sandbox.client.request(
                requests.start(sandbox.id, await _review_of_clone(sandbox, self._repo.exclude))
            )
        return ImportResult(None, None, 1, None)

    async def aclose(self) -> None:
        if self._copy is not None:
            await backend.in_thread(self._copy.close)


async def _prepare_workspace(sandbox: AsyncSandbox) -> None:
    """Prepare /workspace: an image may lack it, or contain a repository there; a runtime creates it for root."""
    files = sandbox.files
    try:
        with suppress(FileNotFound):
            await files.remove(f"{WORKSPACE}/.git", recursive=True, user="root")
        root = (await files.stat(WORKSPACE)).uid == 0
    except FileNotFound:
        await files.mkdir(WORKSPACE, user="root")
        root = True
    if root and (uid := (await sandbox.run(["id", "-u"], cwd="/", check=True)).stdout.strip()) != "0":
        await files.chown(WORKSPACE, int(uid), user="root")


async def _review_of_clone(sandbox: AsyncSandbox, exclude: tuple[str, ...]) -> BeginReview:
    """Return the review request of a clone, with the ignore rules of its files."""
    files = []
    for name in await _names(sandbox, "--", ":(glob)**/.gitignore"):
        with suppress(FileError):
            files.append(
                (name.rpartition("/")[0], await sandbox.files.read_bytes(f"{WORKSPACE}/{name}", length=MAX_RULE_BYTES))
            )
    tracked = await _names(sandbox, "--cached", "--ignored", "--exclude-standard")
    head = (await sandbox.run(["git", "rev-parse", "-q", "--verify", "HEAD"], cwd=WORKSPACE)).stdout.strip()
    return BeginReview(
        path=WORKSPACE, head=head or None, ignore=merged(rules_of("", b"", files)), tracked=tuple(tracked),
        exclude=exclude,
    )  # fmt: skip


async def _names(sandbox: AsyncSandbox, *words: str) -> list[str]:
    listed = await sandbox.run(["git", "ls-files", "-z", *words], cwd=WORKSPACE, check=True)
    names = listed.stdout_bytes.split(b"\0")[:-1] if not listed.truncated else []
    return [name for one in names[:MAX_RULE_FILES] if is_text(name := os.fsdecode(one))]


# -- after the copy ----------------------------------------------------------------------------------------------------


class AsyncSandboxRepo:
    """The repository of a sandbox that was created with `repo=` from a directory of this host."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def status(self, source: HostPath = HERE) -> RepoStatus:
        """Return how far the copy is behind the repository that contains `source`. Compare its commits, and the content
        of files that were changed since the copy; of a repository with more than 20,000 files, the commits only."""
        place = await backend.in_thread(find_repository, source)
        found = await copies_of(self._sandbox.client, place)
        copy = next((one for one in found if one.sandbox == self._sandbox.id), None)
        if copy is None:
            raise _not_from(place)
        return await copy_status(self._sandbox.client, place, copy)

    async def pull(
        self,
        source: HostPath = HERE,
        *,
        prefer: Literal["host", "sandbox"] | None = None,
        dry_run: bool = False,
    ) -> PullResult:
        """Bring your edits since the copy, or since the last pull, into the sandbox. Each file is merged three ways
        with the sandbox's; the entry in the ledger is yours, and your edits are not hunks of the review. `.` must be in
        the directory that the sandbox was created from; any other path is used as given.

        A path that both sides changed in the same lines, or in ways that cannot be merged, raises Conflict before
        anything is written, with `details["conflicts"]`. `prefer`: take your version of such paths, or leave the
        sandbox's. `dry_run`: only return the plan.
        """
        if prefer not in (None, "host", "sandbox"):
            raise InvalidRequest(f"prefer: {prefer!r} is neither 'host' nor 'sandbox'")
        place = await backend.in_thread(find_repository, source)
        for _ in range(TRIES):
            try:
                return await self._pull(place, source, prefer, dry_run)
            except Conflict as error:
                if not error.details.get("stale"):
                    raise
        raise Conflict("the sandbox changes its files faster than they can be merged", hint="pull again later")

    async def _pull(
        self, place: RepositoryPlace, source: HostPath, prefer: Literal["host", "sandbox"] | None, dry_run: bool
    ) -> PullResult:
        head, tree = await self._tree(())
        if os.fspath(source) == HERE and head.origin != origin_of(place.top):
            raise _not_from(place)
        host = await backend.in_thread(read_host_files, place, tree.keys())
        with Tree(place.top) as working:
            planner = PullPlanner(tree, host, working, prefer)
            contents = await self._contents(await backend.in_thread(planner.survey))
            plan = await backend.in_thread(planner.plan, contents)
            _check(plan)
            files = tuple(one.result for _, one in sorted(plan.files.items()))
            if dry_run:
                return PullResult(sandbox=self._sandbox.id, files=files, head=host.head)
            body = PullBody(head, host, plan, tree, working)
            request = requests.pull(self._sandbox.id, backend.chunks(body))
            done = await self._sandbox.client.request_json(request, PullResult)
        return PullResult(sandbox=done.sandbox, files=files, commit=done.commit, head=host.head)

    async def _tree(self, paths: Sequence[str]) -> tuple[TreeHead, dict[bytes, Versions]]:
        return await review_tree(self._sandbox.client, self._sandbox.id, paths)

    async def _contents(self, oids: set[str]) -> dict[str, bytes]:
        """Fetch blobs of the ledger, except those too large to merge."""
        found: dict[str, bytes] = {}
        for oid in sorted(oids):
            data = bytearray()
            async with self._sandbox.client.stream(requests.blob(self._sandbox.id, oid)) as chunks:
                async for chunk in chunks:
                    data += chunk
                    if len(data) > MAX_MERGED:
                        break
            if len(data) > MAX_MERGED:
                continue
            if oid_of(bytes(data)) != oid:
                raise SandboxUnavailable("a content is not the named object", hint="pull again")
            found[oid] = bytes(data)
        return found


def _check(plan: PullPlan) -> None:
    if plan.problems:
        raise pull_conflict(plan.problems)
    if len(plan.files) > MAX_PULL_FILES:
        raise Conflict(f"more than {MAX_PULL_FILES:,} files changed", hint="create a new sandbox")


def _not_from(place: RepositoryPlace) -> Conflict:
    return Conflict(
        f"the sandbox was not created from {place.top}", hint="change to the directory that it was created from"
    )


async def copies_of(client: AsyncClient, place: RepositoryPlace) -> tuple[RepoCopy, ...]:
    """Return the copies of a repository in sandboxes."""
    request = requests.copies(await backend.in_thread(origin_of, place.top))
    return (await client.request_json(request, RepoCopies)).copies


async def copy_status(client: AsyncClient, place: RepositoryPlace, copy: RepoCopy) -> RepoStatus:
    """Compare a copy with its repository. Only files that changed since the copy are read, and the copy's list of files
    is fetched only if it differs."""
    commits = await backend.in_thread(commits_behind, place, copy.head)
    host = await backend.in_thread(quick_listing, place, copy)
    if host is None:
        return RepoStatus(sandbox=copy.sandbox, commits=commits, files=None)
    paths = host.changed
    short = sum(3 * len(path) + 8 for path in paths) <= MAX_NAMED_BYTES
    synced: dict[bytes, TreeVersion | None] = {}
    if paths and short:
        synced = await _synced(client, copy.sandbox, [os.fsdecode(path) for path in paths])
    if not short or host.lacks(copy, synced):
        synced = await _synced(client, copy.sandbox, ())
        paths = host.differing(synced)
    return RepoStatus(
        sandbox=copy.sandbox, commits=commits, files=await backend.in_thread(edited, place, paths, synced)
    )


async def _synced(client: AsyncClient, sandbox: str, paths: Sequence[str]) -> dict[bytes, TreeVersion | None]:
    """Return the files as the user had them."""
    _, tree = await review_tree(client, sandbox, paths)
    return {path: versions.synced for path, versions in tree.items()}


async def review_tree(
    client: AsyncClient, sandbox: str, paths: Sequence[str]
) -> tuple[TreeHead, dict[bytes, Versions]]:
    """Return the files of a review by path: all of them, or those of `paths`."""
    lines, head, found, ended = LineDecoder(MAX_TREE_LINE), None, dict[bytes, Versions](), False
    async with client.stream(requests.tree(sandbox, paths)) as chunks:
        async for chunk in chunks:
            for line in lines.feed(chunk):
                if head is None:
                    head = decode(line, TreeHead)
                    continue
                file = decode(line, TreeFile)
                ended = file.end
                if not ended:
                    base, tip = file.changed or (file.synced, file.synced)
                    path = decode_path(file.path, file.raw_path).encode("utf-8", "surrogateescape")
                    found[path] = Versions(file.synced, base, tip)
                if len(found) > MAX_TREE_FILES:
                    raise SandboxUnavailable(f"the server listed more than {MAX_TREE_FILES:,} files")
    if head is None or not ended:
        raise NotFound("the list of files ended early", hint="pull again")
    return head, found
