"""The log of commands, and the history with one entry per command."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.engine.review import commands
from skerry.engine.review.commands import LOG, CommandLog, CommandRecord, by_command
from skerry.types import LedgerEntry


def record(number: int, exit_code: int = 0, **more: object) -> CommandRecord:
    return CommandRecord(
        id=f"p-{number}", process=f"p-{number}", command=f"command {number}", at=float(number), exit_code=exit_code,
        duration_s=2.0, cpu_s=1.0, memory_peak=number, **more,
    )  # type: ignore[arg-type]  # fmt: skip


def commit(name: str, at: float, *runs: str, files: int = 1) -> LedgerEntry:
    return LedgerEntry(
        commit=name, at=at, kind="command", command="?", processes=runs, runs=runs, files=files, added=1, running=True
    )


def test_log_has_the_last_line_of_each_command_and_ignores_half_a_line(tmp_path: Path) -> None:
    log = CommandLog(tmp_path)
    assert log.read()[0] == {}
    log.append([record(1), record(2)])
    (tmp_path / LOG).write_bytes((tmp_path / LOG).read_bytes()[:-5])
    log.append([record(1, exit_code=3), record(4, exit_code=-1)])
    found, totals = log.read()
    assert {name: one.exit_code for name, one in found.items()} == {"p-1": 3, "p-4": -1}
    assert (totals.commands, totals.failed, totals.duration_s, totals.cpu_s, totals.memory_peak) == (2, 2, 4.0, 2.0, 4)


def test_log_is_bounded_and_keeps_its_totals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "MAX_LOG", 10_000)
    log = CommandLog(tmp_path)
    for number in range(500):
        log.append([record(number, exit_code=number % 2)])
        assert (tmp_path / LOG).stat().st_size <= 10_500
    found, totals = log.read()
    assert "p-499" in found
    assert len(found) < 200
    assert (totals.commands, totals.failed, totals.duration_s, totals.memory_peak) == (500, 250, 1000.0, 499)


def test_commits_of_one_command_are_its_steps() -> None:
    entries = [commit("a", 1, "p-1"), commit("b", 2, "p-2"), commit("c", 3, "p-1")]
    first, second = by_command(entries, {"p-1": record(1, exit_code=7)}, {"p-2": "sleep"}, len)
    assert (first.runs, first.running, first.command, first.steps) == (("p-2",), True, "sleep", ())
    assert (second.commit, second.exit_code, second.running, second.files, second.added) == ("c", 7, False, 2, 2)
    assert [step.commit for step in second.steps] == ["a", "c"]


def test_shared_commit_belongs_to_the_newest_command_and_names_the_others() -> None:
    known = {"p-2": record(2)}
    (entry,) = by_command([commit("a", 1, "p-1", "p-2")], known, {"p-1": "npm run dev"}, len)
    assert (entry.command, entry.exit_code, entry.also) == ("command 2", 0, ("npm run dev",))
    assert entry.processes == ("p-1", "p-2")


def test_runs_of_one_kernel_are_separate_entries() -> None:
    entries = [commit("a", 1, "p-1/1"), commit("b", 2, "p-1/2"), commit("c", 3, "p-1/2")]
    assert [entry.commit for entry in by_command(entries, {}, {}, len)] == ["a", "c"]
