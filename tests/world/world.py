"""The tests' world: made once; tests ask it which traffic reached it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from support.server import wait_until

from world import certificates, goods, places
from world.control import Remote

TESTS = Path(__file__).parent.parent
BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")


class World:
    """`with World() as world:`. `world.inside`: the prefix of a command that is to run on the host side."""

    def __enter__(self) -> World:
        with contextlib.ExitStack() as stack:
            self.home = Path(tempfile.mkdtemp(prefix="skerry-world-"))
            stack.callback(shutil.rmtree, self.home)
            self._make_files()
            self._far = self._start("far", stack)
            self._host = self._start("host", stack)
            self._join()
            for process in (self._far, self._host):
                assert process.stdin is not None
                process.stdin.close()  # go on: the devices exist
            self.far, self.host = (stack.enter_context(contextlib.closing(self._remote(n))) for n in ("far", "host"))
            self.reset()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    @property
    def inside(self) -> tuple[str, ...]:
        return ("nsenter", "--target", str(self._host.pid), "--net", "--mount", "--")

    @property
    def mounts(self) -> Path:
        return Path(f"/proc/{self._host.pid}/mounts")

    @property
    def certificate(self) -> str:
        return (self.home / "ca.pem").read_text()

    @property
    def ssh_key(self) -> str:
        return (self.home / "ssh-key").read_text()

    def reset(self) -> None:
        """Forget the recorded traffic. Configured names stay."""
        self.far("reset")
        self.host("reset")

    def teach(self, name: str, *turns: list[str]) -> None:
        """Set the addresses of a name: one list for each look-up in turn, the last for ever."""
        self.far("teach", name, turns)

    def asked(self) -> dict[str, int]:
        """Return the name server's queries with their counts; all record types of a name together."""
        counts: dict[str, int] = {}
        for name, _, count in self.far("asked"):
            counts[name] = counts.get(name, 0) + count
        return counts

    def calls(self, address: str | None = None) -> list[dict[str, Any]]:
        """Return the HTTP connections with their contents."""
        calls: list[dict[str, Any]] = self.far("calls")
        return [call for call in calls if address in (None, call["address"])]

    def openings(self) -> dict[tuple[str, str, int], int]:
        """Return (protocol, address, port) → count, of all traffic to the far side."""
        return {(protocol, address, port): count for protocol, address, port, count in self.far("wire")}

    def strays(self) -> list[str]:
        """Return traffic to destinations that no rule of any test names: each is a breach. Empty if all is well."""
        wire = [
            f"{protocol} to {address} port {port}, {count}×"
            for (protocol, address, port), count in self.openings().items()
            if address not in places.SERVING or (protocol != "tcp" and (address, port) != (places.RESOLVER, 53))
        ]
        return wire + [f"canary {where}, {count}×" for where, count in self.host("seen").items()]

    def run(self, *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Start a program on the host side, like the server."""
        return subprocess.run([*self.inside, *argv], capture_output=True, text=True, timeout=30, **options)

    def _start(self, name: str, stack: contextlib.ExitStack) -> subprocess.Popen[bytes]:
        with open(self.home / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                ["unshare", "--net", "--mount", "sh", "-c", 'cat; exec "$@"', "sh",
                 sys.executable, "-m", f"world.{name}side", str(self.home)],
                cwd=TESTS, stdin=subprocess.PIPE, stdout=log, stderr=log,
            )  # fmt: skip
        stack.callback(_end, process)
        mine = os.readlink("/proc/self/ns/net")
        wait_until(lambda: os.readlink(f"/proc/{process.pid}/ns/net") != mine, "a network namespace")
        return process

    def _join(self) -> None:
        far, host = str(self._far.pid), str(self._host.pid)
        _do("ip", "link", "add", "name", "far", "netns", far, "type", "veth", "peer", "name", "near", "netns", host)
        for pid, device, address, address6 in (
            (far, "far", places.FAR_SIDE, places.FAR_SIDE_6),
            (host, "near", places.HOST_SIDE, places.HOST_SIDE_6),
        ):
            lines = [
                "link set lo up",
                f"addr add {address}/24 dev {device}",
                f"addr add {address6}/64 dev {device} nodad",
                f"link set {device} up",
            ]
            if device == "far":  # every address except those of the veth pair's network
                lines += [f"addr add {places.RESOLVER}/24 dev far"]
                lines += ["route add local default dev lo table main", "-6 route add local default dev lo table main"]
            else:
                lines += [f"route add default via {places.FAR_SIDE}", f"-6 route add default via {places.FAR_SIDE_6}"]
            for line in lines:
                _do("nsenter", "--target", pid, "--net", "--", "ip", *line.split())

    def _make_files(self) -> None:
        certificates.make(
            self.home,
            [*places.NAMES, "*.example.test"],
            [*places.SERVING, *places.CANARIES],
        )
        goods.make(self.home / "sites")
        (self.home / "resolv.conf").write_text(
            f"nameserver {places.RESOLVER}\nsearch corp.test\noptions timeout:2 attempts:2\n"
        )
        (self.home / "hosts").write_text("127.0.0.1 localhost skerry.example.com\n::1 localhost\n")
        (self.home / "bundle.pem").write_text(BUNDLE.read_text() + self.certificate)
        _do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "tests", "-f", str(self.home / "ssh-key"))
        _do("dropbearkey", "-t", "ed25519", "-f", str(self.home / "ssh-host-key"))

    def _remote(self, name: str) -> Remote:
        process = self._far if name == "far" else self._host
        path, log = self.home / f"{name}.sock", self.home / f"{name}.log"

        found: list[Remote] = []

        def there() -> bool:
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                found.append(Remote(path))
            return bool(found)

        wait_until(there, f"the {name} side of the world")
        return found[0]


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.send_signal(signal.SIGINT)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _do(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, (argv, done.stderr)
