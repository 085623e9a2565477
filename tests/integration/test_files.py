"""Files go in and out whole; what is no regular file, or not there, is a typed error."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import signal
import threading
from collections.abc import Iterator

import pytest
from serving import Server, wait_until

from skerry import Conflict, InvalidRequest, Limits, Sandbox, ServerUnreachable

HEADROOM = "1G"


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

    size, rest = 5 << 30, 512 << 20  # the last of it: every offset is more than 32 bits hold
    before = resident()
    box.run(["truncate", "-s", str(size), "/workspace/huge"], check=True)
    read = sum(len(chunk) for chunk in box.files.stream("/workspace/huge", offset=size - rest))
    assert read == rest
    block = b"y" * (1 << 20)
    box.files.write("/workspace/back", (block for _ in range(512)))
    assert box.files.stat("/workspace/back").size == 512 << 20
    assert resident() - before < 64 * 1024
    box.files.remove("/workspace/huge")
    box.files.remove("/workspace/back")


def test_parts_of_a_file_are_read_as_python_reads(box: Sandbox) -> None:
    box.files.write("/workspace/ten", "0123456789")
    for offset, length, part in (
        (0, None, b"0123456789"), (3, None, b"3456789"), (3, 2, b"34"), (0, 0, b""), (8, 100, b"89"), (10, None, b""),
        (500, 5, b""),
    ):  # fmt: skip
        assert box.files.read_bytes("/workspace/ten", offset=offset, length=length) == part
        assert b"".join(box.files.stream("/workspace/ten", offset=offset, length=length)) == part
    whole = box.files.read_bytes("/proc/version")
    assert box.files.read_bytes("/proc/version", offset=2, length=7) == whole[2:9]
    assert box.files.read_bytes("/proc/version", offset=100_000) == b""
    box.files.write("/workspace/empty", "")
    assert box.files.read_bytes("/workspace/empty", offset=1, length=1) == b""
    with pytest.raises(ValueError, match="negative"):
        box.files.read_bytes("/workspace/ten", offset=-1)
    with pytest.raises(FileNotFoundError):
        box.files.read_bytes("/workspace/none", offset=1)


def test_names_and_contents_that_are_no_text_survive(box: Sandbox) -> None:
    name = os.fsdecode(b"/workspace/odd/b\xff\x80ad")
    content = bytes(range(256))
    written = box.files.write(name, content)
    assert (written.path, written.name) == (name, os.fsdecode(b"b\xff\x80ad"))
    listed = box.files.list("/workspace/odd")
    assert [entry.path for entry in listed] == [name]
    assert box.files.read_bytes(listed[0].path) == content
    assert box.files.read_text(name, encoding="latin-1") == content.decode("latin-1")
    with pytest.raises(UnicodeDecodeError):
        box.files.read_text(name)
    assert box.run("ls odd | od -An -tx1").stdout == " 62 ff 80 61 64 0a\n"
    box.files.move(name, os.fsdecode(b"/workspace/odd/\xfe"))
    assert box.files.link(os.fsdecode(b"\xfe"), "/workspace/odd/l").target == os.fsdecode(b"\xfe")
    assert box.files.exists(os.fsdecode(b"/workspace/odd/\xfe"))
    with pytest.raises(FileNotFoundError) as missing:
        box.files.read_bytes(name)
    assert missing.value.errno == errno.ENOENT
    box.files.remove("/workspace/odd", recursive=True)


def test_a_list_says_that_there_is_more(box: Sandbox) -> None:
    box.run("mkdir -p tree/a/b .hid && touch tree/a/b/c tree/.x", check=True)
    listed = box.files.list("tree", depth=3)
    assert [entry.path for entry in listed] == ["tree/.x", "tree/a", "tree/a/b", "tree/a/b/c"]
    assert (listed.more, listed.skipped) == (False, 0)
    assert [entry.name for entry in box.files.list("tree", hidden=False)] == ["a"]
    box.run("mkdir -p /tmp/many/{1..9} && touch /tmp/many/{1..9}/99{1..9}", check=True)
    found = box.files.glob("/tmp/many/*/99*", limit=5)
    assert (len(found), found.more) == (5, True)
    assert not box.files.glob("/tmp/many/*/99*", limit=81).more
    assert [entry.path for entry in box.files.glob("tree/**/c")] == ["tree/a/b/c"]
    with pytest.raises(ValueError, match="pattern"):
        box.files.glob("../x")
    box.files.remove("/tmp/many", recursive=True)


def test_files_are_moved_copied_and_linked(box: Sandbox) -> None:
    box.files.write("/workspace/one/a", "x", mode=0o750)
    assert box.files.copy("/workspace/one", "/workspace/two", recursive=True).type == "directory"
    assert box.files.stat("/workspace/two/a").mode == 0o750
    with pytest.raises(IsADirectoryError):
        box.files.copy("/workspace/one", "/workspace/three")
    with pytest.raises(FileExistsError) as there:
        box.files.move("/workspace/one/a", "/workspace/two/a")
    assert there.value.filename == "/workspace/two/a"
    box.files.move("/workspace/one/a", "/workspace/two/a", overwrite=True)
    assert not box.files.exists("/workspace/one/a")
    box.files.link("a", "/workspace/two/l")
    assert box.files.stat("/workspace/two/l", follow=True).type == "file"
    box.files.link("/workspace/two/a", "/workspace/two/h", hard=True)
    box.files.append("/workspace/two/h", "y")
    box.files.append("/workspace/two/h", io.BytesIO(b"z"))
    assert box.files.read_text("/workspace/two/l") == "xyz"
    assert box.files.checksum("/workspace/two/a") == hashlib.sha256(b"xyz").hexdigest()
    assert box.files.checksum("/workspace/two/a", "md5") == hashlib.md5(b"xyz").hexdigest()
    with pytest.raises(ValueError, match="algorithm"):
        box.files.checksum("/workspace/two/a", "crc32")  # type: ignore[arg-type]


def test_a_directory_of_the_image_is_moved(box: Sandbox) -> None:
    """An overlay can't rename it: it is copied and removed."""
    box.files.move("/usr/share/doc", "/usr/share/documents", user="root")
    assert box.run("ls /usr/share/documents | wc -l").stdout != "0\n"
    assert not box.files.exists("/usr/share/doc")


