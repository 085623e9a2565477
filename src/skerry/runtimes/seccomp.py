"""System calls that a sandbox may make: an allow-list as the `seccomp` object of an OCI spec.

Unlisted calls return ENOSYS, so that a C library newer than the list falls back to an older call. Well-known calls that
are denied on purpose return EPERM. One architecture only: every other ABI of the same CPU (i386, x32, …) kills the
caller, and each further architecture would add 10 ms to a start.

Arguments are compared as 64 bits while the kernel uses only 32 of most: rules here therefore *allow* by equality, and
never deny by it (CVE-2019-7303), or mask the upper 32 bits.
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
# TCP, UDP and ping; others (SCTP, DCCP, SMC, L2TP …) would make the host load a module on request
_INET_PROTOCOLS: Final = (0, 1, 6, 17, 58)
# Types are 4 bits: stream, datagram and raw are 1 to 3. DCCP matches type 6 and protocol 0 (CVE-2017-6074).
_OTHER_TYPES: Final = 0xC
_NETLINK_ROUTE: Final = 0
# Linux, the query, uname26 and 32-bit names, and no address randomisation (gdb)
_PERSONALITIES: Final = (0x0, 0x8, 0x20000, 0x20008, 0x40000, 0xFFFFFFFF)
_TIOCSTI: Final = 0x5412
_FILE_CLONES: Final = (0x40049409, 0x4020940D, 0xC0189436)  # FICLONE, FICLONERANGE, FIDEDUPERANGE
_SO_LINGER: Final = 13
_RLIMIT_CORE: Final = 4
_32_BITS: Final = 0xFFFFFFFF

# Socket options that take kernel memory which no memory cgroup counts, by level: option → errno; 0: the call returns
# success and does nothing. Every other option of these levels below 128 is allowed.
_SOL_SOCKET, _IPPROTO_IP, _IPPROTO_TCP, _IPPROTO_IPV6 = 1, 0, 6, 41
_DENIED_OPTIONS: Final[dict[int, dict[int, int]]] = {
    _SOL_SOCKET: {
        # The queues of netlink sockets and of connections that are not accepted yet are limited by this size only.
        # 0: programs take it as a hint, which the kernel also shortens silently.
        8: 0,  # SO_RCVBUF
        # SO_ATTACH_FILTER, _BPF, _REUSEPORT_CBPF and _REUSEPORT_EBPF make machine code, and net.core.bpf_jit_limit is
        # one number for the whole host.
        **dict.fromkeys((26, 50, 51, 52), errno.ENOPROTOOPT),
        # Error queues
        **dict.fromkeys((37, 65), errno.ENOPROTOOPT),  # SO_TIMESTAMPING
        60: errno.EOPNOTSUPP,  # SO_ZEROCOPY
    },
    # 0: the resolver of glibc sets it and fails otherwise; errors of a connected socket arrive without it
    _IPPROTO_IP: {11: 0, 26: errno.ENOPROTOOPT},  # IP_RECVERR, IP_RECVERR_RFC4884
    _IPPROTO_IPV6: {
        25: 0,  # IPV6_RECVERR
        31: errno.ENOPROTOOPT,  # IPV6_RECVERR_RFC4884
        6: errno.ENOPROTOOPT,  # IPV6_2292PKTOPTIONS keeps 64 KB
        32: errno.ENOPROTOOPT,  # IPV6_FLOWLABEL_MGR: the host has 4096 labels in total
        # Groups are limited for IPv4 only
        **dict.fromkeys((20, 27, 42, 46, 48), errno.ENODEV),  # IPV6_JOIN_GROUP, _JOIN_ANYCAST, MCAST_JOIN_*, _MSFILTER
    },
    # Keys and contexts of each socket: TCP_MD5SIG, TCP_ULP (TLS in the kernel), TCP_MD5SIG_EXT, TCP_AO_ADD_KEY
    _IPPROTO_TCP: dict.fromkeys((14, 31, 32, 38), errno.ENOPROTOOPT),
}
# UDP, ICMPv6, RAW, NETLINK, TLS
_OPEN_LEVELS: Final = (17, 58, 255, 270, 282)
_OPTION_BITS: Final = 7

# Linux AIO (io_setup …) is left out: fs.aio-max-nr is one number for the whole host, and one sandbox could use it up.
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

# Listed so that the error is "not permitted"; other missing calls return "not implemented".
_DENIED_CALLS: Final = _names("""
acct add_key bpf chroot clock_adjtime clock_settime delete_module fanotify_init finit_module fsconfig fsmount fsopen
fspick init_module io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load keyctl
lookup_dcookie mount mount_setattr move_mount open_by_handle_at open_tree perf_event_open pidfd_getfd pivot_root
process_vm_readv process_vm_writev quotactl quotactl_fd reboot request_key setdomainname sethostname setns
settimeofday swapoff swapon syslog umount2 userfaultfd vhangup
""")


def profile(machine: str, *, linger: bool = True) -> dict[str, Any]:
    """Return the profile for an `os.uname().machine`; KeyError for an unsupported machine. linger: whether SO_LINGER
    may be set, see `_option_rules`."""
    architecture, extra = _ARCHITECTURES[machine]
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.ENOSYS,
        "architectures": [architecture],
        "syscalls": [
            _allow([*_ALLOWED, *extra]),
            _return_errno(_DENIED_CALLS, errno.EPERM),
            *_namespace_rules(),
            *_socket_rules(),
            *_ioctl_rules(),
            *_rlimit_rules(),
            *_option_rules(linger=linger),
            *(_allow(["personality"], _equal(0, value)) for value in _PERSONALITIES),
        ],
    }


def machines() -> tuple[str, ...]:
    return tuple(_ARCHITECTURES)


def _namespace_rules() -> list[Rule]:
    # clone3's flags are in memory, which a filter cannot read: ENOSYS makes every C library use clone instead
    unshare = _CLONE_NAMESPACES | _CLONE_NEWTIME
    return [
        _return_errno(["clone3"], errno.ENOSYS),
        _allow(["clone"], _masked(0, _CLONE_NAMESPACES, 0)),
        _allow(["unshare"], _masked(0, unshare, 0)),
        *(_return_errno(["unshare"], errno.EPERM, _masked(0, bit, bit)) for bit in _bits(unshare)),
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
        # libaudit and others continue without a family or protocol that the kernel lacks
        _return_errno(["socket"], errno.EPROTONOSUPPORT, _equal(0, _AF_NETLINK), _differs(2, _NETLINK_ROUTE)),
        _return_errno(["socket"], errno.EAFNOSUPPORT, {"index": 0, "value": _AF_NETLINK, "op": "SCMP_CMP_GT"}),
        _allow(["socketpair"], _equal(0, _AF_UNIX)),
    ]


def _ioctl_rules() -> list[Rule]:
    """Deny TIOCSTI and the commands of btrfs, and allow every other command. On a volume, any user could create btrfs
    subvolumes, and they have no limit; the commands that copy file ranges are allowed, which other file systems have
    too. A command of TIOCSTI's group is allowed if any other bit differs from TIOCSTI."""
    type_, btrfs, terminal = 0xFF << 8, 0x94, _TIOCSTI >> 8
    others = [_masked(1, mask & 0xFF << 8, value) for mask, value in _shifted(_complement({btrfs, terminal}, free=8))]
    rest = _bits(_32_BITS & ~type_)
    return [
        *(_allow(["ioctl"], other) for other in others),
        *(_allow(["ioctl"], _masked(1, type_ | bit, terminal << 8 | (~_TIOCSTI & bit))) for bit in rest),
        *(_allow(["ioctl"], _masked(1, _32_BITS, command)) for command in _FILE_CLONES),
    ]


