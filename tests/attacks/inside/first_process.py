"""Reaching for PID 1, which holds the sandbox's door, and for the launchers that fork for it."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import resource
import signal
import socket
import stat

from attack import FACTS, NUMBER, Refused, attack, call, first_gain, libc, main

ROOTS = FACTS["first"]  # the pids to go for: PID 1 inside; in the control, a process of the attacker's own user
PTRACE_ATTACH, PTRACE_DETACH, PTRACE_SEIZE, PIDFD_OPEN, PIDFD_GETFD = 16, 17, 0x4206, 434, 438
PROCESS_VM_READV = {"x86_64": 310, "aarch64": 270}[os.uname().machine]


def targets() -> list[int]:
    """PID 1 and everything else that runs the keeper's program."""
    found = list(ROOTS)
    for path in glob.glob("/proc/[0-9]*/comm") if FACTS.get("inside") else ():
        with contextlib.suppress(FileNotFoundError), open(path) as file:
            if file.read().startswith("skerry-keeper"):
                found.append(int(path.split("/")[2]))
    return found


def each(way: object) -> object:
    return first_gain(*(lambda pid=pid: way(pid) for pid in dict.fromkeys(targets())))  # type: ignore[operator]


@attack("host")
def read_its_memory() -> object:
    def read(pid: int) -> object:
        with open(f"/proc/{pid}/maps") as maps:
            start = int(maps.readline().split("-")[0], 16)
        fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
        return len(os.pread(fd, 16, start))

    return each(read)


@attack("host")
def open_its_memory_for_writing() -> object:
    return each(lambda pid: os.open(f"/proc/{pid}/mem", os.O_WRONLY))


@attack("host")
def read_its_memory_by_a_system_call() -> object:
    def read(pid: int) -> object:
        here, there = ctypes.create_string_buffer(8), 0x400000
        local = (ctypes.c_uint64 * 2)(ctypes.addressof(here), 8)
        remote = (ctypes.c_uint64 * 2)(there, 8)
        with open(f"/proc/{pid}/maps") as maps:
            remote[0] = int(maps.readline().split("-")[0], 16)
        return call(PROCESS_VM_READV, pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)

    return each(read)


@attack("host")
def read_its_environment() -> object:
    def read(pid: int) -> object:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read() or None

    return each(read)


@attack("host", by=("user",))  # root inside sees their numbers, but not their targets
def list_its_open_files() -> object:
    return each(lambda pid: os.listdir(f"/proc/{pid}/fd"))


@attack("host")
def open_one_of_its_files() -> object:
    def opened(pid: int) -> object:
        return first_gain(*(lambda n=n: os.open(f"/proc/{pid}/fd/{n}", os.O_RDONLY) for n in range(16)))

    return each(opened)


@attack("host")
def take_a_copy_of_one_of_its_files() -> object:
    def taken(pid: int) -> object:
        pidfd = call(PIDFD_OPEN, pid, 0)
        return first_gain(*(lambda n=n: call(PIDFD_GETFD, pidfd, n, 0) for n in range(16)))

    return each(taken)


@attack("host")
def trace_it() -> object:
    def traced(pid: int) -> object:
        for request in (PTRACE_SEIZE, PTRACE_ATTACH):
            if libc.ptrace(request, pid, 0, 0) == 0:
                libc.ptrace(PTRACE_DETACH, pid, 0, 0)
                return request
        raise OSError(ctypes.get_errno(), "ptrace")

    return each(traced)


@attack("host")
def follow_its_links() -> object:
    return each(lambda pid: [os.readlink(f"/proc/{pid}/{name}") for name in ("exe", "root", "cwd")])


@attack(None)
def overwrite_its_program_through_proc() -> object:
    """CVE-2019-5736's way."""
    return each(lambda pid: os.open(f"/proc/{pid}/exe", os.O_WRONLY))


@attack("host")
def overwrite_its_program() -> object:
    path = "/run/skerry/bin/skerry-keeper"
    if not os.path.exists(path):
        path = f"{FACTS['scratch']}/program"  # the control: any file of one's own
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o755))
    return first_gain(
        lambda: os.open(path, os.O_WRONLY), lambda: os.truncate(path, 0), lambda: os.chmod(path, 0o777),
        lambda: os.setxattr(path, "user.x", b"y"), lambda: os.utime(path, (0, 0)),
    )  # fmt: skip


@attack("host", by=("user",))  # root inside may end its own sandbox
def lower_its_limits() -> object:
    return each(lambda pid: resource.prlimit(pid, resource.RLIMIT_NOFILE))


@attack("host")
def join_its_namespaces() -> object:
    def joined(pid: int) -> object:
        return call(NUMBER["setns"], os.open(f"/proc/{pid}/ns/net", os.O_RDONLY), 0)

    return each(joined)


@attack("host")
def see_where_it_is_in_the_kernel() -> object:
    def told(pid: int) -> object:
        with open(f"/proc/{pid}/syscall") as file:
            return file.read()

    return each(told)


@attack("host")
def find_a_socket_of_its_own() -> object:
    """The only socket below any directory is sudo's; the keeper's own door has no path inside."""
    found = []
    for top in (FACTS["run_dir"], "/run", "/tmp", "/var", "/dev", "/root", "/home", "/workspace"):
        for where, _, names in os.walk(top):
            found += [f"{where}/{name}" for name in names if is_socket(f"{where}/{name}")]
        if found and top == FACTS["run_dir"]:
            return found
    if not (strange := set(found) - {"/run/skerry/sudo.sock"}):
        raise Refused("none")
    return strange


def is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def _is_open(number: int) -> bool:
    """Without the descriptor of the listing."""
    return os.path.lexists(f"/proc/self/fd/{number}")


@attack("host")
def inherit_an_open_file() -> object:
    """Beyond stdin, stdout, stderr and files opened by this attack."""
    if not FACTS.get("inside"):
        socket.socket().detach()  # the control: a leaked fd is found
    links = {n: os.readlink(f"/proc/self/fd/{n}") for n in map(int, os.listdir("/proc/self/fd")) if _is_open(n)}
    answer = max(n for n, link in links.items() if link.startswith("pipe:"))  # the way back to the attack's parent
    if not (strange := {n: link for n, link in links.items() if n > 2 and n != answer}):
        raise Refused("none")
    return strange


@attack(None)
def stop_or_kill_it() -> object:
    """Signals to PID 1 from inside its namespace are dropped unless it handles them; the test asks it afterwards."""
    for name in ("SIGKILL", "SIGSTOP", "SIGSEGV", "SIGQUIT", "SIGABRT", "SIGTSTP", "SIGUSR1", "SIGHUP", "SIGPIPE"):
        os.kill(1, signal.Signals[name])
    raise Refused("it shrugs")


if __name__ == "__main__":
    main()
