"""Reaching for processes, namespaces and IPC objects of the host."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import resource

from attack import FACTS, NUMBER, Refused, attack, call, first_gain, libc, main

VICTIM = FACTS["victim"]  # a host process with MARK in its arguments
MARK = FACTS["mark"]
PTRACE_ATTACH, PTRACE_DETACH, PTRACE_SEIZE = 16, 17, 0x4206
PIDFD_OPEN, PRIO_PROCESS = 434, 0


@attack("host")
def see_a_host_process() -> object:
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(path, "rb") as file:
            if MARK.encode() in (text := file.read(1 << 16)) and b"python" not in text.split(b"\0")[0]:
                return text
    raise Refused("it is not listed")


@attack("host")
def signal_a_host_process() -> object:
    return os.kill(VICTIM, 0)


@attack("host")
def signal_the_group_of_a_host_process() -> object:
    return os.killpg(VICTIM, 0)


@attack("host")
def trace_a_host_process() -> object:
    libc.ptrace.restype = ctypes.c_long
    for request in (PTRACE_SEIZE, PTRACE_ATTACH):
        if libc.ptrace(request, VICTIM, 0, 0) == 0:
            libc.ptrace(PTRACE_DETACH, VICTIM, 0, 0)
            return request
    raise OSError(ctypes.get_errno(), "ptrace")


@attack("host")
def open_a_pidfd_of_a_host_process() -> object:
    return call(PIDFD_OPEN, VICTIM, 0)


@attack("host")
def read_the_memory_of_a_host_process() -> object:
    return os.open(f"/proc/{VICTIM}/mem", os.O_RDONLY)


@attack("host")
def lower_the_priority_of_a_host_process() -> object:
    return os.setpriority(PRIO_PROCESS, VICTIM, 1)


@attack("host")
def pin_a_host_process_to_a_cpu() -> object:
    return os.sched_setaffinity(VICTIM, {0})


@attack("host")
def limit_a_host_process() -> object:
    return resource.prlimit(VICTIM, resource.RLIMIT_NOFILE)


@attack("host")
def make_a_host_process_killable_by_the_oom_killer() -> object:
    return os.open(f"/proc/{VICTIM}/oom_score_adj", os.O_WRONLY)


@attack("host")
def share_a_namespace_with_the_host() -> object:
    shared = [kind for kind, name in FACTS["namespaces"].items() if os.readlink(f"/proc/self/ns/{kind}") == name]
    if not shared:
        raise Refused("none is shared")
    return shared


@attack("host")
def enter_a_host_namespace() -> object:
    def enter(path: str) -> object:
        fd = os.open(path, os.O_RDONLY)
        return call(NUMBER["setns"], fd, 0)

    near = f"/proc/{FACTS['first'][0]}/ns"
    return first_gain(*(lambda kind=kind: enter(f"{near}/{kind}") for kind in ("net", "uts", "ipc")))


@attack("host")
def use_a_shared_memory_segment_of_the_host() -> object:
    if (found := libc.shmget(FACTS["shm_key"], 0, 0)) < 0:
        raise OSError(ctypes.get_errno(), "shmget")
    return found


@attack("host")
def open_posix_shared_memory_of_the_host() -> object:
    return os.open(f"/dev/shm/{FACTS['shm_name']}", os.O_RDONLY)


@attack("host")
def see_more_processes_than_the_sandboxs() -> object:
    """Parents that can't be seen have the number 0; a pid namespace of one's own has few processes and low numbers."""
    if (count := len(glob.glob("/proc/[0-9]*"))) < FACTS["host_processes"] // 2:
        raise Refused(f"{count}")
    return count


if __name__ == "__main__":
    main()
