"""Lines of files, and lines that match a pattern: bounded, in linear time, with reported omissions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from keeper.test_entries import DEEP, deep, shell
from support.keeper import Room

from skerry.errors import FileIsDirectory, FileNotFound, FilePermissionDenied, InvalidRequest
from skerry.types import FileLines, SearchRequest, SearchResult, decode_path

MEBIBYTE = 1 << 20


async def lines(room: Room, start: int = 1, end: int | None = None, path: str = "/workspace/f") -> FileLines:
    return await room.keeper.files.lines(path, start, end)


async def search(room: Room, pattern: str, path: str = "/workspace", **more: object) -> SearchResult:
    return await room.keeper.files.search(SearchRequest(pattern=pattern, path=path, **more))  # type: ignore[arg-type]


def where(found: SearchResult) -> list[str]:
    return [f"{decode_path(one.path, one.raw_path).removeprefix('/workspace/')}:{one.line}" for one in found.matches]


async def test_read_lines_report_whether_more_follow(room: Room) -> None:
    await room.keeper.files.write("/workspace/f", b"one\ntwo\r\n\nfour")
    assert (await lines(room)).lines == ["one", "two\r", "", "four"]
    for start, end, wanted, more in (
        (1, 1, ["one"], True), (2, 3, ["two\r", ""], True), (3, 3, [""], True), (4, None, ["four"], False),
        (3, 99, ["", "four"], False), (4, 4, ["four"], False), (5, None, [], False), (100, 200, [], False),
    ):  # fmt: skip
        read = await lines(room, start, end)
        assert (read.lines, read.start, read.end, read.more, read.cut) == (
            wanted, start, start + len(wanted) - 1, more, False,
        )  # fmt: skip
    await room.keeper.files.write("/workspace/f", b"a\nb\n")
    assert ((await lines(room)).lines, (await lines(room)).more) == (["a", "b"], False)
    assert ((await lines(room, 2)).lines, (await lines(room, 2)).more) == (["b"], False)
    await room.keeper.files.write("/workspace/f", b"")
    read = await lines(room)
    assert (read.lines, read.end, read.more) == ([], 0, False)
    await room.keeper.files.write("/workspace/f", b"\n")
    assert (await lines(room)).lines == [""]
    for start, end in ((0, None), (2, 1), (-1, None)):
        with pytest.raises(InvalidRequest):
            await lines(room, start, end)
    with pytest.raises(FileIsDirectory):
        await lines(room, path="/workspace")


async def test_file_is_read_to_its_end_line_by_line(room: Room) -> None:
    content = [f"{n} {'x' * (n % 300)}" for n in range(20_000)]
    await room.keeper.files.write("/workspace/f", "\n".join(content).encode())
    read, start = [], 1
    while True:
        part = await lines(room, start)
        assert sum(len(line) + 1 for line in part.lines) <= MEBIBYTE
        read += part.lines
        if not part.more:
            break
        start = part.end + 1
    assert read == content
    far = await lines(room, 19_999, 19_999)
    assert (far.lines, far.more) == ([content[19_998]], True)


async def test_long_line_is_truncated_and_marked(room: Room) -> None:
    for ending in (b"", b"\n", b"\nnext"):
        await room.keeper.files.write("/workspace/f", b"x" * (3 * MEBIBYTE) + ending)
        read = await lines(room)
        assert ([len(line) for line in read.lines], read.cut, read.more) == ([MEBIBYTE], True, True)
    assert (await lines(room, 2)).lines == ["next"]
    await room.keeper.files.write("/workspace/f", b"a\n" + b"x" * (MEBIBYTE - 1) + b"\nb")
    read = await lines(room)
    assert (read.lines, read.cut, read.more) == (["a"], False, True)
    assert ((await lines(room, 2)).cut, (await lines(room, 3)).lines) == (False, ["b"])


async def test_non_utf8_lines_keep_their_bytes(room: Room) -> None:
    await room.keeper.files.write("/workspace/f", b"a\xff\nb\0<&>\x1b\n")
    read = await lines(room)
    assert (read.lines, read.raw) == (["a\ufffd", "b\0<&>\x1b"], b"a\xff\nb\0<&>\x1b")


async def test_lines_are_found_in_files(room: Room) -> None:
    await shell(
        room, "cd /workspace && mkdir -p a/b .git && printf 'one\\nneedle x\\nthree\\n' > a/f && echo needle > .git/c"
    )
    await shell(
        room, "cd /workspace && printf 'Needle' > a/b/g.py && printf 'a\\0needle' > a/bin && ln -s a/f l && mkfifo p"
    )
    found = await search(room, "need.e")
    assert (where(found), found.more, found.searched, found.skipped) == (["a/f:2"], False, 2, 1)
    assert found.matches[0].text == "needle x"
    found = await search(room, "needle", ignore_case=True, hidden=True)
    assert where(found) == [".git/c:1", "a/b/g.py:1", "a/f:2"]
    assert where(await search(room, "eedle", glob="*.py")) == ["a/b/g.py:1"]
    assert where(await search(room, "eedle", glob="a/*")) == ["a/f:2"]
    assert where(await search(room, "eedle", glob="*.{c,py}")) == ["a/b/g.py:1"]
    assert where(await search(room, "n.*x", literal=True)) == []
    assert where(await search(room, "^three$")) == ["a/f:3"]
    around = (await search(room, "needle", context=5)).matches[0]
    assert (around.before, around.after) == (("one",), ("three",))
    one = await search(room, "needle", "/workspace/a/f")
    assert ([match.path for match in one.matches], one.searched) == (["/workspace/a/f"], 1)
    with pytest.raises(FileNotFound):
        await search(room, "x", "/workspace/none")
    for pattern in ("(", "a{2000}", "(?<=a)b", "x\ny"):
        with pytest.raises(InvalidRequest, match="pattern"):
            await search(room, pattern)
    with pytest.raises(InvalidRequest, match="pattern"):
        await search(room, "x", glob="{")


async def test_truncated_search_is_marked(room: Room) -> None:
    await room.keeper.files.write("/workspace/f", b"needle\n" * 100)
    for limit, more in ((99, True), (100, False), (101, False)):
        found = await search(room, "needle", limit=limit)
        assert (len(found.matches), found.more) == (min(limit, 100), more)
    await room.keeper.files.write("/workspace/f", (b"x" * 1999 + b"\n") * 10_000)
    found = await search(room, "x", limit=10_000)
    assert found.more
    assert 4_000_000 < sum(len(match.text) for match in found.matches) < 4_300_000


async def test_unsearchable_files_are_counted(room: Room) -> None:
    await shell(room, "cd /workspace && mkdir d closed && echo needle > f && echo needle > g && chmod 0 g closed")
    await room.keeper.files.write("/workspace/d/long", b"x" * MEBIBYTE + b"needle\nneedle\n")
    found = await search(room, "needle", user="nobody")
    assert (where(found), found.searched, found.skipped) == (["d/long:2", "f:1"], 2, 3)
    with pytest.raises(FilePermissionDenied):
        await search(room, "needle", "/workspace/g", user="nobody")


async def test_long_line_is_shown_around_the_match(room: Room) -> None:
    await room.keeper.files.write("/workspace/f", b"x" * 50_000 + b"needle\xff" + b"y" * 50_000)
    match = (await search(room, "needle")).matches[0]
    assert match.cut
    assert "needle\ufffd" in match.text
    assert len(match.text) == 2000


async def test_non_utf8_names_keep_their_bytes(room: Room) -> None:
    await room.keeper.files.write("/workspace/\udcff/f", b"needle", parents=True)
    assert (await search(room, "needle")).matches[0].raw_path == b"/workspace/\xff/f"


async def test_thousand_levels_are_searched(room: Room) -> None:
    await deep(room, "/workspace/deep")
    found = await search(room, "needle 0|needle 1190")
    assert (len(found.matches), found.searched, found.skipped) == (2, DEEP // 10, 0)
    await room.keeper.files.remove("/workspace/deep", recursive=True)


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|aa)+$", "(?s)a.*b", "([a-z]+)*[0-9]", "a{1,40}b{1,40}", r"(\s|.)*x"])
async def test_hostile_pattern_takes_linear_time(room: Room, pattern: str) -> None:
    """Linear time: each of them takes hours where an engine tries again and again."""
    await room.keeper.files.write("/workspace/f", (b"a" * 3000 + b"!\n") * 300)
    async with asyncio.timeout(30):
        await search(room, pattern)


async def test_search_skips_special_files(room: Room) -> None:
    await shell(room, "mkfifo /run/fifo")
    async with asyncio.timeout(60):
        found = await search(room, "skerry-no-such-text-anywhere", "/run")
    assert (found.matches, found.more) == ([], False)


async def test_search_skips_proc(tmp_path: Path) -> None:
    async with Room(tmp_path, bare=True) as room:
        await room.keeper.files.write("/workspace/f", b"MemTotal:\n")
        assert b"MemTotal:" in await (await room.keeper.files.read("/proc/meminfo")).read(MEBIBYTE)
        assert where(await search(room, "MemTotal:", "/", hidden=True)) == ["f:1"]


async def test_search_of_a_disconnected_caller_is_cancelled(room: Room) -> None:
    await shell(room, "yes | head -c 200M > /workspace/f; for n in {1..50}; do ln /workspace/f /workspace/$n; done")
    endless = [asyncio.ensure_future(search(room, "([a-z]+y?)*[0-9]")) for _ in range(8)]
    await asyncio.sleep(0.05)
    for task in endless:
        task.cancel()
    await asyncio.wait(endless)
    await room.keeper.files.write("/tmp/f", b"needle")
    assert len((await search(room, "needle", "/tmp")).matches) == 1
