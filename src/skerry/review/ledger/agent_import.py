"""Import the agent's own commits, branches and tags from a pack that the sandbox sends.

Every byte of it is hostile. `git index-pack --strict` reads it in a quarantine with limits on time, memory and size,
and its objects must be connected before a ref of the ledger names one of them. Rejected refs and packs are reported and
leave the ledger unchanged.
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
from skerry.review.ledger import packs
from skerry.review.ledger.git import LedgerGit, LedgerGitError
from skerry.review.ledger.objects import ObjectReader
from skerry.review.ledger.ref_names import check_refs
from skerry.types import readable_size
from skerry.types.review import OBJECT_ID

AGENT: Final = "refs/agent/"
MAX_PACK: Final = 1 << 30
MAX_UNPACKED: Final = 4 << 30
MAX_OBJECTS: Final = 1_000_000
MAX_SHALLOW: Final = 10_000
_SECONDS: Final = 120
_MEMORY: Final = 1 << 30
_PIECE: Final = 1 << 20
_EMPTY_PACK_SIZE: Final = 32  # bytes of a pack without objects


@dataclass(frozen=True)
class AgentImport:
    """`refs`: all agent refs that the ledger now has, by their names in the sandbox (`refs/heads/x`). `refused`:
    rejected names with the reason. `failed`: the reason that the pack was rejected; nothing changed then."""

    refs: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    failed: str | None = None


@dataclass(frozen=True)
class ImportLimits:
    pack: int = MAX_PACK
    unpacked: int = MAX_UNPACKED
    objects: int = MAX_OBJECTS
    seconds: int = _SECONDS
    memory: int = _MEMORY


class _PackRejected(Exception):
    """The pack is rejected as a whole."""


def import_pack(
    repo: Path, pack: Iterable[bytes], refs: Mapping[str, str], shallow: Iterable[str], limits: ImportLimits,
    locked: Callable[[], AbstractContextManager[int]],
) -> AgentImport:  # fmt: skip
    """Import a pack. `refs` are all refs of the agent; a ref that is not named is deleted. The ledger is locked only
    for the last step, because the agent controls how long the others take."""
    names, bad = check_refs(refs)
    said = {commit for commit in islice(shallow, MAX_SHALLOW) if OBJECT_ID.fullmatch(commit)}
    edges = shallow_commits(repo) | (
        said - ObjectReader(LedgerGit(repo)).kinds(said).keys()
    )  # the agent cannot cut the ledger's own history
    with packs.scratch(repo) as staging:
        staging.shallow(edges)
        try:
            if _receive(pack, staging.arriving, limits):
                _index(staging, limits)
            good = _valid_refs(staging.git, {name: refs[name] for name in names}, bad)
            edges &= ObjectReader(staging.git).kinds(edges).keys()
        except _PackRejected as reason:
            return AgentImport(refs=agent_refs(repo), refused=bad, failed=str(reason))
        with locked():
            if not edges <= (known := shallow_commits(repo)):
                packs.replace(repo / "shallow", "".join(f"{commit}\n" for commit in sorted(edges | known)))
            if ObjectReader(LedgerGit(repo)).kinds(set(good.values())).keys() != set(good.values()):
                staging.keep()  # otherwise the pack holds nothing new that is named: rejected objects do not accumulate
            _write_refs(repo, good)
    return AgentImport(refs=good, refused=bad)


def agent_refs(repo: Path) -> dict[str, str]:
    """Return the agent's refs by their names in the sandbox."""
    found = {}
    top = repo / AGENT
    for path in sorted(top.rglob("*")) if top.is_dir() else ():
        if path.is_file() and not path.name.endswith(".lock"):
            found[f"refs/{path.relative_to(top)}"] = path.read_text().strip()
    return found


def shallow_commits(repo: Path) -> set[str]:
    try:
        return set((repo / "shallow").read_text().split())
    except FileNotFoundError:
        return set()


