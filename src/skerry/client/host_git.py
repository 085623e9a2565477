"""git on this host, asked about directories whose own settings may be hostile, as those of a repository that came out
of a sandbox: called so that nothing in them runs a program or opens a connection.

Only for commands that never convert a file (`ls-files`, `for-each-ref`, `pack-objects` …): clean and smudge filters
can't be switched off by a setting.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Final

from skerry.errors import InvalidRequest

HARMLESS: Final = (
    "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.untrackedCache=false",
    "-c", "safe.bareRepository=explicit", "-c", "protocol.allow=never", "-c", "submodule.recurse=false",
    "-c", "core.alternateRefsCommand=", "-c", "gc.auto=0", "-c", "maintenance.auto=false",
)  # fmt: skip
_PIECE: Final = 64 << 10
_QUOTED: Final = 4000


class GitFailed(InvalidRequest):
    """What git said, and the code that it ended with."""

    def __init__(self, what: str, said: bytes, code: int) -> None:
        self.said, self.exit_code = said, code
        text = said[:_QUOTED].decode("utf-8", "replace").strip()
        super().__init__(f"{what}: {text or 'git failed, and said nothing'}")


class NoGit(InvalidRequest):
    def __init__(self, what: str, hint: str) -> None:
        super().__init__(f"{what}: there is no git on this host", hint=hint)


def environment(**more: str) -> dict[str, str]:
    """Of the caller's own GIT_* nothing counts."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    fixed = {
        "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "", "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }  # fmt: skip
    return {**kept, **fixed, **more}


class Git:
    """Calls about one thing: `what` begins each error, `hint` is for a host without git, `words` stand before each
    command."""

    def __init__(
        self,
        what: str,
        *words: str,
        hint: str = "install it",
        env: Mapping[str, str] = {},
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._what, self._hint = what, hint
        self._words, self._env, self._pass_fds = words, dict(env), tuple(pass_fds)

    def also(self, *words: str) -> Git:
        """The same, with more words."""
        more = (*self._words, *words)
        return Git(self._what, *more, hint=self._hint, env=self._env, pass_fds=self._pass_fds)

    def said(self, *command: str, given: Iterable[bytes] = ()) -> bytes:
        """The output of a command that must succeed, all of it."""
        return b"".join(self.pieces(*command, given=given))

    def pieces(self, *command: str, given: Iterable[bytes] = ()) -> Iterator[bytes]:
        with tempfile.TemporaryFile() as wrong, self.start(*command, given=given, wrong=wrong) as git:
            assert git.stdout is not None  # noqa: S101
            try:
                while piece := git.stdout.read(_PIECE):
                    yield piece
            finally:
                git.stdout.close()
            if code := git.wait():
                raise self.failed(wrong, code)

    def names(self, *command: str) -> Iterator[bytes]:
        """What ends in NUL, piece by piece; the same one twice in a row is told once."""
        held, last = b"", None
        for piece in self.pieces(*command):
            *names, held = (held + piece).split(b"\0")
            for name in names:
                if name != last:
                    yield name
                last = name

    def start(self, *command: str, given: Iterable[bytes] = (), wrong: IO[bytes]) -> subprocess.Popen[bytes]:
        """`given` is its whole stdin; what it says of failures goes to the file `wrong`."""
        with tempfile.TemporaryFile() as stdin:
            stdin.writelines(given)
            stdin.seek(0)
            try:
                return subprocess.Popen(
                    ["git", *HARMLESS, *self._words, *command],
                    stdin=stdin, stdout=subprocess.PIPE, stderr=wrong, env=environment(**self._env),
                    pass_fds=self._pass_fds,
                )  # fmt: skip
            except FileNotFoundError as error:
                raise NoGit(self._what, self._hint) from error

    def failed(self, wrong: IO[bytes], code: int) -> GitFailed:
        wrong.seek(0)
        return GitFailed(self._what, wrong.read(_QUOTED), code)
