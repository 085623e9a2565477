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
from pathlib import Path
from threading import Thread

import pytest
from support.server import Server, wait_until

from skerry import AsyncSandbox, Limits, Sandbox, ServerUnreachable, run
from skerry.errors import FileError, InvalidRequest
from skerry.types import Progress

HEADROOM = "1G"


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


def test_uploaded_tree_is_downloaded_unchanged(sandbox: Sandbox, project: Path, tmp_path: Path) -> None:
    up = sandbox.files.upload(project, "/workspace/project")
    assert (up.files, up.directories, up.links, up.skipped) == (4, 3, 1, ())
    assert sandbox.run(["/workspace/project/link"]).stdout == "ran\n"
    assert sandbox.run(["stat", "-c", "%U %a %Y", "/workspace/project/src/run.sh"]).stdout == "user 750 1234567890\n"
    down = sandbox.files.download("/workspace/project", tmp_path / "back")
    assert (down.files, down.directories, down.links, down.bytes, down.skipped) == (4, 3, 1, up.bytes, ())
    assert fingerprint(tmp_path / "back") == fingerprint(project)


async def test_the_async_client_does_the_same(server: Server, project: Path, tmp_path: Path) -> None:
    async with AsyncSandbox(server=server.address) as sandbox:
        await sandbox.files.upload(project, "/workspace/project")
        await sandbox.files.download("/workspace/project", tmp_path / "back")
    assert fingerprint(tmp_path / "back") == fingerprint(project)


def test_directories_are_merged_and_files_replaced(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "a/d").mkdir(parents=True)
    (tmp_path / "a/d/x").write_text("new")
    sandbox.run("mkdir -p m/d && echo old > m/d/x && echo kept > m/d/y && chmod 711 m/d", check=True)
    sandbox.files.upload(tmp_path / "a", "m")
    assert sandbox.run("cat m/d/x m/d/y; stat -c %a m/d").stdout == "newkept\n711\n"
    (tmp_path / "b/d").mkdir(parents=True)
    (tmp_path / "b/d/x").write_text("old")
    (tmp_path / "b/d/z").write_text("kept")
    sandbox.files.download("m", tmp_path / "b")
    assert {p.name: p.read_text() for p in (tmp_path / "b/d").iterdir()} == {"x": "new", "y": "kept\n", "z": "kept"}


