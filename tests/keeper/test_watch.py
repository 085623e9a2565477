"""Changes below a directory are reported once, in order and without gaps; a loss of events is reported too."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.keeper import Room, eventually, spec

from skerry.errors import FileError, FileNotDirectory, FileNotFound, FilePermissionDenied, InvalidRequest, QuotaExceeded
from skerry.keeper.watch import ChangeStream
from skerry.types import FileEvent

Reported = tuple[str, ...]


@asynccontextmanager
async def watching(room: Room, path: str = "/workspace", **how: object) -> AsyncIterator[ChangeStream]:
    changes = await room.keeper.files.watch(path, **how)  # type: ignore[arg-type]
    try:
        yield changes
    finally:
        await changes.aclose()


def reported(event: FileEvent) -> Reported:
    where = (event.path, event.to) if event.to is not None else (event.path,)
    return (event.type, *(path.removeprefix("/workspace/") for path in where))


async def until(changes: ChangeStream, last: str = "end") -> list[FileEvent]:
    """Return all events before the creation of a file of that name."""
    found: list[FileEvent] = []
    async with asyncio.timeout(20):
        async for event in changes:
            if event.path.endswith(f"/{last}") and event.type != "removed":
                return found
            found.append(event)
    raise AssertionError("the stream ended")


async def collect(room: Room, changes: ChangeStream, directory: str = "/workspace") -> list[FileEvent]:
    """Return all events of earlier changes.

    The watcher delays events of files for up to 100 ms, and other events may overtake them. The first marker shows that
    the watcher has processed all earlier notices, so the second marker comes after all their events.
    """
    await shell(room, f"touch {directory}/first_marker")
    found = await until(changes, "first_marker")
    await asyncio.sleep(0.3)
    await shell(room, f"touch {directory}/end")
    found += await until(changes)
    await shell(room, f"rm {directory}/first_marker {directory}/end")
    return [event for event in found if not event.path.endswith(("/first_marker", "/end"))]


async def shell(room: Room, line: str, **how: object) -> str:
    status, out, err = await room.run("cd /workspace; " + line, **how)
    assert status.exit_code == 0, err
    return out.decode(errors="surrogateescape")


async def events(room: Room, *lines: str, **how: object) -> list[Reported]:
    """Return the events of shell lines, each of which waits for the events of the previous one."""
    found: list[FileEvent] = []
    async with watching(room, **how) as changes:
        for line in lines:
            await shell(room, line)
            found += await collect(room, changes)
    return [reported(event) for event in found]


async def test_each_kind_of_change_is_reported_once(room: Room) -> None:
    await shell(room, "echo 1 > old; echo 1 > gone; mkdir d; echo 1 > name")
    found = await events(
        room, "echo 1 > new; echo 2 >> old; rm gone; mv name renamed; chmod 600 old; ln -s x link; rmdir d"
    )
    assert sorted(found) == sorted([
        ("created", "new"), ("modified", "old"), ("removed", "gone"), ("moved", "name", "renamed"), ("modified", "old"),
        ("created", "link"), ("removed", "d"),
    ])  # fmt: skip


async def test_new_file_is_reported_with_its_first_content(room: Room) -> None:
    assert await events(room, "for i in 1 2 3; do echo $i; done > f; cp f g") == [("created", "f"), ("created", "g")]


async def test_overwritten_file_is_reported_as_modified(room: Room) -> None:
    """Editors, and the keeper, write a new file and rename it to the name of the old one."""
    await shell(room, "mkdir d; touch old d/old gone")
    async with watching(room, exclude=["*.tmp"]) as changes:
        for name in ("old", "d/old", "new"):
            await room.keeper.files.write(f"/workspace/{name}", b"2")
        found = [reported(event) for event in await collect(room, changes)]
        assert sorted(found) == [("created", "new"), ("modified", "d/old"), ("modified", "old")]
        await shell(room, "for f in new old gone; do echo 3 > x.tmp; mv x.tmp $f; done")
        await shell(room, "rm gone; echo 4 > x.tmp; mv x.tmp gone; mv d e; echo 5 > x.tmp; mv x.tmp e/old")
        found = [reported(event) for event in await collect(room, changes)]
    assert sorted(found) == [
        ("created", "gone"), ("modified", "e/old"), ("modified", "gone"), ("modified", "new"), ("modified", "old"),
        ("moved", "d", "e"), ("removed", "gone"),
    ]  # fmt: skip


async def test_long_write_causes_few_events(room: Room) -> None:
    await shell(room, "touch f")
    line = "exec 3> f; for i in $(seq 3000); do echo $i >&3; done; sleep 0.3; echo more >&3; exec 3>&-"
    found = await events(room, line)
    assert set(found) == {("modified", "f")}
    assert 2 <= len(found) <= 6


async def test_new_directories_are_watched_without_gap(room: Room) -> None:
    await room.keeper.files.mkdir("/workspace/w", mode=0o777)
    async with watching(room, "/workspace/w") as changes:
        await shell(
            room,
            "for i in $(seq 200); do mkdir -p w/d$i/e/f && touch w/d$i/a w/d$i/e/f/b; done",
        )
        found = await collect(room, changes, "/workspace/w")
    wanted = {f"/workspace/w/d{i}{rest}" for i in range(1, 201) for rest in ("", "/a", "/e", "/e/f", "/e/f/b")}
    assert {event.path for event in found} == wanted
    assert {event.type for event in found} == {"created"}
    assert len(found) == len(wanted), "no event is repeated"


async def test_short_lived_directories_are_followed(room: Room) -> None:
    line = "for i in $(seq 100); do mkdir t && echo $i > t/f && mv t t$i && echo x > t$i/g && rm -r t$i; done"
    found = await events(room, line)
    assert replay(found) == set()


CHAOS = """
import os, random, shutil, sys, time
pick = random.Random(int(sys.argv[1])); os.chdir("/workspace/w")
def anywhere():
    place = "."
    while pick.random() < 0.75 and (below := [one.path for one in os.scandir(place) if one.is_dir()]):
        place = pick.choice(below)
    return os.path.join(place, pick.choice("abcdef"))
