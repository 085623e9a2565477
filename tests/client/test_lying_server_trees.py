"""`download` and `upload` with a server that misbehaves, disconnects or speaks another protocol."""

# ruff: noqa: SIM117  (a server, then what is expected of a client of it)

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.lying_server import SANDBOX, Asked, Said, lying, refused, said

from skerry import Sandbox, ServerUnreachable, SkerryError
from skerry.codecs.frames import ERROR, EXIT, MEDIA_TYPE, STDOUT, encode
from skerry.codecs.tar import END, Entry, header, padding
from skerry.errors import FilePermissionDenied, SandboxUnavailable

DONE = encode(EXIT, json.dumps({"files": 9, "directories": 9, "links": 9, "bytes": 9}).encode())
ONE = header(Entry(b"f", "file", 0o644, 4)) + b"data" + padding(4)


def with_tree(wire: bytes, *, whole: bool = True) -> Callable[[Asked], Said]:
    def answer(asked: Asked) -> Said:
        if asked.method == "DELETE":
            return Said(204)
        return Said(200, wire, MEDIA_TYPE, whole) if asked.path.endswith("/tree") else said(SANDBOX, 201)

    return answer


def download(tmp_path: Path, wire: bytes, *, whole: bool = True) -> None:
    with lying(tmp_path, with_tree(wire, whole=whole)) as server, Sandbox(server=server.address) as sandbox:
        try:
            moved = sandbox.files.download("x", tmp_path / "out" / "deep")
        finally:
            assert sorted(p.name for p in tmp_path.iterdir() if p.name != "l.sock") in (["out"], [])
    assert (moved.files, moved.bytes) == (1, 4), "what landed counts, not what is said"


def test_valid_archive_is_unpacked(tmp_path: Path) -> None:
    download(tmp_path, encode(STDOUT, ONE + END) + DONE)
    assert (tmp_path / "out/deep/f").read_bytes() == b"data"


@pytest.mark.parametrize(
    "wire",
    [
        encode(STDOUT, ONE) + DONE,
        encode(STDOUT, ONE[:700]) + DONE,
        encode(STDOUT, b"junk" * 1000) + DONE,
        DONE,
        encode(STDOUT, header(Entry(b"../../evil", "file", 0o644, 4)) + b"evil" + padding(4) + END) + DONE,
        encode(STDOUT, header(Entry(b"/tmp/skerry-evil", "file", 0o644, 0)) + END) + DONE,
        encode(STDOUT, ONE + END) + encode(EXIT, b"{}"),
        encode(STDOUT, ONE + END) + encode(EXIT, b"not json"),
        encode(STDOUT, ONE + END) + b"\x09\x00\x00\x00\x00",
    ],
)
def test_invalid_archive_is_an_error_and_writes_nothing_outside(tmp_path: Path, wire: bytes) -> None:
    with pytest.raises(SkerryError):
        download(tmp_path, wire)
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "out/evil").exists()


def test_archive_without_an_end_frame_is_incomplete(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="ended early"):
        download(tmp_path, encode(STDOUT, ONE + END))
    (tmp_path / "l.sock").unlink()
    with pytest.raises(ServerUnreachable):
        download(tmp_path, encode(STDOUT, ONE[:600]), whole=False)
    assert [p.name for p in (tmp_path / "out/deep").iterdir()] == ["f"], "the whole one of the first try"


def test_error_in_the_middle_is_raised_with_its_type(tmp_path: Path) -> None:
    error = json.dumps(
        {"error": {"code": "file_permission_denied", "message": "no", "details": {"errno": 13}}}
    ).encode()
    with pytest.raises(FilePermissionDenied):
        download(tmp_path, encode(STDOUT, ONE) + encode(ERROR, error))


def test_upload_rejected_early_has_the_reason(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Said:
        if asked.path.endswith("/tree"):
            return refused(403, "file_permission_denied", "not there")
        return Said(204) if asked.method == "DELETE" else said(SANDBOX, 201)

    (tmp_path / "a").mkdir()
    (tmp_path / "a/f").write_bytes(b"x" * 100_000)
    with lying(tmp_path, answer) as server, Sandbox(server=server.address) as sandbox:
        with pytest.raises(PermissionError, match="not there"):
            sandbox.files.upload(tmp_path / "a", "/etc")
    sent = next(asked for asked in server.asked if asked.path.endswith("/tree"))
    assert (sent.headers["content-type"], sent.query) == ("application/x-tar", {"path": ["/etc"]})
    assert sent.body.endswith(END)
