"""The directory that receives changes: the root of a working tree or a plain directory, and the place of its
journal."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skerry.client.host.git import HostGitFailed, user_git
from skerry.client.repository.origin import origin_of
from skerry.errors import Conflict, InvalidRequest

_NONE = b"not a git repository"
_NO_TREE = b"must be run in a work tree"
_BARE = b"cannot use bare repository"
_FACTS = ("--is-bare-repository", "--is-inside-git-dir", "--show-toplevel", "--absolute-git-dir", "--git-common-dir")


@dataclass(frozen=True)
class TargetDir:
    """`git`: the git directory, `top`: the root of the working tree, if in a repository. `protected`: paths below the
    root that belong to the repository, whatever their names."""

    root: Path
    journal: Path
    git: Path | None = None
    top: Path | None = None
    protected: tuple[bytes, ...] = ()

    @property
    def prefix(self) -> bytes:
        """The prefix of the directory's paths in the repository."""
        below = _below(self.top, self.root) if self.top is not None else b""
        return below + b"/" if below else b""


HERE: Final = "."


def find_target(to: str | os.PathLike[str], origin: str | None = None) -> TargetDir:
    """Return the root of the repository that contains `to`; but a directory that the sandbox was created from
    (`origin`) is used unchanged. `.` must be in that directory, if it is known: otherwise new files could be written to
    any tree."""
    given = Path(os.path.realpath(to))
    if not given.is_dir():
        raise InvalidRequest(
            f"to: {given} is not a directory", hint="change to the directory that the sandbox was created from"
        )
    top, own, common = _repository(given)
    root = given if top is None or (_is(given, origin) and not _is(top, origin)) else top
    if os.fspath(to) == HERE and origin is not None and not _is(root, origin):
        raise Conflict(f"the sandbox was not created from {root}", hint=f"to apply there anyway: --dir {root}")
    if own is None:
        return TargetDir(root, _state() / hashlib.sha256(os.fsencode(root)).hexdigest()[:32])
    protected = tuple(sorted({_below(root, path) for path in (own, common)} - {b""}))
    return TargetDir(root, own / "skerry", own, top, protected)


def _is(path: Path, origin: str | None) -> bool:
    return origin is not None and origin_of(path) == origin


def _repository(given: Path) -> tuple[Path | None, Path | None, Path]:
    """Return the root of the working tree, its git directory, and the common git directory."""
    try:
        bare, inside, top, own, common = _facts(given)
    except HostGitFailed as error:
        if _NONE in error.output:
            return None, None, given
        if _NO_TREE not in error.output and _BARE not in error.output:
            raise InvalidRequest(f"to: {error.message}") from error
        bare, inside, top, own, common = b"true", b"", b"", b"", b""
    if b"true" in (bare, inside):
        raise InvalidRequest(
            f"to: {given} is a bare repository or inside a git directory: it has no working tree",
            hint="change to a working tree, or use --patch",
        )
    real = [Path(os.path.realpath(given / os.fsdecode(path))) for path in (top, own, common)]
    return real[0], real[1], real[2]


def _facts(given: Path) -> list[bytes]:
    said = user_git(given, "rev-parse", *_FACTS)[1].removesuffix(b"\n").split(b"\n")
    if len(said) != len(_FACTS):  # a path that contains a newline
        said = [user_git(given, "rev-parse", fact)[1].removesuffix(b"\n") for fact in _FACTS]
    return said


def _below(root: Path, path: Path) -> bytes:
    return os.fsencode(path.relative_to(root)) if path.is_relative_to(root) and path != root else b""


def _state() -> Path:
    given = os.environ.get("XDG_STATE_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"
    return base / "skerry" / "trees"
