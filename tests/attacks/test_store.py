"""Attacks by an unprivileged user of the host: on layers, uppers, sockets, a setuid file made inside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.server import Server

from skerry import Sandbox
from skerry.config import instance_of, run_dir

NOBODY = 65534
# Tries one path in every way and prints which of them worked.
REACH = """
import json, os, socket, stat, subprocess, sys
path, worked = sys.argv[1], []
def attempt(name, way):
    try: way()
    except OSError: return
    worked.append(name)
attempt("list", lambda: os.listdir(path))
attempt("read", lambda: os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 1))
attempt("write", lambda: os.open(path, os.O_WRONLY | os.O_NONBLOCK))
attempt("add", lambda: os.close(os.open(path + "/added", os.O_CREAT | os.O_WRONLY)))
attempt("enter", lambda: os.chdir(path))
attempt("rename", lambda: os.rename(path, path + "-moved"))
attempt("chmod", lambda: os.chmod(path, 0o777))
attempt("link", lambda: os.link(path, "/tmp/linked-by-nobody"))
def call():
    with socket.socket(socket.AF_UNIX) as caller: caller.connect(path)
attempt("connect", call)
print(json.dumps(worked))
"""


def as_user(uid: int, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, user=uid, group=uid, extra_groups=[], capture_output=True, text=True, timeout=30, cwd="/"
    )


def reached(path: Path, uid: int = NOBODY) -> list[str]:
    done = as_user(uid, sys.executable if uid == 0 else "/usr/bin/python3", "-I", "-c", REACH, str(path))
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


@dataclass
class Store:
    """A running sandbox, and all that the host has of it."""

    server: Server
    sandbox: Sandbox
    pid: int

    @property
    def unit(self) -> Path:
        """Its upper and work directories, wherever the storage driver has put them."""
        return next(path for path in self.server.state_dir.glob(f"**/{self.sandbox.id}") if (path / "upper").is_dir())

    @property
    def root(self) -> Path:
        """Its files as the sandbox has them mounted. The host has no such mount."""
        return Path(f"/proc/{self.pid}/root")


@pytest.fixture(scope="module")
def store(server: Server) -> Iterator[Store]:
    with Sandbox(server=server.address) as sandbox:
        sandbox.run(
            "cp /bin/cat /opt/cat && chmod 6755 /opt/cat && echo secret > /opt/secret && chmod 600 /opt/secret"
            " && chmod 777 /opt && echo open > /opt/open && chmod 666 /opt/open",
            user="root",
            check=True,
        )
        yield Store(server, sandbox, first_process(server, sandbox))


def first_process(server: Server, sandbox: Sandbox) -> int:
    places = Path("/sys/fs/cgroup").glob(f"**/{run_dir(server.state_dir).name}/{sandbox.id}/cgroup.procs")
    pids = {int(pid) for place in places for pid in place.read_text().split()}
    return next(pid for pid in pids if f"NSpid:\t{pid}\t1\n" in Path(f"/proc/{pid}/status").read_text())


PLACES = {
    "the state directory": lambda s: s.server.state_dir,
    "the database": lambda s: s.server.state_dir / "state.db",
    "the images": lambda s: s.server.state_dir / "images",
    "the layers": lambda s: s.server.state_dir / "layers",
    "a layer": lambda s: next(p for p in (s.server.state_dir / "layers").iterdir() if p.is_dir()),
    "a layer's shadow file": lambda s: next((s.server.state_dir / "layers").glob("*/tree/etc/shadow")),
    "an upper": lambda s: s.unit / "upper",
    "a file in an upper": lambda s: s.unit / "upper" / "opt" / "open",
    "a setuid file in an upper": lambda s: s.unit / "upper" / "opt" / "cat",
    "a work directory": lambda s: s.unit / "work",
    "a file in the mounted root": lambda s: s.root / "opt" / "open",
    "a setuid file in the mounted root": lambda s: s.root / "opt" / "cat",
    "the server's socket": lambda s: run_dir(s.server.state_dir) / "api.sock",
    "the keepers' sockets": lambda s: run_dir(s.server.state_dir) / "k",
    "a keeper's socket": lambda s: run_dir(s.server.state_dir) / "k" / s.sandbox.id,
    "the lock": lambda s: run_dir(s.server.state_dir) / "lock",
    "the root of PID 1": lambda s: s.root,
    "the memory of PID 1": lambda s: Path(f"/proc/{s.pid}/mem"),
    "the open files of PID 1": lambda s: Path(f"/proc/{s.pid}/fd"),
}


@pytest.mark.parametrize("place", PLACES)
def test_host_user_cannot_access_the_store(store: Store, place: str) -> None:
    assert reached(PLACES[place](store)) == []


@pytest.mark.parametrize("place", PLACES)
def test_control_store_files_exist(store: Store, place: str) -> None:
    """The control: root does, so the refusal is not that of a wrong path."""
    assert PLACES[place](store).exists()


def test_uid_ranges_cannot_be_taken_or_given_away(store: Store) -> None:
    ranges = Path("/run/skerry/ranges")
    assert not {"write", "add", "rename", "chmod"} & set(reached(ranges))
    held = next(path for path in ranges.iterdir() if store.sandbox.id in path.read_text())
    assert not {"write", "rename", "chmod"} & set(reached(held))


def test_root_of_another_sandbox_cannot_access_the_store(store: Store) -> None:
    """As the host knows it: an id of some other range."""
    assert store.sandbox.isolation is not None
    base, size = store.sandbox.isolation.details["uid_range"]
    for uid in (base + size, base - 1, base + 1000):
        for place in ("an upper", "the root of PID 1", "a keeper's socket", "the memory of PID 1"):
            assert reached(PLACES[place](store), uid) == [], (uid, place)


def test_setuid_file_from_inside_grants_nothing_to_a_host_user(store: Store) -> None:
    """It is a real setuid-root file on that disk: the directories above it and nosuid are all there is."""
    inside = store.root / "opt" / "cat"
    on_disk = store.unit / "upper" / "opt" / "cat"
    assert inside.stat().st_mode & 0o6000 == 0o6000
    assert on_disk.stat().st_uid == 0
    assert {"nosuid", "nodev"} <= set(mount_options(on_disk))
    for path in (inside, on_disk):
        assert os.statvfs(path).f_flag & os.ST_NOSUID
        with pytest.raises(PermissionError):
            as_user(NOBODY, str(path), "/etc/shadow")


def mount_options(path: Path) -> list[str]:
    found = subprocess.run(["findmnt", "-no", "OPTIONS", "-T", str(path)], capture_output=True, text=True, check=True)
    return found.stdout.strip().split(",")


def test_host_user_cannot_access_processes_inside(store: Store) -> None:
    assert as_user(NOBODY, "kill", "-0", str(store.pid)).returncode != 0
    assert as_user(NOBODY, "cat", f"/proc/{store.pid}/environ").returncode != 0


@pytest.mark.parametrize(
    "file", ["cgroup.procs", "cgroup.kill", "cgroup.freeze", "memory.max", "memory.limit_in_bytes"]
)
def test_host_user_cannot_write_to_sandbox_cgroups(store: Store, file: str) -> None:
    place = f"skerry/{instance_of(store.server.state_dir)}/{store.sandbox.id}/{file}"
    found = [path for above in ("", "*/") for path in Path("/sys/fs/cgroup").glob(above + place)]
    assert [path for path in found if "write" in reached(path)] == []


def test_directories_have_minimal_permissions(store: Store) -> None:
    run = run_dir(store.server.state_dir)
    modes = {store.server.state_dir: 0o700, run.parent: 0o711, run: 0o711, run / "k": 0o700}
    assert {path: oct(path.stat().st_mode & 0o7777) for path in modes} == {p: oct(mode) for p, mode in modes.items()}
    assert (run / "api.sock").stat().st_mode & 0o077 == 0
    assert (run / "k" / store.sandbox.id).stat().st_mode & 0o077 == 0
    assert {path.stat().st_uid for path in modes} == {0}