def stream_pack(git: LedgerGit, reader: ObjectReader, wants: Iterable[str], haves: Iterable[str]) -> Iterator[bytes]:
    """Stream a pack of all objects that are reachable from `wants` and not from the known ones among `haves`."""
    asked, there = list(wants), list(haves)
    for oid in (*asked, *there):
        if not OBJECT_ID.fullmatch(oid):
            raise InvalidRequest(f"{oid[:80]!r} is not an object ID")
    kinds = reader.kinds({*asked, *there})
    for oid in asked:
        if oid not in kinds:
            raise InvalidRequest(f"the ledger has no object {oid}")
    lines = [*asked, "--not", *(oid for oid in there if kinds.get(oid) in ("commit", "tag"))]
    return git.stream(
        "pack-objects", "--revs", "--stdout", "-q", "--thin", "--delta-base-offset", "--window=0",
        stdin="".join(f"{line}\n" for line in lines).encode(), seconds=600,
    )  # fmt: skip


def _receive(pack: Iterable[bytes], path: Path, limits: ImportLimits) -> bool:
    """Write the pack to a file as it arrives. Return False if it is empty."""
    size, head = 0, b""
    with open(path, "xb") as file:
        for piece in pack:
            size += len(piece)
            if size > limits.pack:
                raise _PackRejected(f"the agent's repository is larger than {readable_size(limits.pack)}")
            if len(head) < 12:
                head = (head + piece)[:12]
            file.write(piece)
    if size == 0:
        return False
    if len(head) < 12 or not head.startswith(b"PACK"):
        raise _PackRejected("the data is not a git pack")
    _, version, count = struct.unpack(">4sII", head)
    if version not in (2, 3) or count > limits.objects:
        raise _PackRejected(f"the pack declares version {version} and {count} objects; at most {limits.objects}")
    return bool(count) or size > _EMPTY_PACK_SIZE


def _index(staging: packs.Scratch, limits: ImportLimits) -> None:
    """Let git write the pack again, so that only the objects come from the agent. `--strict`: no tree with `.git`, `..`
    or a duplicate name, no object with a missing reference."""
    with open(staging.arriving, "rb") as file:
        arguments = (
            "index-pack",
            "--stdin",
            "--fix-thin",
            "--strict",
            "--threads=1",
            f"--max-input-size={limits.pack}",
        )
        try:
            with staging.git.started(
                *arguments, stdin=file.fileno(), seconds=limits.seconds, memory=limits.memory
            ) as git:
                git.bound(file=2 * limits.pack, cpu=limits.seconds)
                git.stdout.read(1000)
                git.finish()
        except LedgerGitError as failed:
            if failed.full:
                raise
            raise _PackRejected(f"git rejects the agent's pack: {failed.message}") from None
    total = 0
    for _, _, size in _objects(staging):
        total += size
        if total > limits.unpacked:
            raise _PackRejected(f"unpacked, the agent's repository is larger than {readable_size(limits.unpacked)}")


def _objects(staging: packs.Scratch) -> Iterator[tuple[str, str, int]]:
    for index in staging.indexes():
        with open(index, "rb") as file:
            listed = staging.git.run("show-index", stdin=file.fileno())
        yield from ObjectReader(staging.git).checked(line.split()[1] for line in listed.decode().splitlines())


def _valid_refs(git: LedgerGit, refs: dict[str, str], bad: dict[str, str]) -> dict[str, str]:
    """Return the refs that name a commit. Everything reachable from it exists, because every pack was checked
    strictly."""
    asked = sorted({oid for oid in refs.values() if OBJECT_ID.fullmatch(oid)})
    reader = ObjectReader(git)
    kinds, peeled = reader.kinds(asked), reader.peeled(asked)
    good = {}
    for name, oid in refs.items():
        if kinds.get(oid) == "commit" or (oid in peeled and name.startswith("refs/tags/")):
            good[name] = oid
        else:
            bad[name] = "it names no commit" if oid in kinds else "its object is missing"
    return good


def _write_refs(repo: Path, refs: dict[str, str]) -> None:
    """Delete first: a new branch may have the name of a deleted branch's directory."""
    before = agent_refs(repo)
    for name in before.keys() - refs.keys():
        path = repo / AGENT / name.removeprefix("refs/")
        path.unlink(missing_ok=True)
        with suppress(OSError):
            for above in path.parents:
                if above == repo / AGENT:
                    break
                os.rmdir(above)
    for name, oid in refs.items() - before.items():
        path = repo / AGENT / name.removeprefix("refs/")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        packs.replace(path, f"{oid}\n")
