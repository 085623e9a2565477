"""Directory entries: listed, moved, copied, changed and removed, with the permissions of the sandbox's users."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator

import pytest
from support.keeper import Room, eventually

from skerry.errors import (
    FileError,
    FileExists,
    FileIsDirectory,
    FileNotDirectory,
    FileNotFound,
    FilePermissionDenied,
    InvalidRequest,
)
from skerry.types import Entries, FileInfo, decode_path

DEEP = 1200  # levels: more than fds that a process may have, and as a path longer than the kernel takes


async def shell(room: Room, line: str, **more: object) -> str:
    status, out, err = await room.run(line, **more)
    assert status.exit_code == 0, err
    return out.decode()


async def content(room: Room, path: str) -> bytes:
    return await (await room.keeper.files.read(path)).read(1 << 20)


def paths(listed: Entries) -> list[str]:
    return [decode_path(entry.path, entry.raw_path) for entry in listed.entries]


def bytes_of(info: FileInfo) -> bytes:
    return os.fsencode(decode_path(info.path, info.raw_path))


async def deep(room: Room, top: str) -> None:
    """A tree of many levels, with a file at each tenth."""
    code = (
        f"import os; os.makedirs('{top}'); os.chdir('{top}')\n"
        f"for n in range({DEEP}):\n"
        "    if n % 10 == 0: open('file', 'w').write('needle %d' % n)\n"
        "    os.mkdir('directory'); os.chdir('directory')"
    )
    await shell(room, f'exec /usr/bin/python3 -c "{code}"')


async def test_non_utf8_names_are_preserved_everywhere(room: Room) -> None:
    files = room.keeper.files
    name = "/workspace/b\udcff\udc80ad"
    assert bytes_of(await files.write(name, b"x")) == b"/workspace/b\xff\x80ad"
    assert bytes_of(await files.append(name, b"y")) == b"/workspace/b\xff\x80ad"
    listed = (await files.list("/workspace")).entries
    assert [(entry.name, entry.raw_path) for entry in listed] == [("b\ufffd\ufffdad", b"/workspace/b\xff\x80ad")]
    assert await content(room, decode_path(listed[0].path, listed[0].raw_path)) == b"xy"
    moved = await files.move(name, "/workspace/\udcfe/d", parents=True)
    assert bytes_of(moved) == b"/workspace/\xfe/d"
    linked = await files.link("\udcfd", "/workspace/\udcfe/l")
    assert (linked.target, linked.raw_target) == ("\ufffd", b"\xfd")
    await files.copy("/workspace/\udcfe", "/workspace/\udcfc", recursive=True)
    below = await files.list("/workspace", depth=2)
    assert [os.fsencode(path) for path in paths(below)] == [
        b"/workspace/\xfc", b"/workspace/\xfc/d", b"/workspace/\xfc/l",
        b"/workspace/\xfe", b"/workspace/\xfe/d", b"/workspace/\xfe/l",
    ]  # fmt: skip
    assert paths(await files.glob("\udcfe/?", "/workspace")) == ["/workspace/\udcfe/d", "/workspace/\udcfe/l"]
    await files.chmod("/workspace/\udcfe/d", 0o600)
    await files.remove("/workspace/\udcfc", recursive=True)
    assert await shell(room, "ls /workspace | od -An -tx1") == " fe 0a\n"


@pytest.mark.parametrize(
    "name", ["new\nline", "'\"`$(id)", "-rf", "--", " ", "*", "\\", "a\tb", "\x1b[31m", "%2e%2e", "ü"]
)
async def test_names_with_shell_syntax_are_plain_names(room: Room, name: str) -> None:
    files = room.keeper.files
    await files.write(f"/workspace/{name}", b"x")
    await files.move(f"/workspace/{name}", f"/workspace/d/{name}", parents=True)
    await files.copy("/workspace/d", f"/workspace/{name}", recursive=True)
    await files.chmod(f"/workspace/{name}", 0o700, recursive=True)
    assert paths(await files.list(f"/workspace/{name}")) == [f"/workspace/{name}/{name}"]
    assert await content(room, f"/workspace/{name}/{name}") == b"x"
    await files.remove(f"/workspace/{name}", recursive=True)
    assert paths(await files.list("/workspace")) == ["/workspace/d"]


async def test_two_paths_of_maximum_length_fit_into_a_call(room: Room) -> None:
    long = "/workspace/" + "/".join(["\udcff" * 250] * 16)
    assert 4000 < len(os.fsencode(long)) < 4096
    await room.keeper.files.write(long, b"x", parents=True)
    moved = await room.keeper.files.move(long, long[:-1])
    assert bytes_of(moved) == os.fsencode(long[:-1])


async def test_list_respects_the_requested_depth(room: Room) -> None:
    await shell(room, "cd /workspace && mkdir -p a/b/c .git/x && touch a/f a/b/g a/b/c/h .git/x/y z && ln -s / a/root")
    files = room.keeper.files

    async def found(depth: int, **more: bool) -> list[str]:
        return [path.removeprefix("/workspace/") for path in paths(await files.list("/workspace", depth=depth, **more))]

    assert await found(1) == [".git", "a", "z"]
    assert await found(2) == [".git", ".git/x", "a", "a/b", "a/f", "a/root", "z"]
    assert await found(9) == [
        ".git", ".git/x", ".git/x/y", "a", "a/b", "a/b/c", "a/b/c/h", "a/b/g", "a/f", "a/root", "z",
    ]  # fmt: skip
    assert await found(9, hidden=False) == ["a", "a/b", "a/b/c", "a/b/c/h", "a/b/g", "a/f", "a/root", "z"]
    await room.configure(cwd="/workspace")
    assert paths(await files.list(".", hidden=False)) == ["a", "z"]
    with pytest.raises(FileNotDirectory):
        await files.list("/workspace/z", depth=3)
    with pytest.raises(FileNotFound):
        await files.list("/workspace/none", depth=3)


async def test_unreadable_directories_are_counted(room: Room) -> None:
    await shell(
        room, "mkdir -p /workspace/a/{open,closed} && touch /workspace/a/{open,closed}/f && chmod 0 /workspace/a/closed"
    )
    listed = await room.keeper.files.list("/workspace", "nobody", depth=9)
    assert [path.removeprefix("/workspace/") for path in paths(listed)] == ["a", "a/closed", "a/open", "a/open/f"]
    assert (listed.more, listed.skipped) == (False, 1)
    with pytest.raises(FilePermissionDenied):
        await room.keeper.files.list("/workspace/a/closed", "nobody", depth=2)


async def test_walks_skip_proc_and_keeper_files_are_inaccessible(room: Room) -> None:
    listed = await room.keeper.files.list("/", depth=2)
    assert "/proc" in paths(listed)
    assert not [path for path in paths(listed) if path.startswith(("/proc/", "/sys/"))]
    assert "/proc/self" in paths(await room.keeper.files.list("/proc"))
    for path in ("/proc/1/fd", "/proc/self/task"):
        with pytest.raises(FilePermissionDenied):
            await room.keeper.files.list(path)
    for path in ("/proc/self/exe", "/proc/1/environ"):
        with pytest.raises(FilePermissionDenied):
            await room.keeper.files.stat(path)
        with pytest.raises(FileError):
            await room.keeper.files.stat(path, follow=True)
    for path in ("/proc/1/comm", "/proc/sys/kernel/hostname"):
        with pytest.raises(FilePermissionDenied):
            await room.keeper.files.append(path, b"x")
    with pytest.raises(FileError):
        await room.keeper.files.copy("/proc/1/environ", "/workspace/e")


async def test_list_is_bounded_at_any_depth(room: Room) -> None:
    await shell(
        room,
        "mkdir -p /tmp/m/{1..11} && cd /tmp/m && for n in {1..11}; do (cd $n && seq 10000 | xargs touch); done",
        timeout_s=60,
    )
    listed = await room.keeper.files.list("/tmp/m", depth=2)
    assert (len(listed.entries), listed.more) == (100_000, True)
    listed = await room.keeper.files.glob("*/7", "/tmp/m")
    assert (len(listed.entries), listed.more) == (11, False)
    listed = await room.keeper.files.glob("*/7", "/tmp/m", limit=10)
    assert (len(listed.entries), listed.more) == (10, True)
    listed = await room.keeper.files.glob("*/7", "/tmp/m", limit=11)
    assert (len(listed.entries), listed.more) == (11, False)


async def test_patterns_find_files(room: Room) -> None:
    await shell(
        room, "cd /workspace && mkdir -p src/a/b .git && touch src/x.py src/a/y.py src/a/b/z.ts .git/h.py top.py"
    )

    async def found(pattern: str, **more: bool) -> list[str]:
        return [
            path.removeprefix("/workspace/")
            for path in paths(await room.keeper.files.glob(pattern, "/workspace", **more))
        ]

    assert await found("**/*.py") == ["src/a/y.py", "src/x.py", "top.py"]
    assert await found("**/*.py", hidden=True) == [".git/h.py", "src/a/y.py", "src/x.py", "top.py"]
    assert await found("src/*") == ["src/a", "src/x.py"]
    assert await found("src/**/*.{ts,py}") == ["src/a/b/z.ts", "src/a/y.py", "src/x.py"]
    assert await found(".git/*") == [".git/h.py"]
    assert await found("/workspace/src/a/?.py") == ["src/a/y.py"]
    assert await found("nothing*") == []
    for pattern in ("../*", "", "{a", "a" * 2000):
        with pytest.raises(InvalidRequest, match="pattern"):
            await found(pattern)


async def test_stat_follows_a_link_on_request(room: Room) -> None:
    await shell(room, "cd /workspace && echo 12345 > f && ln -s f l && ln -s nowhere d")
    files = room.keeper.files
    assert (await files.stat("/workspace/l")).type == "link"
    followed = await files.stat("/workspace/l", follow=True)
    assert (followed.type, followed.size, followed.name, followed.path) == ("file", 6, "l", "/workspace/l")
    assert (await files.stat("/workspace/d")).target == "nowhere"
    with pytest.raises(FileNotFound):
        await files.stat("/workspace/d", follow=True)
    assert (await files.stat("/")).name == "/"


async def test_append_extends_or_creates_a_file(room: Room) -> None:
    files = room.keeper.files

    async def pieces() -> AsyncIterator[bytes]:
        yield b"b" * 70_000
        yield b"c"

    assert (await files.append("/workspace/d/log", b"a", parents=True)).size == 1
    assert (await files.append("/workspace/d/log", pieces())).size == 70_002
    assert await content(room, "/workspace/d/log") == b"a" + b"b" * 70_000 + b"c"
    await shell(room, "cd /workspace && ln -s d/log l && ln -s none dangling && mkfifo fifo")
    assert (await files.append("/workspace/l", b"d")).size == 70_003
    assert (await content(room, "/workspace/d/log"))[-2:] == b"cd"
    await files.append("/workspace/dangling", b"x")
    assert await content(room, "/workspace/none") == b"x"
    with pytest.raises(FileIsDirectory):
        await files.append("/workspace/d", b"x")
    with pytest.raises(FileError, match="not a regular file"):
        await files.append("/workspace/fifo", b"x")
    with pytest.raises(FileNotFound):
        await files.append("/workspace/x/y", b"x")
    with pytest.raises(FilePermissionDenied):
        await files.append("/workspace/d/log", b"x", "nobody")


async def test_concurrent_appends_lose_nothing(room: Room) -> None:
    await asyncio.gather(*[room.keeper.files.append("/workspace/log", f"{n}\n".encode()) for n in range(64)])
    assert sorted((await content(room, "/workspace/log")).split(), key=int) == [str(n).encode() for n in range(64)]


async def test_only_root_can_change_the_owner(room: Room) -> None:
    files = room.keeper.files
    given = await files.write("/workspace/a", b"x", owner="nobody")
    assert (given.uid, given.gid) == (65534, 65534)
    given = await files.write("/workspace/a", b"x", owner="1234:games", mode=0o640)
    assert (given.uid, given.gid, given.mode) == (1234, 60, 0o640)
    await files.chmod("/workspace", 0o777)
    mine = await files.write("/workspace/mine", b"x", user="nobody", owner="nobody")
    assert mine.uid == 65534
    with pytest.raises(FilePermissionDenied):
        await files.write("/workspace/theirs", b"x", user="nobody", owner="root")
    with pytest.raises(FilePermissionDenied):
        await files.chown("/workspace/mine", "root", "nobody")
    assert "theirs" not in await shell(room, "ls -a /workspace")
    for owner in ("nosuch", "root:nosuch", ":", "root:", "-1", "99999999999"):
        with pytest.raises(InvalidRequest, match="user or group not found"):
            await files.write("/workspace/a", b"x", owner=owner)
        with pytest.raises(InvalidRequest, match="user or group not found"):
            await files.chown("/workspace/a", owner)


async def test_only_owners_can_set_set_id_bits(room: Room) -> None:
    await shell(room, "cd /workspace && echo x > f && chmod 666 f")
    with pytest.raises(FilePermissionDenied):
        await room.keeper.files.write("/workspace/f", b"mine", mode=0o4755, user="nobody")
    assert await content(room, "/workspace/f") == b"x\n"
    assert (await room.keeper.files.write("/workspace/own", b"", mode=0o4755, user="nobody")).mode == 0o4755


async def test_move_replaces_only_on_request(room: Room) -> None:
    files = room.keeper.files
    await shell(room, "cd /workspace && echo a > a && echo b > b && mkdir full empty && touch full/x && ln -s a l")
    moved = await files.move("/workspace/a", "/workspace/new/c", parents=True)
    assert (moved.path, moved.size) == ("/workspace/new/c", 2)
    with pytest.raises(FileExists) as there:
        await files.move("/workspace/new/c", "/workspace/b")
    assert there.value.filename == "/workspace/b"
    await files.move("/workspace/new/c", "/workspace/b", overwrite=True)
    assert await content(room, "/workspace/b") == b"a\n"
    assert (await files.move("/workspace/l", "/workspace/m")).target == "a"
    for target in ("/workspace/full", "/workspace/b"):
        with pytest.raises(FileError):
            await files.move("/workspace/empty", target, overwrite=True)
    with pytest.raises(FileNotFound) as missing:
        await files.move("/workspace/none", "/workspace/x/y", parents=True)
    assert missing.value.filename == "/workspace/none"
    assert not [path for path in paths(await files.list("/workspace")) if path.endswith("/x")]
    with pytest.raises(FileNotFound) as missing:
        await files.move("/workspace/b", "/workspace/no/where")
    assert missing.value.filename == "/workspace/no/where"
    with pytest.raises(FileError):
        await files.move("/workspace/full", "/workspace/full/in/itself", parents=True)
    for path in ("/", "/workspace/..", "."):
        with pytest.raises(FileError):
            await files.move(path, "/workspace/z")


async def test_move_works_across_file_systems_and_for_image_directories(room: Room) -> None:
    files = room.keeper.files
    await shell(
        room, "cd /workspace && mkdir -p d/e && echo x > d/e/f && chmod 640 d/e/f && ln -s e/f d/l && echo y > g"
    )
    moved = await files.move("/workspace/d", "/tmp/d")
    assert (moved.type, moved.path) == ("directory", "/tmp/d")
    assert await shell(room, "stat -c '%a %N' /tmp/d/e/f /tmp/d/l; ls /workspace") == (
        "640 '/tmp/d/e/f'\n777 '/tmp/d/l' -> 'e/f'\ng\n"
    )
    await files.move("/workspace/g", "/tmp/d/e/f", overwrite=True)
    assert await content(room, "/tmp/d/e/f") == b"y\n"
    await files.move("/tmp/d/l", "/workspace/l")
    assert (await files.stat("/workspace/l")).target == "e/f"
    before = await shell(room, "cd /etc && find apt | sort")
    await files.move("/etc/apt", "/etc/moved")
    assert await shell(room, "cd /etc && find moved | sort | sed s/moved/apt/") == before
    assert not await shell(room, "ls -d /etc/apt || true")


async def test_copied_file_equals_its_source(room: Room) -> None:
    files = room.keeper.files
    await shell(
        room,
        "cd /workspace && head -c 3000000 /dev/urandom > a && chmod 751 a && touch -d @1234567890.5 a && ln -s a l",
    )
    copied = await files.copy("/workspace/l", "/workspace/new/b", parents=True)
    assert (copied.type, copied.size, copied.mode, copied.mtime) == ("file", 3_000_000, 0o751, 1234567890.5)
    await shell(room, "cmp /workspace/a /workspace/new/b")
    with pytest.raises(FileExists):
        await files.copy("/workspace/a", "/workspace/l")
    with pytest.raises(FileIsDirectory):
        await files.copy("/workspace/new", "/workspace/other")
    await files.write("/workspace/b", b"old", user="nobody", owner="nobody")
    await files.copy("/workspace/a", "/workspace/b", overwrite=True)
    await shell(room, "cmp /workspace/a /workspace/b")
    await files.copy("/proc/cpuinfo", "/workspace/cpuinfo")
    assert b"processor" in await content(room, "/workspace/cpuinfo")


async def test_copy_preserves_holes(room: Room) -> None:
    await shell(
        room, "cd /workspace && truncate -s 1T a && printf x | dd of=a bs=1 seek=500000000000 conv=notrunc 2>/dev/null"
    )
    copied = await room.keeper.files.copy("/workspace/a", "/workspace/b")
    assert copied.size == 1 << 40
    assert int(await shell(room, "stat -c %b /workspace/b")) < 1000
    part = await room.keeper.files.read("/workspace/b", 499_999_999_999, 500_000_000_002)
    assert await part.read(10) == b"\0x\0"


async def test_copied_tree_is_complete(room: Room) -> None:
    files = room.keeper.files
    await shell(
        room,
        "cd /workspace && mkdir -p t/a/b t/empty && echo 1 > t/a/f && ln -s ../a t/a/b/l && mkfifo t/p"
        " && chown -R nobody t/a && chmod 4755 t/a/f && chmod 1700 t/a/b && touch -d @1000000000 t/a/f t/a/b t/empty t",
    )
    with pytest.raises(FileIsDirectory):
        await files.copy("/workspace/t", "/workspace/u")
    await files.copy("/workspace/t", "/workspace/u", recursive=True)
    show = "find {} -printf '%P %y %m %u %Ts %l\\n' | sort"
    copy = await shell(room, show.format("/workspace/u"))
    assert copy == (await shell(room, show.format("/workspace/t")))
    assert "a/f f 4755 nobody 1000000000" in copy
    await shell(room, "chmod 1755 /workspace/t/a/b")
    await files.copy("/workspace/t", "/tmp/v", "nobody", recursive=True)
    assert "a/f f 755 nobody" in await shell(room, show.format("/tmp/v"))
    with pytest.raises(FileExists):
        await files.copy("/workspace/t", "/workspace/u", recursive=True)
    with pytest.raises(FileError, match="not empty"):
        await files.copy("/workspace/t", "/workspace/u", recursive=True, overwrite=True)
    with pytest.raises(FileError) as itself:
        await files.copy("/workspace/t", "/workspace/t/a/copy", recursive=True)
    assert itself.value.errno == 22
    assert await shell(room, "find /workspace /tmp -name '.skerry-*'") == ""


async def test_incomplete_copy_is_removed(room: Room) -> None:
    files = room.keeper.files
    await shell(
        room,
        "mkdir /tmp/tiny /workspace/t && mount -t tmpfs -o size=1M tmpfs /tmp/tiny"
        " && head -c 3M /dev/zero > /workspace/t/f",
    )
    for path, to in (("/workspace/t", "/tmp/tiny/t"), ("/workspace/t/f", "/tmp/tiny/f")):
        with pytest.raises(FileError) as full:
            await files.copy(path, to, recursive=True)
        assert full.value.errno == 28
    assert (await files.list("/tmp/tiny")).entries == []
    await shell(room, "touch /workspace/t/z && chmod 0 /workspace/t/f && chmod 777 /workspace")
    with pytest.raises(FilePermissionDenied) as closed:
        await files.copy("/workspace/t", "/workspace/u", "nobody", recursive=True)
    assert closed.value.filename == "/workspace/t/f"
    assert paths(await files.list("/workspace")) == ["/workspace/t"]


async def test_modes_and_owners_of_a_tree_are_set_without_following_links(room: Room) -> None:
    files = room.keeper.files
    await shell(
        room, "cd /workspace && mkdir -p t/a/b && touch t/f t/a/b/g && echo x > out && ln -s ../out t/l && ln -s t top"
    )
    await files.chmod("/workspace/t", 0o750, recursive=True)
    await files.chown("/workspace/top", "nobody:games", recursive=True)
    assert await shell(room, "cd /workspace && stat -c '%n %a %U:%G' t t/f t/a/b/g t/l out top") == (
        "t 750 nobody:games\nt/f 750 nobody:games\nt/a/b/g 750 nobody:games\nt/l 777 nobody:games\n"
        "out 644 root:root\ntop 777 root:root\n"
    )
    await files.chmod("/workspace/t/l", 0o600)
    assert (await files.stat("/workspace/out")).mode == 0o600
    await files.chown("/workspace/out", ":games")
    assert ((await files.stat("/workspace/out")).uid, (await files.stat("/workspace/out")).gid) == (0, 60)
    await files.chown("/workspace/out", "1")
    assert (await files.stat("/workspace/out")).uid == 1
    with pytest.raises(FilePermissionDenied):
        await files.chmod("/workspace/out", 0o777, "nobody")


async def test_owner_can_remove_and_restore_access_to_a_tree(room: Room) -> None:
    await shell(room, "mkdir -p /tmp/t/a/b && touch /tmp/t/a/b/f && chown -R nobody /tmp/t")
    await room.keeper.files.chmod("/tmp/t", 0o000, "nobody", recursive=True)
    assert "0 0 0 0" in " ".join((await shell(room, "find /tmp/t -printf '%m\\n'")).split())
    await room.keeper.files.chmod("/tmp/t", 0o700, "nobody", recursive=True)
    assert (await shell(room, "find /tmp/t -printf '%m\\n'")).split() == ["700"] * 4


async def test_hard_and_symbolic_links_are_created(room: Room) -> None:
    files = room.keeper.files
    await files.write("/workspace/f", b"x")
    link = await files.link("../anything at all", "/workspace/l")
    assert (link.type, link.target) == ("link", "../anything at all")
    hard = await files.link("/workspace/f", "/workspace/h", hard=True)
    assert (hard.type, hard.size) == ("file", 1)
    assert await shell(room, "stat -c %h /workspace/f") == "2\n"
    for path in ("/workspace/l", "/workspace/f", "/workspace/.", "/"):
        with pytest.raises(FileExists):
            await files.link("x", path)
    with pytest.raises(FileNotFound):
        await files.link("/workspace/none", "/workspace/m", hard=True)
    with pytest.raises(FilePermissionDenied):
        await files.link("/workspace", "/workspace/m", hard=True)


async def test_checksums_are_computed(room: Room) -> None:
    data = os.urandom(1_000_001)
    await room.keeper.files.write("/workspace/f", data)
    for name in ("sha256", "sha512", "sha1", "md5"):
        assert await room.keeper.files.checksum("/workspace/f", name) == hashlib.new(name, data).hexdigest()
    with pytest.raises(InvalidRequest):
        await room.keeper.files.checksum("/workspace/f", "crc32")
    with pytest.raises(FileIsDirectory):
        await room.keeper.files.checksum("/workspace", "md5")


async def test_thousand_levels_are_listed_changed_copied_and_removed(room: Room) -> None:
    files = room.keeper.files
    await deep(room, "/workspace/deep")
    listed = await files.list("/workspace/deep", depth=DEEP + 1)
    assert (len(listed.entries), listed.more, listed.skipped) == (DEEP + DEEP // 10, False, 0)
    assert max(len(path) for path in paths(listed)) > 4096 * 2
    assert len((await files.glob("**/file", "/workspace/deep")).entries) == DEEP // 10
    await files.copy("/workspace/deep", "/workspace/copy", recursive=True)
    await files.chmod("/workspace/copy", 0o700, recursive=True)
    await files.move("/workspace/copy", "/tmp/copy")
    assert await shell(room, "find /tmp/copy -perm 700 | wc -l") == f"{DEEP + DEEP // 10 + 1}\n"
    for path in ("/workspace/deep", "/tmp/copy"):
        await files.remove(path, recursive=True)
    assert await shell(room, "ls /workspace /tmp") == "/tmp:\n\n/workspace:\n"


async def test_deep_tree_uses_few_descriptors(room: Room) -> None:
    await deep(room, "/workspace/deep")
    most = 0

    def look() -> bool:
        nonlocal most
        most = max(most, len(os.listdir(f"/proc/{room.pid}/fd")))
        return copying.done()

    before = len(os.listdir(f"/proc/{room.pid}/fd"))
    copying = asyncio.ensure_future(room.keeper.files.copy("/workspace/deep", "/workspace/copy", recursive=True))
    await eventually(look, 60)
    await copying
    assert most <= before + 48  # two walks down of sixteen each, and the descriptors of one step
    for path in ("/workspace/deep", "/workspace/copy"):
        await room.keeper.files.remove(path, recursive=True)
    await eventually(
        lambda: len(os.listdir(f"/proc/{room.pid}/fd")) <= before + 8
    )  # a launcher may have come meanwhile


async def test_entry_that_cannot_be_removed_is_named(room: Room) -> None:
    await shell(
        room,
        "cd /workspace && mkdir -p t/mine/theirs && touch t/mine/theirs/f && chown nobody t t/mine",
    )
    with pytest.raises(FilePermissionDenied) as forbidden:
        await room.keeper.files.remove("/workspace/t/mine", recursive=True, user="nobody")
    assert forbidden.value.filename == "/workspace/t/mine/theirs/f"


async def test_long_walk_does_not_block_others(room: Room) -> None:
    """Two threads have the rights of users, for all calls together."""
    await shell(
        room,
        "mkdir -p /tmp/m/{1..9} && cd /tmp/m && for n in {1..9}; do (cd $n && seq 10000 | xargs touch); done",
        timeout_s=60,
    )
    walks = [asyncio.ensure_future(room.keeper.files.list("/tmp/m", "nobody", depth=2)) for _ in range(4)]
    await asyncio.sleep(0)
    for _ in range(8):
        await room.keeper.files.stat("/tmp/m", "nobody")
    assert not any(walk.done() for walk in walks)
    for walk in walks:
        assert len((await walk).entries) == 90_009


async def test_long_work_sends_signs_of_life(room: Room) -> None:
    """A silent keeper fails its sandbox; a busy one does not."""
    await shell(room, "truncate -s 2G /workspace/f")
    room.keeper.files._transport.timeout = 1.6
    assert len(await room.keeper.files.checksum("/workspace/f", "sha512")) == 128


async def test_work_of_a_disconnected_caller_is_cancelled(room: Room) -> None:
    """Work is broken off when the host hangs up: else the few places for it would be taken for hours."""
    await shell(room, "truncate -s 4T /workspace/f && echo x > /workspace/g")
    endless = [asyncio.ensure_future(room.keeper.files.checksum("/workspace/f", "md5")) for _ in range(8)]
    await asyncio.sleep(0.05)
    for task in endless:
        task.cancel()
    await asyncio.wait(endless)
    assert len(await room.keeper.files.checksum("/workspace/g", "md5")) == 32
