"""Which system calls the inside may make: an allow-list of our own, as the `seccomp` object of an OCI spec.

What is on no list answers ENOSYS, so that a C library newer than the list falls back to an older call. What people meet
by name and is refused on purpose answers EPERM. One architecture only: every other ABI of the same CPU (i386, x32, …)
kills the caller, and each further architecture would cost 10 ms of a start.

Arguments are compared as 64 bits while the kernel looks at 32 of most: rules here therefore *allow* by equality, and
never deny by it (CVE-2019-7303).
"""

from __future__ import annotations

import errno
from typing import Any, Final

Rule = dict[str, Any]


def _names(text: str) -> list[str]:
    return text.split()


_CLONE_NAMESPACES: Final = 0x7E020000  # NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_CLONE_NEWTIME: Final = 0x80  # in clone() this bit is part of the exit signal
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
# TCP, UDP and ping; others (SCTP, DCCP, SMC, L2TP …) would make the host load a module for whoever asks
_INET_PROTOCOLS: Final = (0, 1, 6, 17, 58)
# Types are 4 bits: stream, datagram and raw are 1 to 3. DCCP answers to type 6 and protocol 0 (CVE-2017-6074).
_OTHER_TYPES: Final = 0xC
_NETLINK_ROUTE: Final = 0
# Linux, the query, uname26 and 32-bit names, and no address randomisation (gdb)
_PERSONALITIES: Final = (0x0, 0x8, 0x20000, 0x20008, 0x40000, 0xFFFFFFFF)
_TIOCSTI: Final = 0x5412
_SOL_SOCKET: Final = 1
_SO_LINGER: Final = 13
_RLIMIT_CORE: Final = 4

# Linux AIO (io_setup …) is left out: fs.aio-max-nr is one number for the whole host, and one sandbox could take it all.
_ALLOWED: Final = _names("""
accept accept4 access alarm bind brk capget capset chdir chmod chown clock_getres clock_gettime clock_nanosleep close
close_range connect copy_file_range creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2
epoll_wait eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64 fallocate fchdir fchmod
fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat
fstatfs fsync ftruncate futex futex_requeue futex_wait futex_waitv futex_wake futimesat get_robust_list
get_thread_area getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer getpeername getpgid
getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid getsockname getsockopt
gettid gettimeofday getuid getxattr getxattrat inotify_add_watch inotify_init inotify_init1 inotify_rm_watch ioprio_get
ioprio_set kill landlock_add_rule
landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat listen listxattr listxattrat llistxattr
lremovexattr lseek lsetxattr lstat madvise map_shadow_stack membarrier memfd_create mincore mkdir mkdirat mknod
mknodat mlock mlock2 mlockall mmap mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink
mremap mseal msgctl msgget msgrcv msgsnd msync munlock munlockall munmap nanosleep newfstatat open openat openat2
pause pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll prctl pread64 preadv
preadv2 pselect6 ptrace pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv recvfrom recvmmsg recvmsg
remap_file_pages removexattr removexattrat rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction
rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo
sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler
sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield seccomp select
semctl semget semop semtimedop sendfile sendmmsg sendmsg sendto set_robust_list set_thread_area set_tid_address
setfsgid setfsuid setgid setgroups setitimer setpgid setpriority setregid setresgid setresuid setreuid setsid
setuid setxattr setxattrat shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 splice stat
statfs statx symlink symlinkat sync sync_file_range syncfs sysinfo tee tgkill time timer_create timer_delete
timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime times tkill truncate umask
uname unlink unlinkat utime utimensat utimes vfork vmsplice wait4 waitid write writev
""")

_ARCHITECTURES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "x86_64": ("SCMP_ARCH_X86_64", ("arch_prctl",)),
    "aarch64": ("SCMP_ARCH_AARCH64", ()),
}

# Named so that the refusal reads "not permitted"; the rest of what is missing above answers "not implemented".
_REFUSED: Final = _names("""
acct add_key bpf chroot clock_adjtime clock_settime delete_module fanotify_init finit_module fsconfig fsmount fsopen
fspick init_module io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load keyctl
lookup_dcookie mount mount_setattr move_mount open_by_handle_at open_tree perf_event_open pidfd_getfd pivot_root
process_vm_readv process_vm_writev quotactl quotactl_fd reboot request_key setdomainname sethostname setns
settimeofday swapoff swapon syslog umount2 userfaultfd vhangup
""")


