"""`git-remote-skerry`: serve the ledgers of this repository's sandboxes to `git fetch` as a git remote.

git starts this program for a URL like `skerry::local` and uses the gitremote-helpers protocol on stdin and stdout: the
program lists refs and adds their objects to the repository. A sandbox's ledger is `refs/heads/NAME`; the agent's own
commits are `refs/agents/NAME/heads/…`. Pushing is not supported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from skerry.cli import output, signals
from skerry.client.repository.origin import origin_of
from skerry.client.repository.remote import LOCAL
from skerry.errors import InvalidRequest, SkerryError
from skerry.types import OBJECT_ID

if TYPE_CHECKING:
    from skerry.client._sync.client import Client
    from skerry.types import ReviewRefs

MAX_PACK = 8 << 30
MAX_HAVES = 1000
_NO_PUSH = "pushing to a sandbox is not supported: use `skerry cp` to copy files, or `skerry create --repo`"


def main() -> None:
    signals.interrupts_work()
    if len(sys.argv) < 2 or "GIT_DIR" not in os.environ:
        output.info("error: this program is started by git, for a remote like skerry::local\nhint: git fetch skerry")
        sys.exit(output.EXIT_INVALID)
    try:
        _serve(sys.argv[2] if len(sys.argv) > 2 else LOCAL)
    except SkerryError as error:
        output.error(error)
        sys.exit(output.error_exit_code(error))
    except KeyboardInterrupt:
        sys.exit(output.EXIT_INTERRUPTED)


def _serve(address: str) -> None:
    from skerry.client._sync.client import Client

    with Client(None if address in ("", LOCAL) else address) as client:
        RemoteHelper(client, sys.stdin.buffer, sys.stdout.buffer).serve()


class RemoteHelper:
    """Serves one connection of git."""

    def __init__(self, client: Client, requests: IO[bytes], answers: IO[bytes]) -> None:
        self._client = client
        self._requests = requests
        self._answers = answers
        self._refs: dict[str, tuple[str, str]] = {}  # by ref name: the object and the sandbox

    def serve(self) -> None:
        while line := self._requests.readline().decode().rstrip("\n"):
            command, _, rest = line.partition(" ")
            if command == "capabilities":
                self._answer("fetch", "push", "option", "")
            elif command == "option":
                self._answer("ok" if rest.startswith(("verbosity ", "progress ")) else "unsupported")
            elif command == "push":
                lines = [rest, *self._more("push ")]
                self._answer(*(f"error {line.rpartition(':')[2]} {_NO_PUSH}" for line in lines), "")
            elif command == "list":
                self._list()
            elif command == "fetch":
                self._fetch([rest, *self._more("fetch ")])
                self._answer("")
            else:
                raise InvalidRequest(f"unsupported command: {command!r}", hint="this remote supports only fetching")

    def _answer(self, *lines: str) -> None:
        self._answers.write("".join(f"{line}\n" for line in lines).encode())
        self._answers.flush()

    def _more(self, start: str) -> Iterator[str]:
        """Yield the rest of a batch, which ends with an empty line."""
        while line := self._requests.readline().decode().rstrip("\n"):
            yield line.removeprefix(start)

    def _list(self) -> None:
        for one in self._client.reviews(origin_of(_top())):
            self._refs |= {name: (oid, one.sandbox) for name, oid in names_of(one).items()}
        self._answer(*(f"{oid} {name}" for name, (oid, _) in sorted(self._refs.items())), "")

    def _fetch(self, wanted: list[str]) -> None:
        wants: dict[str, set[str]] = {}
        for line in wanted:
            oid, _, name = line.partition(" ")
            if not OBJECT_ID.fullmatch(oid) or name not in self._refs:
                raise InvalidRequest(f"git requested {line[:80]!r}, which was not listed")
            wants.setdefault(self._refs[name][1], set()).add(oid)
        haves = _haves()
        for sandbox, oids in wants.items():
            with self._client.review_pack(sandbox, sorted(oids), haves) as pieces:
                _index_pack(pieces)


def names_of(one: ReviewRefs) -> dict[str, str]:
    """Return the ref names of a review. A sandbox with a name that git does not allow in refs is named by its ID."""
    name = one.name if one.name and ".." not in one.name and not one.name.endswith(".lock") else one.sandbox
    return {f"refs/heads/{name}": one.tip, **{f"refs/agents/{name}/{ref}": oid for ref, oid in one.agent.items()}}


def _top() -> str:
    """Return the top directory of the repository. git has set GIT_DIR, so that asking git would return `.`."""
    git_dir = os.path.realpath(os.environ["GIT_DIR"])
    listed = _git("--git-dir", git_dir, "worktree", "list", "--porcelain", "-z").split(b"\0")
    here = os.getcwd()
    tops = [os.fsdecode(line.removeprefix(b"worktree ")) for line in listed if line.startswith(b"worktree ")]
    inside = [top for top in tops if os.path.commonpath((top, here)) == top]
    return max(inside, key=len) if inside else tops[0] if tops else here


def _haves() -> list[str]:
    newest = ("--sort=-committerdate", f"--count={MAX_HAVES}", "--format=%(objectname)")
    return _git("for-each-ref", *newest, "refs/remotes", "refs/skerry", "refs/heads").decode().split()


def _git(*words: str) -> bytes:
    done = subprocess.run(["git", *words], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        raise InvalidRequest(f"git {words[0]}: {done.stderr.decode('utf-8', 'replace').strip()[:1000]}")
    return done.stdout


def _index_pack(pieces: Iterator[bytes]) -> None:
    """Write a pack to the repository and check its objects: an agent's commits are untrusted."""
    command = ["git", "index-pack", "--stdin", "--fix-thin", "--fsck-objects", f"--max-input-size={MAX_PACK}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as git:
        assert git.stdin is not None  # noqa: S101
        try:
            for piece in pieces:
                git.stdin.write(piece)
            git.stdin.close()
        except BrokenPipeError:
            pass  # git has printed the reason
        except BaseException:
            git.kill()
            raise
    if git.returncode:
        raise InvalidRequest("git index-pack failed", hint="see its messages above")