for _ in range(800):
    a, b = anywhere(), anywhere()
    try:
        what = pick.random()
        if what < 0.3: os.makedirs(a)
        elif what < 0.6: open(a, "w").write("x")
        elif what < 0.8: os.rename(a, b)
        elif what < 0.85: shutil.rmtree(a)
        elif what < 0.9: os.rename(a, "/workspace/out/" + pick.choice("abc"))
        elif what < 0.95: os.rename("/workspace/out/" + pick.choice("abc"), b)
        else: os.unlink(a)
    except OSError: pass
    if pick.random() < 0.05: time.sleep(0.003)
"""


@pytest.mark.parametrize("seed", range(8))
async def test_replayed_events_match_the_disk(room: Room, seed: int) -> None:
    await shell(room, "mkdir w out")
    async with watching(room, "/workspace/w") as changes:
        await shell(room, 'sleep 0; exec /usr/bin/python3 -c "$CHAOS" "$SEED"', env={"CHAOS": CHAOS, "SEED": str(seed)})
        alive = replay([reported(event) for event in await collect(room, changes, "/workspace/w")])
    found = await shell(room, "cd w; find . -mindepth 1 -printf 'w/%P\\n'")
    assert alive == set(found.split())


def replay(found: list[Reported]) -> set[str]:
    alive: set[str] = set()
    for kind, path, *to in found:
        assert kind != "overflow"
        if kind == "created":
            alive.add(path)
        elif kind == "removed":
            alive = {p for p in alive if p != path and not p.startswith(path + "/")}
        elif kind == "moved":
            kept = {p for p in alive if p != to[0] and not p.startswith(to[0] + "/")}
            alive = {to[0] + p[len(path) :] if (p + "/").startswith(path + "/") else p for p in kept}
    return alive


async def test_directory_mounted_within_itself_is_watched_once(room: Room) -> None:
    await shell(room, "mkdir -p w/loop w/d && mount --bind w w/loop")
    async with watching(room, "/workspace/w") as changes:
        await shell(room, "touch w/d/f")
        assert [reported(event)[:2] for event in await collect(room, changes, "/workspace/w")] == [("created", "w/d/f")]
    await shell(room, "umount w/loop")


async def test_moved_directory_reports_children_at_new_paths(room: Room) -> None:
    await shell(room, "mkdir -p a/b/c; touch a/b/c/f")
    found = await events(room, "mv a z", "echo 1 > z/b/c/f", "mkdir z/b/new", "echo 1 > z/b/new/g", "mv z/b up")
    assert found == [
        ("moved", "a", "z"), ("modified", "z/b/c/f"), ("created", "z/b/new"), ("created", "z/b/new/g"),
        ("moved", "z/b", "up"),
    ]  # fmt: skip


async def test_moves_across_the_boundary_are_creations_and_removals(room: Room) -> None:
    await shell(room, "mkdir -p d/e /outside/x/y; touch d/e/f /outside/x/y/g f")
    found = await events(
        room,
        "cd /outside; mv /workspace/f .; mv /workspace/d .; mv x /workspace",
        "cd /outside; touch d/e/unseen; echo 1 > /workspace/x/y/seen; mv f /workspace/f2",
    )
    assert found == [
        ("removed", "f"), ("removed", "d"), ("created", "x"), ("created", "x/y"), ("created", "x/y/g"),
        ("created", "x/y/seen"), ("created", "f2"),
    ]  # fmt: skip


async def test_reused_name_is_reported_after_its_removal(room: Room) -> None:
    await shell(room, "mkdir -p d /outside; touch f")
    found = await events(room, "mv d /outside/1; mkdir d; touch d/x; mv f /outside/2; echo 1 > f; rm f; ln -s x f")
    assert [one for one in found if one[1] != "d/x"] == [
        ("removed", "d"), ("created", "d"), ("removed", "f"), ("created", "f"), ("removed", "f"), ("created", "f"),
    ]  # fmt: skip
    assert ("created", "d/x") in found


async def test_non_recursive_watch_reports_only_direct_entries(room: Room) -> None:
    await shell(room, "mkdir d")
    assert await events(room, "touch d/f; mkdir e; touch e/f; touch g", recursive=False) == [
        ("created", "e"), ("created", "g"),
    ]  # fmt: skip


async def test_patterns_select_events(room: Room) -> None:
    await shell(room, "mkdir -p src node_modules/x; touch src/old.py src/x.tmp")
    line = (
        "touch src/a.py src/a.c node_modules/x/b.py; mkdir node_modules/y; touch node_modules/y/c.py; mkdir new; "
        "touch new/d.py; mv src/old.py src/old.c; mv src/x.tmp src/x.py; mv src lib"
    )
    found = await events(room, line, include=["*.py", "first_marker", "end"], exclude=["node_modules"])
    assert sorted(found) == sorted([
        ("created", "src/a.py"), ("created", "new/d.py"), ("removed", "src/old.py"), ("created", "src/x.py"),
        ("moved", "src", "lib"),
    ])  # fmt: skip
    with pytest.raises(InvalidRequest):
        await room.keeper.files.watch("/workspace", include=["{a"])


async def test_unusual_names_are_preserved(room: Room) -> None:
    async with watching(room) as changes:
        await shell(room, "touch -- $'a\\nb' 'q\"' -dash $'bad\\xff'; mv $'bad\\xff' $'worse\\xfe'; touch end")
        found = await until(changes)
    by_path = {os.fsdecode(event.raw_path) if event.raw_path else event.path for event in found}
    assert {"/workspace/a\nb", '/workspace/q"', "/workspace/-dash", "/workspace/bad\udcff"} <= by_path
    move = next(event for event in found if event.type == "moved")
    assert (move.raw_path, move.raw_to, move.to) == (
        b"/workspace/bad\xff",
        b"/workspace/worse\xfe",
        "/workspace/worse\ufffd",
    )


async def test_removed_root_ends_the_stream_with_its_removal(room: Room) -> None:
    for line in ("rm -r w", "mv w elsewhere", "rm -r w; mkdir w"):
        await shell(room, "rm -rf w elsewhere; mkdir -p w/d; touch w/d/f")
        async with watching(room, "/workspace/w") as changes:
            start = changes.token
            await shell(room, line)
            async with asyncio.timeout(20):
                found = [event async for event in changes]
        assert (found[-1].type, found[-1].path, found[-1].directory) == ("removed", "/workspace/w", True)
        with pytest.raises(StopAsyncIteration):
            await anext(changes)
        if line != "rm -r w; mkdir w":
            with pytest.raises(FileNotFound):
                await room.keeper.files.watch("/workspace/w", since=found[-1].token)
            async with watching(room, "/workspace/w", since=start) as changes:
                assert [event async for event in changes] == found


async def test_missing_or_unsuitable_path_is_an_error(room: Room) -> None:
    with pytest.raises(FileNotFound):
        await room.keeper.files.watch("/workspace/none")
    with pytest.raises(FileNotDirectory):
        await room.keeper.files.watch("/etc/passwd")
    with pytest.raises(FileError):
        await room.keeper.files.watch("/proc")
    with pytest.raises(InvalidRequest, match="not found in the sandbox"):
        await room.keeper.files.watch("/workspace", user="nosuch")


async def test_user_sees_only_readable_directories(room: Room) -> None:
    await shell(room, "mkdir -p open closed/in && chmod 700 closed && chmod 777 open")
    with pytest.raises(FilePermissionDenied):
        await room.keeper.files.watch("/workspace/closed", user="nobody")
    found = await events(room, "touch closed/secret closed/in/secret open/f; mkdir closed/x open/g", user="nobody")
    assert found == [("created", "open/g"), ("created", "open/f")] or sorted(found) == [
        ("created", "open/f"), ("created", "open/g"),
    ]  # fmt: skip


async def test_token_resumes_with_missed_events(room: Room) -> None:
    async with watching(room) as changes:
        await shell(room, "touch a end")
        await until(changes)
        token = changes.token
    await shell(room, "touch b; rm a; mv b c; sleep 0.2; touch end2")
    async with watching(room, since=token) as changes:
        found = [reported(event) for event in await until(changes, "end2")]
    assert found == [("created", "b"), ("removed", "a"), ("moved", "b", "c")]
    async with watching(room, since=token) as changes:
        assert [reported(event) for event in await until(changes, "end2")] == found, "a token can be used repeatedly"


async def test_invalid_token_starts_with_an_overflow(room: Room) -> None:
    async with watching(room) as changes:
        token = changes.token
    for stale, how in (
        ("0123456789abcdef.7", {}), (token, {"recursive": False}), (token, {"exclude": ["x"]}),
        (token.partition(".")[0] + ".999", {}), ("nonsense", {}),
    ):  # fmt: skip
        async with watching(room, since=stale, **how) as changes:
            await shell(room, "touch live end; rm live end")
            found = await until(changes)
        assert [event.type for event in found] == ["overflow", "created"]
        assert found[0].path == "/workspace"


async def test_slow_start_differs_from_a_silent_keeper(room: Room) -> None:
    """A silent keeper fails its sandbox; a keeper that reads many directories does not."""
    await shell(
        room, "mkdir w; cd w; for i in $(seq 30); do mkdir $i; (cd $i; seq 1800 | xargs mkdir); done", timeout_s=60
    )
    room.keeper.files._transport.timeout = 1.6
    async with watching(room, "/workspace/w") as changes:
        await shell(room, "touch w/30/1800/x w/end")
        assert [event.path for event in await until(changes)] == ["/workspace/w/30/1800/x"]
    await shell(room, "cd w; for i in $(seq 31 40); do mkdir $i; (cd $i; seq 1800 | xargs mkdir); done", timeout_s=60)
    assert "more than 65,536 directories" in await refusal(room, "/workspace/w")


async def refusal(room: Room, path: str) -> str:
    """Return the error of a rejected watch. Retry while other processes on this host use up its watches."""
    async with asyncio.timeout(60):
        while True:
            with pytest.raises(QuotaExceeded) as refused:
                await room.keeper.files.watch(path)
            if "max_user_watches" not in str(refused.value):
                return str(refused.value)
            await asyncio.sleep(0.2)


async def test_slow_reader_gets_an_overflow_and_continues(room: Room) -> None:
    """Without a reader, events beyond the keeper's bound and the buffers in between are lost."""
    await shell(room, "mkdir many")
    async with watching(room) as changes:
        await shell(room, "cd many; seq 40000 | xargs touch; sleep 0.3", timeout_s=60)
        seen: list[FileEvent] = []
        async with asyncio.timeout(30):
            while not seen or seen[-1].type != "overflow":
                seen.append(await anext(changes))
        await shell(room, "touch end")
        seen += await until(changes)
    paths = [event.path for event in seen if event.type == "created"]
    assert len(paths) == len(set(paths)) < 40_000, "no event is repeated"


