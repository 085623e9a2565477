"""Real repositories, and their copies in a sandbox."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

from skerry.client.repository.archive import RepositoryCopy
from skerry.client.repository.locate import find_repository
from skerry.types import BeginReview, TransferResult

NOTHING = TransferResult(files=0, directories=0, links=0, bytes=0)
IDENTITY = (
    "-c", "user.name=t", "-c", "user.email=t@t", "-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main",
    "-c", "advice.detachedHead=false",
)  # fmt: skip


def git(directory: Path, *words: str, code: int = 0, home: Path | None = None) -> str:
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", **({"HOME": str(home)} if home else {})}  # looking changes nothing
    done = subprocess.run(["git", *IDENTITY, "-C", directory, *words], capture_output=True, check=False, env=env)
    assert done.returncode == code, done.stderr.decode(errors="replace")
    return os.fsdecode(done.stdout)


def fill(directory: Path, **contents: str) -> None:
    for name, content in contents.items():
        (directory / name).write_text(content)


def commit(directory: Path, message: str = "x") -> None:
    git(directory, "add", "-A")
    git(directory, "commit", "-qm", message)


def begun(directory: Path, *words: str) -> Path:
    """A repository with two commits, a tag and a branch."""
    directory.mkdir(parents=True, exist_ok=True)
    git(directory, "init", "-q", *words)
    for number in ("one", "two"):
        fill(directory, **{"a": f"{number}\n", f"{number}.txt": number})
        commit(directory, number)
    git(directory, "tag", "-am", "first", "v1", "HEAD~1")
    git(directory, "branch", "side", "HEAD~1")
    return directory


def copied(source: Path, target: Path, **how: bool) -> tuple[BeginReview, dict[str, str]]:
    """Return the copy, without a sandbox in between; the source must stay unchanged."""
    target.mkdir()
    place = find_repository(source)
    before = dict(fingerprint(Path(place.top)))
    copy = RepositoryCopy(place, **how)
    with subprocess.Popen(["tar", "-x", "-C", target], stdin=subprocess.PIPE) as tar:
        assert tar.stdin is not None
        for piece in copy:
            tar.stdin.write(piece)
    assert tar.returncode == 0
    assert dict(fingerprint(Path(place.top))) == before
    skipped = {one.path: one.reason for one in copy.with_skipped(NOTHING).skipped}
    return copy.review("/workspace"), skipped


def fingerprint(directory: Path) -> Iterator[tuple[str, object]]:
    """All of a tree, its git directory too. The time of a directory shows that a file was created and removed."""
    yield str(directory), os.lstat(directory).st_mtime_ns
    for above, directories, names in os.walk(directory):
        for name in (*directories, *names):
            path = os.path.join(above, name)
            found = os.lstat(path)
            content: object = found.st_mode
            if stat.S_ISDIR(found.st_mode):
                content = (found.st_mode, found.st_mtime_ns)
            elif stat.S_ISLNK(found.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(found.st_mode):
                when = 0 if name.startswith("sharedindex.") else found.st_mtime_ns  # git touches it when it reads it
                with open(path, "rb") as file:
                    content = (found.st_mode, when, hashlib.file_digest(file, "sha1").hexdigest())
            yield path, content


def told(directory: Path, home: Path | None = None) -> dict[str, str]:
    """All that git says of a repository."""
    asked = {
        "status": ("status", "--porcelain=v2", "--branch", "--untracked-files=all", "--ignore-submodules=none"),
        "log": ("log", "--exclude=refs/stash", "--all", "--oneline", "--decorate=full"),
        "branches": ("for-each-ref", "refs/heads", "refs/tags", "--format=%(refname) %(objectname) %(upstream)"),
        "index": ("ls-files", "--stage", "--debug", "-t"),
        "flags": ("ls-files", "-v"),
    }
    said = {name: git(directory, *words, home=home) for name, words in asked.items()}
    said["index"] = "".join(line for line in said["index"].splitlines(True) if not line.startswith("  "))
    return said


def same(source: Path, target: Path, *, home: Path) -> None:
    """`home`: an empty one, as the sandbox's."""
    assert told(target, home) == told(source)
    git(target, "fsck", "--strict", "--no-dangling", home=home)
