"""Files are written and read completely; special or missing files are typed errors."""

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
from support.server import Server, wait_until

from skerry import Conflict, InvalidRequest, Limits, Sandbox, ServerUnreachable

HEADROOM = "1G"


def test_written_file_is_read_back(sandbox: Sandbox) -> None:
    sandbox.files.write("/workspace/a.txt", "hello")
    assert sandbox.files.read_text("/workspace/a.txt") == "hello"
    assert sandbox.run(["cat", "a.txt"]).stdout == "hello"
    assert sandbox.run(["stat", "-c", "%U", "a.txt"]).stdout == "user\n"


def test_missing_file_is_a_file_not_found_error(sandbox: Sandbox) -> None:
    with pytest.raises(FileNotFoundError):
        sandbox.files.read_bytes("/workspace/none")
    assert not sandbox.files.exists("/workspace/none")


def test_directory_in_place_of_a_file_is_reported(sandbox: Sandbox) -> None:
    with pytest.raises(IsADirectoryError):
        sandbox.files.read_bytes("/workspace")
    with pytest.raises(IsADirectoryError):
        sandbox.files.write("/workspace", "x")


def test_content_is_read_with_its_type_and_encoding(sandbox: Sandbox) -> None:
    cases = {
        "a.json": (b'{"a": 1}', "application/json", "utf-8"), "b.png": (b"\x89PNG\r\n\x1a\n\0", "image/png", None),
        "plain": ("größe".encode(), "text/plain", "utf-8"), "latin": (b"gr\xf6\xdfe", "application/octet-stream", None),
        "nul.txt": (b"a\0b", "text/plain", None), "empty": (b"", "text/plain", "utf-8"),
    }  # fmt: skip
    for name, (data, kind, encoding) in cases.items():
        sandbox.files.write(name, data)
        found = sandbox.files.read(name)
        assert (found.data, found.size, found.media_type, found.encoding) == (data, len(data), kind, encoding), name
        assert found.is_binary == (encoding is None)
    assert sandbox.files.read("plain").text == "größe"


def test_reading_a_fifo_or_a_device_does_not_hang(sandbox: Sandbox) -> None:
    sandbox.run(["mkfifo", "/workspace/pipe"])
    for path in ("/workspace/pipe", "/dev/zero"):
        with pytest.raises(OSError, match=path):
            sandbox.files.read_bytes(path)


def test_files_with_a_reported_size_of_zero_are_read(sandbox: Sandbox) -> None:
    assert "processor" in sandbox.files.read_text("/proc/cpuinfo")
    sandbox.files.write("/workspace/empty", "")
    assert sandbox.files.read_bytes("/workspace/empty") == b""


def test_dots_and_links_never_leave_the_sandbox(sandbox: Sandbox) -> None:
    host_name = os.uname().nodename
    assert sandbox.files.read_text("/workspace/../../../../etc/hostname").strip() != host_name or host_name == ""
    sandbox.run(["ln", "-sf", "/../../../../../../etc/shadow", "/workspace/way-out"])
    with pytest.raises(PermissionError):
        sandbox.files.read_bytes("/workspace/way-out")
    sandbox.run(["ln", "-sf", "/proc/1/root/etc/shadow", "/workspace/way-out"])
    with pytest.raises(OSError, match="way-out"):
        sandbox.files.read_bytes("/workspace/way-out")


def test_permissions_of_the_user_apply(sandbox: Sandbox) -> None:
    with pytest.raises(PermissionError):
        sandbox.files.write("/etc/skerry-test", "x")
    sandbox.files.write("/etc/skerry-test", "x", user="root")
    assert sandbox.files.stat("/etc/skerry-test").uid == 0


def test_path_with_a_nul_byte_is_rejected(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="NUL"):
        sandbox.files.read_bytes("/workspace/a\0b")


def test_files_are_listed_and_removed(sandbox: Sandbox) -> None:
    sandbox.files.mkdir("/workspace/d/e/f", parents=True)
    sandbox.files.write("/workspace/d/x", b"12345", mode=0o600)
    entries = {entry.name: entry for entry in sandbox.files.list("/workspace/d")}
    assert set(entries) == {"e", "x"}
    assert entries["x"].size == 5
    assert entries["x"].mode & 0o777 == 0o600
    with pytest.raises(OSError, match="not empty"):
        sandbox.files.remove("/workspace/d")
    sandbox.files.remove("/workspace/d", recursive=True)
    assert not sandbox.files.exists("/workspace/d")


