"""What changed in a tracked directory is told, all of it and once; what can't be told one by one is told as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from keeper.room import Room

from skerry.errors import FileMissing, NotFound
from skerry.keeper.tracking import Content, Entry, Scan

ROOT = "/workspace"
LARGE = 1 << 20


class Tracked:
    """A host that keeps a manifest, as the engine does: path → entry."""

    def __init__(self, room: Room, root: str = ROOT) -> None:
        self.room = room
        self.root = root
        self.tracker = ""
        self.seq = 0
        self.git = False
        self.full = False
        self.told: list[Entry] = []
        self.manifest: dict[bytes, Entry] = {}

    async def begin(
        self, ignore: Sequence[tuple[str, Sequence[str]]] = (), tracked: Sequence[str] = (), large: int = LARGE
    ) -> Tracked:
        self.tracker = await self.room.keeper.tracking.begin(self.root, ignore, tracked, large)
        self.seq = 0
        await self.scan()
        return self

    async def scan(self) -> list[Entry]:
        """Takes the next scan into the manifest."""
        scan = await self.room.keeper.tracking.scan(self.tracker, self.seq)
        self.told = [entry async for entry in scan]
        self._take(scan)
        return self.told

    def _take(self, scan: Scan) -> None:
        if scan.full:
            self.manifest = {}
        for entry in self.told:
            below = entry.path + b"/"
            if entry.type == "gone":
                self.manifest = {p: e for p, e in self.manifest.items() if p != entry.path and not p.startswith(below)}
            else:
                self.manifest[entry.path] = entry
        self.seq, self.full, self.git = scan.seq, scan.full, scan.git

    async def shell(self, line: str) -> bytes:
        status, out, err = await self.room.run(f"cd {self.root}; {line}")
        assert status.exit_code == 0, err
        return out

    async def changes(self, line: str) -> set[tuple[str, str]]:
        """What a shell line makes it tell."""
        await self.shell(line)
        return {(entry.type, entry.path.decode()) for entry in await self.scan()}

    async def read(self, *paths: bytes) -> list[Content]:
        return [content async for content in self.room.keeper.tracking.read(self.tracker, paths)]

    async def check(self) -> None:
        """The manifest is what is there."""
        out = await self.shell("find . -mindepth 1 -name .git -prune -o -mindepth 1 -printf '%P\\0%y\\0%i\\0%C@\\0'")
        fields = out.split(b"\0")[:-1]
        kinds = {b"f": "file", b"d": "directory", b"l": "link"}
        there = {
            path: (kinds.get(kind, "other"), int(inode))
            for path, kind, inode, _ in zip(*[iter(fields)] * 4, strict=True)
        }
        assert {
            path: (e.type, e.inode) for path, e in self.manifest.items() if e.type not in ("git", "ignored")
        } == there


async def tracked(room: Room, line: str = "", **how: object) -> Tracked:
    t = Tracked(room)
    if line:
        await t.shell(line)
    return await t.begin(**how)  # type: ignore[arg-type]


async def test_each_kind_of_change_is_told_and_nothing_else(room: Room) -> None:
    t = await tracked(room, "mkdir d e; echo 1 > d/f; echo 1 > g; echo 1 > h; ln -s g l; echo 1 > e/k")
    assert t.full
    await t.check()
    assert await t.changes("true") == set()
    assert not t.full
    found = await t.changes("echo 2 > d/f; rm g; chmod 600 h; rm l; ln -s h l; mv e/k e/m; mkdir n; echo 1 > n/o")
    assert found == {
        ("file", "d/f"), ("gone", "g"), ("file", "h"), ("link", "l"), ("gone", "e/k"), ("file", "e/m"), ("gone", "n"),
        ("directory", "n"), ("file", "n/o"),
    }  # fmt: skip
    await t.check()
    link = t.manifest[b"l"]
    assert link.target == b"h"
    contents = await t.read(b"d/f", b"l", b"g", b"d")
    assert [content.entry.type for content in contents] == ["file", "link", "gone", "directory"]
    assert contents[0].data == b"2\n"
    assert contents[1].entry.target == b"h"
    assert await t.scan() == []
    with pytest.raises(NotFound):
        await room.keeper.tracking.scan("0" * 16, 0)
    with pytest.raises(FileMissing):
        await room.keeper.tracking.begin("/nowhere", (), (), LARGE)
    await room.keeper.tracking.end(t.tracker)
    with pytest.raises(NotFound):
        await room.keeper.tracking.scan(t.tracker, 0)
