"""Changing kernel settings, and reading data that is only for the host's root. Files are opened for writing and
not written to: the permission is the gain, and on the host, where these attacks succeed, nothing changes."""

from __future__ import annotations

import errno
import glob
import itertools
import os
import stat

from attack import Refused, attack, first_gain, main

NULL = os.makedev(1, 3)


def writable(path: str) -> str:
    """Return its path if it can be opened for writing. A masked file is /dev/null, which every user may write to."""
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        if os.fstat(fd).st_rdev == NULL:
            raise Refused("masked")
    finally:
        os.close(fd)
    return path


def readable(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not (text := os.read(fd, 64)):
            raise Refused("empty")
    finally:
        os.close(fd)
    return text


def all_writable(top: str, skip: tuple[str, ...] = ()) -> object:
    found = []
    for where, folders, files in os.walk(top):
        folders[:] = [name for name in folders if not name.isdigit() and f"{where}/{name}" not in skip]
        for name in files:
            try:
                if stat.S_ISREG(os.lstat(f"{where}/{name}").st_mode):
                    found.append(writable(f"{where}/{name}"))
            except (OSError, Refused):
                continue
    if not found:
        raise Refused("none")
    return found


@attack("host")
def write_to_any_switch_below_proc_sys() -> object:
    return all_writable("/proc/sys")


@attack(None)
def write_to_any_other_file_below_proc() -> object:
    return all_writable("/proc", ("/proc/sys", "/proc/self", "/proc/thread-self"))


@attack(None)
def write_to_any_file_below_sys() -> object:
    return all_writable("/sys")


@attack("host")
def change_what_happens_on_a_crash() -> object:
    return writable("/proc/sys/kernel/core_pattern")


@attack(None)
def change_the_module_loader() -> object:
    return first_gain(lambda: writable("/proc/sys/kernel/modprobe"), lambda: writable("/proc/sys/kernel/hotplug"))


@attack(None)
def press_a_magic_key() -> object:
    return first_gain(lambda: writable("/proc/sysrq-trigger"), lambda: writable("/proc/sys/kernel/sysrq"))


@attack("host")
def register_an_interpreter() -> object:
    return first_gain(
        lambda: writable("/proc/sys/fs/binfmt_misc/register"), lambda: writable("/proc/sys/fs/suid_dumpable")
    )


@attack("host")
def change_the_hostname_by_a_switch() -> object:
    return writable("/proc/sys/kernel/hostname")


@attack("host")
def open_ports_to_forwarding() -> object:
    return writable("/proc/sys/net/ipv4/ip_forward")


@attack("host")
def name_a_program_for_device_events() -> object:
    paths = ["/sys/kernel/uevent_helper", *glob.glob("/sys/class/*/*/uevent")]
    return first_gain(*(lambda path=path: writable(path) for path in paths))


@attack("host")
def raise_ones_own_limits_in_a_cgroup() -> object:
    files = ("memory.limit_in_bytes", "memory.max", "pids.max", "cgroup.procs")
    paths = [path for name in files for path in glob.glob(f"/sys/fs/cgroup/**/{name}", recursive=True)]
    return first_gain(*(lambda path=path: writable(path) for path in paths))


@attack("host")
def name_a_release_agent() -> object:
    """CVE-2022-0492: a v1 hierarchy's release_agent is run by the host as its root."""
    paths = glob.glob("/sys/fs/cgroup/*/release_agent")
    paths += glob.glob("/sys/fs/cgroup/**/notify_on_release", recursive=True)
    return first_gain(*(lambda path=path: writable(path) for path in paths))


@attack("host")
def see_the_hosts_cgroups() -> object:
    """In its cgroup namespace the cgroup of the sandbox is the root, and names nothing above or beside it."""
    with open("/proc/self/cgroup") as file:
        told = [line for line in file if not line.rstrip().endswith((":/", ":/c1")) and "skerry" in line]
    if not told and not os.path.exists("/sys/fs/cgroup/skerry") and not glob.glob("/sys/fs/cgroup/*/skerry"):
        raise Refused("its own only")
    return told or "seen"


@attack("host")
def read_the_kernels_command_line() -> object:
    return readable("/proc/cmdline")


@attack(None)
def read_the_kernels_memory() -> object:
    return first_gain(lambda: readable("/proc/kcore"), lambda: readable("/dev/mem"))


@attack("host")
def read_the_kernels_log() -> object:
    return first_gain(lambda: readable("/dev/kmsg"), lambda: readable("/proc/kmsg"))


@attack("host")
def read_the_keys_of_the_host() -> object:
    return first_gain(lambda: readable("/proc/keys"), lambda: readable("/proc/key-users"))


@attack("host")
def read_where_the_kernel_lies() -> object:
    def addresses(path: str) -> object:
        with open(path) as file:
            lines = list(itertools.islice(file, 200))
        if not (found := [line for line in lines if line.split()[0].strip("0-") and "-" not in line.split()[0]]):
            raise Refused("zeros")
        return found[:3]

    def sections() -> object:
        for path in glob.glob("/sys/module/*/sections/.text"):
            if readable(path).strip() not in (b"", b"0x0000000000000000"):
                return path
        raise Refused("none")

    return first_gain(lambda: addresses("/proc/kallsyms"), sections, lambda: readable("/sys/kernel/vmcoreinfo"))


@attack("host")
def read_what_only_the_hosts_root_may() -> object:
    names = "slabinfo vmallocinfo pagetypeinfo timer_list sched_debug latency_stats kpagecount kpageflags kpagecgroup"
    return first_gain(*(lambda name=name: readable(f"/proc/{name}") for name in names.split()))


@attack("host")
def read_physical_addresses() -> object:
    def frame() -> object:
        with open("/proc/self/pagemap", "rb") as file:
            file.seek(id(frame) // os.sysconf("SC_PAGE_SIZE") * 8)
            if not int.from_bytes(file.read(8), "little") & ((1 << 55) - 1):
                raise Refused("hidden")
        return "a page frame number"

    def ranges() -> object:
        with open("/proc/iomem") as file:
            if not [line for line in file if line.split("-")[0].strip().strip("0")]:
                raise Refused("zeros")
        return "iomem"

    return first_gain(frame, ranges)


@attack(None)
def read_the_firmwares_tables() -> object:
    paths = [*glob.glob("/sys/firmware/*/*"), *glob.glob("/sys/firmware/**/tables/*", recursive=True)]
    return first_gain(*(lambda path=path: (os.listdir if os.path.isdir(path) else readable)(path) for path in paths))


@attack(None)
def list_the_kernels_modules() -> object:
    if os.path.exists("/proc/modules") and os.stat("/proc/modules").st_rdev != NULL:
        return "the list"
    with open("/proc/modules") as file:
        if not (text := file.read()):
            raise Refused("empty")
    return text


@attack(None)
def make_oneself_safe_from_the_oom_killer() -> object:
    """The gain is a score lower than that of the keeper."""
    with open("/proc/1/oom_score_adj") as file:
        keeper = int(file.read())
    reached = []
    for score in (-1000, -500, -1, keeper - 1):
        try:
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write(str(score))
            reached.append(score)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM):
                raise
    if reached:
        return reached
    raise Refused("none")


@attack(None, by=("user",))  # root inside may end its own sandbox
def make_the_first_process_the_oom_killers_choice() -> object:
    with open("/proc/1/oom_score_adj", "w") as file:
        file.write("1000")
    return "1000"


@attack(None)
def rewrite_ones_own_id_map() -> object:
    def write(name: str, text: str) -> object:
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
        return text

    return first_gain(
        lambda: write("uid_map", "0 0 1\n"), lambda: write("gid_map", "0 0 1\n"), lambda: write("setgroups", "deny\n")
    )


if __name__ == "__main__":
    main()
