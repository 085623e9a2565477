"""Changes in a tracked directory are reported completely and once; lost ones cause a full scan."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import resource
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
from support.keeper import Room, eventually, spec

from skerry.errors import FileError, FileNotFound, NotFound
from skerry.keeper import KeeperProtocolError, KeeperTimeout, ProcessStream
from skerry.keeper.tracking import TrackedContent, TrackedEntry, TrackerScan

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
        self.told: list[TrackedEntry] = []
        self.manifest: dict[bytes, TrackedEntry] = {}

    async def begin(
        self, ignore: Sequence[tuple[str, Sequence[str]]] = (), tracked: Sequence[str] = (), large: int = LARGE
    ) -> Tracked:
        self.tracker = await self.room.keeper.tracking.start(self.root, ignore, tracked, large)
        self.seq = 0
        await self.scan()
        return self

    async def scan(self) -> list[TrackedEntry]:
        """Takes the next scan into the manifest."""
        scan = await self.room.keeper.tracking.scan(self.tracker, self.seq)
        self.told = [entry async for entry in scan]
        self._take(scan)
        return self.told

    def _take(self, scan: TrackerScan) -> None:
        if scan.full:
            self.manifest = {entry.path: entry for entry in self.told}
        for entry in () if scan.full else self.told:
            old = self.manifest.pop(entry.path, None)
            if old is not None and old.type == "directory" and entry.type != "directory":
                below = entry.path + b"/"
                self.manifest = {p: e for p, e in self.manifest.items() if not p.startswith(below)}
            if entry.type != "gone":
                self.manifest[entry.path] = entry
        self.seq, self.full, self.git = scan.seq, scan.full, scan.git

    async def shell(self, line: str) -> bytes:
        status, out, err = await self.room.run(f"cd {self.root}; {line}")
        assert status.exit_code == 0, err
        return out

    async def changes(self, line: str) -> set[tuple[str, str]]:
        """Return the changes that a shell line causes."""
        await self.shell(line)
        return {(entry.type, entry.path.decode()) for entry in await self.scan()}

    async def read(self, *paths: bytes) -> list[TrackedContent]:
        return [content async for content in self.room.keeper.tracking.read(self.tracker, paths)]

    async def check(self) -> None:
        """Check that the manifest equals the tree."""
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


async def test_each_kind_of_change_is_reported_and_nothing_else(room: Room) -> None:
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
    with pytest.raises(FileNotFound):
        await room.keeper.tracking.start("/nowhere", (), (), LARGE)
    await room.keeper.tracking.end(t.tracker)
    with pytest.raises(NotFound):
        await room.keeper.tracking.scan(t.tracker, 0)


async def test_writes_with_old_times_and_through_a_mapping_are_reported(room: Room) -> None:
    t = await tracked(room, "echo old > f; echo aaaa > m; ls -l --full-time f > /tmp/before")
    before = t.manifest[b"f"]
    await t.shell("cp -p f /tmp/f; echo new > f; touch -r /tmp/f f; ls -l --full-time f | diff - /tmp/before")
    assert [entry.path for entry in await t.scan()] == [b"f"]
    after = t.manifest[b"f"]
    assert (after.size, after.inode, after.written) == (before.size, before.inode, True)
    assert after.ctime_ns > before.ctime_ns
    await t.shell(
        'python3 -c \'import mmap, os; fd = os.open("m", 2); m = mmap.mmap(fd, 5); os.close(fd); m[:1] = b"X"\''
    )
    (told,) = await t.scan()
    assert (told.path, told.written) == (b"m", True)
    assert [content.data for content in await t.read(b"m", b"f")] == [b"Xaaa\n", b"new\n"]
    # A full scan sees by the ctime a change that the mtime hides.
    await t.shell("echo bad > f; touch -r /tmp/f f")
    t.manifest[b"f"] = after
    assert (await t.begin()).full
    assert t.manifest[b"f"].ctime_ns > after.ctime_ns
    assert t.manifest[b"m"].ctime_ns == told.ctime_ns


async def test_created_moved_and_removed_directories_include_all_below(room: Room) -> None:
    make = "mkdir -p d/e/f && echo 1 > d/a && echo 1 > d/e/b && echo 1 > d/e/f/c"
    t = await tracked(room, f"{make}; mkdir -p /tmp/out && cd /tmp/out && {make}; tar -cf /tmp/d.tar d")
    assert await t.changes("mv d n") == {("gone", "d"), ("gone", "n")} | {
        ("directory", "n"), ("file", "n/a"), ("directory", "n/e"), ("file", "n/e/b"), ("directory", "n/e/f"),
        ("file", "n/e/f/c"),
    }  # fmt: skip
    assert await t.changes("echo 2 > n/e/f/c") == {("file", "n/e/f/c")}, "it is watched where it went"
    for line in (
        "mv /tmp/out/d from-outside",
        "mkdir unpacked && tar -xf /tmp/d.tar -C unpacked",
        "echo 2 > from-outside/e/f/c; echo 2 > unpacked/d/e/f/new",
        "mv n unpacked/d/e/f/ && mv unpacked/d/e/f/n/e up && rm -r unpacked/d/a",
        "mkdir x y && touch x/1 y/2 && mv x z && mv y x && mv z y",
        "mv y /tmp/out/y && mkdir y && mv /tmp/out/y y/y && echo 1 > y/y/2",
        "rm -r up && echo file > up && rm -r x && ln -s /etc x",
        "rm up && mkdir -p up/1/2/3 && touch up/1/2/3/4 && mv up/1/2 up/2 && rm -r up/1",
        "mv unpacked /tmp/gone && rm -r from-outside",
    ):
        await t.shell(line)
        await t.scan()
        assert not t.full
        await t.check()
    # The root itself is moved, and another takes its place.
    await t.shell("mkdir /tmp/ws && touch /tmp/ws/other && mv /workspace /old && mv /tmp/ws /workspace")
    await t.scan()
    assert t.full
    assert set(t.manifest) == {b"other"}
    await t.shell("mv /workspace /tmp/ws")
    await t.scan()
    assert (t.full, t.manifest) == (True, {})
    await t.shell("ln -s /etc /workspace")
    await t.scan()
    assert (t.full, t.manifest) == (True, {}), "a link is not followed"
    await t.shell("rm /workspace; mv /old /workspace")
    await t.scan()
    await t.check()


CHAOS = """
import os, random, shutil, sys, time
pick = random.Random(int(sys.argv[1])); os.chdir("/workspace")
def anywhere(): return os.path.join(pick.choice([d for d, _, _ in os.walk(".")]), pick.choice("abcdef"))
for _ in range(300):
    a, b = anywhere(), anywhere()
    try:
        what = pick.random()
        if what < 0.3: os.makedirs(a)
        elif what < 0.55: open(a, "w").write("x")
        elif what < 0.75: os.rename(a, b)
        elif what < 0.8: shutil.rmtree(a)
        elif what < 0.85: os.rename(a, "/tmp/out/" + pick.choice("abc"))
        elif what < 0.9: os.rename("/tmp/out/" + pick.choice("abc"), b)
        elif what < 0.95: os.symlink("/tmp/out", a)
        else: os.unlink(a)
    except OSError: pass
    if pick.random() < 0.05: time.sleep(0.003)
