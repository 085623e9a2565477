"""Files inside, with the rights of the sandbox's own users."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.keeper import Room, eventually, spec

from skerry.errors import (
    FileError,
    FileExists,
    FileIsDirectory,
    FileNotDirectory,
    FileNotFound,
    FilePermissionDenied,
    InvalidRequest,
)

LIMIT = 64 << 20


async def content(
    room: Room, path: str, start: int | None = None, end: int | None = None, user: str | None = None
) -> bytes:
    return await (await room.keeper.files.read(path, start, end, user)).read(LIMIT)


async def names(room: Room, path: str) -> list[str]:
    return [entry.name for entry in (await room.keeper.files.list(path)).entries]


async def test_written_file_is_read_back(room: Room) -> None:
    data = os.urandom(5_000_000)
    info = await room.keeper.files.write("/workspace/a", data)
    assert (info.name, info.path, info.type, info.size, info.mode) == ("a", "/workspace/a", "file", 5_000_000, 0o644)
    assert await content(room, "/workspace/a") == data
    assert await names(room, "/workspace") == ["a"]


async def test_stream_of_unknown_length_is_written(room: Room) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for n in range(300):
            yield bytes([n % 256]) * 7001
        yield b""
        yield b"end"

    info = await room.keeper.files.write("/workspace/a", pieces())
    assert info.size == 300 * 7001 + 3
    assert (await content(room, "/workspace/a")).endswith(b"end")


async def test_empty_file_is_written_and_read(room: Room) -> None:
    await room.keeper.files.write("/workspace/empty", b"")
    assert await content(room, "/workspace/empty") == b""
    assert (await room.keeper.files.read("/workspace/empty")).size == 0


async def test_range_of_a_file_is_read(room: Room) -> None:
    await room.keeper.files.write("/workspace/a", b"0123456789")
    assert await content(room, "/workspace/a", 3) == b"3456789"
    assert await content(room, "/workspace/a", 3, 5) == b"34"
    assert await content(room, "/workspace/a", None, 4) == b"0123"
    assert await content(room, "/workspace/a", 8, 1000) == b"89"
    assert await content(room, "/workspace/a", 100, 200) == b""
    part = await room.keeper.files.read("/workspace/a", 3, 5)
    assert part.size == 10
    await part.aclose()
    for start, end in ((5, 5), (6, 2), (-1, 3)):
        with pytest.raises(InvalidRequest):
            await room.keeper.files.read("/workspace/a", start, end)


async def test_file_of_several_gibibytes_is_streamed(room: Room) -> None:
    assert (await room.run("/usr/bin/truncate", "-s", "3G", "/workspace/big"))[0].exit_code == 0
    stream = await room.keeper.files.read("/workspace/big")
    assert stream.size == 3 << 30
    first = await anext(stream)
    assert first.strip(b"\0") == b""
    await stream.aclose()
    assert await content(room, "/workspace/big", (3 << 30) - 5) == b"\0" * 5


async def test_read_of_a_shrinking_file_ends_early(room: Room) -> None:
    await room.keeper.files.write("/workspace/a", b"x" * 8_000_000)
    stream = await room.keeper.files.read("/workspace/a")
    total = len(await anext(stream))
    await room.run("/usr/bin/truncate", "-s", "0", "/workspace/a")
    total += sum([len(piece) async for piece in stream])
    assert 0 < total < 8_000_000
    assert (await room.keeper.hello()).processes == 0


async def test_only_regular_files_are_opened(room: Room) -> None:
    assert (await room.run("cd /workspace && mkfifo fifo && mkdir dir && ln -s fifo tofifo"))[0].exit_code == 0
    await room.run("/usr/bin/perl", "-MSocket", "-e", 'socket(S,1,1,0); bind(S,pack_sockaddr_un("/workspace/sock"))')
    for path in ("/workspace/fifo", "/workspace/tofifo", "/workspace/sock", "/dev/null", "/dev/zero"):
        async with asyncio.timeout(30):
            with pytest.raises(FileError, match="not a regular file"):
                await room.keeper.files.read(path)
            with pytest.raises(FileError, match="not a regular file"):
                await room.keeper.files.write(path, b"x")
    with pytest.raises(FileIsDirectory):
        await room.keeper.files.read("/workspace/dir")
    for path in ("/workspace/dir", "/workspace/dir/", "/", "/workspace/.", "/workspace/.."):
        with pytest.raises(FileIsDirectory):
            await room.keeper.files.write(path, b"x")


async def test_stat_of_a_fifo_does_not_wake_its_writer(room: Room) -> None:
    stream = await room.keeper.start(spec("mkfifo /workspace/f && echo ready && echo x > /workspace/f && echo woken"))
    assert await anext(stream) == ("stdout", b"ready\n")
    with pytest.raises(FileError):
        await room.keeper.files.read("/workspace/f")
    assert (await room.run("/bin/cat", "/workspace/f"))[1] == b"x\n"
    assert [frame async for frame in stream] == [("stdout", b"woken\n")]


async def test_missing_and_invalid_paths_are_reported(room: Room) -> None:
    await room.keeper.files.write("/workspace/a", b"")
    with pytest.raises(FileNotFound) as missing:
        await room.keeper.files.read("/workspace/nope")
    assert missing.value.filename == "/workspace/nope"
    with pytest.raises(FileNotDirectory):
        await room.keeper.files.read("/workspace/a/b")
    with pytest.raises(FileNotFound):
        await room.keeper.files.write("/workspace/x/y", b"")
    with pytest.raises(FileNotFound):
        await room.keeper.files.stat("/workspace/nope")
    for path in ("/workspace/a\0b", ""):
        with pytest.raises(FileError):
            await room.keeper.files.read(path)
        with pytest.raises(FileError):
            await room.keeper.files.write(path, b"")
    with pytest.raises(FileError):
        await room.keeper.files.read("/workspace/" + "n" * 300)
    with pytest.raises(InvalidRequest, match="not found in the sandbox"):
        await room.keeper.files.read("/workspace/a", user="nosuchuser")


async def test_dots_and_links_resolve_inside(room: Room) -> None:
    await room.run("ln -s /etc/hostname /workspace/link; ln -s ../../../../../../etc/passwd /workspace/up")
    assert await content(room, "/workspace/link") == await content(room, "/etc/hostname")
    assert (await content(room, "/workspace/up")).startswith(b"root:")
    assert (await content(room, "/workspace/../../../etc/passwd")).startswith(b"root:")
    assert (await room.keeper.files.stat("/workspace/link")).target == "/etc/hostname"
    assert (await room.keeper.files.stat("/workspace/link")).type == "link"


async def test_relative_paths_begin_at_the_configured_cwd(room: Room) -> None:
    await room.configure(cwd="/workspace")
    await room.keeper.files.write("rel", b"x")
    assert await content(room, "/workspace/rel") == b"x"


async def test_kernel_permissions_apply(room: Room) -> None:
    await room.configure(user="nobody")
    with pytest.raises(FilePermissionDenied):
        await room.keeper.files.read("/etc/shadow")
    with pytest.raises(FilePermissionDenied):
        await room.keeper.files.write("/etc/new", b"")
    with pytest.raises(FilePermissionDenied):
        await room.keeper.files.mkdir("/etc/new")
    with pytest.raises(FilePermissionDenied):
        await room.keeper.files.remove("/etc/passwd")
    with pytest.raises(FilePermissionDenied):
        await room.keeper.files.list("/root")
    assert (await content(room, "/etc/shadow", user="root")) != b""
    info = await room.keeper.files.write("/workspace/mine", b"")
    assert info.uid == 65534


async def test_permissions_of_another_user_are_not_retained(room: Room) -> None:
    """Threads that took a user's rights must not serve root afterwards, nor the other way round."""
    await room.keeper.files.write("/workspace/secret", b"root's", mode=0o600)

    async def as_nobody() -> None:
        with pytest.raises(FilePermissionDenied):
            await room.keeper.files.read("/workspace/secret", user="nobody")

    async def as_root() -> None:
        assert await content(room, "/workspace/secret") == b"root's"
        assert (await room.run("/usr/bin/id", "-u"))[1] == b"0\n"

    for _ in range(10):
        await asyncio.gather(*[as_nobody() for _ in range(8)], *[as_root() for _ in range(4)])


