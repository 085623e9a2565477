"""The host side of the world: holds the namespaces in which a server is started, and canaries on every address of such
a host. Run as `python -m world.hostside DIRECTORY`."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from world import places
from world.control import answer, end_with_the_parent


def _detach_others() -> None:
    """The namespace began with copies of the mounts of every server on this machine, which would outlive them here."""
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        target = line.split()[1]
        if target.startswith(("/run/skerry/", "/var/lib/skerry")):
            subprocess.run(["umount", "--lazy", target], check=False, stderr=subprocess.DEVNULL)


def _replace(home: Path) -> None:
    for name, target in (
        ("resolv.conf", "/etc/resolv.conf"),
        ("hosts", "/etc/hosts"),
        ("bundle.pem", "/etc/ssl/certs/ca-certificates.crt"),
    ):
        subprocess.run(["mount", "--bind", str(home / name), str(Path(target).resolve())], check=True)


async def main(home: Path) -> None:
    seen: Counter[str] = Counter()

    async def touched(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = writer.get_extra_info("sockname")
        seen[f"{name[0].removeprefix('::ffff:')}:{name[1]}" if isinstance(name, tuple) else "abstract socket"] += 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\ncanary")
        writer.close()

    for port in places.HOST_CANARY_PORTS:
        await asyncio.start_server(touched, None, port, backlog=1024)
    await asyncio.start_unix_server(touched, f"\0{places.ABSTRACT}")
    await answer(home / "host.sock", {"seen": lambda: dict(seen), "reset": seen.clear})


if __name__ == "__main__":
    end_with_the_parent(signal.SIGINT)
    _detach_others()
    _replace(Path(sys.argv[1]))
    asyncio.run(main(Path(sys.argv[1])))
