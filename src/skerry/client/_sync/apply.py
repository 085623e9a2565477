# Generated from client/_async/apply.py by scripts/generate_sync.py. Do not edit.
"""Apply accepted hunks to a directory of this host, and undo an apply."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from skerry.client.apply.check_tree import CHECK_TIMEOUT, files_to_check, write_files
from skerry.client.apply.content import Contents, oid_of
from skerry.client.apply.journal import ApplyRecord
from skerry.client.apply.patch import patch
from skerry.client.apply.plan import ApplyPlan
from skerry.client.apply.replace_files import host_error
from skerry.client.apply.session import ApplySession, ApplyTarget, apply_result, dry_run_result
from skerry.client.apply.target_dir import find_target
from skerry.client.apply.targets import check_patch_set as check_accepted
from skerry.client.apply.targets import large_sides, path_of, planned_edits, pointer, sizes_of
from skerry.client.create_options import Command
from skerry.client.host.output_dir import TransferLimit
from skerry.client.host.posix import require_posix
from skerry.client.results.command import Output, output_end
from skerry.client.transport import backend_sync as backend
from skerry.client.transport.backoff import PollDeadline
from skerry.client.transport.requests import review as requests
from skerry.client.transport.requests import sandboxes
from skerry.client.transport.requests.review import workspace_paths
from skerry.errors import (
    CommandFailed,
    Conflict,
    InvalidRequest,
    PermissionDenied,
    SandboxUnavailable,
    ServerUnreachable,
    SkerryError,
)
from skerry.types import AppliedRequest, ApplyResult, DecisionResult, Decisions, PatchSet, Result
from skerry.types.values import is_text

if TYPE_CHECKING:
    from skerry.client._sync.sandbox import Sandbox

HostPath = str | os.PathLike[str]
Large = dict[str, tuple[str, int]]
LOCK_TIMEOUT = 60.0  # seconds to wait for another apply to the same tree
MAX_POINTER_BYTES = 1024


class Named(NamedTuple):
    """The files to apply: all, or those at or below `paths`, without those that match `exclude`."""

    paths: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


class Applier:
    """Applies one sandbox's accepted hunks: the implementation of `review.apply`, `review.undo` and `review.patch`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def apply(
        self,
        to: HostPath,
        *,
        paths: str | Sequence[str],
        check: Command | None,
        commit: bool,
        branch: str | None,
        all: bool,  # noqa: A002
        exclude: Sequence[str],
        dry_run: bool,
        on_output: backend.Callback[Output] | None,
        on_notice: Callable[[str], None] | None,
    ) -> ApplyResult:
        require_posix("applying changes")
        if commit and branch is not None:
            raise InvalidRequest("commit and branch cannot be combined")
        if dry_run and check is not None:
            raise InvalidRequest("dry_run cannot be combined with check", hint="omit check=")
        target = ApplyTarget(commit=commit, branch=branch, name=self._sandbox.name)
        named = Named(workspace_paths(paths), tuple(exclude))
        decided = self._accept_open(named) if all and not dry_run else DecisionResult()
        accepted = self._accepted(named, with_open=all and dry_run)
        session = self._begin(to, accepted.origin, on_notice)
        try:
            if self._report_pending(session) or session.waited:
                accepted = self._accepted(named, with_open=all and dry_run)
            done = self._apply(session, accepted, target, check, dry_run, on_output)
        except OSError as error:
            if isinstance(error, SkerryError):
                raise
            raise host_error(error) from error
        finally:
            session.close()
        skipped = accepted if dry_run else decided
        return replace(done, held_back=skipped.held_back, generated=skipped.generated)

    def undo(self, to: HostPath, on_notice: Callable[[str], None] | None) -> ApplyResult:
        origin = (self._accepted(Named())).origin
        session = self._begin(to, origin, on_notice)
        try:
            self._report_pending(session)
            if self._sandbox.id in session.reverted:  # its last apply was interrupted: recovery has undone it
                return ApplyResult(id=session.id, sandbox=self._sandbox.id, notes=tuple(session.notes))
            last, plan = backend.in_thread_shielded(session.plan_undo, self._sandbox.id)
            record = backend.in_thread_shielded(session.undo, last, plan)
            record = self._report(session, record)
            return replace(apply_result(replace(record, commit=last.commit)), notes=tuple(session.notes))
        except OSError as error:
            if isinstance(error, SkerryError):
                raise
            raise host_error(error) from error
        finally:
            session.close()

    def patch(self, paths: str | Sequence[str]) -> bytes:
        accepted = self._accepted(Named(workspace_paths(paths)))
        with tempfile.TemporaryDirectory(prefix="skerry-patch-") as name:
            contents = Contents(Path(name) / "contents")
            if any(file.large for file in accepted.files):
                raise Conflict("a patch cannot contain a large file", hint="select other paths=")
            self._fetch(contents, sizes_of(accepted))
            return backend.in_thread_shielded(patch, planned_edits(accepted), contents)

    def _accept_open(self, named: Named) -> DecisionResult:
        paths, exclude = named
        if is_text("".join(paths).encode("utf-8", "surrogateescape")):
            request = Decisions(do="accept", paths=paths, all=not paths, exclude=exclude)
            return self._sandbox.review.decide(request)
        # JSON cannot represent such a path
        hunks = (self._sandbox.review.changes(paths, state="open", exclude=exclude)).hunks
        plain = tuple(hunk.id for hunk in hunks if not hunk.risk)
        decided = self._sandbox.review.decide(Decisions(accept=plain)) if plain else DecisionResult()
        return replace(decided, held_back=tuple(hunk for hunk in hunks if hunk.risk))

    def _accepted(self, named: Named, *, with_open: bool = False) -> PatchSet:
        """Return the patch set. `with_open`: a preview as if all open hunks were accepted."""
        request = requests.patch_set(self._sandbox.id, *named, with_open=with_open)
        accepted = self._sandbox.client.request_json(request, PatchSet)
        check_accepted(accepted)
        return accepted

    def _begin(self, to: HostPath, origin: str | None, on_notice: Callable[[str], None] | None) -> ApplySession:
        """Return a session that holds the tree's lock, after recovery from an interrupted apply."""
        session = backend.in_thread_shielded(lambda: ApplySession(find_target(to, origin), on_notice=on_notice))
        try:
            if not session.journal.try_lock():
                session.waited = True
                session.notify("another apply to this tree is in progress; waiting for it")
                for _ in PollDeadline(LOCK_TIMEOUT):
                    if session.journal.try_lock():
                        break
                    backend.sleep(0.1)
                else:
                    raise Conflict(f"another apply to {session.place.root} is in progress", hint="try again later")
            backend.in_thread_shielded(session.recover)
        except BaseException:
            session.close()
            raise
        return session

    def _apply(
        self,
        session: ApplySession,
        accepted: PatchSet,
        target: ApplyTarget,
        check: Command | None,
        dry_run: bool,
        on_output: backend.Callback[Output] | None,
    ) -> ApplyResult:
        if not accepted.files:
            return ApplyResult(id=session.id, sandbox=self._sandbox.id, notes=tuple(session.notes))
        plan = self._plan(session, accepted, target)
        checked: Result | None = None
        if dry_run:
            return replace(dry_run_result(session.id, accepted, plan), notes=tuple(session.notes))
        if check is not None:
            checked = self._checked(session.contents, accepted, check, on_output)
        record = backend.in_thread_shielded(session.perform, plan, accepted, target)
        record = self._report(session, record)
        return replace(apply_result(record), checked=checked, notes=tuple(session.notes))

    def _plan(self, session: ApplySession, accepted: PatchSet, target: ApplyTarget) -> ApplyPlan:
        large, hashes = self._fetch_large(session.contents, accepted)
        needed = backend.in_thread_shielded(session.survey, planned_edits(accepted, large, hashes), target)
        sizes = sizes_of(accepted)
        self._fetch(session.contents, {oid: sizes[oid] for oid in sorted(needed) if oid in sizes})
        return backend.in_thread_shielded(session.plan, target)

    def _fetch(self, contents: Contents, sizes: dict[str, int]) -> None:
        for oid, size in sizes.items():
            if contents.has(oid):
                continue
            with self._sandbox.client.stream(requests.blob(self._sandbox.id, oid)) as chunks:
                with contents.receive(oid, size) as coming:
                    for chunk in chunks:
                        coming.write(chunk)

    def _fetch_large(
        self, contents: Contents, accepted: PatchSet
    ) -> tuple[dict[str, tuple[str, int]], dict[str, str]]:
        """Fetch the contents of large files from the sandbox: the ledger contains only their hashes."""
        hint = "select other paths; or raise the sandbox's disk limit"
        limit = TransferLimit(self._sandbox.cached_info.limits.disk_bytes, what="large files", hint=hint)
        objects: Large = {}
        hashes: dict[str, str] = {}
        for file, oid, is_new in large_sides(accepted):
            known = pointer(self._small(oid))
            if known is None:
                continue
            sha256, size = known
            if not is_new:
                hashes[oid] = sha256
                continue
            if sha256 != file.sha256:
                raise SandboxUnavailable("a large file has two hashes")
            inside = f"{accepted.path}/{os.fsdecode(path_of(file))}"
            with contents.receive(None, size, sha256, limit) as coming:
                for piece in self._sandbox.files.stream(inside, user="root"):
                    coming.write(piece)
            objects[sha256] = coming.oid, size
        return objects, hashes

    def _small(self, oid: str) -> bytes:
        """Return the pointer of a large file; b"" if the object is too long to be one."""
        data = b""
        with self._sandbox.client.stream(requests.blob(self._sandbox.id, oid)) as chunks:
            for chunk in chunks:
                data += chunk
                if len(data) > MAX_POINTER_BYTES:
                    return b""
        if oid_of(data) != oid:
            raise SandboxUnavailable("a content differs from the accepted one", hint="check the review again")
        return data

    def _checked(
        self, contents: Contents, accepted: PatchSet, check: Command, on_output: backend.Callback[Output] | None
    ) -> Result:
        result = self._check_in_fork(contents, accepted, check, on_output)
        if not result.ok:
            how = f"exit code {result.exit_code}" if result.exit_code is not None else "it was killed"
            said = output_end(result) if on_output is None else ""  # a caller that reads the output has it already
            error = CommandFailed(
                f"the check failed ({how}); nothing was applied" + (f"\n{said}" if said else ""),
                hint="it ran on your files with exactly the accepted changes",
                details={"check": True},
            )
            error.result = result
            raise error
        return result

    def _report(self, session: ApplySession, record: ApplyRecord) -> ApplyRecord:
        """Notify the server about an apply or undo. If it cannot be reached, the next call does."""
        try:
            if record.undoes:
                request = requests.record_undo(self._sandbox.id, record.undoes)
            else:
                elsewhere = not (record.changes or record.same)  # on a branch only
                apply = AppliedRequest(
                    id=record.id, digest=record.digest, hunks=record.hunks, elsewhere=elsewhere
                )  # fmt: skip
                request = requests.record_apply(self._sandbox.id, apply)
            self._sandbox.client.request(request)
        except (ServerUnreachable, SandboxUnavailable, PermissionDenied) as error:
            session.notify(f"the server was not notified: {error.message}; the next apply or undo will")
            return record
        except SkerryError as error:
            session.notify(f"the server did not record it: {error.message}")
        return session.mark_reported(record)

    def _report_pending(self, session: ApplySession) -> bool:
        """Notify the server about earlier calls that could not; return whether there were any."""
        late = list(session.journal.unreported(self._sandbox.id))
        for record in late:
            if not (self._report(session, record)).reported:
                break
        return bool(late)

    def _check_in_fork(
        self, contents: Contents, accepted: PatchSet, check: Command, on_output: backend.Callback[Output] | None
    ) -> Result:
        fork = (self._sandbox.fork())[0]
        try:
            files = files_to_check(fork.review.changes(), accepted)
            self._fetch(contents, {side.oid: side.size for side in files.values() if side is not None})
            if files:
                for path in sorted(files):  # a directory before its content: a file may replace it
                    with suppress(FileNotFoundError, NotADirectoryError):
                        inside = f"{accepted.path}/{os.fsdecode(path)}"
                        fork.files.remove(inside, recursive=True, user="root")
                with tempfile.TemporaryDirectory(prefix="skerry-check-") as name:
                    backend.in_thread_shielded(write_files, Path(name), files, contents)
                    fork.files.upload(name, accepted.path)
            return fork.run(check, cwd=accepted.path, timeout=CHECK_TIMEOUT, on_output=on_output)
        finally:
            with suppress(SkerryError):  # its lifetime ends it: it has no name
                fork.client.request(sandboxes.for_clean_up(sandboxes.delete(fork.id, force=True, purge=True)))
