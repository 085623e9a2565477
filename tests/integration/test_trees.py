"""Directories go in and out as one stream: modes, times and links kept, memory flat, whole files only."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from serving import Server, wait_until

from skerry import AsyncSandbox, Limits, Sandbox, ServerUnreachable
from skerry.errors import FileFailure, InvalidRequest
from skerry.types import Progress

HEADROOM = "1G"


@pytest.fixture(scope="module")
def box(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address) as sandbox:
        yield sandbox


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src/deep").mkdir(parents=True)
    (root / "src/run.sh").write_text("#!/bin/sh\necho ran\n")
    (root / "src/run.sh").chmod(0o750)
    (root / "src/deep/data").write_bytes(os.urandom(600_000))
    (root / os.fsdecode(b"odd \xff\n'name")).write_text("odd")
    (root / "link").symlink_to("src/run.sh")
    os.link(root / "src/run.sh", root / "hard")
    (root / "empty").mkdir(mode=0o700)
    os.utime(root / "src/run.sh", (1_234_567_890, 1_234_567_890))
    return root


def fingerprint(root: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        info = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        when = int(info.st_mtime) if path.is_file() and not path.is_symlink() else None
        mode = stat.S_IMODE(info.st_mode) if not path.is_symlink() else None
        found[str(path.relative_to(root))] = (mode, when, content, info.st_nlink if path.is_file() else None)
    return found


def test_what_goes_in_comes_out(box: Sandbox, project: Path, tmp_path: Path) -> None:
    up = box.files.upload(project, "/workspace/project")
    assert (up.files, up.directories, up.links, up.skipped) == (4, 3, 1, ())
    assert box.run(["/workspace/project/link"]).stdout == "ran\n"
    assert box.run(["stat", "-c", "%U %a %Y", "/workspace/project/src/run.sh"]).stdout == "user 750 1234567890\n"
    down = box.files.download("/workspace/project", tmp_path / "back")
    assert (down.files, down.directories, down.links, down.bytes, down.skipped) == (4, 3, 1, up.bytes, ())
    assert fingerprint(tmp_path / "back") == fingerprint(project)


async def test_the_async_client_does_the_same(server: Server, project: Path, tmp_path: Path) -> None:
    async with AsyncSandbox(server=server.address) as sandbox:
        await sandbox.files.upload(project, "/workspace/project")
        await sandbox.files.download("/workspace/project", tmp_path / "back")
    assert fingerprint(tmp_path / "back") == fingerprint(project)


def test_directories_are_merged_and_files_replaced(box: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "a/d").mkdir(parents=True)
    (tmp_path / "a/d/x").write_text("new")
    box.run("mkdir -p m/d && echo old > m/d/x && echo kept > m/d/y && chmod 711 m/d", check=True)
    box.files.upload(tmp_path / "a", "m")
    assert box.run("cat m/d/x m/d/y; stat -c %a m/d").stdout == "newkept\n711\n"
    (tmp_path / "b/d").mkdir(parents=True)
    (tmp_path / "b/d/x").write_text("old")
    (tmp_path / "b/d/z").write_text("kept")
    box.files.download("m", tmp_path / "b")
    assert {p.name: p.read_text() for p in (tmp_path / "b/d").iterdir()} == {"x": "new", "y": "kept\n", "z": "kept"}


def test_a_single_file_goes_both_ways(box: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one")
    (tmp_path / "f").chmod(0o755)
    assert box.files.upload(tmp_path / "f", "/workspace/deep/er/f").files == 1
    assert box.files.download("/workspace/deep/er/f", tmp_path / "g").bytes == 3
    assert ((tmp_path / "g").read_text(), stat.S_IMODE((tmp_path / "g").stat().st_mode)) == ("one", 0o755)
    with pytest.raises(InvalidRequest, match="limit"):
        box.files.download("/workspace/deep/er/f", tmp_path / "h", limit=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f", "g"]


def test_missing_and_forbidden_places_are_the_builtins_they_are(box: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        box.files.download("/workspace/none", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(PermissionError):
        box.files.download("/root", tmp_path / "out")
    with pytest.raises(PermissionError):
        box.files.upload(tmp_path, "/etc/skerry-test")
    with pytest.raises(FileNotFoundError):
        box.files.upload(tmp_path / "none", "/workspace/x")
    with pytest.raises(NotADirectoryError):
        box.files.upload(tmp_path, "/etc/hostname")
    box.files.upload(tmp_path, "/etc/skerry-test", user="root")
    assert box.files.stat("/etc/skerry-test").uid == 0


def test_what_is_left_out_is_told_on_both_ways(box: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a/pipe")
    (tmp_path / "a/f").touch()
    assert [one.path for one in box.files.upload(tmp_path / "a", "t").skipped] == ["pipe"]
    box.run("cd t && ln -s /etc/shadow out && ln -s f in && mkfifo $'p\\xff' && mkdir no && chmod 0 no", check=True)
    down = box.files.download("t", tmp_path / "b")
    assert {one.path: one.reason for one in down.skipped} == {
        "p\udcff": "it is a fifo", "no": "permission denied",
        "out": "it is a link out of the directory, to '/etc/shadow'",
    }  # fmt: skip
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == ["f", "in"]
    box.files.download("t", tmp_path / "c", outside_links=True, exclude=["p*", "no"])
    assert (tmp_path / "c/out").readlink() == Path("/etc/shadow")


def test_patterns_and_gitignore(box: Sandbox, tmp_path: Path) -> None:
    for name in ("a.py", "a.pyc", "build/x", "keep/a.pyc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".gitignore").write_text("*.pyc\n")
    (tmp_path / "keep/.gitignore").write_text("!a.pyc\n")
    box.files.upload(tmp_path, "g", gitignore=True, exclude=["build"])
    assert box.run("find g -type f | sort").stdout.split() == [
        "g/.gitignore",
        "g/a.py",
        "g/keep/.gitignore",
        "g/keep/a.pyc",
    ]
    box.files.download("g", tmp_path / "out", exclude=["*.py", ".*"])
    assert [str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file()] == [
        "keep/a.pyc"
    ]
    with pytest.raises(InvalidRequest, match="exclude"):
        box.files.download("g", tmp_path / "out", exclude=["{a"])


def test_progress_is_told(box: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/big").write_bytes(bytes(3 << 20))
    seen: list[Progress] = []
    box.files.upload(tmp_path / "a", "p", progress=seen.append)
    assert (seen[-1].done, seen[-1].total, seen[-1].stage) == (3 << 20, 3 << 20, "upload")
    box.files.download("p", tmp_path / "b", progress=seen.append)
    assert (seen[-1].done, seen[-1].stage) == (3 << 20, "download")


def memory_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0])


def test_a_large_file_and_many_small_ones_go_both_ways_in_flat_memory(server: Server, tmp_path: Path) -> None:
    source, back = tmp_path / "a", tmp_path / "b"
    source.mkdir()
    with (source / "huge").open("wb") as file:
        file.truncate(192 << 20)
    for directory in range(10):
        (source / f"d{directory}").mkdir()
        for number in range(500):
            (source / f"d{directory}/f{number}").write_bytes(b"x" * 100)
    program = (
        "import sys, resource; from skerry import Sandbox\n"
        "box = Sandbox.get(sys.argv[1], server=sys.argv[2]); box.run('true')\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak(); box.files.upload(sys.argv[3], 'a'); box.files.download('a', sys.argv[4])\n"
        "print(peak() - before)"
    )
    assert server.process is not None
    before = memory_of(server.process.pid)
    with Sandbox(limits=Limits(memory="128M"), server=server.address) as box:
        command = ["python", "-c", program, box.id, server.address, str(source), str(back)]
        done = subprocess.run([sys.executable, *command[1:]], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 32 << 10, "KiB in the client"
    assert memory_of(server.process.pid) - before < 64 << 10
    assert (back / "huge").stat().st_size == 192 << 20
    assert sum(1 for _ in back.rglob("f*")) == 5_000


def test_a_full_disk_inside_keeps_what_was_there(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/big").write_bytes(os.urandom(100 << 20))
    with Sandbox(limits=Limits(disk="64M"), server=server.address) as box:
        box.run("mkdir -p t/sub && echo old > t/sub/big", check=True)
        with pytest.raises(OSError, match="sub/big") as full:
            box.files.upload(tmp_path, "t")
        assert full.value.errno in (28, 122)
        assert box.run("cat t/a t/sub/big; ls -A t/sub | wc -l").stdout == "1old\n1\n"


def test_a_file_that_shrinks_meanwhile_fails_the_download_by_name(box: Sandbox, tmp_path: Path) -> None:
    box.run("mkdir s && truncate -s 2G s/log", check=True)
    seen: list[int] = []

    def cut(progress: Progress) -> None:
        seen.append(progress.done)
        if len(seen) == 3:
            box.run("truncate -s 0 s/log", check=True)

    with pytest.raises(FileFailure, match="log: it became shorter"):
        box.files.download("s", tmp_path / "out", progress=cut)
    assert list((tmp_path / "out").iterdir()) == []
    assert box.run(["echo", "well"]).stdout == "well\n"


def test_a_source_that_shrinks_meanwhile_fails_the_upload_by_name(box: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(bytes(64 << 20))

    def cut(progress: Progress) -> None:
        os.truncate(tmp_path / "log", 1000)

    with pytest.raises(InvalidRequest, match="log: it became shorter"):
        box.files.upload(tmp_path, "shrunk", progress=cut)
    wait_until(lambda: box.run("ls -A shrunk").stdout == "", "the half-written file to be gone")


def test_a_cancelled_download_leaves_whole_files_and_no_thread(server: Server, tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncSandbox(server=server.address) as box:
            await box.run("mkdir c && echo whole > c/a && truncate -s 20G c/b", check=True)
            begun = asyncio.Event()
            loop = asyncio.get_running_loop()
            task = asyncio.ensure_future(
                box.files.download("c", tmp_path / "out", progress=lambda _: loop.call_soon_threadsafe(begun.set))
            )
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await box.run(["echo", "well"])).stdout == "well\n"

    asyncio.run(main())
    assert {p.name for p in (tmp_path / "out").iterdir()} <= {"a"}


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_server_killed_in_the_middle_leaves_whole_files_only(own_server: Server, tmp_path: Path, way: str) -> None:
    own = own_server.start()
    source = tmp_path / "a"
    source.mkdir()
    (source / "first").write_text("whole")
    with (source / "second").open("wb") as file:
        file.truncate(8 << 30)
    box = Sandbox.create(name="kept", limits=Limits(disk="20G"), server=own.address)
    failed: list[BaseException] = []

    def move() -> None:
        try:
            if way == "up":
                box.files.upload(source, "t", progress=seen)
            else:
                box.files.download("t", tmp_path / "b", progress=seen)
        except BaseException as error:
            failed.append(error)

    begun: list[int] = []

    def seen(progress: Progress) -> None:
        if progress.done > 32 << 20 and not begun:
            begun.append(own.end(signal.SIGKILL))

    if way == "down":
        box.run("mkdir t && echo -n whole > t/first && truncate -s 8G t/second", check=True)
    thread = Thread(target=move)
    thread.start()
    thread.join(60)
    assert begun == [-9]
    assert isinstance(failed[0], ServerUnreachable)
    own.start()
    if way == "down":
        assert {p.name: p.read_text() for p in (tmp_path / "b").iterdir()} in ({"first": "whole"}, {})
    else:
        wait_until(lambda: box.run("ls -A t; cat t/first").stdout in ("first\nwhole", ""), "whole files only")
    assert box.run(["echo", "well"]).stdout == "well\n"
    box.delete()


def test_curl_and_tar_do(server: Server, box: Sandbox, project: Path, tmp_path: Path) -> None:
    socket = server.address.removeprefix("unix://")
    url = f"http://localhost/v1/sandboxes/{box.id}/files/tree?path=/workspace/curl"
    line = f'tar c -C "{project}" . | curl -sSf --unix-socket {socket} -T - "{url}"'
    sent = subprocess.run(line, shell=True, capture_output=True, check=True)
    assert b'"files":4' in sent.stdout
    (tmp_path / "back").mkdir()
    line = f'set -o pipefail; curl -sSf --unix-socket {socket} "{url}" | tar x -C "{tmp_path}/back"'
    subprocess.run(["bash", "-c", line], capture_output=True, check=True)
    assert fingerprint(tmp_path / "back") == fingerprint(project)


def test_an_archive_that_is_none_is_a_bad_request(server: Server, box: Sandbox) -> None:
    with server.http() as http:
        url = f"/v1/sandboxes/{box.id}/files/tree"
        answer = http.put(url, params={"path": "/workspace/bad"}, content=b"junk" * 1000)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            tar.addfile(tarfile.TarInfo("../../evil"))
        answer = http.put(url, params={"path": "/workspace/bad"}, content=out.getvalue())
        assert (answer.status_code, "leads out" in answer.text) == (400, True)
        assert http.get(url, params={"path": "/workspace/none"}).status_code == 404
        assert http.get(url, params={"path": "/etc/hostname"}).json()["error"]["code"] == "file_not_directory"
        assert http.get(url, params={"path": "/proc"}).status_code == 409
        too_many = [("path", "/etc"), *[("exclude", "x")] * 101]
        assert http.get(url, params=too_many).status_code == 400


def test_a_raw_archive_that_can_not_be_finished_is_cut_off(server: Server, box: Sandbox) -> None:
    box.run("mkdir r && truncate -s 500M r/log", check=True)
    url = f"http://localhost/v1/sandboxes/{box.id}/files/tree?path=r"
    curl = subprocess.Popen(
        ["curl", "-sS", "--limit-rate", "20M", "--unix-socket", server.address.removeprefix("unix://"), url],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert curl.stdout is not None
    curl.stdout.read(1 << 20)
    box.run("truncate -s 0 r/log", check=True)
    curl.communicate()
    assert curl.returncode == 18, "curl says that it is not whole"