async def test_write_keeps_mode_and_owner_of_an_existing_file(room: Room) -> None:
    await room.run("echo old > /workspace/f && chown nobody:nogroup /workspace/f && chmod 755 /workspace/f")
    info = await room.keeper.files.write("/workspace/f", b"new")
    assert (info.uid, info.gid, info.mode) == (65534, 65534, 0o755)
    info = await room.keeper.files.write("/workspace/f", b"new", mode=0o600)
    assert (info.uid, info.mode) == (65534, 0o600)
    await room.run("chown root:root /workspace/f; chmod 4666 /workspace/f")
    info = await room.keeper.files.write("/workspace/f", b"new", user="nobody")
    assert (info.uid, info.mode) == (0, 0o666)
    await room.run("chmod 644 /workspace/f")
    with pytest.raises(FilePermissionDenied):
        await room.keeper.files.write("/workspace/f", b"x", user="nobody")
    assert await names(room, "/workspace") == ["f"]


async def test_write_through_a_link_keeps_the_link(room: Room) -> None:
    await room.run("cd /workspace && echo old > real && ln -s real link && ln -s missing dangling && ln -s loop loop")
    await room.keeper.files.write("/workspace/link", b"new")
    assert (await room.keeper.files.stat("/workspace/link")).type == "link"
    assert await content(room, "/workspace/real") == b"new"
    await room.keeper.files.write("/workspace/dangling", b"made")
    assert await content(room, "/workspace/missing") == b"made"
    with pytest.raises(FileError):
        await room.keeper.files.write("/workspace/loop", b"")


