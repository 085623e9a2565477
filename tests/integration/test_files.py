"""Files go in and out whole; what is no regular file, or not there, is a typed error."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from serving import Server

from skerry import Sandbox


@pytest.fixture(scope="module")
def box(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address) as sandbox:
        yield sandbox


def test_a_file_written_is_read_back(box: Sandbox) -> None:
    box.files.write("/workspace/a.txt", "hello")
    assert box.files.read_text("/workspace/a.txt") == "hello"
    assert box.run(["cat", "a.txt"]).stdout == "hello"
    assert box.run(["stat", "-c", "%U", "a.txt"]).stdout == "user\n"


def test_a_file_that_is_missing_is_a_file_not_found_error(box: Sandbox) -> None:
    with pytest.raises(FileNotFoundError):
        box.files.read_bytes("/workspace/none")
    assert not box.files.exists("/workspace/none")


def test_a_directory_where_a_file_was_meant_is_said(box: Sandbox) -> None:
    with pytest.raises(IsADirectoryError):
        box.files.read_bytes("/workspace")
    with pytest.raises(IsADirectoryError):
        box.files.write("/workspace", "x")


def test_reading_a_fifo_or_a_device_does_not_hang(box: Sandbox) -> None:
    box.run(["mkfifo", "/workspace/pipe"])
    for path in ("/workspace/pipe", "/dev/zero"):
        with pytest.raises(OSError, match=path):
            box.files.read_bytes(path)


def test_files_that_say_they_are_empty_are_read_all_the_same(box: Sandbox) -> None:
    assert "processor" in box.files.read_text("/proc/cpuinfo")
    box.files.write("/workspace/empty", "")
    assert box.files.read_bytes("/workspace/empty") == b""


def test_dots_and_links_never_leave_the_sandbox(box: Sandbox) -> None:
    host_name = os.uname().nodename
    assert box.files.read_text("/workspace/../../../../etc/hostname").strip() != host_name or host_name == ""
    box.run(["ln", "-sf", "/../../../../../../etc/shadow", "/workspace/way-out"])
    with pytest.raises(PermissionError):
        box.files.read_bytes("/workspace/way-out")
    box.run(["ln", "-sf", "/proc/1/root/etc/shadow", "/workspace/way-out"])
    with pytest.raises(OSError, match="way-out"):
        box.files.read_bytes("/workspace/way-out")


def test_a_user_may_only_what_that_user_may(box: Sandbox) -> None:
    with pytest.raises(PermissionError):
        box.files.write("/etc/skerry-test", "x")
    box.files.write("/etc/skerry-test", "x", user="root")
    assert box.files.stat("/etc/skerry-test").uid == 0


def test_a_path_with_a_nul_byte_is_refused(box: Sandbox) -> None:
    with pytest.raises(ValueError, match="NUL"):
        box.files.read_bytes("/workspace/a\0b")


def test_listing_and_removing(box: Sandbox) -> None:
    box.files.mkdir("/workspace/d/e/f", parents=True)
    box.files.write("/workspace/d/x", b"12345", mode=0o600)
    entries = {entry.name: entry for entry in box.files.list("/workspace/d")}
    assert set(entries) == {"e", "x"}
    assert entries["x"].size == 5
    assert entries["x"].mode & 0o777 == 0o600
    with pytest.raises(OSError, match="not empty"):
        box.files.remove("/workspace/d")
    box.files.remove("/workspace/d", recursive=True)
    assert not box.files.exists("/workspace/d")


def test_a_file_of_several_gibibytes_streams_with_flat_memory(server: Server, box: Sandbox) -> None:
    def resident() -> int:
        assert server.process is not None
        with open(f"/proc/{server.process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    size = 3 << 30
    before = resident()
    box.run(["truncate", "-s", str(size), "/workspace/huge"], check=True)
    read = sum(len(chunk) for chunk in box.files.stream("/workspace/huge"))
    assert read == size
    block = b"y" * (1 << 20)
    box.files.write("/workspace/back", (block for _ in range(1 << 10)))
    assert box.files.stat("/workspace/back").size == 1 << 30
    assert resident() - before < 64 * 1024
    box.files.remove("/workspace/huge")
    box.files.remove("/workspace/back")