def _shifted(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(mask << 8, value << 8) for mask, value in pairs]


def _option_rules(*, linger: bool) -> list[Rule]:
    """Allow every socket option but `_DENIED_OPTIONS`, and SO_LINGER unless `linger`. Closing a lingering socket may
    take hours, and a reader of a unix socket also closes unrequested fds: before Linux 6.16 a misbehaving keeper could
    stop the server with one (since then a socket can refuse fds)."""
    rules = [_allow(["setsockopt"], _masked(1, _32_BITS, level)) for level in _OPEN_LEVELS]
    for level, options in _DENIED_OPTIONS.items():
        denied = options if linger or level != _SOL_SOCKET else {**options, _SO_LINGER: 0}
        at = _masked(1, _32_BITS, level)
        rules += [_allow(["setsockopt"], at, _masked(2, mask, value)) for mask, value in _complement(set(denied))]
        rules += [
            _return_errno(["setsockopt"], code, at, _masked(2, _32_BITS, option)) for option, code in denied.items()
        ]
    return rules


def _complement(denied: set[int], prefix: int = 0, free: int = _OPTION_BITS) -> list[tuple[int, int]]:
    """Return masks and values that match every number below 128 that is not denied, and no other. Only the
    low 32 bits are compared, as the kernel does: higher bits do not make a different option."""
    if not any(number >> free == prefix for number in denied):
        return [(_32_BITS & ~((1 << free) - 1), prefix << free)]
    if free == 0:
        return []
    return [pair for bit in (0, 1) for pair in _complement(denied, prefix << 1 | bit, free - 1)]


def _rlimit_rules() -> list[Rule]:
    """A core limit of 1 byte is the only one with which the kernel never starts the host's core dump handler (0 still
    does), so a sandbox cannot change it. The call returns success: the requested effect, no dumps, is already in place.
    """
    # resources are 0–15: a resource with other low four bits than 4 is another one
    others = [(1, 1), (2, 2), (4, 0), (8, 8)]
    return [
        *(_allow(["setrlimit"], _masked(0, bit, value)) for bit, value in others),
        *(_allow(["prlimit64"], _masked(1, bit, value)) for bit, value in others),
        _return_errno(["setrlimit"], 0, _equal(0, _RLIMIT_CORE)),
        _return_errno(["prlimit64"], 0, _equal(1, _RLIMIT_CORE), _differs(2, 0)),
        _allow(["prlimit64"], _equal(1, _RLIMIT_CORE), _equal(2, 0)),
    ]


def _bits(mask: int) -> list[int]:
    return [1 << n for n in range(64) if mask >> n & 1]


def _allow(names: list[str], *args: Rule) -> Rule:
    return {"names": names, "action": "SCMP_ACT_ALLOW", **({"args": list(args)} if args else {})}


def _return_errno(names: list[str], number: int, *args: Rule) -> Rule:
    """Return this errno instead of making the call; 0: report success and do nothing."""
    rule = {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": number}
    return {**rule, **({"args": list(args)} if args else {})}


def _equal(index: int, value: int) -> Rule:
    return {"index": index, "value": value, "op": "SCMP_CMP_EQ"}


def _differs(index: int, value: int) -> Rule:
    return {"index": index, "value": value, "op": "SCMP_CMP_NE"}


def _masked(index: int, mask: int, value: int) -> Rule:
    return {"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}
