"""The SDK on a system without POSIX, such as Windows: its names are hidden, after libraries that look at the platform
were loaded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.cli import environment
from support.mcp_clients import new_token
from support.server import Server

HIDE = """
import anyio, asyncio, ctypes, httpcore2, httpx2, importlib.metadata, os, signal, socket, subprocess, sys, tempfile
WINDOWS = ("O_RDONLY", "O_WRONLY", "O_RDWR", "O_APPEND", "O_CREAT", "O_EXCL", "O_TRUNC")
missing = {
    os: [name for name in dir(os) if name.startswith("O_") and name not in WINDOWS] + (
        "geteuid getuid getgid getegid getgroups getpgrp tcgetpgrp fork setsid fwalk mkfifo openpty pread pwrite "
        "chown fchown fchmod lchown statvfs uname getxattr setxattr memfd_create"
    ).split(),
    signal: "SIGURG SIGHUP SIGWINCH SIGTSTP SIGCONT SIGTTOU SIGUSR1 SIGKILL SIGQUIT SIGPIPE pthread_kill".split(),
    socket: ["AF_UNIX"],
}
for module, names in missing.items():
    for name in names:
        delattr(module, name)
sys.modules.update(dict.fromkeys(["fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"]))
"""
WORKS = """
import skerry
for name in skerry.__all__:
    getattr(skerry, name)
open("host.txt", "w").write("from here")
with skerry.Sandbox() as sandbox:
    sandbox.files.write("/tmp/a", "42")
    print(sandbox.run(["cat", "/tmp/a"]).stdout, sandbox.code.run("6 * 7").text, sandbox.files.read_text("/tmp/a"))
    sandbox.files.upload("host.txt", "/tmp/b")
    print(sandbox.files.read_text("/tmp/b"))
    sandbox.files.mkdir("/tmp/c")
    sandbox.review.start("/tmp/c")
    sandbox.files.write("/tmp/c/new", "1")
    for call in (
        lambda: sandbox.files.upload(".", "/tmp/here"),
        lambda: sandbox.files.download("/tmp/c", "there"),
        lambda: sandbox.files.download("/tmp/a", "a"),
        lambda: sandbox.review.apply(".", all=True),
        lambda: skerry.run("true", out="out"),
        lambda: skerry.Secret.from_store("KEY", "anthropic").value,
        lambda: skerry.Sandbox(repo=".").start(),
        lambda: skerry.Sandbox(server="unix:///run/skerry/api.sock").start(),
    ):
        try:
            print("no error:", call())
        except skerry.HostUnsupported as error:
            print(error.message)
"""
COMMAND_LINE = """
os.name = "nt"
from skerry.cli import main
main()
"""


@pytest.fixture(scope="module")
def server(make_server: Callable[[], Server]) -> Iterator[Server]:
    made = make_server().start("--listen", "127.0.0.1:0")
    yield made
    made.retire()


def on_windows(code: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HIDE + code], cwd=cwd, env=environment(**env), capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip


def test_sdk_uses_a_remote_server_and_names_what_needs_posix(server: Server, tmp_path: Path) -> None:
    address = next(one for one in server.http().get("/v1/server").json()["addresses"] if one.startswith("http"))
    done = on_windows(WORKS, tmp_path, SKERRY_SERVER=address, SKERRY_TOKEN=new_token(server, "review"))
    assert done.stderr == "", done.stderr
    first, second, *errors = done.stdout.splitlines()
    assert (first, second) == ("42 42 42", "from here")
    assert len(errors) == 8
    assert {one.rpartition(" not supported")[2] for one in errors} == {" on this system"}


def test_sdk_without_a_server_asks_for_one(tmp_path: Path) -> None:
    done = on_windows("import skerry\nskerry.Client()", tmp_path)
    assert "HostUnsupported: Unix sockets are not supported on this system\nhint: name a server" in done.stderr


def test_command_line_names_the_alternatives(tmp_path: Path) -> None:
    done = on_windows(COMMAND_LINE, tmp_path)
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.startswith("error: the command line of Skerry does not support Windows\nhint: use it in WSL")
