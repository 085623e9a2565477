"""Ledgers as git remotes: each sandbox's history, and the commits that the agent made.

Git packs the agent's commits inside, with the settings of that repository, and the server imports the pack as hostile
bytes (review/ledger/agent_import.py). No sandbox is started for it: for one that does not run, the last import is
shown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import IO
from weakref import WeakValueDictionary

from skerry.engine.concurrency import stream_from_thread
from skerry.engine.review.service import ReviewService
from skerry.engine.review.workspace import ReviewedWorkspace
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.sandboxes.spec import new_id
from skerry.errors import InvalidRequest, SandboxUnavailable, SkerryError
from skerry.keeper import Keeper, ProcessSpec, ProcessStream
from skerry.review.ledger.agent_import import MAX_PACK, AgentImport, ImportLimits
from skerry.types import OBJECT_ID, Caller, PackRequest, ReviewRefs, readable_size

log = logging.getLogger("skerry.engine")
AT_ONCE = 4
SECONDS = 60.0
MAX_SAID = 16 << 20
SHOWN = "git (skerry brings out what was committed here)"
_PIECE = 1 << 20
_REFS = ("for-each-ref", "--format=%(objectname) %(*objectname) %(refname)", "refs/heads", "refs/tags")


class _GitFailed(SkerryError):
    """git inside did not do it."""


class GitRemoteService:
    """`engine.remotes`."""

    def __init__(self, reviews: ReviewService) -> None:
        self._reviews = reviews
        self._agents: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by sandbox, while in use

    async def list(self, caller: Caller, origin: str | None) -> list[ReviewRefs]:
        """List the caller's sandboxes that have a review, of one origin if it is given. Each request has a separate
        bound on parallel work: the sandbox decides how long its part takes."""
        turns = asyncio.Semaphore(AT_ONCE)
        found = [one for one in self._reviews.of(caller) if origin is None or one.state.origin == origin]
        return list(
            await asyncio.gather(*(self._refs(workspace, turns) for workspace in found if workspace.has_ledger))
        )

    async def pack(self, caller: Caller, ref: str, request: PackRequest) -> AsyncGenerator[bytes, None]:
        """Return a pack. Only commits that a ref names can be requested."""
        workspace = self._reviews.get(caller, ref)
        named = await self._reviews.threads.in_thread(_named_objects, workspace)
        if stray := set(request.wants) - named:
            raise InvalidRequest(f"{sorted(stray)[0]} is no ref of {workspace.sandbox_id}", hint="list its refs again")
        pieces = await self._reviews.threads.read(workspace, workspace.ledger.pack, request.wants, request.haves)
        return stream_from_thread(partial(self._reviews.threads.read, workspace), _passed_on(pieces))

    async def _refs(self, workspace: ReviewedWorkspace, turns: asyncio.Semaphore) -> ReviewRefs:
        async with turns:
            with contextlib.suppress(TimeoutError):  # its ledger is there all the same
                async with asyncio.timeout(SECONDS):
                    await self._reviews.settle(workspace)
            taken = await self._import_commits(workspace)
            refused = dict(taken.refused) | ({"": taken.failed} if taken.failed else {})
            record = workspace.sandbox.record
            agent = {name.removeprefix("refs/"): oid for name, oid in taken.refs.items()}
            return ReviewRefs(
                sandbox=record.id, name=record.name, origin=workspace.state.origin, tip=workspace.ledger.tip,
                agent=agent, refused=refused,
            )  # fmt: skip

    async def _import_commits(self, workspace: ReviewedWorkspace) -> AgentImport:
        """Import the agent's commits. A failure is reported, and does not hide the ledger."""
        sandbox, keeper = workspace.sandbox, workspace.sandbox.keeper
        known = await self._reviews.threads.in_thread(workspace.ledger.agent_refs)
        if sandbox.record.state != "running" or keeper is None:
            return AgentImport(refs=known)
        with sandbox.in_use():
            async with self._agents.setdefault(workspace.sandbox_id, asyncio.Lock()):
                try:
                    await sandbox.thawed.wait()
                    async with asyncio.timeout(SECONDS):
                        return await _AgentRepository(self._reviews, sandbox, keeper, workspace).import_commits(known)
                except (SkerryError, TimeoutError, OSError) as error:
                    said = error.message if isinstance(error, SkerryError) else str(error) or "it took too long"
                    log.info(
                        "failed to import the agent's commits", extra={"sandbox": workspace.sandbox_id, "error": said}
                    )
                    return AgentImport(refs=known, failed=said)


