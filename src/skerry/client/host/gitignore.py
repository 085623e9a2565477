"""The files of a directory that git would add: tracked files, and others that no `.gitignore` excludes. git lists
them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from skerry.client.host.git import HostGit, HostGitFailed
from skerry.errors import InvalidRequest

MAX_REPOSITORIES = 1000
LIST = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
NO_REPOSITORY = b"not a git repository"


@contextmanager
def listed(root: int) -> Iterator[Iterator[str]]:
    """Return the paths below the directory that is open as `root`."""
    with tempfile.TemporaryDirectory(prefix="skerry-git-") as empty:
        yield _listed(root, empty)


def _listed(root: int, empty: str) -> Iterator[str]:
    pending = [""]
    for number, above in enumerate(pending):
        if number >= MAX_REPOSITORIES:
            raise InvalidRequest(f"gitignore: more than {MAX_REPOSITORIES} repositories in it")
        directory = f"/proc/self/fd/{root}/{above}" if above else f"/proc/self/fd/{root}"
        for name in _repository(root, directory, empty):
            path = above + name
            if name.endswith("/") or _is_repository(root, path):
                pending.append(path.removesuffix("/") + "/")
            else:
                yield path


def _is_repository(root: int, path: str) -> bool:
    """Return whether a path is a repository. A submodule is listed by its name alone."""
    try:
        os.stat(f"{path}/.git", dir_fd=root, follow_symlinks=False)
    except OSError:
        return False
    return True


def _repository(root: int, directory: str, empty: str) -> Iterator[str]:
    git = HostGit("gitignore", "-C", directory, hint="install it, or use exclude=", pass_fds=(root,))
    try:
        yield from map(os.fsdecode, git.names(*LIST))
    except HostGitFailed as error:
        if NO_REPOSITORY not in error.output:
            raise
        yield from map(os.fsdecode, without_repository(git, empty).names(*LIST))


def without_repository(git: HostGit, empty: str) -> HostGit:
    """Return git for a directory outside of a repository, with an empty repository elsewhere, so that its .gitignore
    files apply."""
    if not os.path.exists(f"{empty}/HEAD"):
        git.output("init", "--quiet", "--bare", "--template=", empty)
    return git.with_words(f"--git-dir={empty}", "--work-tree=.")
