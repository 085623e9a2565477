"""One apply or undo, step by step. The caller fetches contents between the steps and holds the lock throughout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Final

from msgspec.structs import replace

from skerry.client.apply.commit import Repository, commit_message
from skerry.client.apply.content import Contents
from skerry.client.apply.journal import ApplyRecord, Journal
from skerry.client.apply.plan import ApplyPlan, PlannedEdit, Planner, Problem, raise_problems, why_impossible
from skerry.client.apply.replace_files import CommitStep, Step, host_error, no_step, perform, recover
from skerry.client.apply.target_dir import TargetDir
from skerry.client.apply.targets import undo_edits
from skerry.client.apply.tree import Tree
from skerry.errors import Conflict
from skerry.types.review import AppliedFile, ApplyResult, PatchSet
from skerry.types.values import encode_path


@dataclass(frozen=True)
class ApplyTarget:
    """The destination besides, or instead of, the working tree."""

    commit: bool = False
    branch: str | None = None
    name: str | None = None  # of the sandbox, if any

    @property
    def in_repository(self) -> bool:
        return self.commit or self.branch is not None


WORKING_TREE: Final = ApplyTarget()


@dataclass
class ApplySession:
    place: TargetDir
    id: str = field(default_factory=lambda: token_hex(16))
    step: Step = no_step
    on_notice: Callable[[str], None] | None = None
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.journal = Journal(self.place.journal)
        self.tree = Tree(self.place.root)
        self.waited = False  # another apply held the lock and may have changed the tree
        self.reverted: set[str | None] = set()  # IDs and names of sandboxes with a reverted, interrupted apply
        self._planner: Planner | None = None
        self._wishes: Sequence[PlannedEdit] = ()

    def close(self) -> None:
        self.journal.drop_unused(self.id)
        self.tree.close()
        self.journal.close()

    @property
    def contents(self) -> Contents:
        return self.journal.contents(self.id)

    def notify(self, notice: str) -> None:
        self.notes.append(notice)
        if self.on_notice is not None:
            self.on_notice(notice)

    def recover(self) -> list[str]:
        """Recover from an interrupted call; its notices are sent."""
        applies = [record for record in self.journal.records() if record.state == "writing" and record.undoes is None]
        notices = recover(self.journal, self._commit_step())
        standing = {record.id for record in self.journal.records() if record.undoes is None}
        for record in applies:
            if record.id not in standing:
                self.reverted |= {record.sandbox, record.name}
        for notice in notices:
            self.notify(notice)
        return notices

    def _commit_step(self) -> CommitStep | None:
        return Repository(self.place, self.contents).commit_step() if self.place.git is not None else None

    def survey(self, edits: Sequence[PlannedEdit], target: ApplyTarget = WORKING_TREE) -> set[str]:
        """Return the objects that the plan needs."""
        self._wishes = edits
        self._planner = Planner(self.tree, edits, self.place.protected)
        if not target.in_repository:
            return self._planner.survey()
        return {side.oid for edit in edits for side in (edit.base, edit.new) if side is not None and not side.sha256}

    def plan(self, target: ApplyTarget = WORKING_TREE, what: str = "apply") -> ApplyPlan:
        """Return the plan. Raise Conflict if a path cannot be changed."""
        if target.branch is not None:
            found = ((edit.path, why_impossible(edit, self.place.protected)) for edit in self._wishes)
            raise_problems([Problem(path, reason) for path, reason in found if reason is not None], what)
            return ApplyPlan()
        if self._planner is None:
            raise Conflict("plan() before survey()")
        try:
            plan = self._planner.plan(self.contents)
        except OSError as error:  # a directory was moved concurrently
            raise host_error(error) from error
        plan.check(what)
        return plan

    def perform(self, plan: ApplyPlan, accepted: PatchSet, target: ApplyTarget = WORKING_TREE) -> ApplyRecord:
        record = ApplyRecord(
            id=self.id, sandbox=accepted.sandbox, name=target.name, root=str(self.place.root),
            at=self.journal.next_time(),
            digest=accepted.digest, hunks=hunks_of(accepted),
            changes=tuple(plan.changes), same=tuple(plan.same), made=tuple(plan.made), removed=tuple(plan.removed),
        )  # fmt: skip
        if not target.in_repository:
            return perform(self.journal, self.tree, record, step=self.step)
        repository = Repository(self.place, self.contents)
        message = commit_message(accepted, target.name, [edit.path for edit in self._wishes])
        commit = repository.commit(self._wishes, message, target.branch)
        record = replace(record, commit=commit)
        return perform(self.journal, self.tree, record, commit_step=repository.commit_step(), step=self.step)

    def plan_undo(self, sandbox: str) -> tuple[ApplyRecord, ApplyPlan]:
        """Plan the undo of a sandbox's last apply."""
        last = self.journal.last(sandbox)
        if last is None:
            raise Conflict(
                "no apply of this sandbox was found here",
                hint="it was undone already, or was to another directory: name it with --dir",
            )
        kept = self.journal.contents(last.id)
        self.survey(undo_edits(last) if last.root == str(self.place.root) else self._elsewhere(last))
        self.contents.take(kept)
        return last, self.plan(what="undo")

    def _elsewhere(self, record: ApplyRecord) -> Sequence[PlannedEdit]:
        raise Conflict(f"the last apply was to {record.root}", hint=f"--dir {record.root}")

    def undo(self, last: ApplyRecord, plan: ApplyPlan) -> ApplyRecord:
        record = ApplyRecord(
            id=self.id, sandbox=last.sandbox, name=last.name, root=str(self.place.root), at=self.journal.next_time(),
            digest=last.digest, hunks=last.hunks, undoes=last.id, changes=tuple(plan.changes), same=tuple(plan.same),
            made=tuple(plan.made), removed=tuple(plan.removed),
        )  # fmt: skip
        return perform(self.journal, self.tree, record, step=self.step)

    def mark_reported(self, record: ApplyRecord) -> ApplyRecord:
        return self.journal.save(replace(record, reported=True))


