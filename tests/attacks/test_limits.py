"""Attacks on a sandbox's limits: every way to more memory, disk, processes or open files than it was given."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server import Server, wait_until

from skerry import Limits, Sandbox
from skerry.config import instance_of
from skerry.errors import SkerryError

MEMORY = 192 << 20
PIDS = 64


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    limits = Limits(cpus=0.75, memory="192M", disk="128M", pids=PIDS, open_files=512)
    with Sandbox(server=server.address, limits=limits) as sandbox:
        yield sandbox


def alive(sandbox: Sandbox) -> bool:
    return sandbox.run(["echo", "alive"], timeout=60).stdout == "alive\n" and sandbox.state == "running"


def cgroup_file(server: Server, sandbox: Sandbox, controller: str, *names: str) -> Path:
    """The first of these files that this host has for the sandbox, v1 or v2."""
    place = f"skerry/{instance_of(server.state_dir)}/{sandbox.id}"
    roots = [Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup") / controller, Path("/sys/fs/cgroup/unified")]
    return next(root / place / name for root in roots for name in names if (root / place / name).exists())


HOARD = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
size = 400 << 20
def memfd():
    fd = os.memfd_create("hoard")
    for _ in range(400): os.write(fd, bytes(1 << 20))
def shared():
    segment = libc.shmget(0, ctypes.c_size_t(size), 0o600)
    libc.shmat.restype = ctypes.c_void_p
    at = libc.shmat(segment, None, 0)
    libc.shmctl(segment, 0, None)
    ctypes.memset(at, 1, size)
def anonymous(): return bytearray(size)
def shm_files():
    for n in range(400):
        with open(f"/dev/shm/{n}", "wb") as file: file.write(bytes(1 << 20))
def pipes():
    import fcntl
    ends = []
    for _ in range(250):
        r, w = os.pipe(); ends += [r, w]
        try: fcntl.fcntl(w, 1031, 1 << 20)
        except OSError: pass
        os.set_blocking(w, False)
        try:
            while True: os.write(w, bytes(65536))
        except BlockingIOError: pass
    print("held", len(ends))
def children():
    for _ in range(14):
        if os.fork() == 0:
            hoard = bytearray(20 << 20)
            for at in range(0, len(hoard), 4096): hoard[at] = 1
            sys.stdin.read(); os._exit(0)
    os.wait()
globals()[sys.argv[1]]()
print("done")
"""


@pytest.mark.parametrize("way", ["memfd", "shared", "anonymous", "shm_files", "pipes", "children"])
def test_memory_limit_cannot_be_exceeded(server: Server, sandbox: Sandbox, way: str) -> None:
    sandbox.run(["python3", "-c", HOARD, way], timeout=30)
    peak = cgroup_file(server, sandbox, "memory", "memory.peak", "memory.max_usage_in_bytes")
    assert int(peak.read_text()) <= MEMORY + (1 << 20)  # the kernel counts some internal memory beyond the limit
    assert sandbox.run("rm -f /dev/shm/*; echo alive", user="root").stdout.endswith("alive\n")
    assert alive(sandbox)


def test_memory_file_systems_count_towards_memory(server: Server, sandbox: Sandbox) -> None:
    """Every mount that can be written to, filled by root inside."""
    code = (
        "import os, sys\n"
        "path = sys.argv[1] + '/filler'\n"
        "with open(path, 'wb', buffering=0) as file:\n"
        "    while os.fstat(file.fileno()).st_size < 512 << 20: file.write(bytes(1 << 16))\n"
        "print('endless')\n"
    )
    mounts = sandbox.run(["cut", "-d", " ", "-f", "2", "/proc/self/mounts"], check=True).stdout.split()
    for where in [mount for mount in mounts if mount not in ("/", "/proc")]:
        assert sandbox.run(["python3", "-c", code, where], user="root").stdout == "", where
        with contextlib.suppress(SkerryError):  # by the keeper itself: no other process may have room
            sandbox.files.remove(f"{where}/filler", user="root")
    peak = cgroup_file(server, sandbox, "memory", "memory.peak", "memory.max_usage_in_bytes")
    assert int(peak.read_text()) <= MEMORY + (1 << 20)
    assert alive(sandbox)


@pytest.mark.parametrize("user", ["user", "root"])
def test_disk_is_full_at_its_limit(sandbox: Sandbox, user: str) -> None:
    done = sandbox.run(
        "dd if=/dev/zero of=/var/tmp/big bs=1M count=300; stat -c %s /var/tmp/big; rm -f /var/tmp/big", user=user
    )
    assert int(done.stdout.split()[-1]) <= 128 << 20
    assert "300+0 records out" not in done.stderr
    assert alive(sandbox)


