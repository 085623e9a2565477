"""The audit log on disk: the chain, its seals and checkpoints, faults, retention, and the index."""

from __future__ import annotations

import asyncio
import base64
import os
import resource
import shutil
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from skerry.engine.records.audit.chain import Checkpoint, Line, Verifier, decode, digest, encode
from skerry.engine.records.audit.index import AuditFilter, AuditIndex
from skerry.engine.records.audit.keys import KeyStore
from skerry.engine.records.audit.segments import AuditLog
from skerry.engine.records.audit.service import AuditService, Sync
from skerry.engine.records.audit.verification import list_segments, read_lines, verify
from skerry.errors import AuditUnavailable, HostUnsupported
from skerry.types import AuditReport, Caller


@dataclass
class Place:
    """A state directory, and a key directory beside it."""

    root: Path

    @property
    def logs(self) -> Path:
        return self.root / "state" / "audit"

    @property
    def key_dir(self) -> Path:
        return self.root / "keys"

    def keys(self) -> KeyStore:
        return KeyStore(self.key_dir, self.root / "state")

    def open(self, segment_size: int = 16 << 20, keep_s: float | None = None, sink: Path | None = None) -> AuditLog:
        self.logs.parent.mkdir(exist_ok=True)
        return AuditLog(self.logs, self.keys(), keep_s=keep_s, sinks=[sink] if sink else (), segment_size=segment_size)

    def write(self, count: int, start: int = 0) -> None:
        """Open the log, write commands and close it, which seals it."""
        log = self.open()
        add(log, count, start)
        log.close()

    def file(self) -> Path:
        return list_segments(self.logs)[-1].path

    def lines(self) -> list[bytes]:
        return self.file().read_bytes().splitlines()

    def put(self, lines: list[bytes]) -> None:
        self.file().write_bytes(b"".join(line + b"\n" for line in lines))

    def verify(self) -> AuditReport:
        keys = self.keys()
        point = keys.checkpoint()
        files = [segment.path for segment in list_segments(self.logs)]
        return verify(files, keys.trusted(), [point] if point else [])


