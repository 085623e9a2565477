"""Changes below a directory since an exchange began."""

from __future__ import annotations

import pytest
from keeper.test_exchanges import message, program, said
from support.keeper import Room

from skerry.errors import FileNotDirectory, FileNotFound, InvalidRequest


async def changed(room: Room, since: int, path: str = "/workspace", **more: object) -> list[str]:
    found = await room.keeper.files.changed(path, since, **more)  # type: ignore[arg-type]
    assert not found.more
    return [entry.path for entry in found.entries]


async def test_only_files_created_or_changed_by_a_run_are_found(room: Room) -> None:
    await room.run("cd /workspace && mkdir -p a/b && touch old a/old a/b/touched && ln -s old link && mkfifo pipe")
    process = await program(room, cwd="/workspace")
    first = await room.keeper.exchange(process, message("time.sleep(0.05); c.sendall(b'done')"))
    await said(first)
    await first.finish()
    code = "open('new', 'w'); open('a/b/touched', 'a').write('x'); os.symlink('old', 'fresh'); os.mkdir('empty')"
    turn = await room.keeper.exchange(process, message(code + "; c.sendall(b'done')"))
    await said(turn)
    assert turn.clock > first.clock
    assert await changed(room, turn.clock) == ["/workspace/a/b/touched", "/workspace/new"]
    found = await room.keeper.files.changed("/workspace", turn.clock)
    assert [(entry.name, entry.size) for entry in found.entries] == [("touched", 1), ("new", 0)]
    await turn.finish()


async def test_file_with_an_old_mtime_is_found(room: Room) -> None:
    await room.run("touch -d 2001-01-01 /workspace/f")
    assert await changed(room, 1_700_000_000_000_000_000) == ["/workspace/f"]
    assert await changed(room, 1 << 62) == []


async def test_internal_files_of_tools_are_skipped(room: Room) -> None:
    names = ".git node_modules __pycache__ .venv .cache .ipynb_checkpoints"
    await room.run(
        f"cd /workspace && for d in {names} x/node_modules .hidden; do mkdir -p $d; touch $d/f; done; touch .f"
    )
    assert await changed(room, 0) == ["/workspace/.f", "/workspace/.hidden/f"]


async def test_files_of_the_keeper_and_of_proc_are_not_changes(room: Room) -> None:
    await room.run("seq 10000")
    found = await room.keeper.files.changed("/var/lib", 1_700_000_000_000_000_000)
    assert not [entry.path for entry in found.entries if entry.path.startswith("/var/lib/skerry/")]
    found = await room.keeper.files.changed("/run", 0)
    assert not [entry.path for entry in found.entries if entry.path.startswith("/run/skerry/")]


async def test_links_are_not_followed_and_user_permissions_apply(room: Room) -> None:
    await room.run(
        "cd /workspace && mkdir secret && touch secret/f && chmod 700 secret && ln -s /etc out && touch mine"
    )
    found = await room.keeper.files.changed("/workspace", 0, "nobody")
    assert ([entry.path for entry in found.entries], found.skipped) == (["/workspace/mine"], 1)


async def test_reached_limits_are_reported(room: Room) -> None:
    await room.run("mkdir /workspace/many && cd /workspace/many && seq 300 | xargs touch")
    found = await room.keeper.files.changed("/workspace", 0, limit=7)
    assert (len(found.entries), found.more) == (7, True)
    assert len(await changed(room, 0, limit=300)) == 300
    await room.run("cd /workspace/many && seq 301 50010 | xargs touch")
    found = await room.keeper.files.changed("/workspace", 1 << 62)
    assert (found.entries, found.more) == ([], True)


async def test_non_utf8_names_keep_their_bytes(room: Room) -> None:
    await room.run("cd /workspace && touch \"$(printf 'a\\377b')\"")
    found = await room.keeper.files.changed("/workspace", 0)
    assert [entry.raw_path for entry in found.entries] == [b"/workspace/a\xffb"]


async def test_invalid_requests_are_rejected(room: Room) -> None:
    with pytest.raises(FileNotFound):
        await room.keeper.files.changed("/nowhere", 0)
    with pytest.raises(FileNotDirectory):
        await room.keeper.files.changed("/etc/passwd", 0)
    for since, limit in ((-1, 5), (0, -1), (0, 10_001)):
        with pytest.raises(InvalidRequest):
            await room.keeper.files.changed("/workspace", since, limit=limit)
