"""Files over HTTP with real sandboxes: ranges, errors by their kind, much of it with flat memory, cut uploads."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from support.server import Server, wait_until

from skerry.config import socket_path

LARGE = 512 << 20
HEADROOM = "1G"


@pytest.fixture(scope="module")
def files(http: httpx2.Client) -> Iterator[str]:
    made = http.post("/v1/sandboxes", json={"limits": {"memory": "512M"}})
    assert made.status_code == 201, made.text
    yield f"/v1/sandboxes/{made.json()['id']}/files"
    http.delete(f"/v1/sandboxes/{made.json()['id']}").raise_for_status()


@pytest.fixture(scope="module")
def ten(http: httpx2.Client, files: str) -> dict[str, str]:
    """A file of ten bytes."""
    assert http.put(files, params={"path": "/workspace/ten"}, content=b"0123456789").status_code == 200
    return {"path": "/workspace/ten"}


def test_written_file_is_read_back(http: httpx2.Client, files: str) -> None:
    where = {"path": "/workspace/a ü/b%2f", "parents": "true", "mode": "0640"}
    wrote = http.put(files, params=where, content=b"\0\xff")
    assert wrote.json()["mode"] & 0o7777 == 0o640
    read = http.get(files, params={"path": "/workspace/a ü/b%2f"})
    assert (read.status_code, read.content) == (200, b"\0\xff")
    assert read.headers["Content-Length"] == "2"


@pytest.mark.parametrize(
    ("wish", "content", "span"),
    [
        ("bytes=2-4", b"234", "bytes 2-4/10"),
        ("bytes=7-", b"789", "bytes 7-9/10"),
        ("bytes=-2", b"89", "bytes 8-9/10"),
        ("bytes=0-99", b"0123456789", "bytes 0-9/10"),
        ("bytes=9-9", b"9", "bytes 9-9/10"),
    ],
)
def test_range_of_a_file_is_read(
    http: httpx2.Client, files: str, ten: dict[str, str], wish: str, content: bytes, span: str
) -> None:
    answer = http.get(files, params=ten, headers={"Range": wish})
    assert (answer.status_code, answer.content) == (206, content)
    assert answer.headers["Content-Range"] == span
    assert answer.headers["Content-Length"] == str(len(content))


@pytest.mark.parametrize("wish", ["bytes=10-", "bytes=5-2", "bytes=0-1,3-4", "pages=1-2", "bytes=x-"])
def test_unsatisfiable_range_is_rejected(http: httpx2.Client, files: str, ten: dict[str, str], wish: str) -> None:
    answer = http.get(files, params=ten, headers={"Range": wish})
    assert answer.status_code == 416
    assert answer.headers["Content-Range"] == "bytes */10"


def test_range_is_read_from_the_target_of_a_link(http: httpx2.Client, files: str, ten: dict[str, str]) -> None:
    run = files.removesuffix("files") + "processes?wait=true"
    assert http.post(run, json={"cmd": "ln -s ten /workspace/link"}).json()["exit_code"] == 0
    answer = http.get(files, params={"path": "/workspace/link"}, headers={"Range": "bytes=-3"})
    assert answer.content == b"789"


def test_head_returns_the_size_without_content(http: httpx2.Client, files: str, ten: dict[str, str]) -> None:
    answer = http.head(files, params=ten)
    assert (answer.status_code, answer.content, answer.headers["Content-Length"]) == (200, b"", "10")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/workspace/missing", 404, "file_not_found"),
        ("GET", "/workspace", 409, "file_is_directory"),
        ("GET", "/etc/shadow", 403, "file_permission_denied"),
        ("PUT", "/etc/new", 403, "file_permission_denied"),
        ("PUT", "/workspace/no/such/place", 404, "file_not_found"),
        ("PUT", "/etc/hostname/x", 409, "file_not_directory"),
        ("DELETE", "/workspace/missing", 404, "file_not_found"),
    ],
)
def test_file_error_has_its_code(
    http: httpx2.Client, files: str, method: str, path: str, status: int, code: str
) -> None:
    answer = http.request(method, files, params={"path": path}, content=b"x" if method == "PUT" else None)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.json()["error"]["details"]["path"]


def test_directories_are_created_listed_and_removed(http: httpx2.Client, files: str) -> None:
    made = http.post(f"{files}/mkdir", params={"path": "/workspace/d/e", "parents": "true", "mode": "0700"})
    assert (made.status_code, made.json()["type"]) == (200, "directory")
    listed = http.get(f"{files}/list", params={"path": "/workspace/d"}).json()
    assert [entry["name"] for entry in listed["entries"]] == ["e"]
    assert listed["more"] is False
    assert http.delete(files, params={"path": "/workspace/d"}).status_code == 409
    assert http.delete(files, params={"path": "/workspace/d", "recursive": "true"}).status_code == 204
    assert http.get(f"{files}/stat", params={"path": "/workspace/d"}).status_code == 404


def test_large_transfers_use_constant_memory(server: Server, http: httpx2.Client, files: str) -> None:
    assert server.process is not None
    status = Path(f"/proc/{server.process.pid}/status")

    def memory() -> int:
        return int(status.read_text().partition("VmRSS:")[2].split()[0])

    before, piece = memory(), hashlib.sha256(b"x").digest() * 32768
    sent, peak = hashlib.sha256(), 0

    def pieces() -> Iterator[bytes]:
        nonlocal peak
        for number in range(LARGE // len(piece)):
            sent.update(piece)
            if number % 128 == 0:
                peak = max(peak, memory())
            yield piece

    wrote = http.put(files, params={"path": "/workspace/large"}, content=pieces())
    assert wrote.json()["size"] == LARGE
    got = hashlib.sha256()
    with http.stream("GET", files, params={"path": "/workspace/large"}) as answer:
        assert answer.headers["Content-Length"] == str(LARGE)
        for number, data in enumerate(answer.iter_raw()):
            got.update(data)
            if number % 1000 == 0:
                peak = max(peak, memory())
    assert got.digest() == sent.digest()
    assert peak - before < 64 << 10
    assert http.delete(files, params={"path": "/workspace/large"}).status_code == 204


def test_interrupted_upload_leaves_the_old_file(server: Server, http: httpx2.Client, files: str) -> None:
    where = {"path": "/workspace/kept"}
    assert http.put(files, params=where, content=b"old").status_code == 200
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(socket_path(server.state_dir)))
        head = f"PUT {files}?path=/workspace/kept HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
        connection.sendall(head.encode() + b"n" * 500_000)

    def names() -> list[str]:
        listed = http.get(f"{files}/list", params={"path": "/workspace"}).json()["entries"]
        return [entry["name"] for entry in listed if "kept" in entry["name"] or entry["name"].startswith(".")]

    wait_until(lambda: names() == ["kept"], "the half-written file to be gone")
    assert http.get(files, params=where).content == b"old"


def test_disconnected_reader_affects_no_others(http: httpx2.Client, files: str) -> None:
    for _ in range(20):
        with http.stream("GET", files, params={"path": "/dev/zero"}) as refused:
            assert refused.status_code in (400, 409)
        with http.stream("GET", files, params={"path": "/usr/bin/python3"}) as answer:
            next(answer.iter_raw())
    assert http.get("/healthz").status_code == 200


def test_copy_of_a_disconnected_caller_is_cancelled(server: Server, http: httpx2.Client, files: str) -> None:
    run = files.removesuffix("files") + "processes?wait=true"
    made = http.post(run, json={"cmd": "mkdir big && cd big && seq 30000 | xargs touch"})
    assert made.json()["exit_code"] == 0

    def temporary() -> bool:
        listed = http.get(f"{files}/list", params={"path": "/workspace"}).json()["entries"]
        return any(entry["name"].startswith(".skerry-") for entry in listed)

    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(socket_path(server.state_dir)))
        connection.sendall(f"POST {files}/copy?path=big&to=copy&recursive=true HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        wait_until(temporary, "the copy to begin")
    wait_until(lambda: not temporary(), "it to be taken back")
    assert http.get(f"{files}/stat", params={"path": "/workspace/copy"}).status_code == 404
    assert http.delete(files, params={"path": "/workspace/big", "recursive": "true"}).status_code == 204
