"""Edits: atomic, strict about the existing content, and never over a concurrent write."""

from __future__ import annotations

import asyncio
import difflib
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from keeper.test_entries import content, shell
from support.keeper import Room, eventually

from skerry.errors import (
    Conflict,
    FileError,
    FileExists,
    FileIsDirectory,
    FileNotFound,
    FilePermissionDenied,
    InvalidRequest,
)
from skerry.types import PatchResult

BIG = 192 << 20
FILE = "/workspace/f"


async def names(room: Room) -> list[str]:
    return [entry.name for entry in (await room.keeper.files.list("/workspace")).entries]


async def patched(room: Room, diff: str, path: str = FILE) -> PatchResult:
    return await room.keeper.files.patch(path, diff.encode())


async def test_text_is_replaced_if_its_count_matches(room: Room) -> None:
    files = room.keeper.files
    await shell(
        room, "printf 'one two\\none\\nthree one\\n' > /workspace/f && chmod 640 /workspace/f && chown 7:8 /workspace/f"
    )
    with pytest.raises(Conflict, match=r"3 times, not 1: at lines 1, 2, 3$") as often:
        await files.replace(FILE, b"one", b"1", 1)
    assert (often.value.details["count"], often.value.details["lines"], often.value.details["path"]) == (
        3,
        [1, 2, 3],
        FILE,
    )
    with pytest.raises(Conflict, match="text not found"):
        await files.replace(FILE, b"four", b"4", None)
    done = await files.replace(FILE, b"two\none", b"2\n1", 1)
    assert (done.count, done.lines) == (1, (1,))
    assert (await files.replace(FILE, b"one", b"", None)).count == 2
    assert await content(room, FILE) == b" 2\n1\nthree \n"
    info = await files.stat(FILE)
    assert (info.mode, info.uid, info.gid) == (0o640, 7, 8)
    assert await names(room) == ["f"]
    with pytest.raises(FileNotFound):
        await files.replace("/workspace/none", b"a", b"b", 1)
    with pytest.raises(FileIsDirectory):
        await files.replace("/workspace", b"a", b"b", 1)
    with pytest.raises(FilePermissionDenied):
        await files.replace(FILE, b"three", b"3", 1, "nobody")
    for old in (b"", b"x" * (129 << 10)):
        with pytest.raises(InvalidRequest):
            await files.replace(FILE, old, b"b", 1)


async def test_bytes_are_replaced_at_any_position(room: Room) -> None:
    """Also across the ends of buffers, next to each other, and over several lines."""
    source = random.Random(1)
    any_of = bytes(b"ab\n\xff\0"[byte % 5] for byte in range(256))
    for _ in range(20):
        old = bytes(source.choices(b"ab\n\xff", k=source.choice((1, 2, 3, 50_000))))
        data = b"".join(
            old if source.random() < 0.3 else source.randbytes(source.randrange(40_000)).translate(any_of)
            for _ in range(30)
        )
        await room.keeper.files.write(FILE, data)
        if data.count(old):
            done = await room.keeper.files.replace(FILE, old, b"NEW", None)
            assert done.count == data.count(old)
            assert done.lines[0] == data[: data.index(old)].count(b"\n") + 1
            assert await (await room.keeper.files.read(FILE)).read(1 << 30) == data.replace(old, b"NEW")


async def test_edit_through_a_link_keeps_the_link(room: Room) -> None:
    await shell(room, "cd /workspace && echo old > real && ln -s real f")
    await room.keeper.files.replace(FILE, b"old", b"new", 1)
    await patched(room, "@@ -1 +1 @@\n-new\n+newer\n")
    assert (await room.keeper.files.stat(FILE)).type == "link"
    assert await content(room, "/workspace/real") == b"newer\n"


def inside(room: Room, path: str) -> Path:
    """A path inside, as the host reaches it: for changes that the keeper has no part in."""
    return Path(f"/proc/{room.pid}/root{path}")


