# Generated from client/_async/repository.py by scripts/generate_sync.py. Do not edit.
"""A repository of this host, or of a URL, in a new sandbox's /workspace; and `sandbox.repo`: how far that copy is
behind, and the user's later edits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from skerry.client._sync.client import Client
from skerry.client.apply.content import oid_of
from skerry.client.apply.tree import Tree
from skerry.client.repository.archive import RepositoryCopy
from skerry.client.repository.host_files import commits_behind, edited, quick_listing, read_host_files
from skerry.client.repository.ignore_rules import MAX_RULE_BYTES, MAX_RULE_FILES, is_text, merged, rules_of
from skerry.client.repository.locate import RepositoryPlace, check_outside_home, find_repository
from skerry.client.repository.origin import origin_of
from skerry.client.repository.pull_plan import MAX_MERGED, PullBody, PullPlan, PullPlanner, Versions, pull_conflict
from skerry.client.repository.source import ImportResult, Repo
from skerry.client.transport import backend_sync as backend
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
    from skerry.client._sync.sandbox import Sandbox

HostPath = str | os.PathLike[str]
HERE = "."
TRIES = 5  # merges, if the sandbox changes the same files meanwhile
MAX_TREE_LINE = 64 << 10
MAX_TREE_FILES = 1_000_000
MAX_NAMED_BYTES = 16 << 10  # of the paths in a request, escaped; a server accepts 64 KiB


# -- the copy in a new sandbox ----------------------------------------------------------------------------------------


class Import:
    """Opened before the sandbox exists: errors come first, and git packs while the sandbox is created."""

    def __init__(self, repo: Repo, copy: RepositoryCopy | None) -> None:
        self._repo, self._copy = repo, copy

    @classmethod
    def open(cls, repo: Repo) -> Import:
        if repo.url is not None:
            return cls(repo, None)
        place = backend.in_thread(find_repository, repo.source)
        if not repo.include_home:
            check_outside_home(place.top)
        copy = backend.in_thread(RepositoryCopy, place, ignored=repo.ignored, progress=repo.progress)
        return cls(repo, copy)

    def bring(self, sandbox: Sandbox) -> ImportResult:
        if self._copy is None:
            return self._clone(sandbox, self._repo.url or "")
        _prepare_workspace(sandbox)
        backend.in_thread(self._copy.measure)
        request = file_requests.upload_tree(sandbox.id, WORKSPACE, backend.chunks(self._copy), None)
        moved = self._copy.with_skipped(sandbox.client.request_json(request, TransferResult))
        if self._repo.review:
            sandbox.client.request(requests.start(sandbox.id, self._copy.review(WORKSPACE, self._repo.exclude)))
        place = self._copy.place
        return ImportResult(place.top, place.given, self._copy.repositories, moved)

    def _clone(self, sandbox: Sandbox, url: str) -> ImportResult:
        _prepare_workspace(sandbox)
        sandbox.git.clone(url, WORKSPACE, timeout=None)
        if self._repo.review:
            sandbox.client.request(
                requests.start(sandbox.id, _review_of_clone(sandbox, self._repo.exclude))
            )
        return ImportResult(None, None, 1, None)

    def close(self) -> None:
        if self._copy is not None:
            backend.in_thread(self._copy.close)


def _prepare_workspace(sandbox: Sandbox) -> None:
    """Prepare /workspace: an image may lack it, or contain a repository there; a runtime creates it for root."""
    files = sandbox.files
    try:
        with suppress(FileNotFound):
            files.remove(f"{WORKSPACE}/.git", recursive=True, user="root")
        root = (files.stat(WORKSPACE)).uid == 0
    except FileNotFound:
        files.mkdir(WORKSPACE, user="root")
        root = True
    if root and (uid := (sandbox.run(["id", "-u"], cwd="/", check=True)).stdout.strip()) != "0":
        files.chown(WORKSPACE, int(uid), user="root")


def _review_of_clone(sandbox: Sandbox, exclude: tuple[str, ...]) -> BeginReview:
    """Return the review request of a clone, with the ignore rules of its files."""
    files = []
    for name in _names(sandbox, "--", ":(glob)**/.gitignore"):
        with suppress(FileError):
            files.append(
                (name.rpartition("/")[0], sandbox.files.read_bytes(f"{WORKSPACE}/{name}", length=MAX_RULE_BYTES))
            )
    tracked = _names(sandbox, "--cached", "--ignored", "--exclude-standard")
    head = (sandbox.run(["git", "rev-parse", "-q", "--verify", "HEAD"], cwd=WORKSPACE)).stdout.strip()
    return BeginReview(
        path=WORKSPACE, head=head or None, ignore=merged(rules_of("", b"", files)), tracked=tuple(tracked),
        exclude=exclude,
    )  # fmt: skip


def _names(sandbox: Sandbox, *words: str) -> list[str]:
    listed = sandbox.run(["git", "ls-files", "-z", *words], cwd=WORKSPACE, check=True)
    names = listed.stdout_bytes.split(b"\0")[:-1] if not listed.truncated else []
    return [name for one in names[:MAX_RULE_FILES] if is_text(name := os.fsdecode(one))]


# -- after the copy ----------------------------------------------------------------------------------------------------


class SandboxRepo:
    """The repository of a sandbox that was created with `repo=` from a directory of this host."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def status(self, source: HostPath = HERE) -> RepoStatus:
        """Return how far the copy is behind the repository that contains `source`. Compare its commits, and the content
        of files that were changed since the copy; of a repository with more than 20,000 files, the commits only."""
        place = backend.in_thread(find_repository, source)
        found = copies_of(self._sandbox.client, place)
        copy = next((one for one in found if one.sandbox == self._sandbox.id), None)
        if copy is None:
            raise _not_from(place)
        return copy_status(self._sandbox.client, place, copy)

    def pull(
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
        place = backend.in_thread(find_repository, source)
        for _ in range(TRIES):
            try:
                return self._pull(place, source, prefer, dry_run)
            except Conflict as error:
                if not error.details.get("stale"):
                    raise
        raise Conflict("the sandbox changes its files faster than they can be merged", hint="pull again later")

    def _pull(
        self, place: RepositoryPlace, source: HostPath, prefer: Literal["host", "sandbox"] | None, dry_run: bool
    ) -> PullResult:
        head, tree = self._tree(())
        if os.fspath(source) == HERE and head.origin != origin_of(place.top):
            raise _not_from(place)
        host = backend.in_thread(read_host_files, place, tree.keys())
        with Tree(place.top) as working:
            planner = PullPlanner(tree, host, working, prefer)
            contents = self._contents(backend.in_thread(planner.survey))
            plan = backend.in_thread(planner.plan, contents)
            _check(plan)
            files = tuple(one.result for _, one in sorted(plan.files.items()))
            if dry_run:
                return PullResult(sandbox=self._sandbox.id, files=files, head=host.head)
            body = PullBody(head, host, plan, tree, working)
            request = requests.pull(self._sandbox.id, backend.chunks(body))
            done = self._sandbox.client.request_json(request, PullResult)
        return PullResult(sandbox=done.sandbox, files=files, commit=done.commit, head=host.head)

    def _tree(self, paths: Sequence[str]) -> tuple[TreeHead, dict[bytes, Versions]]:
        return review_tree(self._sandbox.client, self._sandbox.id, paths)

    def _contents(self, oids: set[str]) -> dict[str, bytes]:
        """Fetch blobs of the ledger, except those too large to merge."""
        found: dict[str, bytes] = {}
        for oid in sorted(oids):
            data = bytearray()
            with self._sandbox.client.stream(requests.blob(self._sandbox.id, oid)) as chunks:
                for chunk in chunks:
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


def copies_of(client: Client, place: RepositoryPlace) -> tuple[RepoCopy, ...]:
    """Return the copies of a repository in sandboxes."""
    request = requests.copies(backend.in_thread(origin_of, place.top))
    return (client.request_json(request, RepoCopies)).copies


def copy_status(client: Client, place: RepositoryPlace, copy: RepoCopy) -> RepoStatus:
    """Compare a copy with its repository. Only files that changed since the copy are read, and the copy's list of files
    is fetched only if it differs."""
    commits = backend.in_thread(commits_behind, place, copy.head)
    host = backend.in_thread(quick_listing, place, copy)
    if host is None:
        return RepoStatus(sandbox=copy.sandbox, commits=commits, files=None)
    paths = host.changed
    short = sum(3 * len(path) + 8 for path in paths) <= MAX_NAMED_BYTES
    synced: dict[bytes, TreeVersion | None] = {}
    if paths and short:
        synced = _synced(client, copy.sandbox, [os.fsdecode(path) for path in paths])
    if not short or host.lacks(copy, synced):
        synced = _synced(client, copy.sandbox, ())
        paths = host.differing(synced)
    return RepoStatus(
        sandbox=copy.sandbox, commits=commits, files=backend.in_thread(edited, place, paths, synced)
    )


def _synced(client: Client, sandbox: str, paths: Sequence[str]) -> dict[bytes, TreeVersion | None]:
    """Return the files as the user had them."""
    _, tree = review_tree(client, sandbox, paths)
    return {path: versions.synced for path, versions in tree.items()}


def review_tree(
    client: Client, sandbox: str, paths: Sequence[str]
) -> tuple[TreeHead, dict[bytes, Versions]]:
    """Return the files of a review by path: all of them, or those of `paths`."""
    lines, head, found, ended = LineDecoder(MAX_TREE_LINE), None, dict[bytes, Versions](), False
    with client.stream(requests.tree(sandbox, paths)) as chunks:
        for chunk in chunks:
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
