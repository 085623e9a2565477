"""The local server: started once when none listens, with its output in the error when it fails."""

from __future__ import annotations

import grp
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.server import Server

from skerry import Client, Sandbox, ServerUnreachable
from skerry.client.transport import local_server
from skerry.client.transport.address import Address
from skerry.config import run_dir


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory on a file system that can hold sandboxes; its server, if one started, is stopped after."""
    path = Path(f"/var/lib/skerry-test-local-{os.getpid()}")
    for name in [name for name in os.environ if name.startswith("SKERRY_") and name != "SKERRY_AUDIT_KEY_DIR"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SKERRY_STATE_DIR", str(path))
    yield path
    subprocess.run([sys.executable, "-m", "skerry", "server", "stop"], check=True)
    shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(run_dir(path), ignore_errors=True)


def test_concurrent_clients_start_one_server(state: Path) -> None:
    def pid(_: int) -> int:
        with Client() as client:
            return int(client.info()["pid"])

    with ThreadPoolExecutor(4) as pool:
        pids = set(pool.map(pid, range(4)))
    assert len(pids) == 1
    assert os.getsid(pids.pop()) != os.getsid(0), "it outlives the terminal that started it"


def test_exited_server_is_started_again(state: Path) -> None:
    with Client() as client:
        first = client.info()["pid"]
        subprocess.run([sys.executable, "-m", "skerry", "server", "stop"], check=True)
        assert client.info()["pid"] != first


def test_background_server_keeps_no_descriptors_of_its_starter(state: Path) -> None:
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    subprocess.run([sys.executable, "-m", "skerry", "server", "start"], check=True, pass_fds=[write_end])
    os.close(write_end)
    assert os.read(read_end, 1) == b"", "the pipe is closed although the server runs"
    os.close(read_end)
    assert Sandbox.list() == []


def test_server_output_explains_a_failed_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SKERRY_STATE_DIR", str(tmp_path / "file" / "below"))
    with pytest.raises(ServerUnreachable, match="cannot be started: state_dir"):
        Client().info()


def test_failure_of_the_engine_is_named_and_a_later_start_works(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKERRY_LANGUAGES_ALLOW", "cobol")
    with pytest.raises(ServerUnreachable, match=r"languages\.allow: language: 'cobol' is not known"):
        Client().info()
    monkeypatch.delenv("SKERRY_LANGUAGES_ALLOW")
    assert Client().info()["sandboxes"] == 0


def test_explicitly_named_server_is_never_started(tmp_path: Path) -> None:
    with pytest.raises(ServerUnreachable, match="no server at"):
        Client(f"unix://{tmp_path}/none").info()
    assert not local_server.may_start(Address("http://localhost", socket=f"{tmp_path}/none"))


# The first calls are root's, so that every module is loaded: another user may not be able to read this tree.
AS_ANOTHER = """
import os, sys, skerry
from skerry.config import socket_path
def call(server):
    try: return f"served by {skerry.Client(server).info()['version']}"
    except skerry.ServerUnreachable as error: return str(error)
call("unix:///nonexistent"); call(sys.argv[2] or "unix:///nonexistent")
os.setgroups([int(sys.argv[1])] if sys.argv[1] else []); os.setgid(65534); os.setuid(65534)
print(call(None))
"""


def as_another(state: Path, group: str = "", address: str = "") -> str:
    environment = {**os.environ, "SKERRY_STATE_DIR": str(state)}
    command = [sys.executable, "-c", AS_ANOTHER, group, address]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.stdout or done.stderr


def test_other_users_get_a_hint_about_setup(tmp_path: Path) -> None:
    assert "sudo skerry setup" in as_another(tmp_path / "none")


def test_only_members_of_the_server_group_are_served(own_server: Server) -> None:
    group = grp.getgrnam("daemon")
    own_server.start("--group", group.gr_name)
    assert "served by" in as_another(own_server.state_dir, str(group.gr_gid), own_server.address)
    refused = as_another(own_server.state_dir, "", own_server.address)
    assert "permission denied for the server" in refused
    assert "skerry doctor" in refused