async def in_the_middle(room: Room, edit: Awaitable[object], change: Callable[[Path], object]) -> None:
    """Makes a change while an edit of a large file is under way, with the keeper held."""
    task, directory = asyncio.ensure_future(edit), inside(room, "/workspace")
    await eventually(lambda: any(directory.glob(".skerry-*")))
    os.kill(room.pid, signal.SIGSTOP)
    try:
        assert any(directory.glob(".skerry-*"))
        change(directory / "f")
    finally:
        os.kill(room.pid, signal.SIGCONT)
    await task


def big(room: Room) -> None:
    with inside(room, FILE).open("wb") as file:
        file.write(b"first\n")
        for _ in range(BIG >> 20):
            file.write(b"fifteen letters\n" * (1 << 16))
        file.write(b"last\n")


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"added\n")


def put_a_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/tmp/victim")


def put_another(path: Path) -> None:
    path.with_name("n").write_bytes(b"first other first")
    path.with_name("n").rename(path)


PATCH = "@@ -1 +1 @@\n-first\n+1\n"


@pytest.mark.parametrize("how", ["replace", "patch"])
async def test_concurrent_write_during_an_edit_is_not_lost(room: Room, how: str) -> None:
    big(room)
    files = room.keeper.files
    edit = files.replace(FILE, b"first", b"1", 1) if how == "replace" else files.patch(FILE, PATCH.encode())
    await in_the_middle(room, edit, append)
    assert await shell(room, "head -n1 /workspace/f; tail -n2 /workspace/f") == "1\nlast\nadded\n"
    assert await names(room) == ["f"]


@pytest.mark.parametrize("how", ["replace", "patch"])
async def test_link_swapped_in_during_an_edit_is_not_written_through(room: Room, how: str) -> None:
    big(room)
    await shell(room, "echo first > /tmp/victim")
    files = room.keeper.files
    edit = files.replace(FILE, b"first", b"1", 1) if how == "replace" else files.patch(FILE, PATCH.encode())
    with pytest.raises(FileError) as refused:
        await in_the_middle(room, edit, put_a_link)
    assert refused.value.errno == 40
    assert await content(room, "/tmp/victim") == b"first\n"
    assert (await files.stat(FILE)).target == "/tmp/victim"
    assert await names(room) == ["f"]


@pytest.mark.parametrize("how", ["write", "append"])
async def test_link_swapped_in_during_an_upload_is_not_written_through(room: Room, how: str) -> None:
    await shell(room, "echo old > /tmp/victim; echo old > /workspace/f")
    swapped = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"x" * 300_000
        await swapped.wait()
        yield b"y"

    upload = asyncio.ensure_future(getattr(room.keeper.files, how)(FILE, pieces()))
    path = inside(room, FILE)
    await eventually(lambda: any(path.parent.glob(".skerry-*")) if how == "write" else path.stat().st_size > 4)
    put_a_link(path)
    swapped.set()
    await upload
    assert await content(room, "/tmp/victim") == b"old\n"
    assert await names(room) == ["f"]


async def test_file_replaced_during_an_edit_is_edited_in_its_new_version(room: Room) -> None:
    big(room)
    edit = room.keeper.files.replace(FILE, b"first", b"1", None)
    await in_the_middle(room, edit, put_another)
    assert await content(room, FILE) == b"1 other 1"


async def test_constantly_changing_file_is_not_edited(room: Room) -> None:
    big(room)
    path = inside(room, FILE)
    edit = asyncio.ensure_future(room.keeper.files.replace(FILE, b"first", b"1", 1))
    while not edit.done():
        append(path)
        await asyncio.sleep(0.002)
    with pytest.raises(Conflict, match="changed by others"):
        await edit
    assert path.read_bytes().startswith(b"first\n")
    assert await names(room) == ["f"]


async def test_copy_of_a_shrinking_file_has_no_invented_bytes(room: Room) -> None:
    big(room)
    copy = room.keeper.files.copy(FILE, "/workspace/copy")
    await in_the_middle(room, copy, lambda path: os.truncate(path, 9))
    assert await content(room, "/workspace/copy") == b"first\nfif"


