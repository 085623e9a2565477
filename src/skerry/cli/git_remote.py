"""`git-remote-skerry`: the ledgers of this repository's sandboxes as a plain git remote, which `git fetch` reads.

git starts it for a URL like `skerry::local` and speaks to it on stdin and stdout (gitremote-helpers): it lists refs,
and puts the objects behind them into the repository. A sandbox's ledger is `refs/heads/NAME`, what the agent committed
by itself `refs/agents/NAME/heads/…`. Nothing can be pushed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from skerry.cli import talk
from skerry.client.repository.origin import origin_of
from skerry.client.repository.remote import LOCAL
from skerry.errors import InvalidRequest, SkerryError
from skerry.types import OBJECT_ID

if TYPE_CHECKING:
    from skerry.client._sync.client import Client
    from skerry.types import ReviewRefs

PACK_MOST = 8 << 30
HAVES_MOST = 1000
_NO_PUSH = "nothing can be pushed into a sandbox: `skerry cp` copies files, `skerry create --repo` begins anew"


def main() -> None:
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    if len(sys.argv) < 2 or "GIT_DIR" not in os.environ:
        talk.say("error: git starts this one, for a remote like skerry::local\nhint: git fetch skerry")
        sys.exit(talk.CALLER_ERRED)
    try:
        _serve(sys.argv[2] if len(sys.argv) > 2 else LOCAL)
    except SkerryError as error:
        talk.say_error(error)
        sys.exit(talk.code_of_error(error))
    except KeyboardInterrupt:
        sys.exit(talk.INTERRUPTED)


def _serve(address: str) -> None:
    from skerry.client._sync.client import Client

    with Client(None if address in ("", LOCAL) else address) as client:
        Helper(client, sys.stdin.buffer, sys.stdout.buffer).serve()


class Helper:
    """One conversation with git."""

    def __init__(self, client: Client, asked: IO[bytes], answers: IO[bytes]) -> None:
        self._client = client
        self._asked = asked
        self._answers = answers
        self._refs: dict[str, tuple[str, str]] = {}  # by name: the object, and whose it is

    def serve(self) -> None:
        while line := self._asked.readline().decode().rstrip("\n"):
            command, _, rest = line.partition(" ")
            if command == "capabilities":
                self._say("fetch", "push", "option", "")
            elif command == "option":
                self._say("ok" if rest.startswith(("verbosity ", "progress ")) else "unsupported")
            elif command == "push":
                asked = [rest, *self._more("push ")]
                self._say(*(f"error {line.rpartition(':')[2]} {_NO_PUSH}" for line in asked), "")
            elif command == "list":
                self._list()
            elif command == "fetch":
                self._fetch([rest, *self._more("fetch ")])
                self._say("")
            else:
                raise InvalidRequest(f"git asked for {command!r}", hint="this remote is for fetching")

    def _say(self, *lines: str) -> None:
        self._answers.write("".join(f"{line}\n" for line in lines).encode())
        self._answers.flush()

    def _more(self, start: str) -> Iterator[str]:
        """The rest of a batch, which ends with an empty line."""
        while line := self._asked.readline().decode().rstrip("\n"):
            yield line.removeprefix(start)

    def _list(self) -> None:
        for one in self._client.reviews(origin_of(_top())):
            self._refs |= {name: (oid, one.sandbox) for name, oid in names_of(one).items()}
        self._say(*(f"{oid} {name}" for name, (oid, _) in sorted(self._refs.items())), "")

    def _fetch(self, wanted: list[str]) -> None:
        wants: dict[str, set[str]] = {}
        for line in wanted:
            oid, _, name = line.partition(" ")
            if not OBJECT_ID.fullmatch(oid) or name not in self._refs:
                raise InvalidRequest(f"git asked for {line[:80]!r}, which was not listed")
            wants.setdefault(self._refs[name][1], set()).add(oid)
        haves = _haves()
        for sandbox, oids in wants.items():
            with self._client.review_pack(sandbox, sorted(oids), haves) as pieces:
                _take(pieces)


def names_of(one: ReviewRefs) -> dict[str, str]:
    """What its refs are called here; what git could not call so goes by its id."""
    name = one.name if one.name and ".." not in one.name and not one.name.endswith(".lock") else one.sandbox
    return {f"refs/heads/{name}": one.tip, **{f"refs/agents/{name}/{ref}": oid for ref, oid in one.agent.items()}}


def _top() -> str:
    """The directory that the repository is of. git has set GIT_DIR for us, and would take `.` for the top."""
    git_dir = os.path.realpath(os.environ["GIT_DIR"])
    listed = _git("--git-dir", git_dir, "worktree", "list", "--porcelain", "-z").split(b"\0")
    here = os.getcwd()
    tops = [os.fsdecode(line.removeprefix(b"worktree ")) for line in listed if line.startswith(b"worktree ")]
    inside = [top for top in tops if os.path.commonpath((top, here)) == top]
    return max(inside, key=len) if inside else tops[0] if tops else here


def _haves() -> list[str]:
    newest = ("--sort=-committerdate", f"--count={HAVES_MOST}", "--format=%(objectname)")
    return _git("for-each-ref", *newest, "refs/remotes", "refs/skerry", "refs/heads").decode().split()


def _git(*words: str) -> bytes:
    done = subprocess.run(["git", *words], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        raise InvalidRequest(f"git {words[0]}: {done.stderr.decode('utf-8', 'replace').strip()[:1000]}")
    return done.stdout


def _take(pieces: Iterator[bytes]) -> None:
    """Checked as they come in: what an agent committed is whatever it likes."""
    command = ["git", "index-pack", "--stdin", "--fix-thin", "--fsck-objects", f"--max-input-size={PACK_MOST}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as git:
        assert git.stdin is not None  # noqa: S101
        try:
            for piece in pieces:
                git.stdin.write(piece)
            git.stdin.close()
        except BrokenPipeError:
            pass  # it has said why
        except BaseException:
            git.kill()
            raise
    if git.returncode:
        raise InvalidRequest("git did not take what the sandbox has", hint="what it said stands above")