def undo_without_server(place: TargetDir, sandbox: str) -> ApplyResult:
    """Undo the last apply of a sandbox that is deleted; the server need not be notified."""
    session = ApplySession(place)
    try:
        if not session.journal.try_lock():
            raise Conflict(f"another apply to {place.root} is under way", hint="try again when it is done")
        session.recover()
        if sandbox not in session.reverted:
            last, plan = session.plan_undo(sandbox)
            record = session.mark_reported(session.undo(last, plan))
            return replace(apply_result(replace(record, commit=last.commit)), notes=tuple(session.notes))
        return ApplyResult(id=session.id, sandbox=sandbox, notes=tuple(session.notes))
    finally:
        session.close()


def apply_result(record: ApplyRecord) -> ApplyResult:
    """Return the caller's view of a record."""
    done = [_file(change.path, change.how) for change in record.changes]
    commit = record.commit
    return ApplyResult(
        id=record.id, sandbox=record.sandbox, hunks=record.hunks,
        files=tuple(sorted([*done, *(_file(path, "same") for path in record.same)], key=lambda file: file.path)),
        commit=commit.new if commit is not None else None, branch=commit.branch if commit is not None else None,
        notified=record.reported,
    )  # fmt: skip


def dry_run_result(id: str, accepted: PatchSet, plan: ApplyPlan) -> ApplyResult:  # noqa: A002
    """Return the result of a dry run."""
    record = ApplyRecord(id=id, sandbox=accepted.sandbox, root="", changes=tuple(plan.changes), same=tuple(plan.same))
    return replace(apply_result(record), hunks=hunks_of(accepted), notified=False)


def hunks_of(accepted: PatchSet) -> tuple[str, ...]:
    return tuple(hunk for file in accepted.files for hunk in file.hunks)


def _file(path: bytes, how: str) -> AppliedFile:
    text, raw = encode_path(path.decode("utf-8", "surrogateescape"))
    return AppliedFile(path=text, how=how, raw_path=raw)  # type: ignore[arg-type]
