"""Forbidden system calls and socket families fail; calls that programs need work."""

from __future__ import annotations

import errno
import json
import os

import pytest
from support.containers import Container

from skerry.runtimes import seccomp

EPERM, ENOSYS = errno.EPERM, errno.ENOSYS
X86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the probe's call numbers are x86_64's")


def names(text: str) -> list[str]:
    return text.split()


FORBIDDEN = names("""
    acct add_key bpf chroot clock_settime delete_module fanotify_init finit_module fsconfig fsmount fsopen fspick
    init_module io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load keyctl
    lookup_dcookie mount mount_setattr move_mount open_by_handle_at open_tree perf_event_open pidfd_getfd pivot_root
    process_vm_readv process_vm_writev quotactl reboot request_key sethostname setns settimeofday swapoff swapon
    syslog umount2 unshare_mount unshare_net unshare_time unshare_user userfaultfd vhangup
""")
UNKNOWN = names("""
    clone3 clone_all clone_user far_future listmount modify_ldt name_to_handle_at statmount
""")


@X86
async def test_forbidden_calls_fail(container: Container) -> None:
    for uid in (0, 1000):
        found = json.loads(await container.run("calls", uid=uid))
        assert {name: found[name] for name in FORBIDDEN} == dict.fromkeys(FORBIDDEN, EPERM)
        assert {name: found[name] for name in UNKNOWN} == dict.fromkeys(UNKNOWN, ENOSYS)


@X86
async def test_arguments_are_checked_including_high_bits(container: Container) -> None:
    found = json.loads(await container.run("calls"))
    assert found["tiocsti"] == found["tiocsti_high_bits"] == ENOSYS
    assert found["tiocgwinsz"] == errno.ENOTTY
    assert found["personality_mmap_low"] == ENOSYS
    assert found["personality_query"] == found["personality_no_random"] == 0
    assert found["setrlimit_core"] == 0
    assert found["setrlimit_core_high_bits"] == found["prlimit_core_high_bits"] == ENOSYS
    assert found["unshare_files"] == 0
    assert found["mknod_device"] != 0


@X86
async def test_only_unix_inet_inet6_and_routing_netlink_sockets_open(container: Container) -> None:
    found = {
        name: number for name, number in json.loads(await container.run("calls")).items() if name.startswith("socket")
    }
    open_ = {name for name, number in found.items() if number == 0}
    assert open_ == {
        *("socket_unix", "socketpair_unix", "socket_netlink_route"),
        *("socket_inet_tcp", "socket_inet_udp", "socket_inet6_tcp"),
    }
    assert found["socket_family_40"] == errno.EAFNOSUPPORT  # AF_VSOCK: no network namespace keeps it in
    assert found["socket_netlink_9"] == errno.EPROTONOSUPPORT  # audit: libaudit goes on without it
    assert found["socket_inet_raw"] == EPERM


@X86
async def test_another_abi_of_the_same_cpu_is_killed(container: Container) -> None:
    answer = await container.run("foreign", "x32")
    assert "killed" in answer or "bad system call" in answer


async def test_debuggers_work_on_own_processes(container: Container) -> None:
    for uid in (0, 1000):
        assert await container.run("trace", uid=uid) == "traced to its end\n"


async def test_package_managers_work_as_root(container: Container) -> None:
    assert await container.run("own") == "chowned, switched and read\n"


def test_forbidden_calls_are_on_no_allow_list() -> None:
    for machine in seccomp.machines():
        rules = seccomp.profile(machine)["syscalls"]
        free = {
            name
            for rule in rules
            for name in rule["names"]
            if rule["action"] == "SCMP_ACT_ALLOW" and "args" not in rule
        }
        assert not free & set(seccomp._DENIED_CALLS)
        assert not free & {
            "clone",
            "clone3",
            "unshare",
            "setns",
            "socket",
            "ioctl",
            "personality",
            "prlimit64",
            "setrlimit",
        }
        assert not free & {"io_uring_setup", "bpf", "keyctl", "userfaultfd", "kcmp", "process_vm_readv", "pidfd_getfd"}
