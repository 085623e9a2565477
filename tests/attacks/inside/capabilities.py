"""Becoming more than one is: by capabilities, setuid files, ids."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
import sys

from attack import Refused, attack, call, first_gain, libc, main

PR_SET_KEEPCAPS, PR_CAPBSET_DROP, PR_SET_SECUREBITS, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 8, 24, 28, 38, 47
PR_SET_SECCOMP, PR_CAP_AMBIENT_RAISE = 22, 2
V3 = 0x20080522


def held(kind: str = "CapEff", pid: str = "self") -> int:
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1], 16) for line in file if line.startswith(kind))


def more_than(before: int) -> object:
    if not (gained := held() & ~before):
        raise Refused("none")
    return hex(gained)


def capset(effective: int, permitted: int, inheritable: int) -> None:
    header = ctypes.create_string_buffer(struct.pack("=Ii", V3, 0))
    words = [part >> shift & 0xFFFFFFFF for shift in (0, 32) for part in (effective, permitted, inheritable)]
    number = {"x86_64": 126, "aarch64": 91}[os.uname().machine]
    call(number, header, ctypes.create_string_buffer(struct.pack("=6I", *words)))


@attack(None)
def raise_all_capabilities() -> object:
    before = held()
    capset((1 << 40) - 1, (1 << 40) - 1, 0)
    return more_than(before)


@attack(None)
def inherit_a_capability_that_is_not_permitted() -> object:
    before = held()
    capset(before, held("CapPrm"), (1 << 21) | held("CapInh"))
    return more_than(before) if held("CapInh") & (1 << 21) else None


@attack(None)
def raise_an_ambient_capability() -> object:
    permitted = held("CapPrm")
    for capability in (number for number in range(41) if not permitted >> number & 1):
        if libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0) == 0:
            return capability
    raise OSError(ctypes.get_errno(), "prctl")


@attack(None)
def take_back_the_promise_of_no_new_privileges() -> object:
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    return "taken back"


@attack(None)
def leave_the_filter_of_system_calls() -> object:
    if libc.prctl(PR_SET_SECCOMP, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    return "left"


@attack("namespace")
def set_secure_bits() -> object:
    if libc.prctl(PR_SET_SECUREBITS, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if not held() >> 8 & 1:  # this needs SETPCAP; root inside has it, and gains nothing by it
        return "set"
    return more_than(held()) if os.path.exists("/run/skerry/bin") else "set"


@attack(None)
def become_root_by_calling_setuid() -> object:
    if os.getuid() == 0:
        raise Refused("is root inside already")
    ways = (lambda: os.setuid(0), lambda: os.setresuid(0, 0, 0), lambda: os.setgid(0), lambda: os.setgroups([0]))
    return first_gain(*ways)


@attack(None)
def become_an_id_outside_the_sandboxs_range() -> object:
    """65536 is how the host's own root is written on a sandbox's disk; it must not be an id inside."""
    ways = (65536, 65537, 100000, 0x70000000, 0xFFFFFFFE)
    return first_gain(*(lambda n=n: os.setuid(n) for n in ways), *(lambda n=n: os.setgid(n) for n in ways))


@attack(None)
def give_a_file_to_an_id_outside_the_sandboxs_range() -> object:
    path = f"/tmp/given-{os.getpid()}"
    with open(path, "w"):
        return first_gain(*(lambda n=n: os.chown(path, n, n) for n in (65536, 65537, 100000, 0xFFFFFFFE)))


def planted(mode: int) -> str:
    """A Python of root's own, made setuid by root inside beforehand (the test does that)."""
    path = f"/opt/planted-{mode:o}"
    if not os.path.exists(path):
        raise Refused("not planted")
    return path


def ids_of(path: str) -> object:
    code = "import os; print(os.getresuid(), os.getresgid(), open('/proc/self/status').read())"
    text = subprocess.run([path, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    effective = next(int(line.split()[1], 16) for line in text.splitlines() if line.startswith("CapEff"))
    expected = f"{os.getresuid()} {os.getresgid()}"
    if text.startswith(expected) and not effective & ~held():
        raise Refused("the same as before")
    return text.splitlines()[0], hex(effective)


@attack(None)
def run_a_setuid_file_of_root() -> object:
    return ids_of(planted(0o4755))


@attack(None)
def run_a_setgid_file_of_root() -> object:
    return ids_of(planted(0o2755))


@attack(None)
def run_a_file_with_capabilities() -> object:
    return ids_of(planted(0o755))


@attack(None)
def run_a_setuid_file_from_shared_memory() -> object:
    path = f"/dev/shm/planted-{os.getpid()}"
    shutil.copy(sys.executable, path)
    os.chmod(path, 0o6755)
    try:
        return ids_of(path)
    finally:
        os.unlink(path)


@attack(None)
def use_the_images_own_su() -> object:
    if os.getuid() == 0:
        raise Refused("is root inside already")
    done = subprocess.run(["su", "-c", "id -u"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.stdout.strip() != "0":
        raise Refused(done.stderr.strip()[-60:] or str(done.returncode))
    return done.stdout


@attack("host")
def own_a_user_namespace_with_every_capability() -> object:
    number = {"x86_64": 272, "aarch64": 97}[os.uname().machine]
    call(number, 0x10000000)
    return hex(held())


if __name__ == "__main__":
    main()