async def test_full_disk_during_an_edit_keeps_the_old_content(room: Room) -> None:
    await shell(room, "mkdir /tmp/tiny && mount -t tmpfs -o size=3M tmpfs /tmp/tiny")
    await shell(room, "(echo first; head -c 2M /dev/zero) > /tmp/tiny/f")
    for edit in (
        room.keeper.files.replace("/tmp/tiny/f", b"first", b"1", 1),
        room.keeper.files.patch("/tmp/tiny/f", PATCH.encode()),
    ):
        with pytest.raises(FileError) as full:
            await edit
        assert full.value.errno == 28
    assert await shell(room, "head -n1 /tmp/tiny/f; ls -A /tmp/tiny") == "first\nf\n"


async def test_diffs_of_common_tools_are_applied(room: Room) -> None:
    source = random.Random(2)
    for _ in range(30):
        old = [f"{n} {source.randrange(4)}\n" for n in range(source.randrange(1, 60))]
        new = [
            line if source.random() < 0.8 else f"new {source.randrange(9)}\n" for line in old if source.random() < 0.9
        ]
        diff = "".join(difflib.unified_diff(old, new, "a/f", "b/f", n=source.randrange(4)))
        await room.keeper.files.write(FILE, "".join(old).encode())
        if diff and new:
            done = await patched(room, diff)
            assert await content(room, FILE) == "".join(new).encode()
            assert [one.action for one in done.files] == ["changed"]


async def test_git_diff_creates_changes_and_deletes_files(room: Room) -> None:
    await shell(
        room,
        "mkdir /workspace/r && cd /workspace/r && git init -q"
        " && printf 'a\\nb\\n' > change && echo x > gone && printf 'no end' > end",
    )
    await shell(
        room, "cd /workspace/r && git add . && git -c user.name=x -c user.email=x commit -qm x && cp -r . /tmp/copy"
    )
    await shell(
        room,
        "cd /workspace/r && printf 'a\\nc\\n' > change && rm gone"
        " && mkdir -p d/e && echo n > d/e/new && chmod 755 d/e/new",
    )
    await shell(room, "cd /workspace/r && echo ü > $'d/\\xc3\\xbc \"q' && printf 'no end at all' > end && git add -A")
    diff = await shell(room, "cd /workspace/r && git diff --cached")
    done = await patched(room, diff, "/tmp/copy")
    assert sorted((one.path, one.action, one.added, one.removed) for one in done.files) == [
        ("/tmp/copy/change", "changed", 1, 1),
        ("/tmp/copy/d/e/new", "created", 1, 0),
        ('/tmp/copy/d/ü "q', "created", 1, 0),
        ("/tmp/copy/end", "changed", 1, 1),
        ("/tmp/copy/gone", "deleted", 0, 1),
    ]
    await shell(room, "diff -r -x .git /workspace/r /tmp/copy && [ -x /tmp/copy/d/e/new ]")


async def test_hunk_that_does_not_apply_is_named_with_the_difference(room: Room) -> None:
    await room.keeper.files.write(FILE, b"a\nb\nc\nd\n")
    diff = "--- f\n+++ f\n@@ -1 +1 @@\n-a\n+1\n@@ -3,2 +3,2 @@\n-x\n+y\n d\n"
    with pytest.raises(Conflict, match=r'hunk 2: line 3 is "c", not "x"') as misfit:
        await patched(room, diff)
    assert (misfit.value.details["hunk"], misfit.value.details["line"]) == (2, 3)
    assert await content(room, FILE) == b"a\nb\nc\nd\n"
    assert await names(room) == ["f"]
    for diff in ("", "nonsense", "@@ -1,3 +1 @@\n-a\n", "Binary files a and b differ\n"):
        with pytest.raises(InvalidRequest, match="diff"):
            await patched(room, diff)


