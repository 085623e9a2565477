"""A tiny initial RAM disk: busybox, the modules that the root disk needs, and an init of a few lines."""

import gzip
import io
import os
import stat
from pathlib import Path

# The cloud kernel has these as modules; without them it can't reach its own root disk.
MODULES = ("virtio_pci", "virtio_blk", "ext4")

INIT = """#!/bin/busybox sh
set -e
/bin/busybox mount -t devtmpfs dev /dev
for module in {modules}; do /bin/busybox insmod "/modules/$module"; done
tries=0
until [ -b /dev/vda ]; do
    tries=$((tries + 1)); [ "$tries" -lt 100 ]
    /bin/busybox sleep 0.1
done
/bin/busybox mount -t ext4 /dev/vda /root
exec /bin/busybox switch_root /root /sbin/vm-init
"""


def build(modules_dir: Path, busybox: Path) -> bytes:
    """`modules_dir` is /lib/modules/<version> of the guest, after depmod."""
    files = load_order(modules_dir)
    archive = Archive()
    for name in ("bin", "dev", "modules", "root"):
        archive.directory(name)
    # The kernel opens /dev/console for PID 1 before devtmpfs is there; without the node init would run deaf and dumb.
    archive.device("dev/console", os.makedev(5, 1))
    archive.file("bin/busybox", busybox.read_bytes(), 0o755)
    for path in files:
        archive.file(f"modules/{path.name}", path.read_bytes(), 0o644)
    archive.file("init", INIT.format(modules=" ".join(path.name for path in files)).encode(), 0o755)
    return gzip.compress(archive.finish(), compresslevel=1)


def load_order(modules_dir: Path) -> list[Path]:
    """Return the modules and all their dependencies, each after its own dependencies. Built-in modules have no file."""
    needs: dict[str, list[str]] = {}
    for line in (modules_dir / "modules.dep").read_text().splitlines():
        path, _, rest = line.partition(":")
        needs[path] = rest.split()
    by_name = {Path(path).name.split(".")[0].replace("-", "_"): path for path in needs}
    order: list[str] = []
    for module in MODULES:
        if found := by_name.get(module):
            # modules.dep lists the nearest need first: load from the far end.
            order += [need for need in (*reversed(needs[found]), found) if need not in order]
    return [modules_dir / path for path in order]


class Archive:
    """A cpio archive in the `newc` format, the only one that the kernel unpacks."""

    def __init__(self) -> None:
        self._out = io.BytesIO()
        self._inode = 0

    def directory(self, name: str) -> None:
        self._add(name, stat.S_IFDIR | 0o755, b"")

    def file(self, name: str, data: bytes, mode: int) -> None:
        self._add(name, stat.S_IFREG | mode, data)

    def device(self, name: str, number: int) -> None:
        self._add(name, stat.S_IFCHR | 0o600, b"", number)

    def finish(self) -> bytes:
        self._add("TRAILER!!!", 0, b"")
        return self._out.getvalue()

    def _add(self, name: str, mode: int, data: bytes, device: int = 0) -> None:
        self._inode += 1
        links = 2 if stat.S_ISDIR(mode) else 1
        # inode, mode, uid, gid, links, mtime, size, archive's device (2), node's device (2), name's size, checksum
        fields = (
            self._inode, mode, 0, 0, links, 0, len(data), 0, 0, os.major(device), os.minor(device), len(name) + 1, 0,
        )  # fmt: skip
        self._out.write(b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0")
        self._pad()
        self._out.write(data)
        self._pad()

    def _pad(self) -> None:
        self._out.write(b"\0" * (-self._out.tell() % 4))
