"""One run of the machine: QEMU by software emulation, its console passed on, the command's exit code read off it."""

import os
import re
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from disks import System


@dataclass(frozen=True)
class Disks:
    system: System
    project: Path
    state: Path | None


def boot(disks: Disks, nonce: str, memory: str, seconds: float) -> int:
    """The command's exit code. 124: out of time; 125: the machine ended without telling one."""
    process = subprocess.Popen(
        argv(disks, memory), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        return follow(process, nonce.encode(), time.monotonic() + seconds)
    finally:
        process.kill()
        process.wait()


def argv(disks: Disks, memory: str) -> list[str]:
    drives = [disks.system.root, disks.project, *([disks.state] if disks.state else [])]
    return [
        "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio",
        # Always emulated, also where /dev/kvm exists: nested guests hang there, and every host shall see the same.
        "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", str(min(os.cpu_count() or 1, 4)), "-m", memory,
        "-kernel", str(disks.system.kernel), "-initrd", str(disks.system.initramfs),
        "-append", "console=ttyS0 quiet loglevel=1 panic=-1 mitigations=off",
        # Disks are thrown away after the run: `snapshot` leaves the files as they are.
        *(part for path in drives for part in ("-drive", f"file={path},if=virtio,format=raw,snapshot=on,cache=unsafe")),
    ]  # fmt: skip


def follow(process: "subprocess.Popen[bytes]", nonce: bytes, deadline: float) -> int:
    marker = re.compile(rb"skerry-vm-exit " + re.escape(nonce) + rb" (\d{1,3})\r?\n")
    assert process.stdout is not None  # noqa: S101 - asked for with PIPE
    console, tail = process.stdout.fileno(), b""
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([console], [], [], left)[0]:
            break
        data = os.read(console, 1 << 16)
        if not data:
            return 125
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        tail = (tail + data)[-4096:]
        if found := marker.search(tail):
            return int(found[1])
    return 124
