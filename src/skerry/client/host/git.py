"""git on this host, in two profiles. In both, no hook runs and no connection is opened.

`HostGit` asks about directories whose settings may be hostile, as those of a repository that came out of a sandbox:
nothing in them starts a program. Use it only for commands that never convert a file (`ls-files`, `for-each-ref`,
`pack-objects` …), because no setting switches clean and smudge filters off.

`user_git` and `isolated_git` work in the user's repository with the user's identity and settings, and in a directory of
Skerry without any settings.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, Final

from skerry.codecs.text import escape
from skerry.errors import InvalidRequest

TIMEOUT: Final = 600.0  # seconds for a command in the user's repository
_SAFE: Final = (
    "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.untrackedCache=false",
    "-c", "protocol.allow=never", "-c", "submodule.recurse=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false",
)  # fmt: skip
_HOSTILE: Final = (*_SAFE, "-c", "safe.bareRepository=explicit", "-c", "core.alternateRefsCommand=")
_USER: Final = (*_SAFE, "-c", "core.quotePath=false", "--literal-pathspecs", "--no-pager")
_IDENTITY: Final = ("GIT_AUTHOR_", "GIT_COMMITTER_")
_PIECE: Final = 64 << 10
_MAX_QUOTED: Final = 4000


class HostGitFailed(InvalidRequest):
    """git ended with an unexpected exit code; `output` is its error output."""

    def __init__(self, subject: str, output: bytes, code: int) -> None:
        self.output, self.exit_code = output, code
        text = escape(output[-_MAX_QUOTED:].decode("utf-8", "replace").strip(), lines=True)
        super().__init__(f"{subject}: {text or f'git failed with exit code {code}'}")


class GitNotInstalled(InvalidRequest):
    def __init__(self, subject: str, hint: str) -> None:
        super().__init__(f"{subject}: git is not installed on this host", hint=hint)


def _environment(*kept: str, **more: str) -> dict[str, str]:
    """Return the caller's environment without its GIT_* variables, except those that begin with `kept`."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name.startswith(kept)
    }
    fixed = {
        "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "", "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }  # fmt: skip
    return {**inherited, **fixed, **more}


class HostGit:
    """Commands about one directory: `subject` begins each error, `hint` is for a host without git, `words` precede
    each command."""

    def __init__(
        self,
        subject: str,
        *words: str,
        hint: str = "install it",
        env: Mapping[str, str] = {},
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._subject, self._hint = subject, hint
        self._words, self._env, self._pass_fds = words, dict(env), tuple(pass_fds)

    def with_words(self, *words: str) -> HostGit:
        """Return a copy with more words before each command."""
        more = (*self._words, *words)
        return HostGit(self._subject, *more, hint=self._hint, env=self._env, pass_fds=self._pass_fds)

    def output(self, *command: str, given: Iterable[bytes] = ()) -> bytes:
        """Return the whole output of a command that must succeed."""
        return b"".join(self.pieces(*command, given=given))

    def pieces(self, *command: str, given: Iterable[bytes] = ()) -> Iterator[bytes]:
        """Yield the output of a command that must succeed."""
        with tempfile.TemporaryFile() as errors, self.start(*command, given=given, errors=errors) as git:
            assert git.stdout is not None  # noqa: S101
            try:
                while piece := git.stdout.read(_PIECE):
                    yield piece
            finally:
                git.stdout.close()
            if code := git.wait():
                raise self.failed(errors, code)

    def names(self, *command: str) -> Iterator[bytes]:
        """Yield the names of an output that ends each with NUL; skip a name that equals the one before."""
        held, last = b"", None
        for piece in self.pieces(*command):
            *names, held = (held + piece).split(b"\0")
            for name in names:
                if name != last:
                    yield name
                last = name

    def start(self, *command: str, given: Iterable[bytes] = (), errors: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a command: `given` is its whole stdin, the file `errors` receives its error output."""
        with tempfile.TemporaryFile() as stdin:
            stdin.writelines(given)
            stdin.seek(0)
            try:
                return subprocess.Popen(
                    ["git", *_HOSTILE, *self._words, *command],
                    stdin=stdin, stdout=subprocess.PIPE, stderr=errors, env=_environment(**self._env),
                    pass_fds=self._pass_fds,
                )  # fmt: skip
            except FileNotFoundError as error:
                raise GitNotInstalled(self._subject, self._hint) from error

    def failed(self, errors: IO[bytes], code: int) -> HostGitFailed:
        errors.seek(0)
        return HostGitFailed(self._subject, errors.read(_MAX_QUOTED), code)


def user_git(
    directory: Path | str,
    *words: str | bytes,
    stdin: bytes | Path = b"",
    expect: tuple[int, ...] = (0,),
    env: Mapping[str, str] = {},
) -> tuple[int, bytes]:
    """Run git in a directory of the user, with the user's identity and settings, without hooks and connections.
    Return the exit code, which must be one of `expect`, and the output."""
    argv = [*_USER, "-C", str(directory), *words]
    return _run(argv, stdin, expect, _environment(*_IDENTITY, **env), None)


def isolated_git(
    directory: Path | str,
    *words: str | bytes,
    stdin: bytes | Path = b"",
    expect: tuple[int, ...] = (0,),
    env: Mapping[str, str] = {},
) -> tuple[int, bytes]:
    """Run git in a directory of Skerry: no settings of the user or the system apply, and no repository around it."""
    isolated = {
        **env, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": os.path.dirname(os.path.realpath(directory)), "HOME": "/nonexistent",
    }  # fmt: skip
    argv = [*_USER, "-c", "core.attributesFile=/dev/null", *words]
    return _run(argv, stdin, expect, _environment(*_IDENTITY, **isolated), str(directory))


def _run(
    words: list[str | bytes],
    stdin: bytes | Path,
    expect: tuple[int, ...],
    env: Mapping[str, str],
    directory: str | None,
) -> tuple[int, bytes]:
    subject = f"git {_verb([os.fsdecode(word) for word in words])}"
    with _opened(stdin) as source:
        given: dict[str, Any] = {"input": source} if isinstance(source, bytes) else {"stdin": source}
        try:
            done = subprocess.run(
                ["git", *words], env=env, cwd=directory, capture_output=True, timeout=TIMEOUT, check=False, **given
            )
        except FileNotFoundError as error:
            raise GitNotInstalled(subject, "install git: it merges files and reads your repository") from error
        except subprocess.TimeoutExpired as error:
            raise HostGitFailed(subject, b"it did not end in time", -1) from error
    if done.returncode not in expect:
        raise HostGitFailed(subject, done.stderr, done.returncode)
    return done.returncode, done.stdout


@contextmanager
def _opened(stdin: bytes | Path) -> Iterator[bytes | BinaryIO]:
    if isinstance(stdin, bytes):
        yield stdin
        return
    with stdin.open("rb") as file:
        yield file


def _verb(words: list[str]) -> str:
    skip = False
    for word in words:
        if skip or word in ("-c", "-C"):
            skip = not skip
        elif not word.startswith("-"):
            return word
    return ""