def test_preallocation_cannot_exceed_the_disk_limit(sandbox: Sandbox) -> None:
    done = sandbox.run("fallocate -l 1G /var/tmp/big; stat -c %b /var/tmp/big; rm -f /var/tmp/big")
    assert "0" in done.stdout.split() or int(done.stdout.split()[-1]) * 512 <= 128 << 20
    assert alive(sandbox)


def test_threads_count_as_processes(sandbox: Sandbox) -> None:
    code = (
        "import threading\n"
        "stop = threading.Event(); started = 0\n"
        "try:\n"
        "    while started < 500:\n"
        "        threading.Thread(target=stop.wait, daemon=True).start(); started += 1\n"
        "except RuntimeError: pass\n"
        "print(started); stop.set()\n"
    )
    assert int(sandbox.run(["python3", "-c", code], check=True).stdout) < PIDS
    assert alive(sandbox)


def test_full_process_table_does_not_end_the_keeper(server: Server) -> None:
    """File calls need threads of the keeper, and the limit allows no more."""
    fill = (
        "import os, signal\n"
        "null = os.open('/dev/null', os.O_RDWR)\n"
        "count = 0\n"
        "try:\n"
        "    while True:\n"
        "        if os.fork() == 0:\n"
        "            for n in range(3): os.dup2(null, n)\n"
        "            while True: signal.pause()\n"
        "        count += 1\n"
        "except OSError: print(count)\n"
    )
    with Sandbox(server=server.address, limits=Limits(pids=PIDS, memory="256M")) as sandbox:
        assert (
            int(sandbox.run(["python3", "-c", fill], timeout=20).stdout) > PIDS // 3
        )  # the keeper has about 30 threads
        for number in range(20):
            with contextlib.suppress(SkerryError):
                sandbox.files.write(f"/workspace/{number}", b"x" * 10000)
                assert sandbox.files.read_bytes(f"/workspace/{number}") == b"x" * 10000
                sandbox.files.list("/workspace")
            with contextlib.suppress(SkerryError):
                sandbox.run(["true"], timeout=2)
            assert sandbox.info().state == "running"
        assert sandbox.files.read_bytes("/workspace/19") == b"x" * 10000
        for process in sandbox.processes.list():
            with contextlib.suppress(SkerryError):
                sandbox.processes.signal(process.id, "KILL")
        wait_until(lambda: alive(sandbox), "room for a command again")


def test_open_files_limit_cannot_be_raised(sandbox: Sandbox) -> None:
    code = (
        "import os, resource\n"
        "for wish in (1 << 20, resource.RLIM_INFINITY):\n"
        "    try: resource.setrlimit(resource.RLIMIT_NOFILE, (wish, wish))\n"
        "    except (OSError, ValueError): pass\n"
        "count = 0\n"
        "try:\n"
        "    while count < 5000: os.dup(0); count += 1\n"
        "except OSError: pass\n"
        "print(count)\n"
    )
    for user in ("user", "root"):
        assert int(sandbox.run(["python3", "-c", code], user=user, check=True).stdout) < 512


def test_cpu_quota_has_the_requested_value(server: Server, sandbox: Sandbox) -> None:
    file = cgroup_file(server, sandbox, "cpu", "cpu.max", "cpu.cfs_quota_us")
    quota = int(file.read_text().split()[0])
    period = 100_000 if file.name == "cpu.max" else int((file.parent / "cpu.cfs_period_us").read_text())
    assert quota / period == 0.75


def test_process_cannot_leave_its_cgroups(server: Server, sandbox: Sandbox) -> None:
    """Through every cgroup.procs that it can see, by every user; then the host looks where it is."""
    code = (
        "import glob, os\n"
        "files = [f'/sys/fs/cgroup/**/{name}' for name in ('cgroup.procs', 'cgroup.threads', 'tasks')]\n"
        "for path in (path for pattern in files for path in glob.glob(pattern, recursive=True)):\n"
        "    try:\n"
        "        with open(path, 'w') as file: file.write(str(os.getpid()))\n"
        "        print('moved by', path)\n"
        "    except OSError: pass\n"
    )
    for user in ("user", "root"):
        assert sandbox.run(["python3", "-c", code], user=user, check=True).stdout == ""