async def test_slow_reader_still_gets_the_final_event(room: Room) -> None:
    """`rm -r` of a large watched directory must report the end of the stream."""
    await shell(room, "mkdir w; cd w; seq 60000 | xargs touch", timeout_s=60)
    async with watching(room, "/workspace/w") as changes:
        await shell(room, "rm -r w; sleep 0.3", timeout_s=60)
        async with asyncio.timeout(30):
            found = [event async for event in changes]
    assert "overflow" in {event.type for event in found}
    assert reported(found[-1]) == ("removed", "w")


async def test_long_absent_reader_gets_an_overflow(room: Room) -> None:
    async with watching(room) as changes:
        token = changes.token
    await shell(room, "mkdir many; cd many; seq 12000 | xargs touch; sleep 0.5", timeout_s=60)
    async with watching(room, since=token) as changes:
        async with asyncio.timeout(10):
            assert (await anext(changes)).type == "overflow"
        await shell(room, "touch end")
        assert {event.type for event in await until(changes)} <= {"created"}


async def test_kernel_queue_overflow_rescans_all_directories(room: Room) -> None:
    """Cause more notices than the kernel's queue holds while the keeper is stopped."""
    await shell(room, "mkdir -p q/old q/gone")
    line = "cd /workspace/q && seq 20000 | xargs touch && mkdir -p new/deep && rmdir gone && mv old new"
    async with watching(room) as changes:
        os.kill(room.pid, signal.SIGSTOP)
        try:
            command = ("nsenter", "-t", str(room.pid), "-m", f"-r/proc/{room.pid}/root", "bash", "-c", line)
            maker = await asyncio.create_subprocess_exec(*command)
            assert await maker.wait() == 0
        finally:
            os.kill(room.pid, signal.SIGCONT)
        async with asyncio.timeout(30):
            while (await anext(changes)).type != "overflow":
                pass
        await shell(room, "sleep 0.3; echo 1 > q/new/deep/f; echo 1 > q/new/old/g; touch end")
        rest = [reported(event) for event in await until(changes)]
    assert rest[-2:] == [("created", "q/new/deep/f"), ("created", "q/new/old/g")]