async def test_full_disk_keeps_the_old_content_and_leaves_no_temporary_file(room: Room) -> None:
    assert (await room.run("mkdir /tmp/tiny && mount -t tmpfs -o size=1M tmpfs /tmp/tiny"))[0].exit_code == 0
    await room.keeper.files.write("/tmp/tiny/f", b"old")

    async def much() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"x" * (1 << 20)

    for data in (b"x" * (4 << 20), much()):
        with pytest.raises(FileError) as full:
            await room.keeper.files.write("/tmp/tiny/f", data)
        assert full.value.errno == 28
        assert await content(room, "/tmp/tiny/f") == b"old"
        assert await names(room, "/tmp/tiny") == ["f"]


async def test_interrupted_upload_leaves_nothing(room: Room) -> None:
    await room.keeper.files.write("/workspace/f", b"old")

    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError):
        await room.keeper.files.write("/workspace/f", broken())
    async with asyncio.timeout(10):
        while await names(room, "/workspace") != ["f"]:
            await asyncio.sleep(0.01)
    assert await content(room, "/workspace/f") == b"old"


async def test_directories_are_created_listed_and_removed(room: Room) -> None:
    info = await room.keeper.files.mkdir("/workspace/a/b/c", parents=True, mode=0o750, user="nobody")
    assert (info.type, info.mode, info.uid) == ("directory", 0o750, 65534)
    await room.keeper.files.mkdir("/workspace/a/b/c", parents=True)
    with pytest.raises(FileExists):
        await room.keeper.files.mkdir("/workspace/a")
    with pytest.raises(FileNotFound):
        await room.keeper.files.mkdir("/workspace/x/y")
    await room.keeper.files.write("/workspace/a/b/deep/er/file", b"x", parents=True)
    listed = await room.keeper.files.list("/workspace/a/b")
    assert ([(entry.name, entry.path) for entry in listed.entries], listed.more) == (
        [("c", "/workspace/a/b/c"), ("deep", "/workspace/a/b/deep")],
        False,
    )
    with pytest.raises(FileError) as full:
        await room.keeper.files.remove("/workspace/a")
    assert full.value.errno == 39
    await room.keeper.files.remove("/workspace/a", recursive=True)
    assert await names(room, "/workspace") == []
    for path in ("/", "/workspace/.", "/workspace/.."):
        with pytest.raises(FileError):
            await room.keeper.files.remove(path, recursive=True)


