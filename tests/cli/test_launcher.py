"""The installed `skerry` and `git-remote-skerry`: launchers that block SIGINT until Python has a handler for it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import threading
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from support.cli import environment

from skerry import __version__

ROOT = Path(__file__).parents[2]
# Python imports this module at its start, long before the program. It sends SIGINT, and at the import of the command
# line it prints the mask of blocked signals.
AT_START = """
import os, signal, sys

def hook(event, args):
    if event == "import" and args[0] in ("skerry.cli.app", "skerry.cli.commands.git_remote"):
        with open("/proc/self/status") as file:
            os.write(1, next(line for line in file if line.startswith("SigBlk")).encode())

sys.addaudithook(hook)
if "INTERRUPT" in os.environ:
    os.kill(os.getpid(), signal.SIGINT)
"""
VERSION = __version__.encode()
OLD_ENV = "#!/bin/sh\necho \"env: unrecognized option '$1'\" >&2\nexit 125\n"


@pytest.fixture(scope="module", params=["plain", "with space", "a=b"])
def commands(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel for Linux into a path of this kind. The dependencies come from the tests' environment."""
    wheels = tmp_path_factory.getbasetemp() / "linux-wheel"
    if not wheels.exists():
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    place = tmp_path_factory.mktemp("install") / request.param
    venv.create(place, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(place), "--disable-pip-version-check", "install", "-q"]
    subprocess.run([*pip, "--no-deps", "--no-index", *map(str, wheels.glob("*.whl"))], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(place)}))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (site / "at_start.py").write_text(AT_START)  # Debian's Python has a sitecustomize already
    (site / "at_start.pth").write_text("import at_start\n")
    return place / "bin"


def run(*command: str | Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, env=environment(**env), capture_output=True, timeout=100, check=False, cwd=cwd)


@pytest.mark.parametrize("name", ["skerry", "git-remote-skerry"])
def test_ctrl_c_during_the_start_of_python_ends_without_traceback(commands: Path, name: str) -> None:
    done = run(commands / name, "--version", INTERRUPT="1")
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


@pytest.mark.parametrize("name", ["skerry", "git-remote-skerry"])
def test_loaded_command_and_its_children_have_no_blocked_signals(commands: Path, name: str) -> None:
    done = run(commands / name, "--version")
    assert done.stdout.startswith(b"SigBlk:\t0000000000000000\n"), done


def test_ctrl_c_at_every_millisecond_of_the_start_prints_no_traceback(commands: Path) -> None:
    pause = threading.Event()
    for moment in range(1, 61):
        process = subprocess.Popen(
            [commands / "skerry", "--version"], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        pause.wait(moment / 1000)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, err = process.communicate(timeout=100)
        assert (process.returncode in (-signal.SIGINT, 130, 0), err) == (True, b""), moment


STARTS: dict[str, Callable[[Path, Path], list[str]]] = {
    "path": lambda commands, _: [str(commands / "skerry")],
    "PATH": lambda *_: ["skerry"],
    "link": lambda _, links: [str(links / "linked")],
    "link to a directory": lambda _, links: [str(links / "directory" / "skerry")],
    "relative": lambda *_: ["./skerry"],
    "shell": lambda *_: ["sh", "skerry"],
}


@pytest.mark.parametrize("start", list(STARTS))
def test_launcher_finds_its_program(commands: Path, tmp_path: Path, start: str) -> None:
    (tmp_path / "linked").symlink_to("again")
    (tmp_path / "again").symlink_to(commands / "skerry")
    (tmp_path / "directory").symlink_to(commands)
    words = [*STARTS[start](commands, tmp_path), "ssh-config", "dev"]
    done = run(*words, cwd=commands, PATH=f"{commands}:{os.environ['PATH']}", HOME=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, b"")
    assert re.search(rb"ProxyCommand .*/skerry'? ssh --stdio", done.stdout)  # ssh starts the launcher, too


def test_arguments_and_exit_code_pass_through_unchanged(commands: Path) -> None:
    done = run(commands / "skerry", "a=b", "", "two words", "--", "-x")
    assert done.returncode == 2
    assert b"a=b" in done.stderr


def test_launcher_works_with_an_env_that_cannot_block_signals(commands: Path, tmp_path: Path) -> None:
    """Rust's, for example, or GNU's before 8.31. It is seen by this process only: /usr/bin/env is the kernel's path."""
    old = tmp_path / "env"
    old.write_text(OLD_ENV)
    old.chmod(0o755)
    script = 'mount --bind "$0" /usr/bin/env && exec "$@"'
    done = run("unshare", "-m", "sh", "-c", script, old, commands / "skerry", "--version")
    assert (done.returncode, done.stdout.splitlines()[-1:], done.stderr) == (0, [b"skerry " + VERSION], b"")
