"""Directories as archives: packed and unpacked inside, with the rights of the sandbox's own users."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from pathlib import Path

import pytest
from support.keeper import Room, eventually, spec

from skerry.client.host.pack import Packer
from skerry.errors import (
    FileError,
    FileIsDirectory,
    FileNotDirectory,
    FileNotFound,
    FilePermissionDenied,
    InvalidRequest,
    QuotaExceeded,
)
from skerry.types import TransferResult

END = bytes(1024)


def member(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def archive(*members: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for one in members:
            info, data = one if isinstance(one, tuple) else (one, b"")
            info.size = info.size or len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


async def pieces(data: bytes, size: int = 64 << 10) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def unpack(
    room: Room, data: bytes, path: str = "/workspace/t", user: str | None = None, **how: int
) -> TransferResult:
    return await room.keeper.files.unpack(path, pieces(data, **how), user)


async def packed(
    room: Room, path: str = "/workspace/t", exclude: Iterable[str] = (), user: str | None = None
) -> tuple[dict[str, tarfile.TarInfo], TransferResult, bytes]:
    stream = await room.keeper.files.pack(path, tuple(exclude), user)
    data = b"".join([piece async for piece in stream])
    assert stream.moved is not None
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {info.name: info for info in tar}, stream.moved, data


async def shell(room: Room, line: str) -> str:
    status, out, err = await room.run(line)
    assert status.exit_code == 0, err
    return out.decode(errors="surrogateescape")


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("size", [1 << 20, 511, 7])
async def test_archive_of_every_format_is_unpacked(room: Room, form: int, size: int) -> None:
    long = "/".join(["directory"] * (12 if form == tarfile.USTAR_FORMAT else 60)) + "/file"
    data = archive(
        member("./", tarfile.DIRTYPE, mode=0o700),
        member("sub", tarfile.DIRTYPE, mode=0o750, mtime=1_000_000_000),
        (member("sub/a", mode=0o640, mtime=1_234_567_890), b"hello"),
        member("sub/link", tarfile.SYMTYPE, linkname="../" + "x" * (80 if form == tarfile.USTAR_FORMAT else 300)),
        (member("empty", mode=0o600), b""),
        (member(long), b"deep"),
        member("hard", tarfile.LNKTYPE, linkname="sub/a"),
        form=form,
    )
    moved = await unpack(room, data, size=size)
    assert (moved.files, moved.links, moved.bytes) == (4, 1, 9)
    assert (await room.keeper.files.stat("/workspace/t/sub")).mode == 0o750
    assert (await room.keeper.files.stat("/workspace/t/sub")).mtime == 1_000_000_000
    a = await room.keeper.files.stat("/workspace/t/sub/a")
    assert (a.mode, a.mtime, a.size) == (0o640, 1_234_567_890, 5)
    assert (await room.keeper.files.stat("/workspace/t/sub/link")).target.startswith("../xxx")  # type: ignore[union-attr]
    assert await shell(room, f"cat /workspace/t/{long}; stat -c %h /workspace/t/hard") == "deep2\n"
    assert (await room.keeper.files.stat("/workspace/t")).mode == 0o755, "the root's own mode is not the archive's"


async def test_packed_archive_equals_the_tree(room: Room) -> None:
    await shell(
        room,
        "mkdir -p /workspace/t/d && cd /workspace/t && echo hi > d/a && chmod 751 d && chmod 640 d/a && ln d/a d/b && "
        "ln -s ../nowhere d/l && touch -d @1234567890 d/a && mkfifo d/pipe && touch $'odd\\xff\\n' && "
        "head -c 700000 /dev/urandom > big",
    )
    members, moved, data = await packed(room)
    assert set(members) == {"d", "d/a", "d/b", "d/l", "odd\udcff\n", "big"}
    assert (members["d"].mode, members["d"].isdir()) == (0o751, True)
    assert members["d/l"].linkname == "../nowhere"
    first, second = sorted((members["d/a"], members["d/b"]), key=lambda one: one.islnk())
    assert (second.islnk(), second.linkname, first.mode, first.mtime) == (True, first.name, 0o640, 1234567890)
    assert [(one.path, one.reason) for one in moved.skipped] == [("d/pipe", "it is a fifo")]
    assert (moved.files, moved.directories, moved.links, moved.bytes) == (4, 1, 1, 700003)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        big = tar.extractfile("big")
        assert big is not None
        content = big.read()
    assert content == await (await room.keeper.files.read("/workspace/t/big")).read(1 << 20)


async def test_archives_are_compatible_with_gnu_tar(room: Room, tmp_path: Path) -> None:
    await shell(
        room,
        "mkdir -p /workspace/t/$(printf 'long-name-%.0s' {1..20})/$(printf 'x%.0s' {1..200}) && cd /workspace/t && "
        "echo 1 > $(printf 'long-name-%.0s' {1..20})/f && ln -s $(printf 'y%.0s' {1..200}) l && mkfifo p && "
        "truncate -s 300000 z",
    )
    _, _, data = await packed(room)
    await room.keeper.files.write("/tmp/out.tar", data)
    listing = await shell(
        room,
        "cd /tmp && tar tvf out.tar && mkdir x && tar xf out.tar -C x && diff -r --no-dereference x /workspace/t -x p",
    )
    assert "y" * 200 in listing
    for form in ("gnu", "posix", "ustar", "v7"):
        made = "/tmp/short" if form in ("ustar", "v7") else "/workspace/t"
        await shell(room, "mkdir -p /tmp/short/a && echo 1 > /tmp/short/a/b")
        await shell(room, f"cd {made} && tar cf /tmp/{form}.tar --format={form} .")
        stream = await room.keeper.files.read(f"/tmp/{form}.tar")
        await unpack(room, await stream.read(64 << 20), f"/workspace/{form}")
        await shell(room, f"diff -r --no-dereference {made} /workspace/{form} -x p")


@pytest.mark.parametrize(
    "name", ["../x", "a/../../x", "a/..", "/etc/x", "/", "..", "a/b/../../../x", "x/../..", "n\0" + "x" * 8]
)
async def test_name_that_leads_outside_is_rejected(room: Room, name: str) -> None:
    with pytest.raises((InvalidRequest, FileIsDirectory)):
        await unpack(room, archive((member(name), b"evil")) if "\0" not in name else hostile(b"path", name.encode()))
    assert await shell(room, "ls -A /workspace; ls /workspace/t; ls /etc/x 2>&1 | wc -l") == "t\n1\n"


def hostile(key: bytes, value: bytes) -> bytes:
    """Return an archive with a PAX record that no tool would write."""
    record = b" " + key + b"=" + value + b"\n"
    length = len(record) + 2
    body = str(length).encode() + record
    head = member("pax", b"x", size=length).tobuf(tarfile.USTAR_FORMAT)
    return head + body.ljust(512, b"\0") + member("f").tobuf(tarfile.USTAR_FORMAT) + END


async def test_hard_link_cannot_lead_outside(room: Room) -> None:
    for target in ("../../etc/passwd", "/etc/passwd"):
        with pytest.raises(InvalidRequest):
            await unpack(room, archive(member("h", tarfile.LNKTYPE, linkname=target)))
    with pytest.raises(FileError, match="link is in the way"):
        await unpack(
            room,
            archive(member("l", tarfile.SYMTYPE, linkname="/etc"), member("h", tarfile.LNKTYPE, linkname="l/passwd")),
        )
    assert await shell(room, "ls /workspace/t") == "l\n"


async def test_nothing_is_written_through_a_link(room: Room) -> None:
    await shell(room, "mkdir -p /tmp/out /workspace/t && ln -s /tmp/out /workspace/t/there")
    for hostile in (
        archive(member("l", tarfile.SYMTYPE, linkname="/tmp/out"), (member("l/x"), b"evil")),
        archive(member("l", tarfile.SYMTYPE, linkname="/tmp/out"), member("l", tarfile.DIRTYPE), (member("l/x"), b"e")),
        archive((member("there/x"), b"evil")),
        archive(member("there/x", tarfile.DIRTYPE)),
        archive(member("there/x", tarfile.SYMTYPE, linkname="y")),
    ):
        with pytest.raises(FileError, match="link is in the way"):
            await unpack(room, hostile)
    assert await shell(room, "ls /tmp/out") == ""
    await unpack(room, archive((member("there"), b"a file in the link's place")))
    assert await shell(room, "ls /tmp/out; cat /workspace/t/there") == "a file in the link's place"


async def test_devices_and_fifos_are_skipped_and_reported(room: Room) -> None:
    moved = await unpack(
        room,
        archive(
            member("null", tarfile.CHRTYPE, devmajor=1, devminor=3),
            member("disk", tarfile.BLKTYPE),
            member("pipe", tarfile.FIFOTYPE),
            (member("f"), b"x"),
        ),
    )
    assert [one.path for one in moved.skipped] == ["null", "disk", "pipe"]
    assert await shell(room, "ls /workspace/t") == "f\n"


async def test_set_id_bits_are_dropped(room: Room) -> None:
    await unpack(room, archive((member("f", mode=0o6755), b"x"), member("d", tarfile.DIRTYPE, mode=0o7777)))
    assert await shell(room, "cd /workspace/t && stat -c '%a' f d && chmod 4755 f") == "755\n1777\n"
    members, _, _ = await packed(room)
    assert members["f"].mode == 0o755


async def test_invalid_archives_are_rejected(room: Room) -> None:
    good = archive((member("f"), b"x" * 1000))
    sparse = hostile(b"GNU.sparse.major", b"1")
    for data in (
        b"", b"\0" * 511, b"not a tar " * 100, good[:100], good[:700], good[:1536],
        good[:100] + b"8" + good[101:], good[:124] + b"9" * 11 + good[135:], sparse,
        member("x", b"S").tobuf(tarfile.GNU_FORMAT) + END, member("x", b"x", size=1 << 30).tobuf() + END,
        member("x", b"L", size=100_000).tobuf(tarfile.GNU_FORMAT) + b"a" * 100_352 + good,
        hostile(b"size", b"-1"), hostile(b"size", b"9" * 20),
    ):  # fmt: skip
        with pytest.raises(InvalidRequest, match="archive"):
            await unpack(room, data)
    assert await shell(room, "ls -A /workspace/t; wc -c < /workspace/t/f") == "f\n1000\n", (
        "it came whole before the cut"
    )


async def test_truncated_archive_leaves_only_complete_files(room: Room) -> None:
    data = archive((member("small"), b"whole"), (member("large"), b"x" * 3_000_000), (member("never"), b"x"))

    async def broken() -> AsyncIterator[bytes]:
        yield data[:2_000_000]
        raise RuntimeError("the source broke")

    await shell(room, "mkdir -p /workspace/t && echo old > /workspace/t/large")
    with pytest.raises(RuntimeError):
        await room.keeper.files.unpack("/workspace/t", broken())

    async def left() -> str:
        return await shell(room, "cd /workspace/t && ls -A && cat large small")

    await until(left, "large\nsmall\nold\nwhole")


async def until(found: object, wanted: str) -> None:
    async with asyncio.timeout(10):
        while await found() != wanted:  # type: ignore[operator]
            await asyncio.sleep(0.01)


async def test_archive_complete_before_the_end_of_the_upload_is_unpacked(room: Room) -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield archive((member("x"), b"y"))
        await until(lambda: shell(room, "cat /workspace/t/x 2>/dev/null || :"), "y")
        for _ in range(3):  # the answer has come by now
            await shell(room, "true")

    for _ in range(3):
        assert (await room.keeper.files.unpack("/workspace/t", slow())).files == 1
        assert await shell(room, "rm /workspace/t/x; echo well") == "well\n"


async def test_full_disk_keeps_existing_files(room: Room) -> None:
    await shell(room, "mkdir /tmp/tiny && mount -t tmpfs -o size=1M tmpfs /tmp/tiny && echo old > /tmp/tiny/big")
    data = archive((member("small"), b"s"), (member("big"), b"x" * 3_000_000))
    for size in (3 << 20, 1 << 16):
        with pytest.raises(FileError) as full:
            await unpack(room, data, "/tmp/tiny", size=size)
        assert (full.value.errno, full.value.filename) == (28, "/tmp/tiny/big")
        assert await shell(room, "cd /tmp/tiny; ls -A; cat big") == "big\nsmall\nold\n"
    many = archive(*((member(f"f{n}"), b"x" * 200_000) for n in range(20)))
    with pytest.raises(FileError):
        await unpack(room, many, "/tmp/tiny")
    assert (await shell(room, "cd /tmp/tiny; ls -A | grep -c skerry; stat -c %s f0")) == "0\n200000\n"


async def test_clashes_of_files_and_directories_are_reported(room: Room) -> None:
    await shell(room, "mkdir -p /workspace/t/d && touch /workspace/t/f")
    with pytest.raises(FileIsDirectory) as clash:
        await unpack(room, archive((member("d"), b"x")))
    assert clash.value.filename == "/workspace/t/d"
    with pytest.raises(FileIsDirectory):
        await unpack(room, archive(member("d", tarfile.SYMTYPE, linkname="x")))
    for data in (archive(member("f", tarfile.DIRTYPE)), archive((member("f/x"), b""))):
        with pytest.raises(FileNotDirectory):
            await unpack(room, data)
    with pytest.raises(FileNotDirectory):
        await unpack(room, archive(), "/etc/passwd")
    assert await shell(room, "cd /workspace/t; ls -A") == "d\nf\n"


async def test_permissions_of_the_user_apply(room: Room) -> None:
    await room.configure(user="nobody")
    with pytest.raises(FilePermissionDenied):
        await unpack(room, archive((member("x"), b"")), "/etc")
    with pytest.raises(FilePermissionDenied):
        await unpack(room, archive(), "/etc/new")
    with pytest.raises(FilePermissionDenied):
        await room.keeper.files.pack("/root")
    await unpack(room, archive(member("d", tarfile.DIRTYPE, mode=0o555), (member("d/f", mode=0o444), b"1")))
    info = await room.keeper.files.stat("/workspace/t/d/f")
    assert (info.uid, info.mode) == (65534, 0o444)
    await shell(
        room,
        "mkdir /workspace/t/closed && chmod 0 /workspace/t/closed && touch /workspace/t/s && chmod 0 /workspace/t/s",
    )
    members, moved, _ = await packed(room)
    assert set(members) == {"d", "d/f"}
    assert {(one.path, one.reason) for one in moved.skipped} == {
        ("closed", "permission denied"), ("s", "permission denied"),
    }  # fmt: skip


async def test_read_only_files_are_replaced_and_root_uploads_keep_the_owner(room: Room) -> None:
    await room.configure(user="nobody")
    data = archive(member("d", tarfile.DIRTYPE, mode=0o755), (member("d/f", mode=0o444), b"1"))
    await unpack(room, data)
    await unpack(room, data)
    await unpack(room, data, user="root")
    assert (await room.keeper.files.stat("/workspace/t/d/f")).uid == 65534


async def test_thousand_nested_directories_are_packed(room: Room) -> None:
    deep = "/".join(["d"] * 1000)
    await unpack(room, archive((member(f"{deep}/f"), b"bottom")))
    members, moved, _ = await packed(room)
    assert (len(members), moved.directories, moved.skipped) == (1001, 1000, ())
    assert members[f"{deep}/f"].size == 6
    wide = "/".join(["n" * 200] * 100)
    assert (await unpack(room, archive((member(f"{wide}/f"), b"far")), "/workspace/w")).directories == 100
    members, _, _ = await packed(room, "/workspace/w")
    assert members[f"{wide}/f"].size == 3
    await unpack(room, archive((member("/".join(["e"] * 1100) + "/f"), b"too deep")), "/workspace/v")
    _, moved, _ = await packed(room, "/workspace/v")
    assert [one.reason for one in moved.skipped] == ["it lies deeper than 1024 directories"]
    for name in ("t", "w", "v"):
        await shell(room, f"rm -r /workspace/{name}")


async def test_excluded_files_are_not_packed(room: Room) -> None:
    await shell(room, "mkdir -p /workspace/t/{a,b}/c && cd /workspace/t && touch a/x.py a/x.pyc a/c/y b/c/z c.pyc")
    members, _, _ = await packed(room, exclude=["*.pyc", "a/c", "b/"])
    assert set(members) == {"a", "a/x.py"}
    with pytest.raises(InvalidRequest):
        await packed(room, exclude=["{a"])


async def test_patterns_match_the_same_in_keeper_and_client(room: Room, tmp_path: Path) -> None:
    names = ("a.py", "b.pyc", ".hidden", "src/a.py", "src/x/y/z.c", "src/x/b", "b/src/b", "[a", "{b", "*", "é", "a\nb")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    await room.keeper.files.unpack("/workspace/t", pieces(b"".join(Packer(tmp_path))))
    for pattern in (
        "*", "*.py", "**", "src", "/src", "src/", "b", "/b", "b/", "**/b", "src/**", "src/*", "src/**/b", "*/x/**",
        "[a", "[!a]*", "[a-b]*", "[b-a]*", "?", "{a,b}*", "*.{py,pyc}", "{src,b}/*", "\\*", "\\{b", ".*", "x/y",
        "**/x/y/*", "./src//x", "[]é]", "a?b", "{src/{x,y},b}/**", "é", "[^a]",
    ):  # fmt: skip
        with tarfile.open(fileobj=io.BytesIO(b"".join(Packer(tmp_path, exclude=[pattern])))) as tar:
            here = set(tar.getnames())
        assert set((await packed(room, exclude=[pattern]))[0]) == here, pattern


async def test_proc_is_never_packed(room: Room) -> None:
    for path in ("/proc", "/proc/self", "/proc/1/fd"):
        with pytest.raises(FileError):
            await room.keeper.files.pack(path)
    await shell(room, "mkdir -p /workspace/t/p && mount -t proc proc /workspace/t/p")
    members, moved, _ = await packed(room)
    assert (set(members), [one.path for one in moved.skipped]) == (set(), ["p"])
    await shell(room, "umount /workspace/t/p")


async def test_missing_and_invalid_targets_are_reported(room: Room) -> None:
    with pytest.raises(FileNotFound):
        await room.keeper.files.pack("/workspace/none")
    with pytest.raises(FileNotDirectory):
        await room.keeper.files.pack("/etc/passwd")
    with pytest.raises(InvalidRequest, match="not found in the sandbox"):
        await room.keeper.files.pack("/workspace", user="nosuch")


async def test_large_file_that_shrinks_fails_the_archive_by_name(room: Room) -> None:
    await shell(room, "mkdir /workspace/t && truncate -s 50M /workspace/t/log")
    stream = await room.keeper.files.pack("/workspace/t")
    await anext(stream)
    await shell(room, "truncate -s 1M /workspace/t/log")
    with pytest.raises(FileError, match="log: it became shorter"):
        async for _ in stream:
            pass
    assert (await room.keeper.hello()).processes == 0


async def test_files_that_appear_and_vanish_are_packed_or_reported(room: Room) -> None:
    await shell(room, "mkdir /workspace/t && cd /workspace/t && seq 2000 | xargs touch")
    churn = await room.keeper.start(
        spec(
            "cd /workspace/t; while :; do for i in $(seq 1 50 2000); do rm -f $i; echo $i > n$i; mv n$i $i; done; done"
        )
    )
    try:
        for _ in range(5):
            members, moved, _ = await packed(room)
            assert len(members) + len(moved.skipped) + moved.more > 1900
            assert all(one.reason == "it vanished meanwhile" for one in moved.skipped)
    finally:
        await churn.aclose()


async def test_link_swapped_in_while_packing_is_never_followed(room: Room) -> None:
    await shell(room, "mkdir -p /workspace/t/d && cd /workspace/t && echo mine > d/shadow && ln -s /etc other")
    churn = await room.keeper.start(
        spec("cd /workspace/t; while :; do mv d x; ln -s /etc d; rm d; mv x d; done", user="nobody")
    )
    try:
        for _ in range(50):
            stream = await room.keeper.files.pack("/workspace/t")
            assert b"root:" not in b"".join([piece async for piece in stream])
    finally:
        await churn.aclose()


async def test_link_swapped_in_while_unpacking_is_never_followed(room: Room) -> None:
    await shell(room, "mkdir -p /workspace/t/d /tmp/bait && chmod 777 /workspace/t /workspace/t/d /tmp/bait")
    churn = await room.keeper.start(
        spec("cd /workspace/t; while :; do mv d x; ln -s /tmp/bait d; rm d; mv x d; done", user="nobody")
    )
    data = archive(*((member(name), b"x") for n in range(20) for name in (f"d/f{n}", f"e/f{n}")))
    try:
        for _ in range(50):
            with suppress(FileError):
                await unpack(room, data)
    finally:
        await churn.aclose()
    assert await shell(room, "ls /tmp/bait") == ""


async def test_number_of_concurrent_archives_is_bounded(room: Room) -> None:
    await shell(room, "mkdir /workspace/t && truncate -s 50M /workspace/t/big")
    streams = [await room.keeper.files.pack("/workspace/t") for _ in range(8)]
    with pytest.raises(QuotaExceeded):
        await room.keeper.files.pack("/workspace/t")
    with pytest.raises(QuotaExceeded):
        await unpack(room, archive())
    for stream in streams:
        await stream.aclose()

    async def again() -> bool:
        try:
            await unpack(room, archive())
        except QuotaExceeded:
            return False
        return True

    async with asyncio.timeout(10):
        while not await again():
            await asyncio.sleep(0.01)


async def test_no_descriptor_is_left_open_in_the_keeper(room: Room) -> None:
    def held() -> int:
        return len(list(Path(f"/proc/{room.pid}/fd").iterdir()))

    await unpack(room, archive((member("a/b"), b"x"), (member("big"), b"x" * 1_000_000)))
    await packed(room)
    before = held()
    for _ in range(20):
        with pytest.raises(InvalidRequest):
            await unpack(room, archive((member("a/b"), b"x"), (member("c/d"), b"x"))[:1600] + b"junk" * 500)
        with pytest.raises(FileError):
            await unpack(room, archive((member("big/x"), b"x")))
        stream = await room.keeper.files.pack("/workspace/t")
        await anext(stream)
        await stream.aclose()
    await eventually(lambda: held() <= before)