async def test_number_of_watchers_is_bounded(room: Room) -> None:
    async with watching(room) as first:
        token = first.token
    held = [await room.keeper.files.watch("/workspace") for _ in range(16)]
    with pytest.raises(QuotaExceeded, match="16 watchers"):
        await room.keeper.files.watch("/workspace")
    async with watching_none(room, token) as lost:
        assert lost, "the watcher without readers was closed"
    for changes in held:
        await changes.aclose()


@asynccontextmanager
async def watching_none(room: Room, token: str) -> AsyncIterator[bool]:
    try:
        await (await room.keeper.files.watch("/workspace", since=token)).aclose()
    except QuotaExceeded:
        yield True
    else:
        yield False


async def test_idle_watcher_causes_no_wake_ups(room: Room) -> None:
    def switches() -> int:
        lines = [
            line
            for task in Path(f"/proc/{room.pid}/task").iterdir()
            for line in (task / "status").read_text().splitlines()
        ]
        return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))

    async with watching(room) as changes:
        await shell(room, "touch end")
        await until(changes)
        last = -1
        async with asyncio.timeout(30):
            while last != switches():  # one second without a context switch
                last = switches()
                await asyncio.sleep(1)


async def test_keeper_writes_hide_temporary_files(room: Room) -> None:
    async with watching(room) as changes:
        await room.keeper.files.write("/workspace/f", b"1")
        await room.keeper.files.write("/workspace/f", b"2")
        found = [reported(event) for event in await collect(room, changes)]
    assert found == [("created", "f"), ("modified", "f")]


async def test_closed_watchers_release_their_fds(room: Room) -> None:
    def held() -> int:
        return len(list(Path(f"/proc/{room.pid}/fd").iterdir()))

    before = held()
    for _ in range(20):
        async with watching(room):
            pass
    await eventually(lambda: held() <= before + 16 + 4)
    for path in ("/workspace/none", "/etc/passwd"):
        for _ in range(30):
            with pytest.raises(FileError):
                await room.keeper.files.watch(path)
    await eventually(lambda: held() <= before + 16 + 4)


async def test_many_readers_see_the_same_events(room: Room) -> None:
    async def read(changes: ChangeStream) -> Sequence[Reported]:
        return [reported(event) for event in await until(changes)]

    held = [await room.keeper.files.watch("/workspace") for _ in range(5)]
    stream = await room.keeper.start(spec("cd /workspace; for i in $(seq 300); do echo x > f$i; done; touch end"))
    seen = await asyncio.gather(*(read(changes) for changes in held))
    async for _ in stream:
        pass
    assert all(one == seen[0] for one in seen)
    assert len(seen[0]) == 300
    for changes in held:
        await changes.aclose()
