"""Where a repository is: its top, its git directory. What git itself would follow out of it, is refused."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import Final

from skerry.client.gitignore import NO_REPOSITORY
from skerry.client.host_git import Git, GitFailed
from skerry.errors import InvalidRequest

_NO_GIT: Final = "install git: what goes in and what comes back is worked out with it"
_FACTS: Final = ("--is-bare-repository", "--is-inside-git-dir", "--show-object-format", "--is-shallow-repository")
_SHARED: Final = ("refs", "objects", "packed-refs", "index", "shallow", "config")
_MOST_REFS: Final = 100_000


@dataclass(frozen=True)
class Place:
    """`top`: the directory, absolute and without links. `git_dir`: None where no repository is; `common_dir`: where its
    refs and objects are, another one for a linked worktree. `given`: what was named, if that is below `top`."""

    top: str
    git_dir: str | None = None
    common_dir: str | None = None
    object_format: str = "sha1"
    shallow: bool = False
    given: str | None = None

    def git(self, **env: str) -> Git:
        """Calls that can't be led elsewhere by `core.worktree`."""
        git = Git("repo", "-C", self.top, hint=_NO_GIT, env=env)
        return git.also(f"--git-dir={self.git_dir}", f"--work-tree={self.top}") if self.git_dir else git


def find(given: str | os.PathLike[str]) -> Place:
    """The whole repository that a directory is in; the directory alone if it is in none, or is ignored there."""
    path = os.path.realpath(os.fspath(given))
    if not os.path.isdir(path):
        raise InvalidRequest(f"repo: {os.fspath(given)!r} is no directory", hint="a directory of this host, or a URL")
    git = Git("repo", "-C", path, hint=_NO_GIT)
    try:
        place = _place(git, path)
    except GitFailed as error:
        if b"cannot use bare repository" in error.said:
            raise _bare(path) from error
        if NO_REPOSITORY not in error.said or os.path.lexists(f"{path}/.git"):
            raise
        return Place(path)
    if place.top != path and _is_ignored(git, path):
        return Place(path)
    return place


def within(outer: Place, path: str, common_dirs: list[str]) -> Place:
    """The repository whose top is `path`, below `outer`: a submodule, or one that lies there. A `.git` that leads
    elsewhere has to be known there too, or to be one of `outer`'s own."""
    if os.path.islink(f"{path}/.git"):
        raise InvalidRequest("its .git is a link")
    place = _place(Git("repo", "-C", path), path, (outer.top, *common_dirs))
    if place.top != path:
        raise InvalidRequest("its .git is no repository's")
    return place


def _below(path: str, above: str) -> bool:
    return os.path.commonpath((path, above)) == above


def _check_known(git: Git, top: str, git_dir: str) -> None:
    """A `.git` that is a file can name any repository of this host, and bring its history along: that one has to name
    this directory too, as a linked worktree's and a submodule's do."""
    back = read_text(f"{git_dir}/gitdir")
    if back is not None and os.path.realpath(back.strip()) == f"{top}/.git":
        return
    try:
        worktree = os.fsdecode(git.said("config", "--local", "core.worktree")).removesuffix("\n")
    except GitFailed:
        worktree = ""
    if not worktree or os.path.realpath(os.path.join(git_dir, worktree)) != top:
        raise InvalidRequest(
            f"repo: the .git of {top} leads to {git_dir}, which knows nothing of it",
            hint=f"if that is right: git -C {top} config core.worktree {top}",
        )


def _place(git: Git, path: str, known: tuple[str, ...] = ()) -> Place:
    bare, inside, object_format, shallow = git.said("rev-parse", *_FACTS).decode().split()
    if bare == "true" or inside == "true":
        raise _bare(path)
    git_dir, common_dir, shown = _paths(git, path, "--absolute-git-dir", "--git-common-dir", "--show-toplevel")
    top = _top(path)
    if shown != top:
        raise InvalidRequest(
            f"repo: the working tree of {top} is elsewhere", hint="its setting core.worktree says so; `git clone` it"
        )
    if common_dir not in (git_dir, os.path.dirname(os.path.dirname(git_dir))):
        raise InvalidRequest(f"repo: {git_dir} is a part of {common_dir}, which knows nothing of it")
    if os.path.isfile(f"{top}/.git") and not any(_below(git_dir, one) for one in known):
        _check_known(git, top, git_dir)
    _check_own(common_dir)
    return Place(top, git_dir, common_dir, object_format, shallow == "true", path if path != top else None)


def _paths(git: Git, path: str, *which: str) -> list[str]:
    said = os.fsdecode(git.said("rev-parse", *which)).removesuffix("\n").split("\n")
    if len(said) != len(which):  # a path with a newline in it
        said = [os.fsdecode(git.said("rev-parse", one)).removesuffix("\n") for one in which]
    return [os.path.realpath(os.path.join(path, one)) for one in said]


def _top(path: str) -> str:
    while not os.path.lexists(f"{path}/.git") and path != "/":
        path = os.path.dirname(path)
    return path


def _check_own(common_dir: str) -> None:
    """A link among them would bring another repository's objects along."""
    links = [name for name in _SHARED if os.path.islink(f"{common_dir}/{name}")]
    seen = 0
    for above, directories, files in os.walk(f"{common_dir}/refs"):
        links += [name for name in (*directories, *files) if os.path.islink(f"{above}/{name}")]
        seen += len(files)
        if links or seen > _MOST_REFS:
            break
    if links:
        raise InvalidRequest(f"repo: {links[0]!r} in {common_dir} is a link", hint="`git clone` it, and give the clone")


def _is_ignored(git: Git, path: str) -> bool:
    try:
        git.said("check-ignore", "-q", "--", path)
    except GitFailed as error:
        if error.exit_code == 1:
            return False
        raise
    return True


def _bare(path: str) -> InvalidRequest:
    return InvalidRequest(
        f"repo: {path} is a bare repository: it has no files to work on",
        hint="`git clone` it, and give the clone; or give the top of its working tree",
    )


def read_text(path: str, most: int = 1 << 20) -> str | None:
    data = read_plain(path, most)
    return None if data is None else os.fsdecode(data)


def read_plain(path: str, most: int = 1 << 20) -> bytes | None:
    """A small regular file, no link, nothing that blocks. None: it is none, or too large."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        data = file.read(most + 1)
        return data if len(data) <= most else None