async def test_removing_a_tree_does_not_follow_its_links(room: Room) -> None:
    await room.run("mkdir -p /workspace/t/sub /tmp/keep; touch /tmp/keep/me; ln -s /tmp/keep /workspace/t/sub/link")
    await room.keeper.files.remove("/workspace/t", recursive=True)
    assert await names(room, "/tmp/keep") == ["me"]


async def test_non_utf8_and_odd_names_are_listed(room: Room) -> None:
    await room.run("cd /workspace && touch $'bad\\xff' $'new\\nline' 'q\"uote' 'ünï'")
    assert await names(room, "/workspace") == ["bad\ufffd", "new\nline", 'q"uote', "ünï"]
    assert (await room.keeper.files.stat("/workspace/new\nline")).size == 0
    assert (await room.keeper.files.stat('/workspace/q"uote')).name == 'q"uote'
    assert (await room.keeper.files.stat("/workspace/ünï")).name == "ünï"
    await room.keeper.files.write("/workspace/a&b=c%?#+ d", b"x")
    assert await content(room, "/workspace/a&b=c%?#+ d") == b"x"


async def test_listing_is_bounded(room: Room) -> None:
    status, _, err = await room.run("mkdir /tmp/many && cd /tmp/many && seq 100005 | xargs touch", timeout_s=60)
    assert status.exit_code == 0, err
    listed = await room.keeper.files.list("/tmp/many")
    assert (len(listed.entries), listed.more) == (100_000, True)


async def test_proc_files_are_readable_except_the_keepers(room: Room) -> None:
    assert b"processor" in await content(room, "/proc/cpuinfo")
    threads = (await room.run("ls /proc/1/task"))[1].decode().split()
    for path in ("/proc/1/mem", "/proc/self/mem", "/proc/1/environ", *(f"/proc/{tid}/mem" for tid in threads)):
        with pytest.raises(FilePermissionDenied):
            await room.keeper.files.read(path)
    for path in ("/proc/self/root/etc/passwd", "/proc/1/cwd/etc/passwd", "/proc/self/fd/4/cgroup.procs"):
        with pytest.raises(FileError):
            await room.keeper.files.read(path)


async def test_hanging_disk_uses_few_threads(room: Room) -> None:
    """A Go program that can't make a thread dies, and this one is PID 1."""
    mount = "truncate -s 64M /tmp/i && mkfs.ext4 -q /tmp/i && mkdir /tmp/d && mount /tmp/i /tmp/d"
    status, _, err = await room.run(mount, timeout_s=60)
    assert status.exit_code == 0, err
    go = asyncio.Event()

    async def content_later() -> AsyncIterator[bytes]:
        yield b"x"
        await go.wait()
        yield b"y" * 100_000

    def waiting() -> int:
        tasks = Path(f"/proc/{room.pid}/task").glob("*/stat")
        return sum(task.read_text().rpartition(")")[2].split()[0] == "D" for task in tasks)

    def freezer(how: str) -> None:
        subprocess.run(["nsenter", "-m", "-t", str(room.pid), "fsfreeze", how, f"{room.inside}/tmp/d"], check=True)

    writes = [asyncio.ensure_future(room.keeper.files.write(f"/tmp/d/{n}", content_later())) for n in range(24)]
    async with asyncio.timeout(10):
        while len(await names(room, "/tmp/d")) < 24 + 1:  # and lost+found
            await asyncio.sleep(0.01)
    freezer("-f")
    try:
        go.set()
        await eventually(lambda: waiting() >= 4)
        for _ in range(100):
            await room.keeper.hello()
        assert waiting() == 4
    finally:
        freezer("-u")
    assert {info.size for info in await asyncio.gather(*writes)} == {100_001}
