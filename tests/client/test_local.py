"""This host's own server: started when nobody listens, once, with its own words when it can't be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from skerry import Client, Sandbox, ServerUnreachable
from skerry.client import local
from skerry.client.address import Address
from skerry.config import run_dir


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory on a file system that can hold sandboxes; its server, if one started, is stopped after."""
    path = Path(f"/var/lib/skerry-test-local-{os.getpid()}")
    for name in [name for name in os.environ if name.startswith("SKERRY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SKERRY_STATE_DIR", str(path))
    yield path
    subprocess.run([sys.executable, "-m", "skerry", "server", "stop"], check=True)
    shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(run_dir(path), ignore_errors=True)


def test_many_at_once_start_one_server(state: Path) -> None:
    def pid(_: int) -> int:
        with Client() as client:
            return int(client.info()["pid"])

    with ThreadPoolExecutor(4) as pool:
        pids = set(pool.map(pid, range(4)))
    assert len(pids) == 1
    assert os.getsid(pids.pop()) != os.getsid(0), "it outlives the terminal that started it"


def test_a_server_that_left_is_started_again(state: Path) -> None:
    with Client() as client:
        first = client.info()["pid"]
        subprocess.run([sys.executable, "-m", "skerry", "server", "stop"], check=True)
        assert client.info()["pid"] != first


def test_the_background_server_holds_nothing_of_its_starter(state: Path) -> None:
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    subprocess.run([sys.executable, "-m", "skerry", "server", "start"], check=True, pass_fds=[write_end])
    os.close(write_end)
    assert os.read(read_end, 1) == b"", "the pipe is closed although the server runs"
    os.close(read_end)
    assert Sandbox.list() == []


def test_its_own_words_tell_why_it_can_not_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SKERRY_STATE_DIR", str(tmp_path / "file" / "below"))
    with pytest.raises(ServerUnreachable, match="can't be started: state_dir"):
        Client().info()


def test_a_server_that_somebody_named_is_never_started(tmp_path: Path) -> None:
    with pytest.raises(ServerUnreachable, match="no server at"):
        Client(f"unix://{tmp_path}/none").info()
    assert not local.may_start(Address("http://localhost", socket=f"{tmp_path}/none"))


def test_another_user_is_told_of_setup(tmp_path: Path) -> None:
    """The first call is root's, so that every module is loaded: another user may not be able to read this tree."""
    code = (
        "import os, skerry\n"
        "for server in ('unix:///nonexistent', None):\n"
        "    try: skerry.Client(server).info()\n"
        "    except skerry.ServerUnreachable as error: told = str(error)\n"
        "    if server: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print(told)"
    )
    environment = {**os.environ, "SKERRY_STATE_DIR": str(tmp_path / "none")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert "sudo skerry setup" in done.stdout, done.stderr
