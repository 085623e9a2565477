"""`sandbox.review`, landing: accepted hunks in a tree of this host."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from skerry.client import backend_async as backend
from skerry.client import decision_requests as requests
from skerry.client._async.checking import AsyncChecking
from skerry.client.applying.content import Contents, oid_of
from skerry.client.applying.patch import patch
from skerry.client.applying.place import find
from skerry.client.applying.plan import Plan
from skerry.client.applying.record import Record
from skerry.client.applying.wishes import check as check_accepted
from skerry.client.applying.wishes import large_sides, path_of, pointer, sizes_of, wishes
from skerry.client.applying.work import Target, Work, as_applied, planned
from skerry.client.applying.writing import in_words
from skerry.client.description import Words
from skerry.client.outcome import Output
from skerry.client.patience import Rounds
from skerry.client.review_paths import relative
from skerry.errors import (
    CommandFailed,
    Conflict,
    Denied,
    InvalidRequest,
    SandboxUnavailable,
    ServerUnreachable,
    SkerryError,
)
from skerry.types import Accepted, Applied, AppliedRequest, Decided, DecideRequest, Result
from skerry.types.values import is_text

HostPath = str | os.PathLike[str]
Large = dict[str, tuple[str, int]]
TURN_WITHIN = 60.0  # seconds to wait for another apply to the same tree
POINTER_MOST = 1024


class AsyncApplying(AsyncChecking):
    async def apply(
        self,
        to: HostPath = ".",
        *,
        paths: str | Sequence[str] = (),
        check: Words | None = None,
        commit: bool = False,
        branch: str | None = None,
        all: bool = False,  # noqa: A002
        dry_run: bool = False,
        on_output: backend.Callback[Output] | None = None,
        on_notice: Callable[[str], None] | None = None,
    ) -> Applied:
        """Land accepted hunks in the working tree that `to` is in: all of them, or, with `paths`, those of these files
        and directories. `.` has to be in the directory that the sandbox was made of; any other is taken as it is said.
        All or nothing: what stands in the way is told (Conflict) before anything is written, what you
        have changed elsewhere in a file stays. Your index, refs and stashes are not touched.

        `all` first accepts all that is open, but for what is flagged with a risk: `held_back` lists that. `check`: a
        command that must succeed (else CommandFailed) in a fork of the sandbox that has what was accepted, and nothing
        else. `commit`: also committed, by you, with where it came from; `branch`: only committed, on that branch, and
        no working tree is touched. `dry_run`: only tells what would be done. `on_notice` hears what else there is to
        say, `on_output` the check's output."""
        if commit and branch is not None:
            raise InvalidRequest("commit and branch: one or the other")
        if dry_run and (all or check is not None):
            raise InvalidRequest("dry_run: with nothing that is done elsewhere", hint="leave all= and check= out")
        target = Target(commit=commit, branch=branch, name=self._sandbox.name)
        decided = await self._accept_open(relative(paths)) if all else Decided()
        accepted = await self._accepted(paths)
        work = await self._begin(to, accepted.origin, on_notice)
        try:
            if await self._tell_late(work) or work.waited:
                accepted = await self._accepted(paths)
            done = await self._apply(work, accepted, target, check, dry_run, on_output)
        except OSError as error:
            if isinstance(error, SkerryError):
                raise
            raise in_words(error) from error
        finally:
            work.close()
        return replace(done, held_back=decided.held_back)

    async def undo(self, to: HostPath = ".", *, on_notice: Callable[[str], None] | None = None) -> Applied:
        """Take the last apply of this sandbox to that tree back; refused (Conflict) where those lines were changed
        since. A commit that it made stays: no history is rewritten, only the working tree is as before."""
        origin = (await self._accepted(())).origin
        work = await self._begin(to, origin, on_notice)
        try:
            if work.notes:  # it was cut off, and is taken back: that was the last one
                await self._tell_late(work)
                return Applied(id=work.id, sandbox=self._sandbox.id, notes=tuple(work.notes))
            await self._tell_late(work)
            last, plan = await backend.to_the_end(work.plan_undo, self._sandbox.id)
            record = await backend.to_the_end(work.undo, last, plan)
            record = await self._tell(work, record)
            return replace(as_applied(replace(record, commit=last.commit)), notes=tuple(work.notes))
        except OSError as error:
            if isinstance(error, SkerryError):
                raise
            raise in_words(error) from error
        finally:
            work.close()

    async def patch(self, paths: str | Sequence[str] = ()) -> bytes:
        """What is accepted as a patch that `git apply` takes, from what the sandbox was made of on."""
        accepted = await self._accepted(paths)
        with tempfile.TemporaryDirectory(prefix="skerry-patch-") as name:
            contents = Contents(Path(name) / "contents")
            if any(file.large for file in accepted.files):
                raise Conflict("a large file does not go into a patch", hint="name the paths without it")
            await self._fetch(contents, sizes_of(accepted))
            return await backend.to_the_end(patch, wishes(accepted), contents)

    async def _accept_open(self, paths: Sequence[str]) -> Decided:
        if is_text("".join(paths).encode("utf-8", "surrogateescape")):
            return await self.decide(DecideRequest(do="accept", paths=tuple(paths), all=not paths))
        # JSON has no words for such a path
        hunks = (await self.changes(paths, state="open")).hunks
        plain = tuple(hunk.id for hunk in hunks if not hunk.risk)
        decided = await self.decide(DecideRequest(accept=plain)) if plain else Decided()
        return replace(decided, held_back=tuple(hunk for hunk in hunks if hunk.risk))

    async def _accepted(self, paths: str | Sequence[str]) -> Accepted:
        accepted = await self.accepted(paths)
        check_accepted(accepted)
        return accepted

    async def _begin(self, to: HostPath, origin: str | None, on_notice: Callable[[str], None] | None) -> Work:
        """With the tree's lock, and nothing left of what was cut off."""
        work = await backend.to_the_end(lambda: Work(find(to, origin), on_notice=on_notice))
        try:
            if not work.journal.try_lock():
                work.waited = True
                work.say("another apply to this tree is under way; waiting for it")
                for _ in Rounds(TURN_WITHIN):
                    if work.journal.try_lock():
                        break
                    await backend.sleep(0.1)
                else:
                    raise Conflict(f"another apply to {work.place.root} is under way", hint="try again when it is done")
            await backend.to_the_end(work.recover)
        except BaseException:
            work.close()
            raise
        return work

    async def _apply(
        self,
        work: Work,
        accepted: Accepted,
        target: Target,
        check: Words | None,
        dry_run: bool,
        on_output: backend.Callback[Output] | None,
    ) -> Applied:
        if not accepted.files:
            return Applied(id=work.id, sandbox=self._sandbox.id, notes=tuple(work.notes))
        plan = await self._plan(work, accepted, target)
        checked: Result | None = None
        if dry_run:
            return replace(planned(work.id, accepted, plan), notes=tuple(work.notes))
        if check is not None:
            checked = await self._checked(work.contents, accepted, check, on_output)
        record = await backend.to_the_end(work.perform, plan, accepted, target)
        record = await self._tell(work, record)
        return replace(as_applied(record), checked=checked, notes=tuple(work.notes))

    async def _plan(self, work: Work, accepted: Accepted, target: Target) -> Plan:
        large, hashes = await self._fetch_large(work.contents, accepted)
        needed = await backend.to_the_end(work.survey, wishes(accepted, large, hashes), target)
        sizes = sizes_of(accepted)
        await self._fetch(work.contents, {oid: sizes[oid] for oid in sorted(needed) if oid in sizes})
        return await backend.to_the_end(work.plan, target)

    async def _fetch(self, contents: Contents, sizes: dict[str, int]) -> None:
        for oid, size in sizes.items():
            if contents.has(oid):
                continue
            async with self._sandbox.client.stream(requests.blob(self._sandbox.id, oid)) as chunks:
                with contents.arriving(oid, size) as coming:
                    async for chunk in chunks:
                        coming.write(chunk)

    async def _fetch_large(
        self, contents: Contents, accepted: Accepted
    ) -> tuple[dict[str, tuple[str, int]], dict[str, str]]:
        """The ledger has no more of a large file than its hash: its content is the sandbox's own file."""
        objects: Large = {}
        hashes: dict[str, str] = {}
        for file, oid, is_new in large_sides(accepted):
            known = pointer(await self._small(oid))
            if known is None:
                continue
            sha256, size = known
            if not is_new:
                hashes[oid] = sha256
                continue
            if sha256 != file.sha256:
                raise SandboxUnavailable("a large file has two hashes")
            inside = f"{accepted.path}/{os.fsdecode(path_of(file))}"
            with contents.arriving(None, size, sha256) as coming:
                async for piece in self._sandbox.files.stream(inside, user="root"):
                    coming.write(piece)
            objects[sha256] = coming.oid, size
        return objects, hashes

    async def _small(self, oid: str) -> bytes:
        """What stands for a large file; of another content no more than its beginning, which stands for none."""
        data = b""
        async with self._sandbox.client.stream(requests.blob(self._sandbox.id, oid)) as chunks:
            async for chunk in chunks:
                data += chunk
                if len(data) > POINTER_MOST:
                    return b""
        if oid_of(data) != oid:
            raise SandboxUnavailable("a content is not the one that was accepted", hint="look at the review again")
        return data

    async def _checked(
        self, contents: Contents, accepted: Accepted, check: Words, on_output: backend.Callback[Output] | None
    ) -> Result:
        result = await self._check_in_fork(contents, accepted, check, on_output)
        if not result.ok:
            how = f"exit code {result.exit_code}" if result.exit_code is not None else "it did not end by itself"
            error = CommandFailed(
                f"the check failed ({how}); nothing was applied",
                hint="it ran on what you have and what was accepted, and nothing else",
                details={"check": True},
            )
            error.result = result
            raise error
        return result

    async def _tell(self, work: Work, record: Record) -> Record:
        """The server, of what was done. If it can't be reached, the next call tells it."""
        try:
            told = AppliedRequest(id=record.undoes or record.id, digest=record.digest, hunks=record.hunks)
            make = requests.unapplied if record.undoes else requests.applied
            await self._sandbox.client.done(make(self._sandbox.id, told))
        except (ServerUnreachable, SandboxUnavailable, Denied) as error:
            work.say(f"the server was not told: {error.message}; the next apply or unapply tells it")
            return record
        except SkerryError as error:
            work.say(f"the server did not take that it was done: {error.message}")
        return work.told(record)

    async def _tell_late(self, work: Work) -> bool:
        """What an earlier call could not tell."""
        late = list(work.journal.untold(self._sandbox.id))
        for record in late:
            if not (await self._tell(work, record)).told:
                break
        return bool(late)
