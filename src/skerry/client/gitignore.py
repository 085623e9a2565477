"""What git would take of a directory: tracked files, and others that no `.gitignore` leaves out. git itself says so.

The directory's own settings may be hostile, as those of a repository that came out of a sandbox: git is called so that
nothing in them runs a program or opens a connection.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from skerry.errors import InvalidRequest

_MOST_REPOSITORIES = 1000
_HARMLESS = (
    "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.untrackedCache=false",
    "-c", "safe.bareRepository=explicit", "-c", "protocol.allow=never", "-c", "submodule.recurse=false",
)  # fmt: skip
_LIST = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
_NO_REPOSITORY = b"not a git repository"


@contextmanager
def listed(root: int) -> Iterator[Iterator[str]]:
    """Paths below the directory that is open as `root`."""
    with tempfile.TemporaryDirectory(prefix="skerry-git-") as empty:
        yield _listed(root, empty)


def _listed(root: int, empty: str) -> Iterator[str]:
    pending = [""]
    for number, above in enumerate(pending):
        if number >= _MOST_REPOSITORIES:
            raise InvalidRequest(f"gitignore: there are more than {_MOST_REPOSITORIES} repositories in it")
        directory = f"/proc/self/fd/{root}/{above}" if above else f"/proc/self/fd/{root}"
        for name in _repository(root, directory, empty):
            path = above + name
            if name.endswith("/") or _is_repository(root, path):
                pending.append(path.removesuffix("/") + "/")
            else:
                yield path


def _is_repository(root: int, path: str) -> bool:
    """A submodule is listed by its name alone."""
    try:
        os.stat(f"{path}/.git", dir_fd=root, follow_symlinks=False)
    except OSError:
        return False
    return True


def _repository(root: int, directory: str, empty: str) -> Iterator[str]:
    try:
        yield from _run(root, directory, ())
    except InvalidRequest as error:
        if not error.details.get("no_repository"):
            raise
        if not os.path.exists(f"{empty}/HEAD"):
            make = ["git", "init", "--quiet", "--bare", "--template=", empty]
            done = subprocess.run(make, check=False, capture_output=True, env=_environment())
            if done.returncode:
                raise _refused(done.stderr[:4000]) from error
        yield from _run(root, directory, (f"--git-dir={empty}", "--work-tree=."))


def _run(root: int, directory: str, where: tuple[str, ...]) -> Iterator[str]:
    command = ["git", *_HARMLESS, "-C", directory, *where, *_LIST]
    try:
        with (
            tempfile.TemporaryFile() as said,
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, env=_environment(),
                pass_fds=(root,),
            ) as git,
        ):  # fmt: skip
            assert git.stdout is not None  # noqa: S101
            try:
                yield from _names(git.stdout)
            finally:
                git.stdout.close()
            if git.wait() != 0:
                said.seek(0)
                raise _refused(said.read(4000))
    except FileNotFoundError as error:
        raise InvalidRequest("gitignore: there is no git on this host", hint="install it, or use exclude=") from error


def _refused(said: bytes) -> InvalidRequest:
    text = said.decode("utf-8", "replace").strip()
    return InvalidRequest(f"gitignore: {text}", details={"no_repository": _NO_REPOSITORY in said})


def _names(output: IO[bytes]) -> Iterator[str]:
    held, last = b"", None
    while piece := output.read(64 << 10):
        *names, held = (held + piece).split(b"\0")
        for name in names:
            if name != last:  # a file in conflict is listed once for each side
                yield os.fsdecode(name)
            last = name


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**kept, "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "", "LC_ALL": "C"}
