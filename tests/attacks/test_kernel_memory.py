"""Attacks on memory of the host's kernel that a memory cgroup does not cover: sockets, their queues, filters, tables.

The memory of sockets is the kernel's own count (`ss --memory`), because the host's free memory says little about 20 MB.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import pytest
from attacks.test_limits import cgroup_file
from support.attack import PLACE, carry_in
from support.server import Server

from skerry import Limits, Options, Sandbox

SCRIPT = "kernel_memory.py"
MEMORY = 64 << 20
BOUND = (16 << 20) + MEMORY // 10
SOCKETS = [
    *("netlink", "udp_errors", "udp6_errors", "udp_timestamps", "tcp_timestamps", "udp_data", "udp_corked"),
    *("tcp_data", "tcp_orphans", "tcp_unaccepted", "option_buffers", "socket_filters"),
]
# These must hold some memory, or they test nothing. The others need options that are refused, or release it at once.
HOLDING = {"netlink", "udp_data", "udp_corked", "tcp_data", "tcp_orphans", "tcp_unaccepted"}
TABLES = {  # and the command that counts the entries
    "ipv6_neighbours": "ip -6 neighbour show nud all | wc -l",
    "tracked_connections": "cat /proc/sys/net/netfilter/nf_conntrack_count",
    "tracked_lookups": "cat /proc/sys/net/netfilter/nf_conntrack_count",
    "multicast_groups": "wc -l < /proc/net/igmp6",
}
MAX_ENTRIES = 10_000  # of about 300 bytes
CHARGED = [
    *("unix_stream", "unix_datagrams", "descriptors_in_flight", "pipes", "watched_events", "message_queues"),
]
LOCKS = ["file_locks", "locks_left_by_ended_processes", "open_file_locks"]


@contextmanager
def held(box: Sandbox, kind: str, measure: Callable[[], None] = lambda: None) -> Iterator[int]:
    """While the sandbox holds all that it could get: the bytes, or 0 if it was killed for them. measure: called again
    and again until then."""
    printed: SimpleQueue[bytes] = SimpleQueue()
    more = threading.Event()

    def stdin() -> Iterator[bytes]:
        more.wait(120)
        yield b"\n"

    def run() -> None:
        argv = ["python3", f"{PLACE}/{SCRIPT}", kind]
        box.run(argv, stdin=stdin(), timeout=90, on_output=lambda output: printed.put(output.data))
        printed.put(b"0")

    holder = threading.Thread(target=run)
    holder.start()
    try:
        deadline = time.monotonic() + 120
        while printed.empty() and time.monotonic() < deadline:
            measure()
            more.wait(0.02)
        yield int(printed.get(timeout=1))
    finally:
        more.set()
        holder.join(60)


@pytest.fixture
def cell(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address, limits=Limits(memory="64M", pids=256)) as box:
        carry_in(box)
        yield box


def from_host(server: Server, box: Sandbox, *argv: str) -> str:
    """The output of a program of the host in the sandbox's network."""
    (found,) = server.sql("SELECT pid FROM sandboxes WHERE id = ?", box.id)[0]
    entered = ["nsenter", f"--net=/proc/{found}/ns/net", *argv]
    return subprocess.run(entered, capture_output=True, text=True, check=True, timeout=60).stdout


def socket_memory(server: Server, box: Sandbox) -> int:
    """The queues and options of all its sockets but unix ones."""
    text = from_host(server, box, "ss", "--no-header", "--all", "--numeric", "--memory", "-f", "inet")
    text += from_host(server, box, "ss", "--no-header", "--all", "--numeric", "--memory", "-f", "inet6")
    text += from_host(server, box, "ss", "--no-header", "--all", "--numeric", "--memory", "-f", "netlink")
    found = re.findall(r"skmem:\(r(\d+),rb\d+,t(\d+),tb\d+,f\d+,w(\d+),o(\d+),bl(\d+)", text)
    return sum(int(r) + max(int(t), int(w)) + int(o) + int(bl) for r, t, w, o, bl in found)


def sockets_with_uncharged(server: Server, box: Sandbox) -> tuple[int, int]:
    """Their memory, and the part that does not count against the limit. The charge is read before and after: at the
    limit, the kernel ends the program in between, and frees both."""
    before = charged(server, box)
    size = socket_memory(server, box)
    return size, size - max(before, charged(server, box))


def charged(server: Server, box: Sandbox) -> int:
    """Memory of sockets that counts against the sandbox's limit: on v1 none, it has a separate limit."""
    found = dict(line.split() for line in cgroup_file(server, box, "memory", "memory.stat").read_text().splitlines())
    return int(found.get("sock", 0)) if (Path("/sys/fs/cgroup") / "cgroup.controllers").exists() else 0


@pytest.mark.parametrize("kind", SOCKETS)
def test_uncharged_memory_of_sockets_is_bounded(server: Server, cell: Sandbox, kind: str) -> None:
    measured = []

    def measure() -> None:
        measured.append(sockets_with_uncharged(server, cell))

    with held(cell, kind, measure):
        measure()
    sizes, uncharged = zip(*measured, strict=True)
    assert max(sizes) >= (100_000 if kind in HOLDING else 0)
    assert max(uncharged) <= BOUND


