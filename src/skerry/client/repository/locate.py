"""Finds a repository: its top and its git directory. References that lead out of it are rejected."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from typing import Final

from skerry.client.host.git import HostGit, HostGitFailed
from skerry.client.host.gitignore import NO_REPOSITORY
from skerry.client.host.posix import require_posix
from skerry.errors import InvalidRequest

_NO_GIT: Final = "install git: it is needed to copy repositories and apply changes"
_FACTS: Final = ("--is-bare-repository", "--is-inside-git-dir", "--show-object-format", "--is-shallow-repository")
_SHARED: Final = ("refs", "objects", "packed-refs", "index", "shallow", "config")
_MAX_REFS: Final = 100_000


@dataclass(frozen=True)
class RepositoryPlace:
    """`top`: the directory, absolute and without links. `git_dir`: None outside of a repository; `common_dir`: the
    directory of refs and objects, which differs for a linked worktree. `given`: the given path, if below `top`."""

    top: str
    git_dir: str | None = None
    common_dir: str | None = None
    object_format: str = "sha1"
    shallow: bool = False
    given: str | None = None

    def git(self, **env: str) -> HostGit:
        """Return git for this place; `core.worktree` cannot redirect it."""
        git = HostGit("repo", "-C", self.top, hint=_NO_GIT, env=env)
        return git.with_words(f"--git-dir={self.git_dir}", f"--work-tree={self.top}") if self.git_dir else git


def find_repository(given: str | os.PathLike[str]) -> RepositoryPlace:
    """Return the repository that contains a directory; the directory alone if it is in none, or is ignored there."""
    require_posix("a copy of a repository")
    path = os.path.realpath(os.fspath(given))
    if not os.path.isdir(path):
        raise InvalidRequest(
            f"repo: {os.fspath(given)!r} is not a directory", hint="a directory of this host, or a URL"
        )
    git = HostGit("repo", "-C", path, hint=_NO_GIT)
    try:
        place = _place(git, path)
    except HostGitFailed as error:
        if b"cannot use bare repository" in error.output:
            raise _bare(path) from error
        if NO_REPOSITORY not in error.output or os.path.lexists(f"{path}/.git"):
            raise
        return RepositoryPlace(path)
    if place.top != path and _is_ignored(git, path):
        return RepositoryPlace(path)
    return place


def check_outside_home(top: str) -> None:
    """Reject a copy of the user's home directory, or of one above it: it has SSH keys, logins and stored secrets."""
    import pwd  # not on Windows

    homes = {os.path.expanduser("~")}
    with contextlib.suppress(KeyError):
        homes.add(pwd.getpwuid(os.getuid()).pw_dir)
    real = {os.path.realpath(home) for home in homes} - {"/"}  # that of a user without one
    if top == "/" or any(_below(home, top) for home in real):
        raise InvalidRequest(
            f"repo: {top} contains your home directory, with its keys and logins",
            hint="give the directory of a project; --include-home (Repo(…, include_home=True)) copies it anyway",
        )


def inner_repository(outer: RepositoryPlace, path: str, common_dirs: list[str]) -> RepositoryPlace:
    """Return the repository with the top `path`, below `outer`: a submodule or an independent repository. A `.git` that
    refers elsewhere must be registered there, or belong to `outer`."""
    if os.path.islink(f"{path}/.git"):
        raise InvalidRequest("its .git is a link")
    place = _place(HostGit("repo", "-C", path), path, (outer.top, *common_dirs))
    if place.top != path:
        raise InvalidRequest("its .git is not a repository")
    return place


def _below(path: str, above: str) -> bool:
    return os.path.commonpath((path, above)) == above


def _check_known(git: HostGit, top: str, git_dir: str) -> None:
    """Check that the other repository names this directory too, as for a linked worktree or a submodule: a `.git` file
    can name any repository of this host and would copy its history."""
    back = read_text(f"{git_dir}/gitdir")
    if back is not None and os.path.realpath(back.strip()) == f"{top}/.git":
        return
    try:
        worktree = os.fsdecode(git.output("config", "--local", "core.worktree")).removesuffix("\n")
    except HostGitFailed:
        worktree = ""
    if not worktree or os.path.realpath(os.path.join(git_dir, worktree)) != top:
        raise InvalidRequest(
            f"repo: the .git of {top} leads to {git_dir}, which does not refer back to it",
            hint=f"if that is intended: git -C {top} config core.worktree {top}",
        )


def _place(git: HostGit, path: str, known: tuple[str, ...] = ()) -> RepositoryPlace:
    bare, inside, object_format, shallow = git.output("rev-parse", *_FACTS).decode().split()
    if bare == "true" or inside == "true":
        raise _bare(path)
    git_dir, common_dir, shown = _paths(git, path, "--absolute-git-dir", "--git-common-dir", "--show-toplevel")
    top = _top(path)
    if shown != top:
        raise InvalidRequest(
            f"repo: the working tree of {top} is elsewhere",
            hint="because of its setting core.worktree; use a `git clone` of it",
        )
    if common_dir not in (git_dir, os.path.dirname(os.path.dirname(git_dir))):
        raise InvalidRequest(f"repo: {git_dir} is a part of {common_dir}, which does not refer back to it")
    if os.path.isfile(f"{top}/.git") and not any(_below(git_dir, one) for one in known):
        _check_known(git, top, git_dir)
    _check_own(common_dir)
    return RepositoryPlace(top, git_dir, common_dir, object_format, shallow == "true", path if path != top else None)


def _paths(git: HostGit, path: str, *which: str) -> list[str]:
    said = os.fsdecode(git.output("rev-parse", *which)).removesuffix("\n").split("\n")
    if len(said) != len(which):  # a path that contains a newline
        said = [os.fsdecode(git.output("rev-parse", one)).removesuffix("\n") for one in which]
    return [os.path.realpath(os.path.join(path, one)) for one in said]


def _top(path: str) -> str:
    while not os.path.lexists(f"{path}/.git") and path != "/":
        path = os.path.dirname(path)
    return path


def _check_own(common_dir: str) -> None:
    """Reject links in the git directory: they would copy the objects of another repository."""
    links = [name for name in _SHARED if os.path.islink(f"{common_dir}/{name}")]
    seen = 0
    for above, directories, files in os.walk(f"{common_dir}/refs"):
        links += [name for name in (*directories, *files) if os.path.islink(f"{above}/{name}")]
        seen += len(files)
        if links or seen > _MAX_REFS:
            break
    if links:
        raise InvalidRequest(f"repo: {links[0]!r} in {common_dir} is a link", hint="use a `git clone` of it")


def _is_ignored(git: HostGit, path: str) -> bool:
    try:
        git.output("check-ignore", "-q", "--", path)
    except HostGitFailed as error:
        if error.exit_code == 1:
            return False
        raise
    return True


def _bare(path: str) -> InvalidRequest:
    return InvalidRequest(
        f"repo: {path} is a bare repository: it has no files to work on",
        hint="use a `git clone` of it; or give the top of its working tree",
    )


def read_text(path: str, most: int = 1 << 20) -> str | None:
    data = read_plain(path, most)
    return None if data is None else os.fsdecode(data)


def read_plain(path: str, most: int = 1 << 20) -> bytes | None:
    """Return a small regular file, without following a link or blocking. None: it is something else, or too large."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        data = file.read(most + 1)
        return data if len(data) <= most else None
