"""Keepers that report false changes or false contents."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from keeper.test_archive_errors import CHUNKED, frame, lines
from keeper.test_protocol_errors import (
    MEBIBYTE,
    UPGRADED,
    answer,
    keeper_that,
    resident,
    says,
    says_for_ever,
    says_nothing,
)

from skerry.errors import FileError, NotFound, QuotaExceeded
from skerry.keeper import Keeper, KeeperProtocolError, KeeperTimeout, tracking
from skerry.keeper.tracking import TrackedContent, TrackedEntry

ID = "0123456789abcdef"
HEAD = {"seq": 7, "full": False, "git": False}
FILE = ["YQ==", "file", 0o644, 5, 1, 1, False, None]
END = b"0\r\n\r\n"
BEGUN = UPGRADED + frame(4, b"{}")
READ = {"entry": FILE, "bytes": True, "sha256": None, "unsteady": False, "error": None}
ENDED = {"again": False, "unsteady": False, "error": None}


def entry(**changes: object) -> list[object]:
    names = ("path", "type", "mode", "size", "inode", "ctime_ns", "written", "target")
    coded = {name: base64.b64encode(text).decode() for name, text in changes.items() if isinstance(text, bytes)}
    return [(changes | coded).get(name, old) for name, old in zip(names, FILE, strict=True)]


def told(kind: int, value: object) -> bytes:
    return frame(kind, json.dumps(value).encode())


def read(**changes: object) -> bytes:
    return told(4, READ | changes)


def ended(**changes: object) -> bytes:
    return told(6, ENDED | changes)


def over(count: int = 1, error: object = None) -> bytes:
    return told(3, {"count": count, "error": error})


async def scanned(keeper: Keeper, since: int = 5) -> list[TrackedEntry]:
    return [one async for one in await keeper.tracking.scan(ID, since)]


async def contents(keeper: Keeper, *paths: bytes) -> list[TrackedContent]:
    return [one async for one in keeper.tracking.read(ID, paths or (b"a",))]


async def test_valid_scan_is_accepted(tmp_path: Path) -> None:
    link = entry(path=b"d/\xff\n", type="link", target=b"../\xfe")
    wire = lines(b" ", HEAD, [FILE, link], b"", [FILE], {"count": 3}) + END
    async with keeper_that(tmp_path, says(wire)) as keeper:
        scan = await keeper.tracking.scan(ID, 5)
        assert (scan.seq, scan.full, scan.git) == (7, False, False)
        first, second, _ = [one async for one in scan]
    assert first == TrackedEntry(path=b"a", type="file", mode=0o644, size=5, inode=1, ctime_ns=1)
    assert (second.path, second.target) == (b"d/\xff\n", b"../\xfe")


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        answer(b"{}", b"302 Found"),
        CHUNKED,
        CHUNKED + END,
        *(lines(HEAD | bad) + END for bad in ({"seq": 0}, {"seq": 4}, {"seq": 1 << 60}, {"full": 1}, {"x": 1})),
        lines(HEAD),
        lines(HEAD) + END,
        lines(HEAD, [FILE]) + END,
        lines(HEAD, []) + END,
        lines(HEAD, [FILE], {"count": 2}) + END,
        lines(HEAD, [FILE], {"count": -1}) + END,
        lines(HEAD, {"count": 0}, [FILE]) + END,
        lines(HEAD, {"count": 0}),
        lines(HEAD, HEAD, {"count": 0}) + END,
        lines(HEAD, b"nonsense", {"count": 0}) + END,
        lines(HEAD, [FILE[:1]], {"count": 1}) + END,
        lines(HEAD, [[*FILE, 1]], {"count": 1}) + END,
        *(
            lines(HEAD, [entry(**bad)], {"count": 1}) + END
            for bad in (
                {"path": b""}, {"path": b"/etc"}, {"path": b"../a"}, {"path": b"a/../b"}, {"path": b"a//b"},
                {"path": b"a/"}, {"path": b"."}, {"path": b"a/."}, {"path": b"a\0"}, {"path": b"x" * 256},
                {"path": b"a/" * 2047 + b"bcd"}, {"path": b"a/" * 1026 + b"b"}, {"path": "=="}, {"path": None},
                {"path": "a"},
                {"type": "fifo"}, {"type": "link"}, {"target": b"x"}, {"type": "link", "target": "%"},
                {"type": "link", "target": b"x" * 5000}, {"mode": 0o10000}, {"mode": -1}, {"size": -1},
                {"size": 1 << 63}, {"inode": -1}, {"inode": 1 << 64}, {"ctime_ns": 1 << 64}, {"ctime_ns": 1.5},
                {"written": 0},
            )
        ),
    ],
)  # fmt: skip
async def test_impossible_scan_is_a_protocol_error(tmp_path: Path, wire: bytes) -> None:
    async with keeper_that(tmp_path, says(wire)) as keeper:
        with pytest.raises(KeeperProtocolError):
            await scanned(keeper)


LONG = entry(path=b"/".join([b"x" * 250] * 16), type="link", target=b"y" * 4000)


@pytest.mark.parametrize(
    "again",
    [json.dumps([FILE] * 5000).encode() + b"\n", json.dumps([LONG] * 50).encode() + b"\n", MEBIBYTE],
    ids=["lines", "long names", "one line"],
)
async def test_endless_scan_is_rejected_in_constant_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bytes
) -> None:
    monkeypatch.setattr(tracking, "MAX_ENTRIES", 50_000)
    monkeypatch.setattr(tracking, "MAX_BYTES", 4 << 20)
    before = resident()
    async with keeper_that(tmp_path, says_for_ever(lines(HEAD), _chunk(again))) as keeper:
        scan = await keeper.tracking.scan(ID, 5)
        with pytest.raises(KeeperProtocolError):
            async for _ in scan:
                pass
    assert resident() - before < 64 << 20


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": "no_tracker", "message": "m"}, NotFound),
        ({"code": "limit_exceeded", "message": "m"}, QuotaExceeded),
        ({"code": "errno", "message": "m", "errno": 5, "path": "/x"}, FileError),
    ],
)
@pytest.mark.parametrize("late", [False, True])
async def test_error_during_a_scan_is_not_a_protocol_error(
    tmp_path: Path, error: dict[str, object], kind: type[Exception], late: bool
) -> None:
    failed = json.dumps({"error": error}).encode()
    wire = lines(HEAD, [FILE]) + _chunk(failed) + END if late else answer(failed, b"404 Not Found")
    async with keeper_that(tmp_path, says(wire)) as keeper:
        with pytest.raises(kind):
            await scanned(keeper)


def _chunk(text: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text), text)


async def test_valid_contents_are_accepted(tmp_path: Path) -> None:
    wire = (
        BEGUN + read() + frame(1, b"hal") + ended(again=True) + frame(4, b"{}") + read() + frame(1, b"hello") + ended()
        + read(entry=entry(path=b"b", size=1 << 40), bytes=False, sha256="0" * 64)
        + read(entry=entry(path=b"c", type="gone"), bytes=False) + over(3)
    )  # fmt: skip
    async with keeper_that(tmp_path, says(wire)) as keeper:
        first, large, gone = await contents(keeper, b"a", b"b", b"c")
    assert (first.data, first.unsteady) == (b"hello", False)
    assert (large.data, large.sha256) == (b"", "0" * 64)
    assert gone.entry.type == "gone"


@pytest.mark.parametrize(
    "wire",
    [
        answer(b"{}"),
        UPGRADED,
        UPGRADED + frame(1, b"x"),
        BEGUN + over(0),
        BEGUN + over(1),
        BEGUN + read(entry=entry(path=b"b")) + frame(1, b"hello") + ended() + over(),
        BEGUN + read(entry=entry(type="git")) + ended() + over(),
        BEGUN + read(entry=entry(type="directory")) + frame(1, b"hello") + ended() + over(),
        BEGUN + read(bytes=False) + over(),
        BEGUN + read(bytes=False, sha256="x" * 64) + over(),
        BEGUN + read(sha256="0" * 64) + frame(1, b"hello") + ended() + over(),
        BEGUN + read(extra=1) + frame(1, b"hello") + ended() + over(),
        BEGUN + read() + ended() + over(),
        BEGUN + read() + frame(1, b"hell") + ended() + over(),
        BEGUN + read() + frame(1, b"hello!") + ended() + over(),
        BEGUN + read(entry=entry(size=17)) + frame(1, b"h") * 17 + ended() + over(),
        BEGUN + read() + frame(2, b"hello") + ended() + over(),
        BEGUN + read() + frame(1, b"hello") + over(),
        BEGUN + read() + frame(1, b"hello") + frame(6, b"{}") + over(),
        BEGUN + read() + frame(1, b"hello") + ended() + over(2),
        BEGUN + read() + frame(1, b"hello") + ended() + read() + frame(1, b"hello") + ended() + over(2),
        BEGUN + read() + frame(1, b"hello") + ended(),
        BEGUN + (read() + frame(1, b"hello") + ended(again=True)) * 4 + over(),
        BEGUN + read(entry=entry(size=1 << 40)) + frame(1, MEBIBYTE) * 3 + ended(unsteady=True) + over(),
    ],
)
async def test_impossible_contents_are_a_protocol_error(tmp_path: Path, wire: bytes) -> None:
    async with keeper_that(tmp_path, says(wire)) as keeper:
        with pytest.raises(KeeperProtocolError):
            await contents(keeper)


async def test_read_ended_by_an_error_is_not_a_protocol_error(tmp_path: Path) -> None:
    error = {"code": "errno", "message": "/x: too many open files", "errno": 24, "path": "/x"}
    async with keeper_that(tmp_path, says(BEGUN + over(0, error))) as keeper:
        with pytest.raises(FileError, match="open files"):
            await contents(keeper)


async def test_every_tracking_call_times_out_on_silence(tmp_path: Path) -> None:
    async with keeper_that(tmp_path, says_nothing, timeout=0.3) as keeper:
        for call in (
            lambda: scanned(keeper),
            lambda: contents(keeper),
            lambda: keeper.tracking.start("/x", (), (), 1),
            lambda: keeper.tracking.end(ID),
        ):
            with pytest.raises(KeeperTimeout):
                await call()


@pytest.mark.parametrize("said", [b'{"tracker":"x"}', b'{"tracker":"' + b"0" * 17 + b'"}', b"{}", b'{"changed":1}'])
async def test_tracker_without_a_name_is_a_protocol_error(tmp_path: Path, said: bytes) -> None:
    async with keeper_that(tmp_path, says(answer(said))) as keeper:
        with pytest.raises(KeeperProtocolError):
            await keeper.tracking.start("/x", (), (), 1)
        with pytest.raises(KeeperProtocolError):
            await keeper.tracking.wait(ID, 1, 1, 1)
