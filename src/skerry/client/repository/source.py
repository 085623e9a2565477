"""What `repo=` names: a directory of this host, or a URL."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass

from skerry.client.git import check_clone
from skerry.errors import InvalidRequest
from skerry.types import Progress, Transfer

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|[A-Za-z0-9._-]+@[A-Za-z0-9._-]+:|[A-Za-z0-9+.-]*::")


@dataclass(frozen=True)
class Repo:
    """A repository for a sandbox to begin with: `Sandbox(repo=".")`, or `Sandbox(repo=Repo(".", ignored=True))`.

    `source`: a directory of this host, whose whole repository is copied to /workspace, uncommitted work included; or a
    URL, which is cloned inside. `ignored`: also the files that git ignores. `review`: its changes are kept from then
    on, for `sandbox.review`. `progress`: called while it is brought."""

    source: str | os.PathLike[str]
    ignored: bool = False
    review: bool = True
    progress: Callable[[Progress], None] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.source, (str, os.PathLike)) or not os.fspath(self.source):
            raise InvalidRequest(f"repo: {self.source!r} is neither a directory nor a URL", hint='like repo="."')
        if (url := self.url) is not None:
            check_clone(url, "/workspace")
            if url.lower().startswith("file:"):
                raise InvalidRequest("repo: a file: URL would be looked for inside", hint="give the directory itself")
            if self.ignored:
                raise InvalidRequest("repo: nothing that git ignores is at a URL", hint="leave ignored out")

    @property
    def url(self) -> str | None:
        source = self.source
        if isinstance(source, str) and _URL.match(source) and not os.path.isdir(source):
            return source
        return None


AnyRepo = str | os.PathLike[str] | Repo | None


@dataclass(frozen=True)
class Imported:
    """What was brought. `top`: the directory of this host that /workspace is a copy of; None for a URL. `part`: what
    was named, if that is only a part of it. `repositories`: with those within it. `moved`: how much it was, and what
    was left out."""

    top: str | None
    part: str | None
    repositories: int
    moved: Transfer | None


def repo_of(given: object) -> Repo | None:
    if given is None or isinstance(given, Repo):
        return given
    if not isinstance(given, (str, os.PathLike)):
        raise InvalidRequest(f"repo: a {type(given).__name__} is no repository", hint='like repo=".", or a URL')
    return Repo(given)
