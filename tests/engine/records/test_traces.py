"""Traces without a server: lines, bounds, full disks, masked secrets, and exported files from elsewhere."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import random
import resource
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from skerry.codecs import tar
from skerry.codecs.traces import BLOBS, MANIFEST, STEPS, TraceFile, encode_line, encode_manifest, entry_header, merge
from skerry.config import load
from skerry.engine.network.cassettes import CassetteStore
from skerry.engine.network.secrets import SecretStore
from skerry.engine.records.trace.recorder import OutputCapture, Step, plain
from skerry.engine.records.trace.service import TraceService
from skerry.engine.records.trace.store import TraceBounds, TraceStore, TraceThreads
from skerry.engine.sandboxes.record import SandboxRecord, SandboxSpec
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.errors import InvalidRequest, NotFound
from skerry.types import (
    Caller,
    Lifecycle,
    Limits,
    Network,
    Options,
    RunResult,
    TraceContent,
    TraceEnd,
    TraceError,
    TraceManifest,
    TraceStep,
)

SECRET = "hunter2-very-secret"


@pytest.fixture
def threads() -> Iterator[TraceThreads]:
    made = TraceThreads()
    yield made
    made.close()


def make_store(place: Path, threads: TraceThreads, size: int = 1 << 20) -> TraceStore:
    return TraceStore(place, TraceBounds(size, 0), threads)


def begin(store: TraceStore, text: str = "") -> int:
    return store.begin(TraceStep(n=0, at=1.0, kind="process.run", text=text))


def lines_of(store: TraceStore) -> list[bytes]:
    return (store.place / "steps.ndjson").read_bytes().split(b"\n")


# -- lines -------------------------------------------------------------------------------------------------------------


def test_steps_and_their_ends_are_merged_in_order(tmp_path: Path, threads: TraceThreads) -> None:
    store = make_store(tmp_path / "t", threads)
    first, second = begin(store, "one"), begin(store, "two")
    store.end(TraceEnd(of=second, at=2.0, exit_code=2, process="p-2"))
    store.end(TraceEnd(of=first, at=3.0, exit_code=1))
    trace = merge(lines_of(store))
    assert [(step.n, step.text, step.end and step.end.exit_code) for step in trace.steps] == [
        (1, "one", 1),
        (2, "two", 2),
    ]
    assert trace.steps[1].process == "p-2"


def test_numbers_continue_after_half_a_line(tmp_path: Path, threads: TraceThreads) -> None:
    store = make_store(tmp_path / "t", threads)
    for _ in range(3):
        begin(store)
    store.end(TraceEnd(of=1, at=1.0))
    store.close()
    with (tmp_path / "t" / "steps.ndjson").open("ab") as file:
        file.write(b'{"n":4,"at":1.0,"kind":"proc')
    again = make_store(tmp_path / "t", threads)
    assert begin(again) == 4
    trace = merge(lines_of(again))
    assert (trace.damaged, [step.n for step in trace.steps]) == (1, [1, 2, 3, 4])


def test_lines_that_contradict_others_are_counted_as_damaged() -> None:
    step, end = TraceStep(n=1, at=1.0, kind="a"), TraceEnd(of=1, at=1.0)
    lines = [step, end, end, step, TraceEnd(of=7, at=1.0)]
    trace = merge([*(encode_line(line) for line in lines), b"[" * 100_000, b"\xff", b"null", b'{"n":"x"}'])
    assert (len(trace.steps), trace.damaged) == (1, 7)


def test_full_trace_counts_omitted_steps_and_says_so(tmp_path: Path, threads: TraceThreads) -> None:
    store = make_store(tmp_path / "t", threads, size=20_000)
    numbers = [begin(store, "x" * 150) for _ in range(300)]
    assert 0 in numbers
    full = [step for step in merge(lines_of(store)).steps if step.kind == "trace.full"]
    assert len(full) == 1
    deleted = store.begin(TraceStep(n=0, at=1.0, kind="sandbox.deleted"), spare=True)
    assert deleted == store.last
    assert merge(lines_of(store)).omitted == numbers.count(0)
    assert store.size < 20_000 + (64 << 10)


def test_full_disk_leaves_whole_lines_and_recording_continues(tmp_path: Path, threads: TraceThreads) -> None:
    store = make_store(tmp_path / "t", threads)
    begin(store, "before")
    here = (store.place / "steps.ndjson").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (here + 10, hard))  # a short write, as on a full disk
    try:
        assert begin(store, "lost") == 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert begin(store, "after") == 2
    trace = merge(lines_of(store))
    assert (trace.damaged, [(step.text, step.omitted) for step in trace.steps]) == (0, [("before", 0), ("after", 1)])


def test_line_after_the_deletion_leaves_no_descriptor(tmp_path: Path, threads: TraceThreads) -> None:
    store = make_store(tmp_path / "t", threads)
    n, before = begin(store), len(os.listdir("/proc/self/fd"))
    store.close(over=True)
    store.end(TraceEnd(of=n, at=1.0))
    assert len(os.listdir("/proc/self/fd")) == before - 1
    assert merge(lines_of(store)).steps[0].end is not None


# -- contents ----------------------------------------------------------------------------------------------------------


def test_output_streams_have_hashes_whatever_the_pieces(tmp_path: Path, threads: TraceThreads) -> None:
    chance, data = random.Random(17), random.Random(1).randbytes(3_000_000)
    store, at = make_store(tmp_path / "t", threads), 0
    capture = OutputCapture(store)
    while at < len(data):
        size = chance.choice((100, 5_000, 70_000, 500_000))
        capture.add(data[at : at + size])
        at += size
    content = capture.content()
    threads.close()
    assert (content.size, content.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    kept = (store.place / "blobs" / (content.blob or "")).read_bytes()
    assert content.head is not None
    assert kept == data[: content.head] + data[-(len(kept) - content.head) :]


def test_secrets_are_masked_however_the_pieces_are_cut(tmp_path: Path, threads: TraceThreads) -> None:
    store = make_store(tmp_path / "t", threads)
    store.mask.add([SECRET])
    for size in (1, 2, 5, 7, 100):
        capture, text = OutputCapture(store), f"a {SECRET}{SECRET} b {SECRET[:5]} c".encode()
        for at in range(0, len(text), size):
            capture.add(text[at : at + size])
        content = capture.content()
        stars = "*" * 2 * len(SECRET)
        assert (content.text, content.masked) == (f"a {stars} b {SECRET[:5]} c", 2 * len(SECRET))
        assert content.sha256 == hashlib.sha256(f"a {stars} b {SECRET[:5]} c".encode()).hexdigest()


def test_secrets_are_masked_in_every_field_of_a_line(tmp_path: Path, threads: TraceThreads) -> None:
    store, value = make_store(tmp_path / "t", threads), 'quoted"and\\slashed'
    store.mask.add([SECRET, value])
    n = store.begin(TraceStep(n=0, at=1.0, kind="process.run", text=SECRET, params={"cmd": ["x", value]}))
    store.end(TraceEnd(of=n, at=1.0, error=TraceError(code="internal", message=f"no {SECRET}"), result={value: 1}))
    found = (store.place / "steps.ndjson").read_bytes()
    trace = merge(found.split(b"\n"))
    assert (trace.damaged, trace.steps[0].text) == (0, "*" * len(SECRET))
    for text in (SECRET, value, json.dumps(value)[1:-1]):
        assert text.encode() not in found


def test_line_stays_readable_if_a_secret_looks_like_half_an_escape(tmp_path: Path, threads: TraceThreads) -> None:
    store = make_store(tmp_path / "t", threads)
    store.mask.add(["nightfall"])
    n = store.begin(TraceStep(n=0, at=1.0, kind="process.run", text="\nightfall"))
    store.end(TraceEnd(of=n, at=1.0, exit_code=3, cwd="\nightfall"))
    trace = merge(lines_of(store))
    assert (trace.damaged, trace.steps[0].text) == (0, "(masked)")
    assert trace.steps[0].end is not None
    assert trace.steps[0].end.exit_code == 3


def test_streamed_input_is_kept_whole_or_left_out(tmp_path: Path, threads: TraceThreads) -> None:
    store = make_store(tmp_path / "t", threads, size=8 << 20)
    small, large = os.urandom(3 << 20), os.urandom(9 << 20)

    async def pieces(data: bytes) -> AsyncIterator[bytes]:
        for at in range(0, len(data), 100_000):
            yield data[at : at + 100_000]

    async def record(data: bytes) -> TraceContent:
        step = Step(store, begin(store))
        assert b"".join([piece async for piece in step.tee(pieces(data))]) == data
        step.end(RunResult(id="p-1", exit_code=0, duration_s=0.0))
        end = merge(lines_of(store)).steps[-1].end
        assert end is not None
        return end.inputs["body"]

    kept, dropped = asyncio.run(record(small)), asyncio.run(record(large))
    assert kept.whole
    assert (store.place / "blobs" / (kept.blob or "")).read_bytes() == small
    assert (dropped.blob, dropped.size) == (None, len(large))
    assert dropped.sha256 == hashlib.sha256(large).hexdigest()
    assert sorted(os.listdir(store.place / "blobs")) == [kept.blob]


def test_interrupted_input_of_a_terminal_is_kept(tmp_path: Path, threads: TraceThreads) -> None:
    store = make_store(tmp_path / "t", threads)
    store.mask.add([SECRET])

    async def keys() -> AsyncIterator[bytes]:
        yield b"echo " + SECRET.encode()
        yield b"\nexit\n"
        await asyncio.Event().wait()

    async def work() -> None:
        step = Step(store, begin(store))
        typed = step.tee(keys(), partial=True)
        for _ in range(2):
            await anext(typed)
        step.end()

    asyncio.run(work())
    end = merge(lines_of(store)).steps[0].end
    assert end is not None
    assert end.inputs["body"].text == f"echo {'*' * len(SECRET)}\nexit\n"


def test_paths_that_are_no_text_keep_their_bytes() -> None:
    given = plain({"path": "a\udcff"})
    assert (given["path"], given["path_base64"]) == ("a\ufffd", b"a\xff")


# -- exported files ----------------------------------------------------------------------------------------------------

BLOB = b"content of a blob"
NAME = hashlib.sha256(BLOB).hexdigest()
LINES = encode_line(TraceStep(n=1, at=1.0, kind="file.write", inputs={"body": TraceContent(size=17, blob=NAME)}))


def entry(name: bytes, data: bytes) -> bytes:
    return entry_header(name, len(data)) + data + tar.padding(len(data))


def manifest(**other: object) -> bytes:
    fields = {
        "format": 1, "sandbox": "sb-aaaaaaaaaa", "image": "base", "image_digest": "sha256:0", "exported_at": 1.0,
        "steps_size": len(LINES), "steps_sha256": hashlib.sha256(LINES).hexdigest(), "blobs": {NAME: len(BLOB)},
    }  # fmt: skip
    return encode_manifest(TraceManifest(**{**fields, **other}))  # type: ignore[arg-type]


def archive(*, head: bytes = manifest(), lines: bytes = LINES, blob: bytes = BLOB, after: bytes = tar.END) -> bytes:
    return entry(MANIFEST, head) + entry(STEPS, lines) + entry(BLOBS + NAME.encode(), blob) + after


def opened(data: bytes, max_size: int = 1 << 20) -> TraceFile:
    return TraceFile(io.BytesIO(data), max_size=max_size)


def test_exported_file_is_read_and_tar_lists_it(tmp_path: Path) -> None:
    read = opened(archive())
    assert (read.trace.steps[0].kind, read.blob(NAME)) == ("file.write", BLOB)
    (tmp_path / "t.tar").write_bytes(archive())
    listed = subprocess.run(["tar", "tf", tmp_path / "t.tar"], capture_output=True, text=True, check=True).stdout
    assert listed.split() == ["manifest.json", "steps.ndjson", f"blobs/{NAME}"]


BAD = {
    "empty": b"",
    "zeros": bytes(2048),
    "text": b"x" * 4096,
    "other format": archive(head=manifest(format=2)),
    "no manifest": entry(STEPS, LINES) + tar.END,
    "edited steps": archive(lines=LINES.replace(b"file", b"FILE")),
    "size of a blob": archive(head=manifest(blobs={NAME: 5})),
    "missing blob": entry(MANIFEST, manifest()) + entry(STEPS, LINES) + tar.END,
    "further entry": archive(after=entry(b"../../etc/passwd", b"x") + tar.END),
    "no end": archive(after=b""),
    "name of a blob": archive(head=manifest(blobs={"../../../etc/passwd": 17})),
    "nested manifest": archive(head=b'{"format":' + b"[" * 100_000),
    "link": entry(MANIFEST, manifest()) + tar.header(tar.Entry(STEPS, "link", link=b"/etc/passwd")) + tar.END,
    "large size": entry(MANIFEST, manifest()) + entry_header(STEPS, 1 << 40),
}


@pytest.mark.parametrize("name", BAD)
def test_file_that_is_no_exported_trace_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="not an exported trace"):
        opened(BAD[name])


def test_file_above_the_maximum_size_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="at most"):
        opened(archive(), max_size=1000)


def test_blob_with_another_content_is_refused_when_it_is_read() -> None:
    read = opened(archive(blob=BLOB[::-1]))
    with pytest.raises(InvalidRequest, match="damaged"):
        read.blob(NAME)
    with pytest.raises(InvalidRequest, match="not found"):
        read.blob("0" * 64)


def test_damaged_files_never_raise_other_errors() -> None:
    chance, whole = random.Random(3), archive()
    for _ in range(300):
        data = bytearray(whole[: chance.randrange(len(whole)) if chance.random() < 0.3 else len(whole)])
        for _ in range(chance.randrange(1, 4)):
            if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            read = opened(bytes(data))
            read.blob(NAME)
        except InvalidRequest:
            pass


# -- the service -------------------------------------------------------------------------------------------------------

SPEC = SandboxSpec(
    image="base", image_digest="sha256:0", layers=(), user="root", cwd="/", image_env={}, env={}, labels={},
    limits=Limits(), lifecycle=Lifecycle(), network=Network(), options=Options(),
)  # fmt: skip


def make_service(state: Path, **settings: str) -> TraceService:
    loaded = load(environ={"SKERRY_STATE_DIR": str(state), **settings})
    return TraceService(loaded, SecretStore(state / "secrets"), CassetteStore(state / "cassettes"))


def start(service: TraceService, number: int, owner: str = "ann") -> str:
    sandbox_id = f"sb-aaaaaaaaa{'abcdefgh'[number]}"
    record = SandboxRecord(id=sandbox_id, owner=owner, name=None, state="running", spec=SPEC, created_at=0.0)
    service.on_running(Sandbox(record))
    return sandbox_id


def test_traces_of_other_owners_are_not_found(tmp_path: Path) -> None:
    async def work() -> None:
        service = make_service(tmp_path)
        theirs = start(service, 0, "ann")
        ann, bob, admin = (Caller(owner="ann", scope="use"), Caller(owner="bob", scope="use"),
                           Caller(owner="eve", scope="admin"))  # fmt: skip
        for caller in (ann, admin):
            assert b"".join([piece async for piece in await service.lines(caller, theirs)]).startswith(b'{"n":1,')
        for ask in (service.lines(bob, theirs), service.export(bob, theirs), service.blob(bob, theirs, "0" * 64)):
            with pytest.raises(NotFound):
                await ask
        for name in ("../secrets", "sb-aaaaaaaaaz", ".", ""):
            with pytest.raises(NotFound):
                service.find(admin, name)
        await service.close()

    asyncio.run(work())


def test_traces_of_deleted_sandboxes_are_removed_by_age_and_size(tmp_path: Path) -> None:
    async def work() -> None:
        service = make_service(tmp_path, SKERRY_TRACE_KEEP="1d", SKERRY_TRACE_MAX_DELETED_SIZE="2500")
        alive, old, first, second = (start(service, number) for number in range(4))
        for sandbox_id, age in ((old, 2 * 86400), (first, 60), (second, 30)):
            steps = tmp_path / "traces" / sandbox_id / "steps.ndjson"
            steps.write_bytes(steps.read_bytes().ljust(2000, b"\n"))
            os.utime(steps, (time.time() - age, time.time() - age))
        assert service.expired({alive}) == [old, first]
        await service.close()

    asyncio.run(work())


def test_start_after_a_stop_is_a_step_also_for_a_later_server(tmp_path: Path) -> None:
    async def work() -> list[str]:
        for kind in (None, "sandbox.stopped", "budget.warning", "sandbox.paused"):
            service = make_service(tmp_path)
            sandbox_id = start(service, 0)  # adopted the first time, started again afterwards
            if kind is not None:
                service.state(sandbox_id, kind, '"kind":"sandbox.resumed"', None)
            await service.close()
        service = make_service(tmp_path)
        start(service, 0)
        await service.close()
        return [step.kind for step in merge((tmp_path / "traces" / sandbox_id / "steps.ndjson").open("rb")).steps]

    kinds = [
        "sandbox.start",
        "sandbox.stopped",
        "sandbox.resumed",
        "budget.warning",
        "sandbox.paused",
        "sandbox.resumed",
    ]
    assert asyncio.run(work()) == kinds


def test_follower_gets_new_lines_until_the_sandbox_is_deleted(tmp_path: Path) -> None:
    async def work() -> list[str]:
        service = make_service(tmp_path)
        sandbox_id, got = start(service, 0), b""
        lines = await service.lines(Caller(owner="ann", scope="use"), sandbox_id, follow=True)
        got += await anext(lines)
        waiting = asyncio.ensure_future(anext(lines))
        await asyncio.sleep(0)
        service.event(sandbox_id, "network.denied", {"host": "a.example"})
        got += await asyncio.wait_for(waiting, 30)
        service.state(sandbox_id, "sandbox.deleted", None, None)
        got += b"".join([piece async for piece in lines])
        await service.close()
        return [step.kind for step in merge(got.split(b"\n")).steps]

    assert asyncio.run(work()) == ["sandbox.start", "network.denied", "sandbox.deleted"]
