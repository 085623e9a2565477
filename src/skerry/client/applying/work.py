"""One apply or undo, step by step; who calls it fetches between the steps, and holds the lock all the while."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Final

from msgspec.structs import replace

from skerry.client.applying import provenance
from skerry.client.applying.commit import Repository
from skerry.client.applying.content import Contents
from skerry.client.applying.place import Place
from skerry.client.applying.plan import Plan, Planner, Trouble, Wish, impossible, refuse
from skerry.client.applying.record import Journal, Record
from skerry.client.applying.tree import Tree
from skerry.client.applying.wishes import backwards
from skerry.client.applying.writing import Landing, Step, in_words, perform, quietly, recover
from skerry.errors import Conflict
from skerry.types.review import Accepted, Applied, AppliedFile
from skerry.types.values import told_path


@dataclass(frozen=True)
class Target:
    """Where it goes besides the working tree, or in its place."""

    commit: bool = False
    branch: str | None = None
    name: str | None = None  # of the sandbox, if it has one

    @property
    def in_repository(self) -> bool:
        return self.commit or self.branch is not None


WORKING_TREE: Final = Target()


@dataclass
class Work:
    place: Place
    id: str = field(default_factory=lambda: token_hex(16))
    step: Step = quietly
    on_notice: Callable[[str], None] | None = None
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.journal = Journal(self.place.journal)
        self.tree = Tree(self.place.root)
        self.waited = False  # for another one, which may have changed what there is to do
        self._planner: Planner | None = None
        self._wishes: Sequence[Wish] = ()

    def close(self) -> None:
        self.journal.drop_unused(self.id)
        self.tree.close()
        self.journal.close()

    @property
    def contents(self) -> Contents:
        return self.journal.contents(self.id)

    def say(self, notice: str) -> None:
        self.notes.append(notice)
        if self.on_notice is not None:
            self.on_notice(notice)

    def recover(self) -> list[str]:
        """What an earlier call left; in words."""
        told = recover(self.journal, self._landing())
        for notice in told:
            self.say(notice)
        return told

    def _landing(self) -> Landing | None:
        return Repository(self.place, self.contents).landing() if self.place.git is not None else None

    def survey(self, wishes: Sequence[Wish], target: Target = WORKING_TREE) -> set[str]:
        """The objects whose contents are needed."""
        self._wishes = wishes
        self._planner = Planner(self.tree, wishes, self.place.protected)
        if not target.in_repository:
            return self._planner.survey()
        return {side.oid for wish in wishes for side in (wish.base, wish.new) if side is not None and not side.sha256}

    def plan(self, target: Target = WORKING_TREE, what: str = "apply") -> Plan:
        """Refused (Conflict) if anything stands in the way."""
        if target.branch is not None:
            found = ((wish.path, impossible(wish, self.place.protected)) for wish in self._wishes)
            refuse([Trouble(path, reason) for path, reason in found if reason is not None], what)
            return Plan()
        if self._planner is None:
            raise Conflict("nothing was looked at yet")
        try:
            plan = self._planner.plan(self.contents)
        except OSError as error:  # a directory that is moved in this very moment
            raise in_words(error) from error
        plan.check(what)
        return plan

    def perform(self, plan: Plan, accepted: Accepted, target: Target = WORKING_TREE) -> Record:
        record = Record(
            id=self.id, sandbox=accepted.sandbox, name=target.name, root=str(self.place.root),
            at=self.journal.next_moment(),
            digest=accepted.digest, hunks=hunks_of(accepted),
            changes=tuple(plan.changes), same=tuple(plan.same), made=tuple(plan.made), removed=tuple(plan.removed),
        )  # fmt: skip
        if not target.in_repository:
            return perform(self.journal, self.tree, record, step=self.step)
        repository = Repository(self.place, self.contents)
        message = provenance.message(accepted, target.name, [wish.path for wish in self._wishes])
        commit = repository.commit(self._wishes, message, target.branch)
        record = replace(record, commit=commit)
        return perform(self.journal, self.tree, record, landing=repository.landing(), step=self.step)

    def plan_undo(self, sandbox: str) -> tuple[Record, Plan]:
        """Of the last apply of a sandbox."""
        last = self.journal.last(sandbox)
        if last is None:
            raise Conflict(
                "nothing of this sandbox is applied here",
                hint="it was taken back already, or is in another directory: --to names that",
            )
        kept = self.journal.contents(last.id)
        self.survey(backwards(last) if last.root == str(self.place.root) else self._elsewhere(last))
        self.contents.take(kept)
        return last, self.plan(what="undo")

    def _elsewhere(self, record: Record) -> Sequence[Wish]:
        raise Conflict(f"the last apply was to {record.root}", hint=f"--to {record.root}")

    def undo(self, last: Record, plan: Plan) -> Record:
        record = Record(
            id=self.id, sandbox=last.sandbox, name=last.name, root=str(self.place.root), at=self.journal.next_moment(),
            digest=last.digest, hunks=last.hunks, undoes=last.id, changes=tuple(plan.changes), same=tuple(plan.same),
            made=tuple(plan.made), removed=tuple(plan.removed),
        )  # fmt: skip
        return perform(self.journal, self.tree, record, step=self.step)

    def told(self, record: Record) -> Record:
        return self.journal.save(replace(record, told=True))


def undo_here(place: Place, sandbox: str) -> Applied:
    """Of a sandbox that is gone: nobody is to be told."""
    work = Work(place)
    try:
        if not work.journal.try_lock():
            raise Conflict(f"another apply to {place.root} is under way", hint="try again when it is done")
        if not work.recover():
            last, plan = work.plan_undo(sandbox)
            record = work.told(work.undo(last, plan))
            return replace(as_applied(replace(record, commit=last.commit)), notes=tuple(work.notes))
        return Applied(id=work.id, sandbox=sandbox, notes=tuple(work.notes))
    finally:
        work.close()


def as_applied(record: Record) -> Applied:
    """A record as what the caller gets."""
    done = [_file(change.path, change.how) for change in record.changes]
    commit = record.commit
    return Applied(
        id=record.id, sandbox=record.sandbox, hunks=record.hunks,
        files=tuple(sorted([*done, *(_file(path, "same") for path in record.same)], key=lambda file: file.path)),
        commit=commit.new if commit is not None else None, branch=commit.branch if commit is not None else None,
        told=record.told,
    )  # fmt: skip


def planned(id: str, accepted: Accepted, plan: Plan) -> Applied:  # noqa: A002
    """What would be done."""
    record = Record(id=id, sandbox=accepted.sandbox, root="", changes=tuple(plan.changes), same=tuple(plan.same))
    return replace(as_applied(record), hunks=hunks_of(accepted), told=False)


def hunks_of(accepted: Accepted) -> tuple[str, ...]:
    return tuple(hunk for file in accepted.files for hunk in file.hunks)


def _file(path: bytes, how: str) -> AppliedFile:
    told, raw = told_path(path.decode("utf-8", "surrogateescape"))
    return AppliedFile(path=told, how=how, raw_path=raw)  # type: ignore[arg-type]