def test_single_file_is_transferred_both_ways(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one")
    (tmp_path / "f").chmod(0o755)
    assert sandbox.files.upload(tmp_path / "f", "/workspace/deep/er/f").files == 1
    assert sandbox.files.download("/workspace/deep/er/f", tmp_path / "g").bytes == 3
    assert ((tmp_path / "g").read_text(), stat.S_IMODE((tmp_path / "g").stat().st_mode)) == ("one", 0o755)
    with pytest.raises(InvalidRequest, match="limit"):
        sandbox.files.download("/workspace/deep/er/f", tmp_path / "h", limit=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f", "g"]


def test_missing_and_forbidden_paths_raise_builtin_errors(sandbox: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sandbox.files.download("/workspace/none", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(PermissionError):
        sandbox.files.download("/root", tmp_path / "out")
    with pytest.raises(PermissionError):
        sandbox.files.upload(tmp_path, "/etc/skerry-test")
    with pytest.raises(FileNotFoundError):
        sandbox.files.upload(tmp_path / "none", "/workspace/x")
    with pytest.raises(NotADirectoryError):
        sandbox.files.upload(tmp_path, "/etc/hostname")
    sandbox.files.upload(tmp_path, "/etc/skerry-test", user="root")
    assert sandbox.files.stat("/etc/skerry-test").uid == 0


def test_skipped_entries_are_reported_both_ways(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a/pipe")
    (tmp_path / "a/f").touch()
    assert [one.path for one in sandbox.files.upload(tmp_path / "a", "t").skipped] == ["pipe"]
    sandbox.run("cd t && ln -s /etc/shadow out && ln -s f in && mkfifo $'p\\xff' && mkdir no && chmod 0 no", check=True)
    down = sandbox.files.download("t", tmp_path / "b")
    assert {one.path: one.reason for one in down.skipped} == {
        "p\udcff": "it is a fifo", "no": "permission denied",
        "out": "it is a link out of the directory, to '/etc/shadow'",
    }  # fmt: skip
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == ["f", "in"]
    sandbox.files.download("t", tmp_path / "c", outside_links=True, exclude=["p*", "no"])
    assert (tmp_path / "c/out").readlink() == Path("/etc/shadow")


def test_patterns_and_gitignore_exclude_files(sandbox: Sandbox, tmp_path: Path) -> None:
    for name in ("a.py", "a.pyc", "build/x", "keep/a.pyc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".gitignore").write_text("*.pyc\n")
    (tmp_path / "keep/.gitignore").write_text("!a.pyc\n")
    sandbox.files.upload(tmp_path, "g", gitignore=True, exclude=["build"])
    assert sandbox.run("find g -type f | sort").stdout.split() == [
        "g/.gitignore",
        "g/a.py",
        "g/keep/.gitignore",
        "g/keep/a.pyc",
    ]
    sandbox.files.download("g", tmp_path / "out", exclude=["*.py", ".*"])
    assert [str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file()] == [
        "keep/a.pyc"
    ]
    with pytest.raises(InvalidRequest, match="exclude"):
        sandbox.files.download("g", tmp_path / "out", exclude=["{a"])


def test_progress_is_reported(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/big").write_bytes(bytes(3 << 20))
    seen: list[Progress] = []
    sandbox.files.upload(tmp_path / "a", "p", progress=seen.append)
    assert (seen[-1].done, seen[-1].total, seen[-1].stage) == (3 << 20, 3 << 20, "upload")
    sandbox.files.download("p", tmp_path / "b", progress=seen.append)
    assert (seen[-1].done, seen[-1].stage) == (3 << 20, "download")


def memory_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0])


def test_large_file_and_many_small_ones_use_constant_memory(server: Server, tmp_path: Path) -> None:
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
    with Sandbox(limits=Limits(memory="128M"), server=server.address) as sandbox:
        command = ["python", "-c", program, sandbox.id, server.address, str(source), str(back)]
        done = subprocess.run([sys.executable, *command[1:]], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 32 << 10, "KiB in the client"
    assert memory_of(server.process.pid) - before < 64 << 10
    assert (back / "huge").stat().st_size == 192 << 20
    assert sum(1 for _ in back.rglob("f*")) == 5_000


def test_full_disk_inside_keeps_existing_files(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/big").write_bytes(os.urandom(100 << 20))
    with Sandbox(limits=Limits(disk="64M"), server=server.address) as sandbox:
        sandbox.run("mkdir -p t/sub && echo old > t/sub/big", check=True)
        with pytest.raises(OSError, match="sub/big") as full:
            sandbox.files.upload(tmp_path, "t")
        assert full.value.errno in (28, 122)
        assert sandbox.run("cat t/a t/sub/big; ls -A t/sub | wc -l").stdout == "1old\n1\n"


def test_sparse_files_stay_sparse_and_the_disk_limit_bounds_a_download(server: Server, tmp_path: Path) -> None:
    fill = "mkdir d && truncate -s 300M d/sparse && echo end >> d/sparse && dd if=/dev/urandom of=d/data bs=1M count=9"
    with Sandbox(server=server.address, limits=Limits(disk="32M")) as sandbox:
        sandbox.run(fill, check=True)
        moved = sandbox.files.download("d", tmp_path / "tree")
        sandbox.files.download("d/sparse", tmp_path / "single")
        assert moved.bytes == (300 << 20) + 4 + (9 << 20)
        for path in (tmp_path / "tree/sparse", tmp_path / "single"):
            assert path.stat().st_size == (300 << 20) + 4
            assert path.stat().st_blocks * 512 < 1 << 20
        with pytest.raises(InvalidRequest, match="exceeds 8388608 bytes"):
            sandbox.files.download("d", tmp_path / "limited", limit="8M")
        with pytest.raises(InvalidRequest, match="exceeds the sandbox's disk limit of 33554432 bytes"):
            sandbox.files.download("/usr", tmp_path / "image")  # larger than the disk of the sandbox
        written = sum(path.lstat().st_blocks * 512 for path in (tmp_path / "image").rglob("*") if path.is_file())
        assert written < 48 << 20


def test_out_keeps_holes_and_rejects_data_beyond_the_limit(server: Server, tmp_path: Path) -> None:
    fill = "truncate -s 300M sparse && echo end >> sparse && dd if=/dev/urandom of=data bs=1M count=9"
    told: list[str] = []
    run(fill, out=tmp_path / "all", limits=Limits(disk="32M"), server=server.address, check=True)
    run(fill, out=tmp_path / "less", max_size="8M", on_warning=told.append, server=server.address, check=True)
    assert (tmp_path / "all/sparse").stat().st_size == (300 << 20) + 4
    assert sum(path.stat().st_blocks * 512 for path in (tmp_path / "all").iterdir()) < 10 << 20
    assert list((tmp_path / "less").iterdir()) == []
    assert [line for line in told if "max_size: the transfer exceeds 8388608 bytes" in line] == told
    assert len(told) == 2


def test_shrinking_file_fails_the_download_by_name(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.run("mkdir s && truncate -s 2G s/log", check=True)
    seen: list[int] = []

    def cut(progress: Progress) -> None:
        seen.append(progress.done)
        if len(seen) == 3:
            sandbox.run("truncate -s 0 s/log", check=True)

    with pytest.raises(FileError, match="log: it became shorter"):
        sandbox.files.download("s", tmp_path / "out", progress=cut)
    assert list((tmp_path / "out").iterdir()) == []
    assert sandbox.run(["echo", "well"]).stdout == "well\n"


def test_shrinking_source_fails_the_upload_by_name(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(bytes(64 << 20))

    def cut(progress: Progress) -> None:
        os.truncate(tmp_path / "log", 1000)

    with pytest.raises(InvalidRequest, match="log: it became shorter"):
        sandbox.files.upload(tmp_path, "shrunk", progress=cut)
    wait_until(lambda: sandbox.run("ls -A shrunk").stdout == "", "the half-written file to be gone")


def test_cancelled_download_leaves_only_complete_files_and_no_thread(server: Server, tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncSandbox(server=server.address) as sandbox:
            await sandbox.run("mkdir c && echo whole > c/a && truncate -s 20G c/b", check=True)
            begun = asyncio.Event()
            loop = asyncio.get_running_loop()
            task = asyncio.ensure_future(
                sandbox.files.download(
                    "c", tmp_path / "out", limit="30G", progress=lambda _: loop.call_soon_threadsafe(begun.set)
                )
            )
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await sandbox.run(["echo", "well"])).stdout == "well\n"

    asyncio.run(main())
    assert {p.name for p in (tmp_path / "out").iterdir()} <= {"a"}


@pytest.mark.parametrize("way", ["up", "down"])
def test_server_crash_leaves_only_complete_files(own_server: Server, tmp_path: Path, way: str) -> None:
    own = own_server.start()
    source = tmp_path / "a"
    source.mkdir()
    (source / "first").write_text("whole")
    with (source / "second").open("wb") as file:
        file.truncate(8 << 30)
    sandbox = Sandbox.create(name="kept", limits=Limits(disk="20G"), server=own.address)
    failed: list[BaseException] = []

    def move() -> None:
        try:
            if way == "up":
                sandbox.files.upload(source, "t", progress=seen)
            else:
                sandbox.files.download("t", tmp_path / "b", progress=seen)
        except BaseException as error:
            failed.append(error)

    begun: list[int] = []

    def seen(progress: Progress) -> None:
        if progress.done > 32 << 20 and not begun:
            begun.append(own.end(signal.SIGKILL))

    if way == "down":
        sandbox.run("mkdir t && echo -n whole > t/first && truncate -s 7G t/second", check=True)
    thread = Thread(target=move)
    thread.start()
    thread.join(60)
    assert begun == [-9]
    assert isinstance(failed[0], ServerUnreachable)
    own.start()
    if way == "down":
        assert {p.name: p.read_text() for p in (tmp_path / "b").iterdir()} in ({"first": "whole"}, {})
    else:
        wait_until(lambda: sandbox.run("ls -A t; cat t/first").stdout in ("first\nwhole", ""), "whole files only")
    assert sandbox.run(["echo", "well"]).stdout == "well\n"
    sandbox.delete()


def test_curl_and_tar_work(server: Server, sandbox: Sandbox, project: Path, tmp_path: Path) -> None:
    socket = server.address.removeprefix("unix://")
    url = f"http://localhost/v1/sandboxes/{sandbox.id}/files/tree?path=/workspace/curl"
    line = f'tar c -C "{project}" . | curl -sSf --unix-socket {socket} -T - "{url}"'
    sent = subprocess.run(line, shell=True, capture_output=True, check=True)
    assert b'"files":4' in sent.stdout
    (tmp_path / "back").mkdir()
    line = f'set -o pipefail; curl -sSf --unix-socket {socket} "{url}" | tar x -C "{tmp_path}/back"'
    subprocess.run(["bash", "-c", line], capture_output=True, check=True)
    assert fingerprint(tmp_path / "back") == fingerprint(project)


def test_invalid_archive_is_a_bad_request(server: Server, sandbox: Sandbox) -> None:
    with server.http() as http:
        url = f"/v1/sandboxes/{sandbox.id}/files/tree"
        answer = http.put(url, params={"path": "/workspace/bad"}, content=b"junk" * 1000)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            tar.addfile(tarfile.TarInfo("../../evil"))
        answer = http.put(url, params={"path": "/workspace/bad"}, content=out.getvalue())
        assert (answer.status_code, "leaves the directory" in answer.text) == (400, True)
        assert http.get(url, params={"path": "/workspace/none"}).status_code == 404
        assert http.get(url, params={"path": "/etc/hostname"}).json()["error"]["code"] == "file_not_directory"
        assert http.get(url, params={"path": "/proc"}).status_code == 409
        too_many = [("path", "/etc"), *[("exclude", "x")] * 101]
        assert http.get(url, params=too_many).status_code == 400


def test_raw_archive_that_fails_is_truncated(server: Server, sandbox: Sandbox) -> None:
    sandbox.run("mkdir r && truncate -s 500M r/log", check=True)
    url = f"http://localhost/v1/sandboxes/{sandbox.id}/files/tree?path=r"
    curl = subprocess.Popen(
        ["curl", "-sS", "--limit-rate", "20M", "--unix-socket", server.address.removeprefix("unix://"), url],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert curl.stdout is not None
    curl.stdout.read(1 << 20)
    sandbox.run("truncate -s 0 r/log", check=True)
    curl.communicate()
    assert curl.returncode == 18, "curl says that it is not whole"