def test_calls_of_starved_threads_count_until_they_end(server: Server) -> None:
    """However long a thread waits for a processor after the approval of its call."""
    memory = 256 << 20
    with Sandbox(server=server.address, limits=Limits(cpus=2, memory=memory, pids=256)) as box:
        carry_in(box)
        with held(box, "listeners") as most:
            assert 0 < most <= (16 << 20) + memory // 10
        with held(box, "listeners_of_starved_threads") as size:
            assert 0 < size <= most


def test_uncharged_memory_of_all_kinds_together_is_bounded(server: Server) -> None:
    memory, sizes = 256 << 20, [0]
    with Sandbox(server=server.address, limits=Limits(cpus=2, memory=memory, pids=512)) as box:
        carry_in(box)

        def measure() -> None:
            sizes.append(sockets_with_uncharged(server, box)[1])

        with held(box, "together", measure) as others:
            measure()
            assert others > 0
            assert max(sizes) > 0
            assert max(sizes) + others <= (16 << 20) + memory // 10
            assert box.run("true").exit_code == 0


@pytest.mark.parametrize("kind", LOCKS)
def test_memory_of_file_locks_is_bounded(cell: Sandbox, kind: str) -> None:
    with held(cell, kind) as size:
        assert size <= BOUND
        assert cell.run("true").exit_code == 0


def test_released_file_locks_do_not_count(cell: Sandbox) -> None:
    code = """
import fcntl
with open("/tmp/one", "w") as file:
    for number in range(40_000):
        fcntl.lockf(file, fcntl.LOCK_EX, 1, number % 7)
        fcntl.lockf(file, fcntl.LOCK_UN, 1, number % 7)
"""
    result = cell.run(["python3", "-c", code], timeout=120)
    assert result.exit_code == 0, result.stderr


def test_machine_code_of_seccomp_filters_has_an_absolute_bound(server: Server) -> None:
    """A large sandbox takes no more of `net.core.bpf_jit_limit` than any other, and others start meanwhile."""
    with Sandbox(server=server.address, limits=Limits(memory="2G", pids=512)) as box:
        carry_in(box)
        with held(box, "seccomp_filters") as size:
            assert 0 < size <= 4 << 20
            assert box.run("true").exit_code == 0
            with Sandbox(server=server.address, limits=Limits(memory="64M"), options=Options(use_pool=False)) as other:
                assert other.run(["python3", "-c", INSTALL + "assert install() == 0"]).exit_code == 0


INSTALL = """
import ctypes, os, struct, threading
libc = ctypes.CDLL(None)
code = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000))
program = ctypes.create_string_buffer(struct.pack("=HxxxxxxQ", 1, ctypes.addressof(code)))
libc.prctl(38, 1, 0, 0, 0)
def install():
    return libc.syscall(317 if os.uname().machine == "x86_64" else 277, 1, 0, program)
"""


def test_threads_share_the_filters_of_their_process(cell: Sandbox) -> None:
    code = """
assert install() == 0
more = threading.Event()
for _ in range(80):
    threading.Thread(target=more.wait, daemon=True).start()
for number in range(70):
    if (child := os.fork()) == 0:
        os._exit(install() != 0)
    assert os.waitpid(child, 0)[1] == 0, number
"""
    result = cell.run(["python3", "-c", INSTALL + code])
    assert result.exit_code == 0, result.stderr


def test_forked_processes_count_for_the_bound_of_filters(cell: Sandbox) -> None:
    """Also if the process that installed the filters has ended."""
    code = """
near, far = os.pipe()
total = 0
for _ in range(20):
    ready, done = os.pipe()
    if (first := os.fork()) == 0:
        for _ in range(5):
            if install() == 0:
                os.write(done, b".")
        if os.fork() == 0:
            os.close(done); os.close(far)
            os.read(near, 1)
        os._exit(0)
    os.close(done)
    assert os.waitpid(first, 0)[1] == 0
    while data := os.read(ready, 4096):
        total += len(data)
assert 0 < total <= 64, total
"""
    result = cell.run(["python3", "-c", INSTALL + code])
    assert result.exit_code == 0, result.stderr


def test_filters_of_ended_processes_do_not_count(cell: Sandbox) -> None:
    code = """
for number in range(200):
    if (child := os.fork()) == 0:
        os._exit(install() != 0)
    assert os.waitpid(child, 0)[1] == 0, number
"""
    assert cell.run(["python3", "-c", INSTALL + code]).exit_code == 0


@pytest.mark.parametrize("kind", TABLES)
def test_tables_of_the_network_are_bounded(server: Server, cell: Sandbox, kind: str) -> None:
    with held(cell, kind):
        assert int(from_host(server, cell, "sh", "-c", TABLES[kind])) <= MAX_ENTRIES


@pytest.mark.parametrize("kind", CHARGED)
def test_other_kernel_memory_is_charged(cell: Sandbox, kind: str) -> None:
    """The attack does not reach its goal, which is far above the limit."""
    with held(cell, kind) as size:
        assert size <= MEMORY
