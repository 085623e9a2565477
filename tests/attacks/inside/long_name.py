"""A process with a very long command line, as read by the host, at no cost: since 3.18 a process
may set the start and the end of its arguments, and unwritten memory reads as zeros. Prints "long" and waits."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys

PR_SET_MM, PR_SET_MM_MAP = 35, 14
LENGTH = int(sys.argv[1]) << 30
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p


def main() -> None:
    with open("/proc/self/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    code, data, stack = [int(fields[n]) for n in (23, 24)], [int(fields[n]) for n in (42, 43)], int(fields[25])
    heap = int(fields[44])
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # no reserve
    room = libc.mmap(None, ctypes.c_size_t(LENGTH), mmap.PROT_READ, kind, -1, 0)
    if room in (None, ctypes.c_void_p(-1).value):
        sys.exit("no address space")
    # start_code … start_brk, brk, start_stack, arg_start, arg_end, env_start, env_end, auxv, auxv_size, exe_fd
    words = [*code, *data, heap, heap, stack, room, room + LENGTH, room + LENGTH, room + LENGTH, 0]
    layout = struct.pack("=12QII", *words, 0, 0xFFFFFFFF)
    if libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.create_string_buffer(layout), len(layout), 0) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
    with open("/proc/self/cmdline", "rb") as file:
        assert file.read(1 << 20) == bytes(1 << 20)
    print("long", flush=True)  # noqa: T201
    sys.stdin.read()


if __name__ == "__main__":
    main()