"""


async def test_replayed_scans_equal_the_tree(room: Room) -> None:
    """Scans in the middle of changes: each may be torn, none may lose anything for good."""
    t = await tracked(room, "mkdir /tmp/out")
    whole = 0
    for seed in range(3):
        stream = await room.keeper.start(
            spec('sleep 0; exec /usr/bin/python3 -c "$CHAOS" "$SEED"', env={"CHAOS": CHAOS, "SEED": str(seed)})
        )
        running = asyncio.ensure_future(_ended(stream))
        while not running.done():
            await t.scan()
            whole += t.full
            await asyncio.sleep(0.002)
        await t.scan()
        await t.check()
        written = {path for path, entry in t.manifest.items() if entry.type == "file"}
        assert {content.data for content in await t.read(*written)} <= {b"x", b""}
    assert not whole, "nothing was so much that all had to be looked at"


async def _ended(stream: ProcessStream) -> None:
    async for _ in stream:
        pass


async def test_special_files_are_reported_and_never_opened(room: Room) -> None:
    t = await tracked(room, "mkdir d; ln -s /etc/passwd out; ln -s / d/root; ln -s ../../.. d/up; echo 1 > d/f")
    waiting = await room.keeper.start(spec("cd /workspace; mkfifo pipe; touch made; echo x > pipe; touch /tmp/opened"))
    await _until(t, lambda: b"made" in t.manifest)
    await t.shell(
        "mknod dev c 1 3; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'; "
        "mkdir m other; mount -t tmpfs tmpfs m; touch m/x; mount --bind /etc other"
    )
    await t.scan()
    await t.begin()
    kinds = {path.decode(): entry.type for path, entry in t.manifest.items()}
    assert kinds == {
        "d": "directory", "d/f": "file", "d/root": "link", "d/up": "link", "out": "link", "pipe": "other",
        "made": "file", "dev": "other", "socket": "other", "m": "other", "other": "other",
    }  # fmt: skip
    contents = await t.read(
        b"pipe", b"dev", b"socket", b"out", b"d/root/etc/passwd", b"d/up/etc/passwd", b"other/passwd", b"m/x", b"d/f/x",
    )  # fmt: skip
    assert [content.entry.type for content in contents] == [
        "other", "other", "other", "link", "gone", "gone", "other", "other", "gone",
    ]  # fmt: skip
    assert [content.data for content in contents] == [b""] * len(contents)
    assert (await room.run("test -e /tmp/opened"))[0].exit_code == 1, "whoever writes to the fifo still waits"
    # A directory is replaced by a link while the host believes that it is one.
    await t.shell("cat pipe; mkdir d/sub; echo 1 > d/sub/passwd")
    await t.scan()
    await t.shell("rm -r d/sub; ln -s /etc d/sub")
    (content,) = await t.read(b"d/sub/passwd")
    assert (content.entry.type, content.data) == ("gone", b"")
    await t.scan()
    assert b"d/sub/passwd" not in t.manifest
    await waiting.aclose()


async def _until(t: Tracked, check: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not check():
            await t.scan()
            await asyncio.sleep(0.005)


async def test_ignore_rules_of_the_start_stay_in_force(room: Room) -> None:
    ignore = [("", ["*.o", "build/", "/node", "!keep.o"]), ("sub", ["local", "!x.o"])]
    t = await tracked(
        room, "mkdir -p build/a/b sub/build sub/node node; touch build/a/{b/t,u} a.o keep.o sub/x.o sub/y.o local",
        ignore=ignore, tracked=["build/a/b/t", "sub/y.o"],
    )  # fmt: skip
    kinds = {path.decode(): entry.type for path, entry in t.manifest.items()}
    assert kinds == {
        "build": "directory", "build/a": "directory", "build/a/b": "directory", "build/a/b/t": "file",
        "build/a/u": "ignored", "a.o": "ignored", "keep.o": "file", "sub": "directory", "sub/build": "ignored",
        "sub/node": "directory", "node": "ignored", "sub/x.o": "file", "sub/y.o": "file", "local": "file",
    }  # fmt: skip
    found = await t.changes(
        "echo '*' > .gitignore; echo 1 > seen; echo 1 > a.o; echo 1 > b.o; echo 1 > build/a/u; echo 1 > build/a/b/t; "
        "echo 1 > node/x; mkdir -p new/build/x; echo 1 > new/build/x/y; echo 1 > sub/local; mkdir -p deep/.git/x"
    )
    assert found == {
        ("file", ".gitignore"), ("file", "seen"), ("ignored", "b.o"), ("file", "build/a/b/t"), ("gone", "new"),
        ("directory", "new"), ("ignored", "new/build"), ("ignored", "sub/local"), ("gone", "deep"),
        ("directory", "deep"), ("git", "deep/.git"),
    }, "what is written to ignored files that are known is no change"  # fmt: skip
    assert await t.changes("echo 1 > deep/.git/x/y; echo 1 > new/build/x/z") == set()


async def test_ref_changes_of_the_repository_are_noticed(room: Room) -> None:
    git = "git -c user.name=a -c user.email=a@b"
    t = await tracked(room, f"git init -q; touch f; git add f; {git} commit -qm 1")
    for line, changed in (
        ("true", False), ("echo 1 > f; git add f; git status; git gc -q --prune=now", True), ("git diff HEAD", False),
        (f"{git} commit -qam 2", True), ("touch .git/x .git/refs/y.lock; rm .git/x .git/refs/y.lock", False),
        ("git branch deep/er/b", True), ("git branch -f deep/er/b HEAD~", True), ("git tag t", True),
        ("git pack-refs --all --prune", True), ("git checkout -q --detach", True), ("rm -rf .git", True),
        ("true", False), ("git init -q", True), (f"{git} commit -qam 1 --allow-empty", True),
        ("rm -rf .git/refs; ln -s /etc .git/refs", True), ("true", False),
    ):  # fmt: skip
        told = await t.changes(line)
        assert t.git == changed, line
        assert not {path for _, path in told if path.startswith(".git")}
    assert set(t.manifest) == {b"f"}


async def test_names_are_bytes(room: Room) -> None:
    names = [b"new\nline", b"\xff\xfe", b"\xc3\xbc", b"quote\"'\\", b"\x1b[31m", b"\x7f\x01", b"x" * 255, b" ", b"-rf"]
    make = "import os, sys; [open(bytes.fromhex(name), 'w').write('1') for name in sys.argv[1:]]"
    t = await tracked(room, "mkdir ignored.o", ignore=[("", ["*\udcff?"])], tracked=["\udcff\udcfe"])
    await room.run("/usr/bin/python3", "-c", make, *(name.hex() for name in [*names, b"a\xffb"]), cwd=ROOT)
    await t.scan()
    assert {path: entry.type for path, entry in t.manifest.items()} == {
        b"ignored.o": "directory", b"a\xffb": "ignored", **dict.fromkeys(names, "file"),
    }  # fmt: skip
    assert [content.data for content in await t.read(*names)] == [b"1"] * len(names)
    deep = "/".join(["d" * 200] * 40)
    await t.shell(f"mkdir -p {deep[:2000]} && cd {deep[:2000]} && mkdir -p {deep[:4000]}")
    await t.scan()
    assert max(map(len, t.manifest)) <= 4096
    assert [entry.type for entry in t.manifest.values()].count("other") == 1, "what lies too deep is told as one"
    await t.shell('python3 -c \'import os\nfor _ in range(1500): os.mkdir("e"); os.chdir("e")\'')
    await t.scan()
    assert max(path.count(b"/") for path in t.manifest) <= 1024
    await t.shell("rm -r e ddd*")


async def test_changing_file_is_unsteady_and_large_file_has_a_hash(
    room: Room,
) -> None:
    size, much = 12 << 20, 40 << 20
    t = await tracked(
        room, f"head -c {size} /dev/zero > f; head -c {much} /dev/zero > large; truncate -s 7E endless", large=size
    )
    steady, large = await t.read(b"f", b"large")
    assert (steady.data, steady.unsteady) == (bytes(size), False)
    assert (large.data, large.sha256) == (b"", hashlib.sha256(bytes(much)).hexdigest())
    write = "import os; fd = os.open('/workspace/{}', 1)\nwhile True: os.pwrite(fd, os.urandom(8), 5)"
    for name in ("f", "large"):
        writers = [await room.keeper.start(spec("/usr/bin/python3", "-c", write.format(name))) for _ in range(3)]
        changed = False
        async with asyncio.timeout(60):
            while not changed:
                (content,) = await t.read(name.encode())
                changed = content.unsteady
                assert sum(map(len, content.pieces)) == (size if name == "f" else 0)
        for writer in writers:
            await writer.aclose()
    cut = f"import os; fd = os.open('/workspace/f', 1)\nwhile True: os.ftruncate(fd, 10); os.ftruncate(fd, {size})"
    cutter = await room.keeper.start(spec("/usr/bin/python3", "-c", cut))
    for _ in range(5):
        (content,) = await t.read(b"f")
        assert content.unsteady or len(content.data) == content.entry.size
    await cutter.aclose()


async def test_lost_changes_cause_a_full_scan(room: Room) -> None:
    def files() -> int:
        return _open_files(room.pid).count("anon_inode:inotify")

    async def while_stopped(line: str) -> None:
        inside = Path(f"/proc/{room.pid}/root/tmp")
        writer = await room.keeper.start(
            spec(f"cd /workspace; until [ -e /tmp/go ]; do sleep 0.01; done; {line}; touch /tmp/done")
        )
        os.kill(room.pid, signal.SIGSTOP)
        try:
            (inside / "go").touch()
            await eventually((inside / "done").exists, 60)
        finally:
            os.kill(room.pid, signal.SIGCONT)
        await _ended(writer)

    t = await tracked(room, "mkdir d; seq 1000 | (cd d; xargs touch)")
    assert files() == 1
    # The kernel's queue overflows while the keeper is stopped.
    await while_stopped("for i in $(seq 30); do seq 1000 | (cd d; xargs touch); done; echo 1 > new; rm d/7")
    await t.scan()
    assert t.full
    assert b"new" in t.manifest
    await t.check()
    assert await t.changes("echo 2 > new") == {("file", "new")}, "and then one by one again"
    # More names than are kept.
    await t.shell("mkdir many; cd many; seq 100000 | xargs touch")
    await t.scan()
    await t.scan()
    assert not t.full
    await t.check()
    resident = _memory(room.pid, "VmHWM")
    assert resident < 24 << 10, "its memory does not grow with the number of files"
    await t.shell("cd many; seq 1 25000 | xargs rm")
    await t.scan()
    assert (t.full, sum(path.startswith(b"many/") for path in t.manifest)) == (True, 75_000)
    await eventually(lambda: files() == 1)
    await room.keeper.tracking.end(t.tracker)
    await eventually(lambda: files() == 0)


def _open_files(pid: int) -> list[str]:
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.append(os.readlink(link))
    return found


def _memory(pid: int, what: str) -> int:
    """In KiB."""
    (line,) = [one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith(what)]
    return int(line.split()[1])


async def test_wait_ends_after_a_quiet_period(room: Room) -> None:
    tracking = room.keeper.tracking
    t = await tracked(room, "mkdir d")
    waiting = asyncio.ensure_future(tracking.wait(t.tracker, t.seq, 100, 5000))
    await t.shell("for i in 1 2 3 4; do echo $i > d/f; sleep 0.05; done")
    assert await waiting
    assert [entry.path for entry in await t.scan()] == [b"d/f"]
    writer = await room.keeper.start(spec("cd /workspace; while true; do echo 1 > d/f; done"))
    assert await tracking.wait(t.tracker, t.seq, 5000, 300), "it is never quiet, but was dirty for long enough"
    await writer.aclose()
    await t.scan()
    first = asyncio.ensure_future(tracking.wait(t.tracker, t.seq, 100, 100))
    await asyncio.sleep(0.05)
    second = asyncio.ensure_future(tracking.wait(t.tracker, t.seq, 100, 100))
    assert not await first, "somebody else waits now"
    await tracking.end(t.tracker)
    with pytest.raises(NotFound):
        await second


async def test_temporary_files_of_the_keeper_are_not_reported(room: Room) -> None:
    t = await tracked(room, "echo 1 > .skerry-1-1")
    assert set(t.manifest) == {b".skerry-1-1"}, "nobody hides behind such a name"

    async def slowly() -> AsyncIterator[bytes]:
        yield b"x" * 1000
        await t.scan()
        assert set(t.manifest) == {b".skerry-1-1"}
        await t.begin()
        assert set(t.manifest) == {b".skerry-1-1"}
        yield b"y"

    await room.keeper.files.write("/workspace/f", slowly())
    await t.scan()
    assert set(t.manifest) == {b".skerry-1-1", b"f"}


async def test_keeper_without_descriptors_reports_everything_or_fails(room: Room) -> None:
    t = await tracked(room, "mkdir -p d/e/f; touch a d/b d/e/c d/e/f/g")
    whole = set(t.manifest)
    most = resource.prlimit(room.pid, resource.RLIMIT_NOFILE)
    failed = 0
    for limit in range(4, max(int(one) for one in os.listdir(f"/proc/{room.pid}/fd")) + 6):
        resource.prlimit(room.pid, resource.RLIMIT_NOFILE, (limit, most[1]))
        try:
            scan = await room.keeper.tracking.scan(t.tracker, 0)
            assert {entry.path async for entry in scan} == whole
        except (FileError, KeeperTimeout, KeeperProtocolError):
            failed += 1
        finally:
            resource.prlimit(room.pid, resource.RLIMIT_NOFILE, most)
    assert failed
    await t.begin()
    assert await t.changes("echo 1 > d/e/c") == {("file", "d/e/c")}
