# Generated from client/_async/importing.py by scripts/generate_sync.py. Do not edit.
"""A repository of this host, or of a URL, in a new sandbox's /workspace."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from skerry.client import backend_sync as backend
from skerry.client import file_requests, review_requests
from skerry.client.repository.copying import RepositoryCopy
from skerry.client.repository.finding import find
from skerry.client.repository.rules import MOST, MOST_FILES, is_text, merged, rules_of
from skerry.client.repository.source import Imported, Repo
from skerry.errors import FileFailure, FileMissing
from skerry.types import WORKSPACE, BeginReview, Transfer

if TYPE_CHECKING:
    from skerry.client._sync.sandbox import Sandbox


class Import:
    """Opened before there is a sandbox: what is wrong is said first, and git packs while the sandbox is made."""

    def __init__(self, repo: Repo, copy: RepositoryCopy | None) -> None:
        self._repo, self._copy = repo, copy

    @classmethod
    def open(cls, repo: Repo) -> Import:
        if repo.url is not None:
            return cls(repo, None)
        place = backend.in_thread(find, repo.source)
        copy = backend.in_thread(RepositoryCopy, place, ignored=repo.ignored, progress=repo.progress)
        return cls(repo, copy)

    def bring(self, sandbox: Sandbox) -> Imported:
        if self._copy is None:
            return self._clone(sandbox, self._repo.url or "")
        _make_room(sandbox)
        backend.in_thread(self._copy.measure)
        request = file_requests.upload_tree(sandbox.id, WORKSPACE, backend.chunks(self._copy), None)
        moved = self._copy.told(sandbox.client.value(request, Transfer))
        if self._repo.review:
            sandbox.client.done(review_requests.begin(sandbox.id, self._copy.review(WORKSPACE)))
        place = self._copy.place
        return Imported(place.top, place.given, self._copy.repositories, moved)

    def _clone(self, sandbox: Sandbox, url: str) -> Imported:
        _make_room(sandbox)
        sandbox.git.clone(url, WORKSPACE, timeout=None)
        if self._repo.review:
            sandbox.client.done(review_requests.begin(sandbox.id, _of_clone(sandbox)))
        return Imported(None, None, 1, None)

    def close(self) -> None:
        if self._copy is not None:
            backend.in_thread(self._copy.close)


def _make_room(sandbox: Sandbox) -> None:
    """An image may have no such directory, or a repository of its own in it; a runtime makes it as root's."""
    files = sandbox.files
    try:
        with suppress(FileMissing):
            files.remove(f"{WORKSPACE}/.git", recursive=True, user="root")
        root = (files.stat(WORKSPACE)).uid == 0
    except FileMissing:
        files.mkdir(WORKSPACE, user="root")
        root = True
    if root and (who := (sandbox.run(["id", "-u"], cwd="/", check=True)).stdout.strip()) != "0":
        files.chown(WORKSPACE, int(who), user="root")


def _of_clone(sandbox: Sandbox) -> BeginReview:
    """What a review leaves out of a clone, as the clone itself says."""
    files = []
    for name in _names(sandbox, "--", ":(glob)**/.gitignore"):
        with suppress(FileFailure):
            files.append((name.rpartition("/")[0], sandbox.files.read_bytes(f"{WORKSPACE}/{name}", length=MOST)))
    tracked = _names(sandbox, "--cached", "--ignored", "--exclude-standard")
    head = (sandbox.run(["git", "rev-parse", "-q", "--verify", "HEAD"], cwd=WORKSPACE)).stdout.strip()
    return BeginReview(
        path=WORKSPACE, head=head or None, ignore=merged(rules_of("", b"", files)), tracked=tuple(tracked)
    )


def _names(sandbox: Sandbox, *words: str) -> list[str]:
    listed = sandbox.run(["git", "ls-files", "-z", *words], cwd=WORKSPACE, check=True)
    names = listed.stdout_bytes.split(b"\0")[:-1] if not listed.truncated else []
    return [name for one in names[:MOST_FILES] if is_text(name := os.fsdecode(one))]