class _AgentRepository:
    def __init__(self, reviews: ReviewService, sandbox: Sandbox, keeper: Keeper, workspace: ReviewedWorkspace) -> None:
        self._reviews, self._sandbox, self._keeper, self._workspace = reviews, sandbox, keeper, workspace

    async def import_commits(self, known: dict[str, str]) -> AgentImport:
        state = self._workspace.state
        listed = _parse_refs(await self._output_of(_REFS))
        theirs = {name: oid for name, (oid, commit) in listed.items() if commit not in state.known}
        if theirs == known:
            return AgentImport(refs=known)
        mine = [oid for oid in {*state.known, *([state.head] if state.head else ())} if OBJECT_ID.fullmatch(oid)]
        walk = ("rev-list", "--boundary", "--ignore-missing", "--stdin")
        lines = (await self._output_of(walk, _lines(theirs.values(), mine))).split()
        edges = sorted({line[1:].decode() for line in lines if line.startswith(b"-")})
        fresh = {line.decode() for line in lines if not line.startswith(b"-")}
        theirs = {name: oid for name, oid in theirs.items() if listed[name][1] in fresh}
        if theirs == known:
            return AgentImport(refs=known)
        return await self._import_pack(theirs, known, edges)

    async def _import_pack(self, theirs: dict[str, str], known: dict[str, str], edges: Sequence[str]) -> AgentImport:
        ledger = self._workspace.ledger
        room = await self._reviews.tools.room(self._workspace)
        most = max(0, min(MAX_PACK, room.bytes))
        with tempfile.TemporaryFile(dir=self._workspace.place) as file:
            if theirs:
                shallow = [f"--shallow {edge}" for edge in edges]
                wants = _lines(theirs.values(), known.values())
                given = "".join(f"{line}\n" for line in shallow).encode() + wants
                command = ("pack-objects", "--revs", "--stdout", "--shallow", "--quiet", "--delta-base-offset")
                size = 0
                async for piece in self._run(command, given):
                    size += len(piece)
                    if size > most:
                        why = f": {room.message}" if most < MAX_PACK else ""
                        raise _GitFailed(f"the agent's commits are larger than {readable_size(most)}{why}")
                    await self._reviews.threads.in_thread(file.write, piece)
                file.seek(0)
            limits = ImportLimits(pack=most)
            return await self._reviews.threads.read(
                self._workspace, ledger.import_agent, _pieces(file), theirs, shallow=edges, limits=limits
            )

    async def _output_of(self, words: Sequence[str], given: bytes | None = None) -> bytes:
        said = bytearray()
        async for piece in self._run(words, given):
            said += piece
            if len(said) > MAX_SAID:
                raise _GitFailed(f"git {words[0]} inside prints more than {MAX_SAID} bytes")
        return bytes(said)

    async def _run(self, words: Sequence[str], given: bytes | None = None) -> AsyncGenerator[bytes, None]:
        """Run a command of the server in the sandbox, as its user. Its output is as hostile as everything from
        there."""
        process = new_id("p-")
        spec = ProcessSpec(
            id=process, argv=["git", *words], cwd=self._workspace.path, stdin="none" if given is None else "pipe",
            env={"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}, timeout_s=SECONDS, show=SHOWN, journal=1 << 16,
        )  # fmt: skip
        stream = await self._keeper.start(spec)
        feeding = asyncio.ensure_future(_feed(stream, given)) if given is not None else None
        error = bytearray()
        try:
            async for name, data in stream:
                if name == "stdout":
                    yield data
                elif len(error) < 2000:
                    error += data
            if stream.exit.exit_code != 0:
                text = error[:2000].decode("utf-8", "replace").strip()
                raise _GitFailed(f"git {words[0]} inside: {text or 'it failed, and said nothing'}")
        finally:
            if feeding is not None:
                feeding.cancel()
                await asyncio.wait((feeding,))
            with contextlib.suppress(SkerryError, OSError):
                await stream.aclose()
            with contextlib.suppress(SkerryError, OSError):
                await self._keeper.remove(process)


async def _feed(stream: ProcessStream, data: bytes) -> None:
    with contextlib.suppress(SandboxUnavailable, OSError):
        for start in range(0, len(data), 1 << 18):
            await stream.send_stdin(data[start : start + (1 << 18)])
        await stream.close_stdin()


def _parse_refs(said: bytes) -> dict[str, tuple[str, str]]:
    """Return by name: the object of the ref, and the commit behind it."""
    found = {}
    for line in said.decode("utf-8", "replace").splitlines():
        oid, peeled, name = [*line.split(" ", 2), "", ""][:3]
        if OBJECT_ID.fullmatch(oid) and name.startswith(("refs/heads/", "refs/tags/")):
            found[name] = (oid, peeled if OBJECT_ID.fullmatch(peeled) else oid)
    return found


def _lines(wants: Iterable[str], nots: Iterable[str]) -> bytes:
    text = "".join(f"{oid}\n" for oid in wants)
    text += "".join(f"^{oid}\n" for oid in nots)
    return text.encode()


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(_PIECE):
        yield piece


def _passed_on(pieces: Iterator[bytes]) -> Generator[bytes, None, None]:
    yield from pieces


def _named_objects(workspace: ReviewedWorkspace) -> set[str]:
    return {workspace.ledger.tip, *workspace.ledger.agent_refs().values()}