def test_modes_and_owners(box: Sandbox) -> None:
    box.files.write("/workspace/own/f", "x")
    box.files.chmod("/workspace/own", 0o700, recursive=True)
    assert box.files.stat("/workspace/own/f").mode == 0o700
    for owner in ("root", 0, ":root", "user:root"):
        with pytest.raises(PermissionError):
            box.files.chown("/workspace/own/f", owner)
        with pytest.raises(PermissionError):
            box.files.write("/workspace/own/g", "x", owner=owner)
    box.files.chown("/workspace/own", "root", recursive=True, user="root")
    assert (box.files.stat("/workspace/own").uid, box.files.stat("/workspace/own").gid) == (0, 0)
    assert box.files.write("/workspace/mine", "x", owner="user", user="root").uid == 1000
    with pytest.raises(PermissionError):
        box.files.chmod("/workspace/own", 0o777)
    with pytest.raises(ValueError, match="user or group"):
        box.files.chown("/workspace/mine", "nosuch", user="root")
    with pytest.raises(ValueError, match="out of range"):
        box.files.chmod("/workspace/mine", 0o10000)


def test_not_a_directory_is_said(box: Sandbox) -> None:
    box.files.write("/workspace/plain", "x")
    with pytest.raises(NotADirectoryError):
        box.files.list("/workspace/plain")
    with pytest.raises(NotADirectoryError):
        box.files.read_bytes("/workspace/plain/x")
    with pytest.raises(FileExistsError):
        box.files.mkdir("/workspace/plain", parents=False)


def test_a_full_disk_in_mid_write_leaves_the_old_content(server: Server) -> None:
    with Sandbox(server=server.address, limits=Limits(disk="64M")) as small:
        small.files.write("/workspace/f", "old")
        for content in (b"x" * (200 << 20), (b"y" * (1 << 20) for _ in range(200))):
            with pytest.raises(OSError, match="/workspace/f") as full:
                small.files.write("/workspace/f", content)
            assert full.value.errno in (errno.ENOSPC, errno.EDQUOT)
            assert small.files.read_text("/workspace/f") == "old"
            assert [entry.name for entry in small.files.list("/workspace")] == ["f"]
        with pytest.raises(OSError, match="f"):
            small.files.append("/workspace/f", (b"y" * (1 << 20) for _ in range(200)))
        assert small.files.read_bytes("/workspace/f", length=4) == b"oldy"


def test_lines_are_read_by_their_numbers(box: Sandbox) -> None:
    box.files.write("/workspace/lines", "one\ntwo\nthree\n")
    read = box.files.read_lines("/workspace/lines", 2, 2)
    assert (read.lines, read.end, read.more, read.text) == (["two"], 2, True, "two\n")
    assert box.files.read_lines("/workspace/lines", 2).lines == ["two", "three"]
    with pytest.raises(ValueError, match="before"):
        box.files.read_lines("/workspace/lines", 3, 2)
    with pytest.raises(FileNotFoundError):
        box.files.read_lines("/workspace/none")


def test_lines_are_found_by_a_pattern(box: Sandbox) -> None:
    name = os.fsdecode(b"/workspace/code/\xff.py")
    box.files.write(name, "import os\n\ndef main():\n    pass\n")
    box.files.write("/workspace/code/b.txt", "def other")
    found = box.files.search(r"^def \w+", "/workspace/code", glob="*.py", context=1)
    assert [(match.path, match.line, match.text) for match in found.matches] == [(name, 3, "def main():")]
    assert (found.matches[0].before, found.matches[0].after) == (("",), ("    pass",))
    found = box.files.search("DEF", "code", ignore_case=True, limit=1)
    assert (found.matches[0].path, found.more) == ("code/b.txt", True)
    with pytest.raises(ValueError, match="pattern"):
        box.files.search("(", "/workspace/code")
    with pytest.raises(ValueError, match="limit"):
        box.files.search("x", limit=0)
    with pytest.raises(ValueError, match="Unicode"):
        box.files.search("\ud800")


