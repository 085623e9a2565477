# Generated from client/_async/comparing.py by scripts/generate_sync.py. Do not edit.
"""`sandbox.review`, comparing: several attempts at one task, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skerry.client._sync.applying import Applying
from skerry.client.description import Words
from skerry.errors import InvalidRequest
from skerry.types import Attempted, Comparison, Result, real_path

if TYPE_CHECKING:
    from skerry.client._sync.sandbox import Sandbox

MOST = 100


class Comparing(Applying):
    def compare(
        self, *others: Sandbox | str, check: Words | None = None, timeout: float | None = 300
    ) -> Comparison:
        """This sandbox and others, forks of one as a rule: what each changed, what it took, and, with `check`, how that
        command ends in a fork of each. Hunks are accepted in whichever has the better ones; what is applied of one is
        merged with what was applied of another."""
        sandboxes = [self._sandbox]
        for other in others:
            cls = type(self._sandbox)
            sandboxes.append(cls.get(other, server=self._sandbox.client) if isinstance(other, str) else other)
        if len(sandboxes) > MOST or len({sandbox.id for sandbox in sandboxes}) != len(sandboxes):
            raise InvalidRequest(f"compare: at most {MOST} sandboxes, each of them once")
        attempts = [_attempted(sandbox, check, timeout) for sandbox in sandboxes]
        paths: dict[str, list[str]] = {}
        for attempt in attempts:
            for file in attempt.files:
                paths.setdefault(real_path(file.path, file.raw_path), []).append(attempt.sandbox)
        return Comparison(attempts=tuple(attempts), paths={path: tuple(by) for path, by in sorted(paths.items())})


def _attempted(sandbox: Sandbox, check: Words | None, timeout: float | None) -> Attempted:
    changed = sandbox.review.diff(stat=True)
    history = sandbox.review.history()
    commands = [entry for entry in history.entries if entry.kind == "command"]
    usage = sandbox.usage()
    return Attempted(
        sandbox=sandbox.id, name=sandbox.name, files=changed.files,
        added=sum(file.added or 0 for file in changed.files), removed=sum(file.removed or 0 for file in changed.files),
        commands=len(commands), duration_s=sum(entry.duration_s or 0.0 for entry in commands),
        cpu_s=usage.cpu_s, memory_peak=usage.memory_peak,
        check=_checked(sandbox, check, timeout) if check is not None else None,
    )  # fmt: skip


def _checked(sandbox: Sandbox, check: Words, timeout: float | None) -> Result:
    """In a fork: what the check writes is nobody's work."""
    (fork,) = sandbox.fork()
    try:
        return fork.run(check, timeout=timeout)
    finally:
        fork.delete()