def profile(machine: str, *, linger: bool = True) -> dict[str, Any]:
    """The profile for one of `os.uname().machine`; KeyError for a machine that it was not written for. linger: whether
    SO_LINGER may be set, see `_linger_rules`."""
    architecture, extra = _ARCHITECTURES[machine]
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.ENOSYS,
        "architectures": [architecture],
        "syscalls": [
            _allow([*_ALLOWED, *extra]),
            _refuse(_REFUSED, errno.EPERM),
            *_namespace_rules(),
            *_socket_rules(),
            *_ioctl_rules(),
            *_rlimit_rules(),
            *([_allow(["setsockopt"])] if linger else _linger_rules()),
            *(_allow(["personality"], _equal(0, value)) for value in _PERSONALITIES),
        ],
    }


def machines() -> tuple[str, ...]:
    return tuple(_ARCHITECTURES)


def _namespace_rules() -> list[Rule]:
    # clone3's flags lie in memory, out of a filter's sight: ENOSYS makes every C library use clone instead
    unshare = _CLONE_NAMESPACES | _CLONE_NEWTIME
    return [
        _refuse(["clone3"], errno.ENOSYS),
        _allow(["clone"], _masked(0, _CLONE_NAMESPACES, 0)),
        _allow(["unshare"], _masked(0, unshare, 0)),
        *(_refuse(["unshare"], errno.EPERM, _masked(0, bit, bit)) for bit in _bits(unshare)),
    ]


def _socket_rules() -> list[Rule]:
    inet = [
        _allow(["socket"], _equal(0, family), _masked(1, _OTHER_TYPES, 0), _equal(2, protocol))
        for family in (_AF_INET, _AF_INET6)
        for protocol in _INET_PROTOCOLS
    ]
    return [
        _allow(["socket"], _equal(0, _AF_UNIX)),
        *inet,
        _allow(["socket"], _equal(0, _AF_NETLINK), _equal(2, _NETLINK_ROUTE)),
        # libaudit and others go on without a family or protocol that the kernel does not have
        _refuse(["socket"], errno.EPROTONOSUPPORT, _equal(0, _AF_NETLINK), _differs(2, _NETLINK_ROUTE)),
        _refuse(["socket"], errno.EAFNOSUPPORT, {"index": 0, "value": _AF_NETLINK, "op": "SCMP_CMP_GT"}),
        _allow(["socketpair"], _equal(0, _AF_UNIX)),
    ]


def _ioctl_rules() -> list[Rule]:
    """All but TIOCSTI: a command differs from it if any one of its 32 bits does."""
    return [_allow(["ioctl"], _masked(1, bit, ~_TIOCSTI & bit)) for bit in _bits(0xFFFFFFFF)]


def _linger_rules() -> list[Rule]:
    """Every option but SO_LINGER, which says that it worked. The close of a socket that lingers may last for hours, and
    who reads from a unix socket also closes the fds that come along unasked: before 6.16 a lying keeper could stop the
    server with one (since then a socket can refuse fds)."""
    return [
        *(_allow(["setsockopt"], _masked(1, bit, ~_SOL_SOCKET & bit)) for bit in _bits(0xFFFFFFFF)),
        *(_allow(["setsockopt"], _masked(2, bit, ~_SO_LINGER & bit)) for bit in _bits(0xFFFFFFFF)),
        _refuse(["setsockopt"], 0, _equal(1, _SOL_SOCKET), _equal(2, _SO_LINGER)),
    ]


def _rlimit_rules() -> list[Rule]:
    """A core limit of 1 byte is the only one with which the kernel never starts the host's core dump handler (0 still
    does), so it can't be changed from inside. The call says it worked: what it asks for, no dumps, is so already."""
    # resources are 0–15: one whose low four bits are not 4's is another one
    others = [(1, 1), (2, 2), (4, 0), (8, 8)]
    return [
        *(_allow(["setrlimit"], _masked(0, bit, value)) for bit, value in others),
        *(_allow(["prlimit64"], _masked(1, bit, value)) for bit, value in others),
        _refuse(["setrlimit"], 0, _equal(0, _RLIMIT_CORE)),
        _refuse(["prlimit64"], 0, _equal(1, _RLIMIT_CORE), _differs(2, 0)),
        _allow(["prlimit64"], _equal(1, _RLIMIT_CORE), _equal(2, 0)),
    ]


def _bits(mask: int) -> list[int]:
    return [1 << n for n in range(64) if mask >> n & 1]


def _allow(names: list[str], *args: Rule) -> Rule:
    return {"names": names, "action": "SCMP_ACT_ALLOW", **({"args": list(args)} if args else {})}


def _refuse(names: list[str], number: int, *args: Rule) -> Rule:
    rule = {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": number}
    return {**rule, **({"args": list(args)} if args else {})}


def _equal(index: int, value: int) -> Rule:
    return {"index": index, "value": value, "op": "SCMP_CMP_EQ"}


def _differs(index: int, value: int) -> Rule:
    return {"index": index, "value": value, "op": "SCMP_CMP_NE"}


def _masked(index: int, mask: int, value: int) -> Rule:
    return {"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}
