"""A temporary room for a real keeper: PID, mount and IPC namespaces, a root, a v2 cgroup."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from skerry.keeper import Keeper, ProcessSpec, binary, build_id
from skerry.keeper.values import ExitStatus

WHOLE_ROOT = """
mount -t tmpfs tmpfs "$W" && mkdir "$W/u" "$W/w" "$W/r"
mount -t overlay overlay -o "lowerdir=/,upperdir=$W/u,workdir=$W/w" "$W/r"
mount -t tmpfs -o mode=755 tmpfs "$W/r/run" && mount -t tmpfs -o mode=1777 tmpfs "$W/r/tmp"
mkdir -p "$W/r/workspace" && chmod 777 "$W/r/workspace"
# What whoever owns this machine has a shell do first is slow, and may wait for another one.
rm -f "$W/r/root/.bashrc" "$W/r/root/.bash_profile" "$W/r/root/.bash_login" "$W/r/root/.profile"
"""
BARE_ROOT = """
mount -t tmpfs -o mode=755 tmpfs "$W" && mkdir "$W/r" "$W/r/run" "$W/r/proc" "$W/r/dev" "$W/r/workspace"
"""
ENTER = """
set -e
if [ -n "$G" ]; then echo $$ > "$G/cgroup.procs"; fi
%s
if [ -n "$P" ]; then mkdir -p "$W/r/var/lib/skerry" && mount --bind "$P" "$W/r/var/lib/skerry"; fi
mount -t proc proc "$W/r/proc" && mount --rbind /dev "$W/r/dev"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5,max=256 devpts "$W/r/dev/pts"
mkdir -p "$W/r/run/skerry/bin" && cp "$K" "$W/r/run/skerry/bin/skerry-keeper"
exec 3<&"$L" 4<&"$C" && eval "exec $L<&- $C<&-"
exec env -i PATH="$PATH" SKERRY_CGROUP_FD="$F" GOMAXPROCS=2 "$0" "$W/r" /run/skerry/bin/skerry-keeper init \\
    </dev/null >/dev/null 2>"$E"
"""
ENDS_IN_S = 60.0
UNSHARE = ("setpriv", "--pdeathsig", "KILL", "unshare", "--fork", "--pid", "--mount", "--ipc", "--kill-child")


def v2_mount() -> Path:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        if line.split()[2] == "cgroup2":
            return Path(line.split()[1])
    raise RuntimeError("no cgroup2 mount")


class Room:
    """Starts a keeper on entry; on exit nothing of it is left, or the test fails."""

    def __init__(self, directory: Path, *, group: bool = True, bare: bool = False, kept: Path | None = None) -> None:
        self.directory = directory
        self.kept = kept  # a directory of the host that is /var/lib/skerry inside, and outlives the room
        self.group = v2_mount() / f"skerry-test-{secrets.token_hex(4)}" if group else None
        self.address = directory / "k"
        self.keeper = Keeper(self.connect, build_id())
        self._root = BARE_ROOT if bare else WHOLE_ROOT
        self._child: subprocess.Popen[bytes] | None = None

    async def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            sock.connect(str(self.address))  # never waits: a unix socket is connected at once, or refused
        except BaseException:
            sock.close()
            raise
        return sock

    @property
    def inside(self) -> Path:
        """The keeper's root, as its mount namespace names it."""
        return self.directory / "w" / "r"

    @property
    def unshare(self) -> subprocess.Popen[bytes]:
        assert self._child is not None
        return self._child

    @property
    def pid(self) -> int:
        """The keeper's pid on the host."""
        return int(Path(f"/proc/{self.unshare.pid}/task/{self.unshare.pid}/children").read_text().split()[0])

    def open(self) -> None:
        keeper = str(binary())
        inside = self.directory / "w"
        inside.mkdir()
        if self.group:
            self.group.mkdir()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self.address))
        listener.listen(512)
        group = os.open(self.group or "/dev/null", os.O_RDONLY)
        environment = {
            "W": str(inside),
            "K": keeper,
            "L": str(listener.fileno()),
            "C": str(group),
            "G": str(self.group or ""),
            "F": "4" if self.group else "",
            "E": str(self.directory / "stderr"),
            "P": str(self.kept or ""),
            "PATH": os.environ["PATH"],
        }
        self._child = subprocess.Popen(
            [*UNSHARE, "bash", "-c", ENTER % self._root, "chroot"],
            env=environment,
            pass_fds=(listener.fileno(), group),
        )
        listener.close()
        os.close(group)

    def close(self) -> None:
        if self._child is not None and self._child.poll() is None:
            self._child.kill()
            self._child.wait(30)
        if self.group:
            self._remove_group(self.group)

    def _remove_group(self, group: Path) -> None:
        (group / "cgroup.kill").write_text("1")
        eventually_sync(lambda: "populated 0" in (group / "cgroup.events").read_text())
        for child in [*group.glob("*/"), group]:
            child.rmdir()

    async def __aenter__(self) -> Room:
        self.open()
        try:
            await self.configure()
        except BaseException:
            self.close()
            raise
        return self

    async def configure(self, user: str | None = None, **changes: object) -> None:
        settings = {"cwd": "/", "env": {}, "sudo": False, "life_s": None, "open_files": 1024, "user": user}
        await self.keeper.configure(**(settings | changes))  # type: ignore[arg-type]

    async def __aexit__(self, *_: object) -> None:
        await self.keeper.close()
        self.close()

    async def run(self, *argv: str, stdin: bytes | None = None, **more: object) -> tuple[ExitStatus, bytes, bytes]:
        """argv, or one shell line; returns how it ended, stdout, stderr."""
        stream = await self.keeper.start(spec(*argv, stdin="none" if stdin is None else "pipe", **more))
        output = {"stdout": bytearray(), "stderr": bytearray()}
        try:
            async with asyncio.timeout(ENDS_IN_S):
                if stdin is not None:
                    await stream.send_stdin(stdin)
                    await stream.close_stdin()
                async for kind, data in stream:
                    output[kind] += data
        except TimeoutError:
            raise AssertionError(f"{argv} did not end, after {output}; inside: {self.inside_now()}") from None
        return stream.exit, bytes(output["stdout"]), bytes(output["stderr"])

    def inside_now(self) -> list[str]:
        """Return the processes inside, and the wait channel of each."""
        found, room = [], os.readlink(f"/proc/{self.pid}/ns/pid")
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(process / "ns/pid") == room:
                    words = (process / "cmdline").read_bytes().replace(b"\0", b" ")[:80].decode(errors="replace")
                    found.append(f"{process.name} {words}: {(process / 'wchan').read_text()}")
        return found


def spec(*argv: str, **more: object) -> ProcessSpec:
    command = {"shell": argv[0]} if len(argv) == 1 and not argv[0].startswith("/") else {"argv": list(argv)}
    return ProcessSpec(id=f"p-{secrets.token_hex(5)}", **(command | more))  # type: ignore[arg-type]


async def eventually(check: Callable[[], bool], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not check():
            await asyncio.sleep(0.005)


def eventually_sync(check: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not check():
        assert time.monotonic() < end, "it did not happen in 30 s"
        time.sleep(0.005)
