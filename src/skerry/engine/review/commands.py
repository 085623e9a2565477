"""The commands of a review: a log of their outcomes beside the ledger, and the history with one entry per command.

A commit of the ledger has the changes between two collections. A command that runs for long has several commits, and
one that changes nothing has none: the log has one line for each command, written once the command has ended and its
changes are in the ledger. A server that dies in between writes the line again; readers take the last one."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from skerry.engine.review.writers import Writer
from skerry.types import CommandTotals, LedgerEntry, LedgerStep

LOG = "commands"
MAX_LOG = 8 << 20  # bytes: beyond that, the older half is replaced by its totals
MAX_SEPARATE = 50  # steps of one command of which the files are counted exactly


class CommandRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="command"):
    """A command or an agent's tool call that has ended. `steps`: commits made while it ran. `within`, `paths`: as in
    Writer."""

    id: str
    process: str
    command: str
    at: float
    exit_code: int | None = None
    signal: str | None = None
    duration_s: float | None = None
    cpu_s: float | None = None
    memory_peak: int | None = None
    steps: int = 0
    within: str | None = None
    paths: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Return whether a command failed. The agent deals with its own tool calls."""
        return self.within is None and (self.exit_code not in (0, None) or self.signal is not None)

    def outcome(self, entry: LedgerEntry) -> LedgerEntry:
        """Return the entry with the outcome of the command."""
        return replace(
            entry, command=self.command, running=False, exit_code=self.exit_code, signal=self.signal,
            duration_s=self.duration_s, cpu_s=self.cpu_s, memory_peak=self.memory_peak, within=self.within,
        )  # fmt: skip

    def entry(self) -> LedgerEntry:
        """Return the entry of a command that changed nothing."""
        return self.outcome(LedgerEntry(commit="", at=self.at, kind="command", processes=(self.process,)))


class _Dropped(msgspec.Struct, frozen=True, tag="dropped"):
    """The totals of older lines."""

    totals: CommandTotals


_decoder = msgspec.json.Decoder(CommandRecord | _Dropped)
_encode = msgspec.json.Encoder().encode


def ended(writer: Writer, at: float) -> CommandRecord:
    """Return the record of a writer that has ended."""
    return CommandRecord(
        id=writer.id, process=writer.process, command=writer.command or "", at=writer.ended_at or at,
        exit_code=writer.exit_code, signal=writer.signal, duration_s=writer.duration_s, cpu_s=writer.cpu_s,
        memory_peak=writer.memory_peak, steps=writer.steps, within=writer.within, paths=writer.paths,
    )  # fmt: skip


class CommandLog:
    """The log of one review. Blocking; the review's lock is held while it is written."""

    def __init__(self, place: Path) -> None:
        self._file = place / LOG

    def append(self, records: Iterable[CommandRecord]) -> None:
        data = b"".join(_encode(record) + b"\n" for record in records)
        fd = os.open(self._file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "r+b", buffering=0) as file:
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                data = b"\n" + data  # a killed server left half a line, which readers ignore
            file.write(data)
        if size + len(data) > MAX_LOG:
            self._shorten()

    def read(self) -> tuple[dict[str, CommandRecord], CommandTotals]:
        """Return the records by ID, in the order of their ends, and the totals of all commands."""
        found: dict[str, CommandRecord] = {}
        before = CommandTotals()
        with contextlib.suppress(FileNotFoundError):
            for line in self._file.read_bytes().split(b"\n"):
                try:
                    one = _decoder.decode(line) if line else None
                except msgspec.MsgspecError:
                    continue
                if isinstance(one, CommandRecord):
                    found[one.id] = one
                elif one is not None:
                    before = one.totals
        return found, add_up(before, found.values())

    def _shorten(self) -> None:
        records = list(self.read()[0].values())
        kept = records[len(records) // 2 :]
        _, totals = self.read()
        dropped = add_up(totals, kept, -1)
        new = self._file.with_name(f".{LOG}")
        new.write_bytes(b"".join(_encode(one) + b"\n" for one in (_Dropped(dropped), *kept)))
        os.chmod(new, 0o600)
        os.replace(new, self._file)


def add_up(totals: CommandTotals, records: Iterable[CommandRecord], sign: int = 1) -> CommandTotals:
    """Return the totals with these records added, or subtracted (`sign` -1)."""
    known = [one for one in records if one.within is None]
    peaks = [peak for peak in (totals.memory_peak, *(one.memory_peak for one in known)) if peak is not None]
    return CommandTotals(
        commands=totals.commands + sign * len(known), failed=totals.failed + sign * sum(one.failed for one in known),
        duration_s=max(0.0, totals.duration_s + sign * math.fsum(one.duration_s or 0.0 for one in known)),
        cpu_s=max(0.0, totals.cpu_s + sign * math.fsum(one.cpu_s or 0.0 for one in known)),
        memory_peak=max(peaks, default=None),
    )  # fmt: skip


# -- the history ------------------------------------------------------------------------------------------------------


def by_command(
    entries: Sequence[LedgerEntry],
    records: Mapping[str, CommandRecord],
    running: Mapping[str, str],
    count_files: Callable[[Sequence[str]], int],
) -> list[LedgerEntry]:
    """Join the commits of each command to one entry with its outcome, at the place of its last commit. A commit of
    several commands belongs to the command that was started last; its `also` names the others. `running`: the commands
    that have not ended. `count_files`: counts the files of several commits."""
    groups: dict[str, list[LedgerEntry]] = {}
    for number, entry in enumerate(entries):
        key = entry.runs[-1] if entry.kind == "command" and entry.runs else f" {number}"
        groups.setdefault(key, []).append(entry)
    joined = [_joined(key, steps, records, running, count_files) for key, steps in groups.items()]
    return sorted(joined, key=lambda entry: entry.at)


def _joined(
    key: str,
    steps: Sequence[LedgerEntry],
    records: Mapping[str, CommandRecord],
    running: Mapping[str, str],
    count_files: Callable[[Sequence[str]], int],
) -> LedgerEntry:
    last = steps[-1]
    if last.kind != "command" or not last.runs:
        return last
    others = dict.fromkeys(run for step in steps for run in step.runs if run != key)
    commands = {name: record.command for name, record in records.items() if name in others} | {
        name: command for name, command in running.items() if name in others
    }
    entry = replace(
        last, files=last.files if len(steps) == 1 else count_files([step.commit for step in steps]),
        added=sum(step.added for step in steps), removed=sum(step.removed for step in steps), runs=(key,),
        processes=tuple(dict.fromkeys(process for step in steps for process in step.processes)),
        hosts=tuple(dict.fromkeys(host for step in steps for host in step.hosts)), also=tuple(commands.values()),
        steps=tuple(map(_step, steps)) if len(steps) > 1 else (), running=key in running,
    )  # fmt: skip
    if key in records:
        return records[key].outcome(entry)
    return replace(entry, command=running[key]) if key in running else entry


def only_named(entry: LedgerEntry, path: str, paths: Mapping[str, tuple[str, ...]]) -> LedgerEntry:
    """Return the entry of the tool calls that named the path, if some of its runs did. `paths`: those of tool calls.
    Tool calls may overlap, and a report may arrive after the change."""
    named = tuple(run for run in entry.runs if path in paths.get(run, ()))
    return replace(entry, runs=named) if named else entry


def _step(entry: LedgerEntry) -> LedgerStep:
    return LedgerStep(
        commit=entry.commit, at=entry.at, files=entry.files, added=entry.added, removed=entry.removed
    )  # fmt: skip
