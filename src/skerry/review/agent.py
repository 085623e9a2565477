"""The agent's own commits, branches and tags: a pack from inside, taken in beside the ledger.

Every byte of it is hostile. It is read in a quarantine, by `git index-pack --strict` with bounds on time, memory and
size; what it holds must hang together before a ref of ours names any of it. What is refused is told, and costs the
ledger nothing.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from skerry.errors import InvalidRequest
from skerry.review import packs
from skerry.review.git import Git, GitFailed
from skerry.review.names import judged
from skerry.review.reading import Reader
from skerry.types.review import OBJECT_ID

AGENT: Final = "refs/agent/"
PACK_MOST: Final = 1 << 30
UNPACKED_MOST: Final = 4 << 30
OBJECTS_MOST: Final = 1_000_000
EDGES_MOST: Final = 10_000
_SECONDS: Final = 120
_MEMORY: Final = 1 << 30
_PIECE: Final = 1 << 20
_EMPTY: Final = 32  # bytes of a pack without objects


@dataclass(frozen=True)
class Taken:
    """`refs`: all that the ledger has of the agent's now, by their names inside (`refs/heads/x`). `refused`: names that
    did not come, and why. `failed`: why the pack was refused, if it was: then nothing changed."""

    refs: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    failed: str | None = None


@dataclass(frozen=True)
class Bounds:
    pack: int = PACK_MOST
    unpacked: int = UNPACKED_MOST
    objects: int = OBJECTS_MOST
    seconds: int = _SECONDS
    memory: int = _MEMORY


class _Refused(Exception):
    """Of the pack as a whole."""


def taken(
    place: Path, pack: Iterable[bytes], refs: Mapping[str, str], shallow: Iterable[str], bounds: Bounds,
    locked: Callable[[], AbstractContextManager[int]],
) -> Taken:  # fmt: skip
    """`refs` are all of the agent's: one that is not named is gone. The ledger is locked for the last step alone: the
    agent decides how long the others take."""
    names, bad = judged(refs)
    said = {commit for commit in islice(shallow, EDGES_MOST) if OBJECT_ID.fullmatch(commit)}
    edges = known_edges(place) | (said - Reader(Git(place)).kinds(said).keys())  # no history of ours is cut
    with packs.scratch(place) as aside:
        aside.shallow(edges)
        try:
            if _received(pack, aside.arriving, bounds):
                _indexed(aside, bounds)
            good = _named(aside.git, {name: refs[name] for name in names}, bad)
            edges &= Reader(aside.git).kinds(edges).keys()
        except _Refused as reason:
            return Taken(refs=of(place), refused=bad, failed=str(reason))
        with locked():
            if not edges <= (known := known_edges(place)):
                packs.replace(place / "shallow", "".join(f"{commit}\n" for commit in sorted(edges | known)))
            if Reader(Git(place)).kinds(set(good.values())).keys() != set(good.values()):
                aside.keep()  # else it holds nothing that is named and new: what was refused does not pile up
            _set(place, good)
    return Taken(refs=good, refused=bad)


def of(place: Path) -> dict[str, str]:
    """By their names inside."""
    found = {}
    top = place / AGENT
    for path in sorted(top.rglob("*")) if top.is_dir() else ():
        if path.is_file() and not path.name.endswith(".lock"):
            found[f"refs/{path.relative_to(top)}"] = path.read_text().strip()
    return found


def known_edges(place: Path) -> set[str]:
    try:
        return set((place / "shallow").read_text().split())
    except FileNotFoundError:
        return set()


def packed(git: Git, reader: Reader, wants: Iterable[str], haves: Iterable[str]) -> Iterator[bytes]:
    """A pack of all that is reachable from `wants` and not from those of `haves` that are here."""
    asked, there = list(wants), list(haves)
    for oid in (*asked, *there):
        if not OBJECT_ID.fullmatch(oid):
            raise InvalidRequest(f"{oid[:80]!r} is no object of a ledger")
    kinds = reader.kinds({*asked, *there})
    for oid in asked:
        if oid not in kinds:
            raise InvalidRequest(f"the ledger has no object {oid}")
    lines = [*asked, "--not", *(oid for oid in there if kinds.get(oid) in ("commit", "tag"))]
    return git.stream(
        "pack-objects", "--revs", "--stdout", "-q", "--thin", "--delta-base-offset", "--window=0",
        stdin="".join(f"{line}\n" for line in lines).encode(), seconds=600,
    )  # fmt: skip


def _received(pack: Iterable[bytes], path: Path, bounds: Bounds) -> bool:
    """To a file, as it comes. False: there is nothing in it."""
    size, head = 0, b""
    with open(path, "xb") as file:
        for piece in pack:
            size += len(piece)
            if size > bounds.pack:
                raise _Refused(f"the agent's repository is larger than {bounds.pack} bytes")
            if len(head) < 12:
                head = (head + piece)[:12]
            file.write(piece)
    if size == 0:
        return False
    if len(head) < 12 or not head.startswith(b"PACK"):
        raise _Refused("what came is not a pack of git")
    _, version, count = struct.unpack(">4sII", head)
    if version not in (2, 3) or count > bounds.objects:
        raise _Refused(f"the pack says version {version} and {count} objects; at most {bounds.objects}")
    return bool(count) or size > _EMPTY


def _indexed(aside: packs.Scratch, bounds: Bounds) -> None:
    """Written anew by git, in which nothing but the objects is the agent's. `--strict`: no tree with `.git`, `..` or a
    name twice, no object that leads nowhere."""
    with open(aside.arriving, "rb") as file:
        arguments = (
            "index-pack",
            "--stdin",
            "--fix-thin",
            "--strict",
            "--threads=1",
            f"--max-input-size={bounds.pack}",
        )
        try:
            with aside.git.started(
                *arguments, stdin=file.fileno(), seconds=bounds.seconds, memory=bounds.memory
            ) as git:
                git.bound(file=2 * bounds.pack, cpu=bounds.seconds)
                git.stdout.read(1000)
                git.finish()
        except GitFailed as failed:
            if failed.full:
                raise
            raise _Refused(f"git refuses the agent's pack: {failed.message}") from None
    total = 0
    for _, _, size in _objects(aside):
        total += size
        if total > bounds.unpacked:
            raise _Refused(f"unpacked, the agent's repository is larger than {bounds.unpacked} bytes")


def _objects(aside: packs.Scratch) -> Iterator[tuple[str, str, int]]:
    for index in aside.indexes():
        with open(index, "rb") as file:
            listed = aside.git.run("show-index", stdin=file.fileno())
        yield from Reader(aside.git).checked(line.split()[1] for line in listed.decode().splitlines())


def _named(git: Git, refs: dict[str, str], bad: dict[str, str]) -> dict[str, str]:
    """Those that name a commit. All that it leads to is there: every pack was strictly checked for that."""
    asked = sorted({oid for oid in refs.values() if OBJECT_ID.fullmatch(oid)})
    reader = Reader(git)
    kinds, peeled = reader.kinds(asked), reader.peeled(asked)
    good = {}
    for name, oid in refs.items():
        if kinds.get(oid) == "commit" or (oid in peeled and name.startswith("refs/tags/")):
            good[name] = oid
        else:
            bad[name] = "it names no commit" if oid in kinds else "what it names did not come"
    return good


def _set(place: Path, refs: dict[str, str]) -> None:
    """What is gone first: a branch may be what a directory of another was."""
    before = of(place)
    for name in before.keys() - refs.keys():
        path = place / AGENT / name.removeprefix("refs/")
        path.unlink(missing_ok=True)
        with suppress(OSError):
            for above in path.parents:
                if above == place / AGENT:
                    break
                os.rmdir(above)
    for name, oid in refs.items() - before.items():
        path = place / AGENT / name.removeprefix("refs/")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        packs.replace(path, f"{oid}\n")
