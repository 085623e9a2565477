"""`skerry cp` behaves like `cp`, into and out of a sandbox."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

import pytest
from support.cli import SKERRY, environment, skerry
from support.server import Server

from skerry import Sandbox


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "src/sub").mkdir(parents=True)
    (tmp_path / "src/a").write_text("a")
    (tmp_path / "src/sub/b").write_text("b")
    return tmp_path


def files_in(sandbox: Sandbox, place: str) -> list[str]:
    return sandbox.run(["find", place, "-type", "f", "-printf", "%P\n"]).stdout.split()


@pytest.mark.parametrize(
    ("source", "target", "found"),
    [
        ("src", "new", "new/sub/b"),
        ("src", "new/", "new/sub/b"),
        ("src/", "there", "there/src/sub/b"),
        ("src", "there/", "there/src/sub/b"),
        ("src/.", "there", "there/sub/b"),
        ("src/.", "new/deep", "new/deep/sub/b"),
        (".", "there", "there/src/sub/b"),
    ],
)
def test_directory_target_works_as_with_cp(
    server: Server, sandbox: Sandbox, here: Path, source: str, target: str, found: str
) -> None:
    sandbox.run("rm -rf /workspace/* && mkdir there", check=True)
    done = skerry("cp", "-r", source, f"{sandbox.id}:/workspace/{target}", server=server.address, cwd=here)
    assert (done.returncode, done.stdout) == (0, b""), done.stderr
    assert found in files_in(sandbox, "/workspace")
    (here / "there").mkdir()
    sandbox.run("rm -rf /workspace/* && mkdir -p src/sub && touch src/a src/sub/b", check=True)
    done = skerry("cp", "-r", f"{sandbox.id}:/workspace/{source}", target, server=server.address, cwd=here)
    assert done.returncode == 0, done.stderr
    assert (here / found).is_file()


def test_directory_without_r_is_rejected_both_ways(server: Server, sandbox: Sandbox, here: Path) -> None:
    for words in (("src", f"{sandbox.id}:x"), (f"{sandbox.id}:/etc", "x")):
        done = skerry("cp", *words, server=server.address, cwd=here)
        assert done.returncode == 2
        assert b"is a directory" in done.stderr
        assert b"-r" in done.stderr


def test_files_are_copied_into_directories_with_their_modes(server: Server, sandbox: Sandbox, here: Path) -> None:
    sandbox.run("rm -rf /workspace/* && mkdir d && ln -s d l", check=True)
    (here / "src/a").chmod(0o755)
    for target in ("d", "d/", "l", "f", "-r"):
        assert skerry("cp", "src/a", f"{sandbox.id}:{target}", server=server.address, cwd=here).returncode == 0
    assert sorted(files_in(sandbox, "/workspace")) == ["-r", "d/a", "f"]
    assert skerry("cp", f"{sandbox.id}:f", "src", server=server.address, cwd=here).returncode == 0
    assert os.access(here / "src/f", os.X_OK)
    assert skerry("cp", "-r", f"{sandbox.id}:f", "g", server=server.address, cwd=here).returncode == 0
    assert (here / "g").read_text() == "a"


def test_summary_and_exit_code_report_skipped_files(server: Server, sandbox: Sandbox, here: Path) -> None:
    done = skerry("cp", "-r", "src", f"{sandbox.id}:told", server=server.address, cwd=here)
    assert done.stderr.startswith(b"copied 2 files, 1 directories, 2 bytes in ")
    os.mkfifo(here / "src/pipe\x1b[2J")
    done = skerry("cp", "-r", "--json", "src", f"{sandbox.id}:told2", server=server.address, cwd=here)
    assert done.returncode == 1
    assert b"left out: pipe\\x1b[2J: it is a FIFO" in done.stderr
    told = json.loads(done.stdout)
    assert (told["files"], [one["path"] for one in told["skipped"]]) == (2, ["pipe\x1b[2J"])
    quiet = skerry("-q", "cp", "-r", "src/sub", f"{sandbox.id}:told3", server=server.address, cwd=here)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, b"", b"")


def test_exclude_and_gitignore_skip_files(server: Server, sandbox: Sandbox, here: Path) -> None:
    (here / "src/.gitignore").write_text("a\n")
    done = skerry(
        "cp", "-r", "--gitignore", "--exclude", "*.x", "src", f"{sandbox.id}:git", server=server.address, cwd=here
    )
    assert done.returncode == 0, done.stderr
    assert sorted(files_in(sandbox, "git")) == [".gitignore", "sub/b"]
    sandbox.run("ln -s /etc git/etc", check=True)
    assert (
        skerry("cp", "-r", "--exclude", "sub", f"{sandbox.id}:git", "o", server=server.address, cwd=here).returncode
        == 1
    )
    assert skerry("cp", "-r", "--all-links", f"{sandbox.id}:git", "p", server=server.address, cwd=here).returncode == 0
    assert (here / "p/etc").is_symlink()
    assert not (here / "o/sub").exists()


def test_progress_bar_is_shown_only_at_a_terminal(server: Server, sandbox: Sandbox, here: Path) -> None:
    (here / "src/big").write_bytes(bytes(4 << 20))
    ours, theirs = pty.openpty()
    command = [*SKERRY, "cp", "-r", "src", f"{sandbox.id}:bar"]
    child = subprocess.Popen(
        command,
        cwd=here,
        stderr=theirs,
        stdout=subprocess.PIPE,
        env=environment(SKERRY_SERVER=server.address, TERM="xterm"),
    )
    os.close(theirs)
    seen = b""
    try:
        while piece := os.read(ours, 4096):
            seen += piece
    except OSError:  # the other end of the terminal is closed
        pass
    os.close(ours)
    assert child.stdout is not None
    assert (child.wait(60), child.stdout.read()) == (0, b"")
    child.stdout.close()
    assert "━".encode() in seen
    assert b"copied 3 files" in seen
    piped = skerry("cp", "-r", "src", f"{sandbox.id}:bar", server=server.address, cwd=here)
    assert "━".encode() not in piped.stderr


WRITE = "open('data', 'wb').write(bytes(range(256)) * 8192)"


@pytest.mark.parametrize(
    ("words", "exit_code"),
    [
        (("cp", "-r", "{}:/workspace/large", "out/large"), 2),
        (("cp", "{}:/workspace/large/data", "out/data"), 2),
        (("exec", "--code", WRITE, "--out", "out", "{}"), 0),
        (("run", "--code", WRITE, "--out", "out"), 0),
        (("run", "--out", "out", "--", "sh", "-c", "head -c 2M /dev/urandom > data"), 0),
    ],
    ids=["cp -r", "cp", "exec --code", "run --code", "run"],
)
def test_max_size_bounds_the_files_that_are_copied_out(
    server: Server, sandbox: Sandbox, here: Path, words: tuple[str, ...], exit_code: int
) -> None:
    sandbox.run("mkdir -p large && head -c 2M /dev/urandom > large/data", check=True)
    (here / "out").mkdir()
    command, *others = (word.format(sandbox.id) for word in words)

    def copy(size: str) -> subprocess.CompletedProcess[bytes]:
        return skerry(command, "--max-size", size, *others, server=server.address, cwd=here)

    done = copy("1M")
    assert b"exceeds 1048576 bytes" in done.stderr
    assert done.returncode == exit_code
    assert [path for path in (here / "out").rglob("*") if path.is_file()] == []
    done = copy("3M")
    assert done.returncode == 0, done.stderr
    (copied,) = [path for path in (here / "out").rglob("*") if path.is_file()]
    assert copied.stat().st_size == 2 << 20
