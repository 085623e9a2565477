"""Reaching for devices."""

from __future__ import annotations

import errno
import os
import stat

from attack import FACTS, Refused, attack, first_gain, main

NODES = {
    "mem": (stat.S_IFCHR, 1, 1), "kmsg": (stat.S_IFCHR, 1, 11), "null": (stat.S_IFCHR, 1, 3),
    "tty": (stat.S_IFCHR, 4, 64), "loop": (stat.S_IFBLK, 7, 0), "disk": (stat.S_IFBLK, 8, 0),
    "vda": (stat.S_IFBLK, 254, 0), "misc": (stat.S_IFCHR, 10, 1), "tun": (stat.S_IFCHR, 10, 200),
    "fuse": (stat.S_IFCHR, 10, 229), "kvm": (stat.S_IFCHR, 10, 232), "loop-control": (stat.S_IFCHR, 10, 237),
    "root": (stat.S_IFBLK, FACTS["root_major"], FACTS["root_minor"]),
}  # fmt: skip
# memory: null, zero, full, random, urandom; tty, ptmx; pts
HARMLESS = {(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2)}
PTS = range(136, 144)


def make(where: str) -> object:
    made = []
    failure = OSError(errno.EPERM, "")
    for name, (kind, major, minor) in NODES.items():
        path = f"{where}/node-{os.getpid()}-{name}"
        try:
            os.mknod(path, kind | 0o600, os.makedev(major, minor))
        except OSError as error:
            failure = error
            continue
        made.append(name)
        os.unlink(path)
    if not made:
        raise failure
    return made


@attack("host")
def make_a_device_in_a_directory() -> object:
    return make("/tmp")


@attack("host")
def make_a_device_in_dev() -> object:
    return make("/dev")


@attack("host")
def make_a_device_in_shared_memory() -> object:
    return make("/dev/shm")


@attack("host")
def make_a_whiteout_by_hand() -> object:
    """A character device 0:0 needs no right since 5.8; in an overlay's upper it would hide a layer's file."""
    path = f"/tmp/whiteout-{os.getpid()}"
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(0, 0))
    os.unlink(path)
    return path


def devices(top: str) -> list[str]:
    found = []
    for where, _, files in os.walk(top):
        for name in files:
            about = os.lstat(f"{where}/{name}")
            number = (os.major(about.st_rdev), os.minor(about.st_rdev))
            if stat.S_ISBLK(about.st_mode) or (
                stat.S_ISCHR(about.st_mode) and number not in HARMLESS and number[0] not in PTS
            ):
                found.append(f"{where}/{name}")
    return found


@attack("host")
def find_a_device_beyond_the_harmless_ones() -> object:
    if not (found := devices("/dev")):
        raise Refused("none")
    return found


@attack(None)
def find_a_device_in_the_image() -> object:
    if not (found := [path for top in ("/etc", "/var", "/root", "/home", "/opt", "/tmp") for path in devices(top)]):
        raise Refused("none")
    return found


@attack("host")
def open_a_well_known_device() -> object:
    names = """
        mem kmem port kmsg kvm fuse loop-control loop0 net/tun vhost-net vhost-vsock vsock vfio/vfio uinput
        dri/card0 snapshot userfaultfd btrfs-control mapper/control hpet nvram cpu_dma_latency rtc0 watchdog
        vda sda nvme0n1 console tty0 tty1 ttyS0 input/event0 kfd cuse ppp bus/usb/001/001 hwrng tpm0 sgx_enclave"""
    flags = os.O_RDWR | os.O_NONBLOCK
    return first_gain(*(lambda name=name: os.open(f"/dev/{name}", flags) for name in names.split()))


@attack("host")
def change_the_mode_of_the_hosts_null_device() -> object:
    os.chmod("/dev/null", 0o666)  # its current value: the permission is the gain
    return "/dev/null"


@attack("host")
def give_the_hosts_null_device_away() -> object:
    about = os.stat("/dev/null")
    os.chown("/dev/null", 0 if about.st_uid == 65534 else about.st_uid, -1)
    return "/dev/null"


if __name__ == "__main__":
    main()
