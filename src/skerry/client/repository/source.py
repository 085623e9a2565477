"""The argument `repo=`: a directory of this host, or a URL."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass

from skerry.client.host.git_clone import check_clone
from skerry.errors import InvalidRequest
from skerry.types import Progress, TransferResult
from skerry.types.globs import check_globs

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|[A-Za-z0-9._-]+@[A-Za-z0-9._-]+:|[A-Za-z0-9+.-]*::")


@dataclass(frozen=True)
class Repo:
    """A repository for a new sandbox: `Sandbox(repo=".")`, or `Sandbox(repo=Repo(".", ignored=True))`.

    `source`: a directory of this host, whose whole repository is copied to /workspace, uncommitted changes included; or
    a URL, which is cloned inside. `ignored`: also copy the files that git ignores. `review`: record changes for
    `sandbox.review`; `exclude`: globs of files that it keeps apart, like generated files. `progress`: called during the
    copy. `include_home`: the repository may be your home directory or one above it.
    """

    source: str | os.PathLike[str]
    ignored: bool = False
    review: bool = True
    progress: Callable[[Progress], None] | None = None
    exclude: tuple[str, ...] = ()
    include_home: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.source, (str, os.PathLike)) or not os.fspath(self.source):
            raise InvalidRequest(f"repo: {self.source!r} is neither a directory nor a URL", hint='like repo="."')
        if isinstance(self.exclude, str):
            raise InvalidRequest("repo: exclude is a string, not a tuple of globs", hint='like exclude=("*.snap",)')
        object.__setattr__(self, "exclude", tuple(self.exclude))
        check_globs("repo: exclude", self.exclude)
        if (url := self.url) is not None:
            check_clone(url, "/workspace")
            if url.lower().startswith("file:"):
                raise InvalidRequest("repo: a file: URL would refer to a path inside", hint="give the directory itself")
            if self.ignored:
                raise InvalidRequest("repo: ignored files do not exist at a URL", hint="leave ignored out")

    @property
    def url(self) -> str | None:
        source = self.source
        if isinstance(source, str) and _URL.match(source) and not os.path.isdir(source):
            return source
        return None


AnyRepo = str | os.PathLike[str] | Repo | None


@dataclass(frozen=True)
class ImportResult:
    """The result of the import. `top`: the directory of this host that /workspace is a copy of; None for a URL. `part`:
    the given path, if only a part of it. `repositories`: their number, inner ones included. `moved`: the amount copied,
    and the skipped files."""

    top: str | None
    part: str | None
    repositories: int
    moved: TransferResult | None


def repo_of(given: object) -> Repo | None:
    if given is None or isinstance(given, Repo):
        return given
    if not isinstance(given, (str, os.PathLike)):
        raise InvalidRequest(f"repo: a {type(given).__name__} is not a repository", hint='like repo=".", or a URL')
    return Repo(given)