def test_file_of_several_gibibytes_streams_in_constant_memory(server: Server, sandbox: Sandbox) -> None:
    def resident() -> int:
        assert server.process is not None
        with open(f"/proc/{server.process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    size, rest = 5 << 30, 512 << 20  # the last of it: every offset is more than 32 bits hold
    before = resident()
    sandbox.run(["truncate", "-s", str(size), "/workspace/huge"], check=True)
    read = sum(len(chunk) for chunk in sandbox.files.stream("/workspace/huge", offset=size - rest))
    assert read == rest
    block = b"y" * (1 << 20)
    sandbox.files.write("/workspace/back", (block for _ in range(512)))
    assert sandbox.files.stat("/workspace/back").size == 512 << 20
    assert resident() - before < 64 * 1024
    sandbox.files.remove("/workspace/huge")
    sandbox.files.remove("/workspace/back")


def test_parts_of_a_file_are_read_like_in_python(sandbox: Sandbox) -> None:
    sandbox.files.write("/workspace/ten", "0123456789")
    for offset, length, part in (
        (0, None, b"0123456789"), (3, None, b"3456789"), (3, 2, b"34"), (0, 0, b""), (8, 100, b"89"), (10, None, b""),
        (500, 5, b""),
    ):  # fmt: skip
        assert sandbox.files.read_bytes("/workspace/ten", offset=offset, length=length) == part
        assert b"".join(sandbox.files.stream("/workspace/ten", offset=offset, length=length)) == part
    whole = sandbox.files.read_bytes("/proc/version")
    assert sandbox.files.read_bytes("/proc/version", offset=2, length=7) == whole[2:9]
    assert sandbox.files.read_bytes("/proc/version", offset=100_000) == b""
    sandbox.files.write("/workspace/empty", "")
    assert sandbox.files.read_bytes("/workspace/empty", offset=1, length=1) == b""
    with pytest.raises(ValueError, match="negative"):
        sandbox.files.read_bytes("/workspace/ten", offset=-1)
    with pytest.raises(FileNotFoundError):
        sandbox.files.read_bytes("/workspace/none", offset=1)


def test_non_utf8_names_and_contents_are_preserved(sandbox: Sandbox) -> None:
    name = os.fsdecode(b"/workspace/odd/b\xff\x80ad")
    content = bytes(range(256))
    written = sandbox.files.write(name, content)
    assert (written.path, written.name) == (name, os.fsdecode(b"b\xff\x80ad"))
    listed = sandbox.files.list("/workspace/odd")
    assert [entry.path for entry in listed] == [name]
    assert sandbox.files.read_bytes(listed[0].path) == content
    assert sandbox.files.read_text(name, encoding="latin-1") == content.decode("latin-1")
    with pytest.raises(UnicodeDecodeError):
        sandbox.files.read_text(name)
    assert sandbox.run("ls odd | od -An -tx1").stdout == " 62 ff 80 61 64 0a\n"
    sandbox.files.move(name, os.fsdecode(b"/workspace/odd/\xfe"))
    assert sandbox.files.link(os.fsdecode(b"\xfe"), "/workspace/odd/l").target == os.fsdecode(b"\xfe")
    assert sandbox.files.exists(os.fsdecode(b"/workspace/odd/\xfe"))
    with pytest.raises(FileNotFoundError) as missing:
        sandbox.files.read_bytes(name)
    assert missing.value.errno == errno.ENOENT
    sandbox.files.remove("/workspace/odd", recursive=True)


def test_truncated_list_is_marked(sandbox: Sandbox) -> None:
    sandbox.run("mkdir -p tree/a/b .hid && touch tree/a/b/c tree/.x", check=True)
    listed = sandbox.files.list("tree", depth=3)
    assert [entry.path for entry in listed] == ["tree/.x", "tree/a", "tree/a/b", "tree/a/b/c"]
    assert (listed.more, listed.skipped) == (False, 0)
    assert [entry.name for entry in sandbox.files.list("tree", hidden=False)] == ["a"]
    sandbox.run("mkdir -p /tmp/many/{1..9} && touch /tmp/many/{1..9}/99{1..9}", check=True)
    found = sandbox.files.glob("/tmp/many/*/99*", limit=5)
    assert (len(found), found.more) == (5, True)
    assert not sandbox.files.glob("/tmp/many/*/99*", limit=81).more
    assert [entry.path for entry in sandbox.files.glob("tree/**/c")] == ["tree/a/b/c"]
    with pytest.raises(ValueError, match="pattern"):
        sandbox.files.glob("../x")
    sandbox.files.remove("/tmp/many", recursive=True)


def test_files_are_moved_copied_and_linked(sandbox: Sandbox) -> None:
    sandbox.files.write("/workspace/one/a", "x", mode=0o750)
    assert sandbox.files.copy("/workspace/one", "/workspace/two", recursive=True).type == "directory"
    assert sandbox.files.stat("/workspace/two/a").mode == 0o750
    with pytest.raises(IsADirectoryError):
        sandbox.files.copy("/workspace/one", "/workspace/three")
    with pytest.raises(FileExistsError) as there:
        sandbox.files.move("/workspace/one/a", "/workspace/two/a")
    assert there.value.filename == "/workspace/two/a"
    sandbox.files.move("/workspace/one/a", "/workspace/two/a", overwrite=True)
    assert not sandbox.files.exists("/workspace/one/a")
    sandbox.files.link("a", "/workspace/two/l")
    assert sandbox.files.stat("/workspace/two/l", follow=True).type == "file"
    sandbox.files.link("/workspace/two/a", "/workspace/two/h", hard=True)
    sandbox.files.append("/workspace/two/h", "y")
    sandbox.files.append("/workspace/two/h", io.BytesIO(b"z"))
    assert sandbox.files.read_text("/workspace/two/l") == "xyz"
    assert sandbox.files.checksum("/workspace/two/a") == hashlib.sha256(b"xyz").hexdigest()
    assert sandbox.files.checksum("/workspace/two/a", "md5") == hashlib.md5(b"xyz").hexdigest()
    with pytest.raises(ValueError, match="algorithm"):
        sandbox.files.checksum("/workspace/two/a", "crc32")  # type: ignore[arg-type]


def test_directory_of_the_image_can_be_moved(sandbox: Sandbox) -> None:
    """An overlay can't rename it: it is copied and removed."""
    sandbox.files.move("/usr/share/doc", "/usr/share/documents", user="root")
    assert sandbox.run("ls /usr/share/documents | wc -l").stdout != "0\n"
    assert not sandbox.files.exists("/usr/share/doc")


def test_modes_and_owners_are_set(sandbox: Sandbox) -> None:
    sandbox.files.write("/workspace/own/f", "x")
    sandbox.files.chmod("/workspace/own", 0o700, recursive=True)
    assert sandbox.files.stat("/workspace/own/f").mode == 0o700
    for owner in ("root", 0, ":root", "user:root"):
        with pytest.raises(PermissionError):
            sandbox.files.chown("/workspace/own/f", owner)
        with pytest.raises(PermissionError):
            sandbox.files.write("/workspace/own/g", "x", owner=owner)
    sandbox.files.chown("/workspace/own", "root", recursive=True, user="root")
    assert (sandbox.files.stat("/workspace/own").uid, sandbox.files.stat("/workspace/own").gid) == (0, 0)
    assert sandbox.files.write("/workspace/mine", "x", owner="user", user="root").uid == 1000
    with pytest.raises(PermissionError):
        sandbox.files.chmod("/workspace/own", 0o777)
    with pytest.raises(ValueError, match="user or group"):
        sandbox.files.chown("/workspace/mine", "nosuch", user="root")
    with pytest.raises(ValueError, match="out of range"):
        sandbox.files.chmod("/workspace/mine", 0o10000)


def test_path_that_is_not_a_directory_is_reported(sandbox: Sandbox) -> None:
    sandbox.files.write("/workspace/plain", "x")
    with pytest.raises(NotADirectoryError):
        sandbox.files.list("/workspace/plain")
    with pytest.raises(NotADirectoryError):
        sandbox.files.read_bytes("/workspace/plain/x")
    with pytest.raises(FileExistsError):
        sandbox.files.mkdir("/workspace/plain", parents=False)


def test_full_disk_during_a_write_keeps_the_old_content(server: Server) -> None:
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


def test_lines_are_read_by_their_numbers(sandbox: Sandbox) -> None:
    sandbox.files.write("/workspace/lines", "one\ntwo\nthree\n")
    read = sandbox.files.read_lines("/workspace/lines", 2, 2)
    assert (read.lines, read.end, read.more, read.text) == (["two"], 2, True, "two\n")
    assert sandbox.files.read_lines("/workspace/lines", 2).lines == ["two", "three"]
    with pytest.raises(ValueError, match="before"):
        sandbox.files.read_lines("/workspace/lines", 3, 2)
    with pytest.raises(FileNotFoundError):
        sandbox.files.read_lines("/workspace/none")


def test_lines_are_found_by_a_pattern(sandbox: Sandbox) -> None:
    name = os.fsdecode(b"/workspace/code/\xff.py")
    sandbox.files.write(name, "import os\n\ndef main():\n    pass\n")
    sandbox.files.write("/workspace/code/b.txt", "def other")
    found = sandbox.files.search(r"^def \w+", "/workspace/code", glob="*.py", context=1)
    assert [(match.path, match.line, match.text) for match in found.matches] == [(name, 3, "def main():")]
    assert (found.matches[0].before, found.matches[0].after) == (("",), ("    pass",))
    found = sandbox.files.search("DEF", "code", ignore_case=True, limit=1)
    assert (found.matches[0].path, found.more) == ("code/b.txt", True)
    with pytest.raises(ValueError, match="pattern"):
        sandbox.files.search("(", "/workspace/code")
    with pytest.raises(ValueError, match="limit"):
        sandbox.files.search("x", limit=0)
    with pytest.raises(ValueError, match="Unicode"):
        sandbox.files.search("\ud800")


def test_text_is_replaced(sandbox: Sandbox) -> None:
    sandbox.files.write("/workspace/edit", "one\ntwo\none\n", mode=0o640)
    with pytest.raises(Conflict, match="2 times, not 1: at lines 1, 3") as often:
        sandbox.files.replace("/workspace/edit", "one", "1")
    assert (often.value.details["count"], often.value.details["lines"]) == (2, [1, 3])
    assert sandbox.files.replace("/workspace/edit", "one", "1", count=2).count == 2
    assert sandbox.files.replace("/workspace/edit", b"two", b"\xff", count=None).lines == (2,)
    assert sandbox.files.read_bytes("/workspace/edit") == b"1\n\xff\n1\n"
    assert sandbox.files.stat("/workspace/edit").mode == 0o640
    with pytest.raises(Conflict, match="text not found"):
        sandbox.files.replace("/workspace/edit", "missing", "x", count=None)
    for old, count in (("", 1), ("1", 0), ("1", -1), ("\ud800", 1)):
        with pytest.raises(InvalidRequest):
            sandbox.files.replace("/workspace/edit", old, "x", count=count)
    with pytest.raises(PermissionError):
        sandbox.files.replace("/etc/hostname", "a", "b", count=None)


def test_diff_is_applied(sandbox: Sandbox) -> None:
    name = os.fsdecode(b"/workspace/proj/\xff")
    sandbox.files.write(name, "a\nb\nc\n")
    done = sandbox.files.patch(name, "--- x\n+++ x\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n")
    assert [(one.path, one.action, one.added, one.removed) for one in done.files] == [(name, "changed", 1, 1)]
    assert sandbox.files.read_text(name) == "a\nB\nc\n"
    with pytest.raises(Conflict, match='hunk 1: line 2 is "B", not "b"'):
        sandbox.files.patch(name, "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n")
    with pytest.raises(InvalidRequest, match="no hunk"):
        sandbox.files.patch(name, "hello")
    with pytest.raises(InvalidRequest, match="empty"):
        sandbox.files.patch(name, "")
    sandbox.run(
        ["bash", "-c", "cd proj && git init -q && git add -A && git commit -qm x && echo new > n && rm $'\\xff'"]
    )
    diff = sandbox.run("cd proj && git add -A && git diff --cached && git reset -q --hard").stdout_bytes
    done = sandbox.files.patch("/workspace/proj", diff)
    assert sorted((one.path, one.action) for one in done.files) == [("/workspace/proj/n", "created"), (name, "deleted")]
    assert not sandbox.files.exists(name)


def test_server_crash_during_an_upload_keeps_the_old_file(own_server: Server) -> None:
    own_server.start()
    sandbox = Sandbox.create(name="dev", server=own_server.address)
    sandbox.files.write("/workspace/f", "old")

    def pieces() -> Iterator[bytes]:
        for number in range(1000):
            yield b"x" * 100_000
            if number == 50:
                own_server.end(signal.SIGKILL)

    with pytest.raises(ServerUnreachable):
        sandbox.files.write("/workspace/f", pieces())
    own_server.start()
    sandbox = Sandbox.get("dev", server=own_server.address)
    wait_until(lambda: [e.name for e in sandbox.files.list("/workspace")] == ["f"], "the half-written file to be gone")
    assert sandbox.files.read_text("/workspace/f") == "old"
    sandbox.delete()


def test_server_crash_during_a_download_is_reported(own_server: Server) -> None:
    own_server.start()
    sandbox = Sandbox.create(name="dev", server=own_server.address)
    sandbox.run(["truncate", "-s", "200M", "/workspace/f"], check=True)
    stream = sandbox.files.stream("/workspace/f")
    next(stream)
    own_server.end(signal.SIGKILL)
    with pytest.raises(ServerUnreachable):
        for _ in stream:
            pass
    own_server.start()
    sandbox = Sandbox.get("dev", server=own_server.address)
    assert sandbox.files.read_bytes("/workspace/f", offset=(200 << 20) - 3) == b"\0\0\0"
    sandbox.delete()


def test_server_crash_ends_a_copy(own_server: Server) -> None:
    """Its caller gets an error, and the partial copy is removed."""
    own_server.start()
    sandbox = Sandbox.create(name="dev", server=own_server.address)
    sandbox.run("mkdir big && cd big && seq 30000 | xargs touch", check=True)
    ended = threading.Event()

    def copy() -> None:
        with contextlib.suppress(ServerUnreachable):
            sandbox.files.copy("big", "copy", recursive=True)
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
