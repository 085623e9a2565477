"""Changing mounts. Raw calls: the C library must not interfere."""

from __future__ import annotations

import ctypes
import errno
import os

from attack import FACTS, NUMBER, Refused, attack, call, first_gain, main

MOUNT, UMOUNT2, PIVOT_ROOT, UNSHARE = (NUMBER[name] for name in ("mount", "umount2", "pivot_root", "unshare"))
OPEN_TREE, MOVE_MOUNT, FSOPEN, FSCONFIG, FSMOUNT, FSPICK, MOUNT_SETATTR = 428, 429, 430, 431, 432, 433, 442
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
CLONE_NEWNS, OPEN_TREE_CLONE, AT_FDCWD = 0x20000, 1, -100


def mount(source: str, target: str, kind: str, flags: int = 0, data: str = "") -> object:
    return call(MOUNT, source.encode(), target.encode(), kind.encode(), flags, data.encode())


def place() -> str:
    path = f"{FACTS['scratch']}/place-{os.getpid()}"
    os.makedirs(path, exist_ok=True)
    return path


@attack("namespace")
def mount_a_tmpfs() -> object:
    return mount("none", place(), "tmpfs")


@attack("namespace")
def mount_proc_anew_without_its_masks() -> object:
    return mount("proc", place(), "proc")


@attack("namespace")
def mount_sysfs_anew_and_writable() -> object:
    return mount("sysfs", place(), "sysfs")


@attack(None)
def mount_a_cgroup_tree() -> object:
    return first_gain(
        lambda: mount("none", place(), "cgroup2"),
        lambda: mount("none", place(), "cgroup", 0, "memory"),
        lambda: mount("none", place(), "cgroup", 0, "rdma"),  # CVE-2022-0492
    )


@attack("namespace")
def mount_an_overlay() -> object:
    mount("none", place(), "tmpfs")
    for name in "luw":
        os.mkdir(f"{place()}/{name}")
    os.mkdir(f"{place()}/m")
    p = place()
    return mount("none", f"{p}/m", "overlay", 0, f"lowerdir={p}/l,upperdir={p}/u,workdir={p}/w")


@attack(None)
def mount_a_disk() -> object:
    ways = [(disk, kind) for disk in ("vda", "sda1", "nvme0n1p1") for kind in ("ext4", "xfs", "btrfs")]
    return first_gain(*(lambda way=way: mount(f"/dev/{way[0]}", place(), way[1]) for way in ways))


@attack("namespace")
def bind_a_file_over_another() -> object:
    return mount("/etc/passwd", "/etc/hostname", "none", MS_BIND)


@attack("namespace")
def bind_the_root_elsewhere() -> object:
    return mount("/", place(), "none", MS_BIND | MS_REC)


@attack(None)
def make_the_kernels_switches_writable() -> object:
    return first_gain(
        lambda: mount("none", "/proc/sys", "none", MS_REMOUNT | MS_BIND),
        lambda: mount("none", "/sys", "none", MS_REMOUNT | MS_BIND),
        lambda: mount("none", "/sys/fs/cgroup", "none", MS_REMOUNT | MS_BIND),
        lambda: mount("none", "/", "none", MS_REMOUNT | MS_BIND),  # without nosuid, nodev
    )


@attack("namespace")
def change_how_mounts_propagate() -> object:
    return mount("none", "/", "none", MS_REC | MS_PRIVATE)


@attack(None)
def unmount_a_mask() -> object:
    """A lazy umount of /proc/sys or /proc/kcore would expose the files below."""
    paths = "/proc/kcore /proc/sys /proc/keys /sys/firmware /dev/null /run/skerry/bin/skerry-keeper /proc"
    return first_gain(*(lambda path=path: call(UMOUNT2, path.encode(), 2) for path in paths.split()))


@attack("namespace")
def pivot_to_another_root() -> object:
    mount("none", place(), "tmpfs")
    os.mkdir(f"{place()}/old")
    return call(PIVOT_ROOT, place().encode(), f"{place()}/old".encode())


@attack("namespace")
def change_the_root() -> object:
    return os.chroot(place())


@attack("namespace")
def make_a_mount_namespace() -> object:
    return call(UNSHARE, CLONE_NEWNS)


@attack("namespace")
def clone_a_mount_into_an_fd() -> object:
    return call(OPEN_TREE, AT_FDCWD, b"/", OPEN_TREE_CLONE)


@attack("namespace")
def open_a_file_system_by_fd() -> object:
    return call(FSOPEN, b"tmpfs", 0)


@attack("namespace")
def pick_a_mounted_file_system() -> object:
    mount("none", place(), "tmpfs")
    return call(FSPICK, AT_FDCWD, place().encode(), 0)


@attack("namespace")
def move_a_mount() -> object:
    tree = call(OPEN_TREE, AT_FDCWD, b"/", OPEN_TREE_CLONE)
    return call(MOVE_MOUNT, tree, b"", AT_FDCWD, place().encode(), 4)


@attack("namespace")
def set_a_mounts_attributes() -> object:
    mount("none", place(), "tmpfs")
    attributes = (ctypes.c_uint64 * 4)(1, 0, 0, 0)  # read-only, which is the mildest
    return call(MOUNT_SETATTR, AT_FDCWD, place().encode(), 0, ctypes.byref(attributes), 32)


@attack(None)
def call_the_mount_api_without_a_mount() -> object:
    """Refused before the kernel looks at the arguments: EBADF or EFAULT would say that it had."""
    ways = [(MOVE_MOUNT, -1, b"", -1, b"", 4), (FSCONFIG, -1, 6, 0, 0, 0), (FSMOUNT, -1, 0, 0), (FSPICK, -1, b"x", 0)]
    reached = []
    for way in [*ways, (OPEN_TREE, -1, b"x", 0), (MOUNT_SETATTR, -1, b"x", 0, 0, 0)]:
        try:
            call(*way)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOSYS):
                reached.append((way[0], error.errno))
    if reached:
        return reached
    raise Refused("none")


@attack("namespace")
def rename_a_directory_that_is_mounted_on() -> object:
    if FACTS.get("inside"):
        return first_gain(*(lambda d=d: os.rename(d, f"{d}-moved") for d in ("/proc", "/sys", "/dev", "/run/skerry")))
    return os.rename(place(), f"{place()}-moved")  # the control: any other directory


@attack("namespace")
def remove_the_keepers_binary_from_its_place() -> object:
    if FACTS.get("inside"):
        return first_gain(
            lambda: os.unlink("/run/skerry/bin/skerry-keeper"),
            lambda: os.rename("/run/skerry/bin/skerry-keeper", "/run/skerry/bin/other"),
        )
    path = f"{place()}/file"
    with open(path, "w"):
        return os.unlink(path)


if __name__ == "__main__":
    main()