def add(log: AuditLog, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        log.append(type="process.run", owner="ann", actor="tk-a", sandbox="sb-aaaaaaaaaa", params={"cmd": f"c{number}"})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


class HeldSync:
    """`os.fdatasync`, which waits until `go` before it works."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = os.fdatasync
        self.began, self.go = threading.Event(), threading.Event()
        monkeypatch.setattr(os, "fdatasync", self)

    def __call__(self, descriptor: int) -> None:
        self.began.set()
        assert self.go.wait(60)
        self._real(descriptor)

    async def under_way(self) -> None:
        assert await asyncio.to_thread(self.began.wait, 60)


def test_untouched_log_verifies_over_restarts(place: Place) -> None:
    place.write(10)
    place.write(10)
    report = place.verify()
    assert report.ok, report.problems
    assert report.last == report.sealed == report.records


@pytest.mark.parametrize("reading", ["verify", "export"])
async def test_records_that_follow_during_the_sync_are_no_change_of_the_log(
    place: Place, reading: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy server, records arrive while a verification or an export waits for the disk."""
    log = place.open()
    audit = AuditService(place.keys(), log, AuditIndex(place.logs / "index.db"), "all")
    add(log, 3)
    held = HeldSync(monkeypatch)
    work = asyncio.ensure_future(audit.verify() if reading == "verify" else exported(audit))
    await held.under_way()
    add(log, 3, start=3)
    held.go.set()
    found = await work
    if isinstance(found, bytes):
        (place.root / "export").write_bytes(found)
        found = verify([place.root / "export"], place.keys().trusted(), [])
    assert found.ok, found.problems
    assert found.records == found.sealed == log.seq - 3
    await audit.close()
    assert place.verify().ok


async def exported(audit: AuditService) -> bytes:
    found = await audit.export()
    try:
        return b"".join([piece async for piece in found.chunks()])
    finally:
        await found.aclose()


async def test_segment_that_was_removed_below_a_server_is_named(place: Place) -> None:
    log = place.open(segment_size=2000)
    audit = AuditService(place.keys(), log, AuditIndex(place.logs / "index.db"), "all")
    for number in range(3):
        add(log, 10, number * 10)
        log.maintain()
    log.segments[1].path.unlink()
    problems = (await audit.verify()).problems
    assert "are missing" in problems[0].problem
    assert problems[0].seq == log.segments[1].first
    log.segments[-1].path.unlink()
    assert "the checkpoint has record" in str((await audit.verify()).problems)
    await audit.close()


def test_edited_record_is_named(place: Place) -> None:
    place.write(10)
    lines = place.lines()
    number = next(n for n, line in enumerate(lines) if b'"c4"' in line)
    lines[number] = lines[number].replace(b'"c4"', b'"xx"')
    place.put(lines)
    report = place.verify()
    assert [problem.seq for problem in report.problems] == [decode(lines[number]).seq]
    assert "was edited" in report.problems[0].problem


@pytest.mark.parametrize("damage", [b"{", b"not json", b'{"seq":5}', b"\xff\xfe", b""])
def test_line_that_is_no_record_is_named(place: Place, damage: bytes) -> None:
    place.write(10)
    lines = place.lines()
    lines[5] = damage
    place.put(lines)
    report = place.verify()
    assert not report.ok
    assert report.problems[0].seq == 6
    assert "line 6" in report.problems[0].place


def test_removed_record_is_named(place: Place) -> None:
    place.write(10)
    lines = place.lines()
    del lines[6]
    place.put(lines)
    problems = place.verify().problems
    assert problems[0].seq == 7
    assert "records 7 to 7 are missing" in problems[0].problem


def test_swapped_records_are_named(place: Place) -> None:
    place.write(10)
    lines = place.lines()
    lines[4], lines[5] = lines[5], lines[4]
    place.put(lines)
    problems = place.verify().problems
    assert {problem.seq for problem in problems} >= {5}
    assert any("reordered" in problem.problem for problem in problems)


def test_cut_tail_is_found_by_the_checkpoint(place: Place) -> None:
    place.write(10)
    last = decode(place.lines()[-1]).seq
    place.put(place.lines()[:-4])
    problems = place.verify().problems
    assert any(f"the checkpoint has record {last}" in problem.problem for problem in problems)


def test_log_replaced_by_an_older_copy_is_found(place: Place, tmp_path: Path) -> None:
    place.write(5)
    shutil.copytree(place.logs, tmp_path / "older")
    place.write(5, start=5)
    shutil.rmtree(place.logs)
    shutil.copytree(tmp_path / "older", place.logs)
    before = place.verify()
    assert "are missing: the checkpoint has record" in before.problems[0].problem
    place.write(3)  # the server continues, and the gap stays visible
    after = place.verify()
    assert any("were removed or lost" in problem.problem for problem in after.problems)
    assert any(decode(line).type == "audit.gap" for line in place.lines())


def test_removed_log_is_recorded_in_the_new_one(place: Place) -> None:
    place.write(5)
    shutil.rmtree(place.logs)
    assert not place.verify().ok
    place.write(1)
    gap = [decode(line) for line in place.lines() if b"audit.gap" in line]
    assert "is gone" in (gap[0].reason or "")


def test_rewritten_chain_without_the_key_is_found(place: Place, tmp_path: Path) -> None:
    """Whoever can write the data directory can compute hashes, but not signatures."""
    place.write(10)
    other = Place(tmp_path / "forger")
    other.root.mkdir()
    other.write(10)
    shutil.rmtree(place.logs)
    shutil.copytree(other.logs, place.logs)
    problems = place.verify().problems
    assert any("is unknown" in problem.problem for problem in problems)


def test_lost_key_is_reported(place: Place) -> None:
    place.write(5)
    old = place.keys().id
    shutil.rmtree(place.key_dir)
    place.write(5, start=5)
    assert place.keys().id != old
    problems = place.verify().problems
    assert any(f"key {old} is unknown" in problem.problem for problem in problems)


def test_rotated_key_verifies_with_the_first_public_key_alone(place: Place) -> None:
    log = place.open()
    first = place.keys()
    add(log, 5)
    log.rotate_key()
    add(log, 5)
    log.close()
    assert place.keys().id != first.id
    assert place.verify().ok
    alone = verify([place.file()], {first.id: first.public}, [])
    assert alone.ok, alone.problems
    assert alone.sealed == alone.last


def test_injected_key_is_not_trusted(place: Place, tmp_path: Path) -> None:
    """A key in an unsealed tail, written after a crash of the server, is not introduced by its next seal."""
    log = place.open()
    add(log, 3)
    forged = place.lines()
    public = base64.b64encode(b"k" * 32).decode()
    last = digest(forged[-1])
    seq = decode(forged[-1]).seq
    line = Line(seq=seq + 1, prev=last, at=1.0, type="audit.key", key=public)
    place.put([*forged, encode(line)[:-1]])
    place.write(1)
    verifier = Verifier(place.keys().trusted())
    verifier.feed(place.lines(), "log")
    assert list(verifier.keys) == list(place.keys().trusted())


def test_torn_last_line_is_removed_and_recorded(place: Place) -> None:
    place.write(5)
    with place.file().open("ab") as file:
        file.write(b'{"seq":99,"prev":"half')
    place.write(5)
    assert place.verify().ok
    opened = [decode(line) for line in place.lines() if b"torn_bytes" in line]
    assert opened[0].params == {"torn_bytes": 22}


def test_export_verifies_with_the_public_key_alone(place: Place, tmp_path: Path) -> None:
    place.write(10)
    export = tmp_path / "export.jsonl"
    export.write_bytes(place.file().read_bytes())
    trusted = place.keys().trusted()
    assert verify([export], trusted, []).ok
    export.write_bytes(b"".join(line + b"\n" for line in place.lines()[:-3]))
    problems = verify([export], trusted, []).problems
    assert "cut off" in problems[0].problem


@pytest.mark.parametrize("content", [None, b"", b'{"seq":1,"prev":"an incomplete li'])
def test_empty_log_is_a_changed_one(place: Place, content: bytes | None) -> None:
    place.write(10)
    trusted = place.keys().trusted()
    if content is None:
        report = verify([], trusted, [])
    else:
        place.file().write_bytes(content)
        report = verify([place.file()], trusted, [])
    assert not report.ok
    assert "the log is empty" in report.problems[0].problem


def test_checkpoints_go_to_the_sink(place: Place, tmp_path: Path) -> None:
    sink = tmp_path / "sink.jsonl"
    log = place.open(sink=sink)
    add(log, 3)
    log.close()
    points = [msgspec.json.decode(line, type=Checkpoint) for line in sink.read_bytes().splitlines()]
    assert points[-1].seq == decode(place.lines()[-1]).seq
    assert verify([place.file()], place.keys().trusted(), points).ok


def test_missing_sink_does_not_stop_the_log(place: Place, tmp_path: Path) -> None:
    log = place.open(sink=tmp_path / "absent" / "sink.jsonl")
    add(log, 3)
    log.close()
    assert place.verify().ok


def test_retention_keeps_the_rest_verifiable(place: Place) -> None:
    log = place.open(segment_size=2000, keep_s=0.0)
    for number in range(20):
        add(log, 10, number * 10)
        log.maintain()
    log.close()
    report = place.verify()
    assert report.ok, report.problems
    assert report.first is not None
    assert report.first > 1
    kept = place.open(segment_size=2000)
    add(kept, 20)
    kept.maintain()
    kept.close()
    assert place.verify().ok
    list_segments(place.logs)[0].path.unlink()
    assert "and not by retention" in str(place.verify().problems)


async def test_retention_keeps_segments_that_are_read(place: Place) -> None:
    log = place.open(segment_size=2000, keep_s=0.0)
    audit = AuditService(place.keys(), log, AuditIndex(place.logs / "index.db"), "all")
    export = await audit.export()
    for number in range(5):
        add(log, 20, number * 20)
        log.maintain()
    assert len(log.segments) == 6
    (place.root / "export").write_bytes(b"".join([piece async for piece in export.chunks()]))
    await export.aclose()
    report = verify([place.root / "export"], place.keys().trusted(), [])
    assert report.ok, report.problems
    assert report.first == 1
    add(log, 20)
    log.maintain()
    assert log.segments[0].first > 1
    await audit.close()
    assert place.verify().ok


async def test_page_of_a_log_whose_oldest_segment_was_just_removed(place: Place) -> None:
    """Retention removes a file between the request and its thread."""
    log = place.open(segment_size=2000)
    index = AuditIndex(place.logs / "index.db")
    add(log, 20)
    index.update(tuple(log.segments))
    for number in range(1, 3):
        log.maintain()
        add(log, 20, number * 20)
    segments = tuple(log.segments)
    segments[0].path.unlink()
    segments[1].path.unlink()
    index.update(segments)
    page = index.page(AuditFilter(type="process"), None, 100, segments)
    assert [record.params["cmd"] for record in page.records] == [f"c{number}" for number in range(59, 39, -1)]
    index.close()
    log.close()


def test_segment_removed_without_a_retention_record_is_found(place: Place) -> None:
    log = place.open(segment_size=2000)
    for number in range(5):
        add(log, 10, number * 10)
        log.maintain()
    log.close()
    assert place.verify().ok
    list_segments(place.logs)[0].path.unlink()
    problems = place.verify().problems
    assert problems[0].seq == 1
    assert "not by retention" in problems[0].problem


def test_clock_set_back_keeps_order_and_chain(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    log = place.open()
    add(log, 3)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 86_400)
    add(log, 3, start=3)
    log.close()
    assert place.verify().ok
    index = AuditIndex(place.logs / "index.db")
    index.update(log.segments)
    page = index.page(AuditFilter(type="process"), None, 100, log.segments)
    assert [record.params["cmd"] for record in page.records] == ["c5", "c4", "c3", "c2", "c1", "c0"]
    since = index.page(AuditFilter(type="process", since=now - 60), None, 100, log.segments)
    assert [record.params["cmd"] for record in since.records] == ["c2", "c1", "c0"]
    index.close()


def test_full_disk_fails_and_recovers(tmp_path: Path) -> None:
    """On a real, small file system."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=True)
    try:
        place = Place(disk)
        log = place.open()
        log.reserve(1000)
        add(log, 3)
        filler = disk / "filler"
        subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=4k"], check=False, capture_output=True)
        with pytest.raises(AuditUnavailable, match="No space left"):
            log.reserve(4 << 20)
        before = log.seq
        while True:  # the reserve still takes the results of begun actions
            try:
                log.reserve(1000)
                add(log, 100)
            except AuditUnavailable:
                break
        assert log.seq > before
        add(log, 1)
        filler.unlink()
        log.reserve(1000)
        add(log, 3)
        log.close()
        report = place.verify()
        assert report.ok, report.problems
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_checkpoint_is_never_newer_than_the_disk(place: Place) -> None:
    log = place.open()
    before = log.seq
    add(log, 3)
    log.seal()
    log.publish_checkpoint(before)
    early = place.keys().checkpoint()
    assert early is None or early.seq <= before
    log.publish_checkpoint(log.seq)
    point = place.keys().checkpoint()
    assert point is not None
    assert point.seq == log.seq
    log.close()


async def test_flood_of_one_kind_of_events_is_bounded_and_hides_no_other(place: Place) -> None:
    log = place.open()
    audit = AuditService(place.keys(), log, AuditIndex(place.logs / "index.db"), "all")
    for _ in range(2000):
        audit.event("network.denied", owner="ann", sandbox="sb-aaaaaaaaaa", params={"host": "x"})
    audit.event("limit.memory", owner="ann", sandbox="sb-aaaaaaaaaa", params={})
    page = await audit.list(Caller(owner="ann", scope="use"), AuditFilter(), None, 1000)
    await audit.close()
    types = [record.type for record in page.records]
    assert types[0] == "limit.memory"
    assert types.count("network.denied") < 1000
    assert place.verify().ok


async def test_concurrent_actions_share_a_sync(place: Place) -> None:
    log = place.open()
    audit = AuditService(place.keys(), log, AuditIndex(place.logs / "index.db"), "all")

    async def act(number: int) -> None:
        action = audit.begin("token.create", owner="o", actor="a", source="unix", sandbox=None, params={"n": number})
        await action.durable()
        action.end(201)

    await asyncio.gather(*(act(number) for number in range(300)))
    page = await audit.list(Caller(owner="o", scope="admin"), AuditFilter(type="token"), None, 1000)
    assert sorted(record.params["n"] for record in page.records) == list(range(300))
    assert all(record.result is not None for record in page.records)
    await audit.close()
    assert place.verify().ok


@pytest.mark.parametrize(
    ("sync", "name", "waits"),
    [("all", "process.run", True), ("boundary", "process.run", False), ("boundary", "token.create", True)],
)
async def test_setting_decides_which_actions_wait_for_the_disk(
    place: Place, sync: Sync, name: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = AuditService(place.keys(), place.open(), AuditIndex(place.logs / "index.db"), sync)
    held = HeldSync(monkeypatch)
    action = audit.begin(name, owner="o", actor="a", source="unix", sandbox=None, params={})
    answer = asyncio.ensure_future(action.durable())
    if waits:
        await held.under_way()
    else:
        await answer
    assert answer.done() != waits
    held.go.set()
    await answer
    await audit.close()


async def test_actions_are_durable_without_free_file_descriptors(place: Place) -> None:
    """The log stays usable also afterwards: it would else wait for a sync that never began."""
    log = place.open()
    audit = AuditService(place.keys(), log, AuditIndex(place.logs / "index.db"), "all")

    async def act() -> None:
        action = audit.begin("token.create", owner="o", actor="a", source="unix", sandbox=None, params={})
        async with asyncio.timeout(60):
            await action.durable()
        action.end(201)

    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, old[1]))
    try:
        await act()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, old)
    await act()
    await audit.close()
    assert place.verify().ok


def test_failed_write_leaves_the_chain_whole(place: Place) -> None:
    """The kernel writes a part of the line only: the file has reached the process's limit."""
    log = place.open()
    add(log, 3)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (place.file().stat().st_size + 10, old[1]))
    try:
        with pytest.raises(AuditUnavailable):
            add(log, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    add(log, 3)
    log.close()
    assert place.verify().ok


def test_value_cannot_imitate_a_line(place: Place) -> None:
    log = place.open()
    fake = '"}\n{"seq":9,"prev":"x","at":1,"type":"token.create"}\n\x1b[2J\x00\u2028'
    log.append(type="process.run", actor="tk-a", params={"cmd": fake})
    log.close()
    assert place.verify().ok
    assert not any(decode(line).type == "token.create" for line in place.lines())


def test_private_key_is_outside_the_state_directory_and_for_root_only(place: Place) -> None:
    place.write(1)
    assert (place.key_dir / "key.pem").stat().st_mode & 0o777 == 0o600
    assert place.key_dir.stat().st_mode & 0o777 == 0o700
    with pytest.raises(HostUnsupported, match="inside of the state directory"):
        KeyStore(place.root / "state" / "keys", place.root / "state")
    (place.key_dir / "key.pem").chmod(0o644)
    with pytest.raises(HostUnsupported, match="0600"):
        place.keys()


def test_index_pages_any_filter(place: Place) -> None:
    log = place.open(segment_size=20_000)
    for number in range(300):
        line, _ = log.append(
            type="process.run" if number % 2 else "file.write", owner=f"o{number % 3}", actor=f"tk-{number % 5}",
            sandbox=f"sb-{number % 7}", params={"n": number},
        )  # fmt: skip
        log.append(type="result", of=line.seq, status=200, params={"exit_code": number % 2})
        log.maintain()
    index = AuditIndex(place.logs / "index.db")
    index.update(log.segments)
    for wanted, keep in (
        (AuditFilter(), lambda n: True),
        (AuditFilter(type="process.run"), lambda n: n % 2),
        (AuditFilter(type="file"), lambda n: not n % 2),
        (AuditFilter(sandbox="sb-3", actor="tk-2"), lambda n: n % 7 == 3 and n % 5 == 2),
        (AuditFilter(owner="o1", type="process.run", sandbox="sb-1"), lambda n: n % 3 == 1 and n % 2 and n % 7 == 1),
        (AuditFilter(owner="nobody"), lambda n: False),
    ):
        found, before = [], None
        while True:
            page = index.page(wanted, before, 17, log.segments)
            found += [record for record in page.records if "n" in record.params]
            if (before := page.next) is None:
                break
        assert [record.params["n"] for record in found] == [n for n in reversed(range(300)) if keep(n)]
        assert all(record.result is not None and record.result.status == 200 for record in found)
    index.close()
    log.close()


def test_index_is_made_again_from_the_segments(place: Place) -> None:
    place.write(20)
    path = place.logs / "index.db"
    path.write_bytes(b"not a database" * 1000)
    index = AuditIndex(path)
    index.update(list_segments(place.logs))
    assert len(index.page(AuditFilter(type="process"), None, 100, list_segments(place.logs)).records) == 20
    index.close()


def test_page_looks_at_a_bounded_number_of_rows(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from skerry.engine.records.audit import index as index_module

    monkeypatch.setattr(index_module, "MAX_SCANNED", 50)
    place.write(200)
    index = AuditIndex(place.logs / "index.db")
    segments = list_segments(place.logs)
    index.update(segments)
    page = index.page(AuditFilter(type="process", actor="server"), None, 10, segments)
    assert page.records == ()
    index.close()


def test_unreadable_directory_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "audit").write_text("a file")
    with pytest.raises(AuditUnavailable, match="File exists"):
        Place(tmp_path).open()


def test_lines_without_an_end_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"a\nb\nc")
    assert list(read_lines(tmp_path / "f")) == [b"a", b"b"]