async def test_hunk_is_applied_at_the_only_match_nearby(room: Room) -> None:
    await room.keeper.files.write(FILE, b"x\n" * 30 + b"a\nb\nc\n")
    done = await patched(room, "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n")
    assert done.files[0].offsets == (30,)
    assert (await content(room, FILE)).endswith(b"x\na\nB\nc\n")
    with pytest.raises(Conflict, match="at both lines 1 and 2"):
        await patched(room, "@@ -40 +40 @@\n-x\n+y\n")


async def test_patch_of_several_files_is_atomic(room: Room) -> None:
    await shell(room, "cd /workspace && mkdir d && echo a > d/a && echo b > d/b && echo c > d/c")
    good = (
        "--- d/a\n+++ d/a\n@@ -1 +1 @@\n-a\n+A\n"
        "--- d/b\n+++ /dev/null\n@@ -1 +0,0 @@\n-b\n"
        "--- /dev/null\n+++ d/n\n@@ -0,0 +1 @@\n+n\n"
    )
    bad = "--- d/c\n+++ d/c\n@@ -1 +1 @@\n-x\n+C\n"
    with pytest.raises(Conflict) as misfit:
        await patched(room, good + bad, "/workspace")
    assert misfit.value.details["path"] == "/workspace/d/c"
    assert await shell(room, "cd /workspace/d && ls -A && cat *") == "a\nb\nc\na\nb\nc\n"
    await patched(room, good, "/workspace")
    assert await shell(room, "cd /workspace/d && ls -A && cat *") == "a\nc\nn\nA\nc\nn\n"
    with pytest.raises(FileExists):
        await patched(room, "--- /dev/null\n+++ d/n\n@@ -0,0 +1 @@\n+n\n", "/workspace")
    with pytest.raises(Conflict, match="more lines than the diff removes"):
        await patched(room, "--- d/c\n+++ /dev/null\n@@ -0,0 +0,0 @@\n", "/workspace")
    for name in ("../x", "/etc/passwd", "d/../../x", "./x", "d//x"):
        with pytest.raises(InvalidRequest, match="leaves the directory"):
            await patched(room, f"--- /dev/null\n+++ {name}\n@@ -0,0 +1 @@\n+n\n", "/workspace")
    for diff in ("@@ -1 +1 @@\n-a\n+b\n", "--- d/a\n+++ d/c\n@@ -1 +1 @@\n-a\n+b\n", bad + bad):
        with pytest.raises(InvalidRequest):
            await patched(room, diff, "/workspace")
    with pytest.raises(InvalidRequest, match="several files"):
        await patched(room, good, "/workspace/d/a")


@pytest.mark.parametrize("name", ["l/f", "l", "d/l"])
async def test_diff_does_not_follow_links(room: Room, name: str) -> None:
    await shell(room, "mkdir /tmp/out /workspace/d && echo a > /tmp/out/f && cd /workspace && ln -s /tmp/out l")
    await shell(room, "ln -s /tmp/out/f /workspace/d/l")
    with pytest.raises(FileError) as refused:
        await patched(room, f"--- {name}\n+++ {name}\n@@ -1 +1 @@\n-a\n+b\n", "/workspace")
    assert refused.value.errno == 40
    with pytest.raises(FileError):
        await patched(room, f"--- /dev/null\n+++ {name}/new\n@@ -0,0 +1 @@\n+b\n", "/workspace")
    assert await shell(room, "ls /tmp/out; cat /tmp/out/f") == "f\na\n"


async def test_patch_creates_and_deletes_the_named_file(room: Room) -> None:
    await patched(
        room, "--- /dev/null\n+++ b/whatever\n@@ -0,0 +1,2 @@\n+a\n+b\n\\ No newline at end of file\n", "/workspace/d/n"
    )
    assert await content(room, "/workspace/d/n") == b"a\nb"
    done = await patched(
        room, "--- a/x\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a\n-b\n\\ No newline at end of file\n", "/workspace/d/n"
    )
    assert done.files[0].action == "deleted"
    assert (await room.keeper.files.list("/workspace/d")).entries == []
