"""Where changes land: the root of a working tree, or a plain directory, and where the journal of it is kept."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skerry.client.applying.git import GitFailed, git
from skerry.client.repository.origin import origin_of
from skerry.errors import Conflict, InvalidRequest

_NONE = b"not a git repository"
_NO_TREE = b"must be run in a work tree"
_BARE = b"cannot use bare repository"
_FACTS = ("--is-bare-repository", "--is-inside-git-dir", "--show-toplevel", "--absolute-git-dir", "--git-common-dir")


@dataclass(frozen=True)
class Place:
    """`git`: its own git directory, `top`: the root of its working tree, if it is in a repository. `protected`: paths
    below the root that are the repository's own, whatever they are called."""

    root: Path
    journal: Path
    git: Path | None = None
    top: Path | None = None
    protected: tuple[bytes, ...] = ()

    @property
    def prefix(self) -> bytes:
        """Of its paths in the repository."""
        below = _below(self.top, self.root) if self.top is not None else b""
        return below + b"/" if below else b""


HERE: Final = "."


def find(to: str | os.PathLike[str], origin: str | None = None) -> Place:
    """In a repository its root, from wherever in it; but a directory that the sandbox was made of (`origin`) is taken
    as it is. `.` has to be in that, if it is known: new files would land in any tree."""
    given = Path(os.path.realpath(to))
    if not given.is_dir():
        raise InvalidRequest(f"to: {given} is no directory", hint="go to the directory that the sandbox was made of")
    top, own, common = _repository(given)
    root = given if top is None or (_is(given, origin) and not _is(top, origin)) else top
    if os.fspath(to) == HERE and origin is not None and not _is(root, origin):
        raise Conflict(f"the sandbox was not made of {root}", hint=f"if it is meant to land there: --to {root}")
    if own is None:
        return Place(root, _state() / hashlib.sha256(os.fsencode(root)).hexdigest()[:32])
    protected = tuple(sorted({_below(root, path) for path in (own, common)} - {b""}))
    return Place(root, own / "skerry", own, top, protected)


def _is(path: Path, origin: str | None) -> bool:
    return origin is not None and origin_of(path) == origin


def _repository(given: Path) -> tuple[Path | None, Path | None, Path]:
    """The root of its working tree, its git directory, and the one that it shares."""
    try:
        bare, inside, top, own, common = _facts(given)
    except GitFailed as error:
        if _NONE in error.said:
            return None, None, given
        if _NO_TREE not in error.said and _BARE not in error.said:
            raise InvalidRequest(f"to: {error.message}") from error
        bare, inside, top, own, common = b"true", b"", b"", b"", b""
    if b"true" in (bare, inside):
        raise InvalidRequest(
            f"to: {given} is a bare repository, or among one's own files: there is no working tree",
            hint="go to a working tree, or use --patch",
        )
    real = [Path(os.path.realpath(given / os.fsdecode(path))) for path in (top, own, common)]
    return real[0], real[1], real[2]


def _facts(given: Path) -> list[bytes]:
    said = git(given, "rev-parse", *_FACTS)[1].removesuffix(b"\n").split(b"\n")
    if len(said) != len(_FACTS):  # a path with a newline in it
        said = [git(given, "rev-parse", fact)[1].removesuffix(b"\n") for fact in _FACTS]
    return said


def _below(root: Path, path: Path) -> bytes:
    return os.fsencode(path.relative_to(root)) if path.is_relative_to(root) and path != root else b""


def _state() -> Path:
    given = os.environ.get("XDG_STATE_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"
    return base / "skerry" / "trees"