def test_a_text_is_replaced(box: Sandbox) -> None:
    box.files.write("/workspace/edit", "one\ntwo\none\n", mode=0o640)
    with pytest.raises(Conflict, match="2 times, not 1: at lines 1, 3") as often:
        box.files.replace("/workspace/edit", "one", "1")
    assert (often.value.details["count"], often.value.details["lines"]) == (2, [1, 3])
    assert box.files.replace("/workspace/edit", "one", "1", count=2).count == 2
    assert box.files.replace("/workspace/edit", b"two", b"\xff", count=None).lines == (2,)
    assert box.files.read_bytes("/workspace/edit") == b"1\n\xff\n1\n"
    assert box.files.stat("/workspace/edit").mode == 0o640
    with pytest.raises(Conflict, match="not in it"):
        box.files.replace("/workspace/edit", "missing", "x", count=None)
    for old, count in (("", 1), ("1", 0), ("1", -1), ("\ud800", 1)):
        with pytest.raises(InvalidRequest):
            box.files.replace("/workspace/edit", old, "x", count=count)
    with pytest.raises(PermissionError):
        box.files.replace("/etc/hostname", "a", "b", count=None)


def test_a_diff_is_applied(box: Sandbox) -> None:
    name = os.fsdecode(b"/workspace/proj/\xff")
    box.files.write(name, "a\nb\nc\n")
    done = box.files.patch(name, "--- x\n+++ x\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n")
    assert [(one.path, one.action, one.added, one.removed) for one in done.files] == [(name, "changed", 1, 1)]
    assert box.files.read_text(name) == "a\nB\nc\n"
    with pytest.raises(Conflict, match='hunk 1: line 2 is "B", not "b"'):
        box.files.patch(name, "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n")
    with pytest.raises(InvalidRequest, match="no hunk"):
        box.files.patch(name, "hello")
    with pytest.raises(InvalidRequest, match="empty"):
        box.files.patch(name, "")
    box.run(["bash", "-c", "cd proj && git init -q && git add -A && git commit -qm x && echo new > n && rm $'\\xff'"])
    diff = box.run("cd proj && git add -A && git diff --cached && git reset -q --hard").stdout_bytes
    done = box.files.patch("/workspace/proj", diff)
    assert sorted((one.path, one.action) for one in done.files) == [("/workspace/proj/n", "created"), (name, "deleted")]
    assert not box.files.exists(name)


def test_a_server_that_is_killed_in_the_middle_of_an_upload_leaves_the_old_file(own_server: Server) -> None:
    own_server.start()
    box = Sandbox.create(name="dev", server=own_server.address)
    box.files.write("/workspace/f", "old")

    def pieces() -> Iterator[bytes]:
        for number in range(1000):
            yield b"x" * 100_000
            if number == 50:
                own_server.end(signal.SIGKILL)

    with pytest.raises(ServerUnreachable):
        box.files.write("/workspace/f", pieces())
    own_server.start()
    box = Sandbox.get("dev", server=own_server.address)
    wait_until(lambda: [e.name for e in box.files.list("/workspace")] == ["f"], "the half-written file to be gone")
    assert box.files.read_text("/workspace/f") == "old"
    box.delete()


def test_a_server_that_is_killed_in_the_middle_of_a_download_is_told(own_server: Server) -> None:
    own_server.start()
    box = Sandbox.create(name="dev", server=own_server.address)
    box.run(["truncate", "-s", "200M", "/workspace/f"], check=True)
    stream = box.files.stream("/workspace/f")
    next(stream)
    own_server.end(signal.SIGKILL)
    with pytest.raises(ServerUnreachable):
        for _ in stream:
            pass
    own_server.start()
    box = Sandbox.get("dev", server=own_server.address)
    assert box.files.read_bytes("/workspace/f", offset=(200 << 20) - 3) == b"\0\0\0"
    box.delete()


def test_a_copy_outlives_no_server(own_server: Server) -> None:
    """Its caller is told, and what it left half-done is taken away."""
    own_server.start()
    box = Sandbox.create(name="dev", server=own_server.address)
    box.run("mkdir big && cd big && seq 30000 | xargs touch", check=True)
    ended = threading.Event()

    def copy() -> None:
        with contextlib.suppress(ServerUnreachable):
            box.files.copy("big", "copy", recursive=True)
            return
        ended.set()

    work = threading.Thread(target=copy)
    work.start()
    other = Sandbox.get("dev", server=own_server.address)
    wait_until(lambda: any(e.name.startswith(".skerry-") for e in other.files.list(".")), "the copy to begin")
    own_server.end(signal.SIGKILL)
    work.join(60)
    assert ended.is_set()
    own_server.start()
    other = Sandbox.get("dev", server=own_server.address)
    wait_until(lambda: [e.name for e in other.files.list(".")] == ["big"], "the half-made copy to be gone")
    other.delete()
