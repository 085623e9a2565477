"""Read objects of a ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from skerry.errors import NotFound
from skerry.review.ledger.git import GitProcess, LedgerGit

_MAX_CACHED: Final = 50_000
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Cache(Generic[_Key, _Value]):
    """A cache of values that never change, because their keys contain hashes. Emptied when it grows large."""

    def __init__(self) -> None:
        self._values: dict[_Key, _Value] = {}

    def of(self, keys: Iterable[_Key]) -> tuple[dict[_Key, _Value], list[_Key]]:
        """Return the cached values and the missing keys."""
        values, asked = self._values, set(keys)
        known = {key: values[key] for key in asked if key in values}
        return known, [key for key in asked if key not in known]

    def add(self, found: dict[_Key, _Value]) -> None:
        if len(self._values) > _MAX_CACHED:
            self._values = {}  # a concurrent reader keeps the old dictionary
        self._values.update(found)


class TreeReader:
    """Reads old trees one by one."""

    def __init__(self, git: GitProcess) -> None:
        self._git = git

    def __call__(self, oid: bytes) -> bytes:
        return self._object(oid.hex(), b"tree")

    def tree_of(self, commit: str) -> bytes:
        first, _, _ = self._object(commit, b"commit").partition(b"\n")
        return bytes.fromhex(first.decode().removeprefix("tree "))

    def _object(self, oid: str, kind: bytes) -> bytes:
        self._git.stdin.write(f"{oid}\n".encode())
        self._git.stdin.flush()
        return _answer(self._git, oid, kind)


class ObjectReader:
    def __init__(self, git: LedgerGit) -> None:
        self._git = git
        self._sizes: Cache[str, int] = Cache()

    @contextmanager
    def trees(self) -> Iterator[TreeReader]:
        with self._git.started("cat-file", "--batch", seconds=3600) as git:
            yield TreeReader(git)

    def sizes(self, oids: Iterable[str]) -> dict[str, int]:
        known, asked = self._sizes.of(oids)
        new = {oid: size for oid, _, size in self.checked(asked)}
        self._sizes.add(new)
        return known | new

    def know(self, sizes: dict[str, int]) -> None:
        """Record the sizes of contents that were just written, which the next diff will need."""
        if len(sizes) <= _MAX_CACHED // 10:
            self._sizes.add(sizes)

    def kinds(self, oids: Iterable[str]) -> dict[str, str]:
        return {oid: kind for oid, kind, _ in self.checked(oids)}

    def checked(self, oids: Iterable[str]) -> Iterator[tuple[str, str, int]]:
        asked = "".join(f"{oid}\n" for oid in oids).encode()
        if not asked:
            return
        for line in self._git.run("cat-file", "--batch-check", "--buffer", stdin=asked).decode().splitlines():
            words = line.split(" ")
            if len(words) == 3:
                yield words[0], words[1], int(words[2])

    def peeled(self, oids: Sequence[str]) -> set[str]:
        """Return those that are a commit, or a tag of one."""
        asked = "".join(f"{oid}^{{commit}}\n" for oid in oids).encode()
        kinds = self._git.run("cat-file", "--batch-check=%(objecttype)", "--buffer", stdin=asked).splitlines()
        return {oid for oid, kind in zip(oids, kinds, strict=True) if kind == b"commit"}

    def blob(self, oid: str) -> Iterator[bytes]:
        if self.kinds([oid]).get(oid) != "blob":
            raise NotFound(f"the ledger has no blob {oid}")
        return self._git.stream("cat-file", "blob", oid)

    def blobs(self, oids: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        if oids:
            asked = "".join(f"{oid}\n" for oid in oids).encode()
            with self._git.started("cat-file", "--batch", "--buffer", stdin=asked, seconds=3600) as git:
                for oid in oids:
                    yield oid, _answer(git, oid, b"blob")

    def entry_of(self, commit: str, path: bytes) -> tuple[str, str] | None:
        for found, mode, oid in self._listed(commit, "--", path):
            if found == path and mode != "040000":
                return mode, oid
        return None

    def files(self, commit: str) -> Iterator[tuple[bytes, str, str]]:
        return self._listed("-r", commit)

    def _listed(self, *arguments: str | bytes) -> Iterator[tuple[bytes, str, str]]:
        rest = b""
        for piece in self._git.stream("ls-tree", "-z", *arguments):
            *whole, rest = (rest + piece).split(b"\0")
            for record in whole:
                head, _, path = record.partition(b"\t")
                mode, _, oid = head.decode().split(" ")
                yield path, mode, oid


def _answer(git: GitProcess, oid: str, kind: bytes) -> bytes:
    line = git.stdout.readline()
    if not line:
        git.finish()
    head = line.split()
    if len(head) != 3 or head[1] != kind:
        raise NotFound(f"the ledger has no {kind.decode()} {oid}")
    size = int(head[2])
    data = git.stdout.read(size + 1)
    if len(data) != size + 1:
        git.finish()
        raise NotFound(f"the ledger's {kind.decode()} {oid} is truncated")
    return data[:-1]
