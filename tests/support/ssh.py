"""The real OpenSSH, configured by `skerry ssh-config` for a server of the tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from support.cli import environment, skerry
from support.server import WAIT_S, wait_until

SCRIPT = '#!/bin/sh\nexec "{python}" -m skerry "$@"\n'


class OpenSsh:
    """The home directory of a user with keys for one server. `share` keeps one login open for all later sessions."""

    def __init__(self, server: str, directory: Path) -> None:
        self.home, self.server = directory, server
        self.config = directory / "config"
        self.env = environment(
            XDG_CONFIG_HOME=str(directory), HOME=str(directory), SKERRY_SERVER=server, LANG="C.UTF-8"
        )
        self.env.pop("SSH_AUTH_SOCK", None)
        self.shared: tuple[str, ...] = ()
        self.configure()

    def configure(self, *words: str) -> None:
        made = skerry("--server", self.server, "ssh-config", *words, XDG_CONFIG_HOME=str(self.home))
        assert made.returncode == 0, made.stderr
        script = self.home / "skerry-here"  # tests fork `skerry` off a process that has another name
        script.write_text(SCRIPT.format(python=sys.executable))
        script.chmod(0o755)
        lines = made.stdout.decode().splitlines()
        proxy = next(line for line in lines if line.strip().startswith("ProxyCommand"))
        start = proxy.index(" --server ")
        text = "\n".join(f"    ProxyCommand {script}{proxy[start:]}" if line == proxy else line for line in lines)
        self.config.write_text(text + "\n")

    def words(self, program: str, *words: str) -> list[str]:
        return [program, "-F", str(self.config), *self.shared, *words]

    def run(
        self, host: str, *command: str, options: tuple[str, ...] = (), stdin: bytes | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        return self.execute(self.words("ssh", *options, f"{host}.skerry", *command), stdin)

    def execute(self, words: list[str], stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        given: dict[str, object] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        return subprocess.run(  # type: ignore[call-overload, no-any-return]
            words, capture_output=True, env=self.env, timeout=2 * WAIT_S, check=False, **given
        )

    @contextlib.contextmanager
    def background(self, host: str, *options: str, **streams: int) -> Iterator[subprocess.Popen[bytes]]:
        """Run `ssh` until the end of the block."""
        words = self.words("ssh", *options, f"{host}.skerry")
        process = subprocess.Popen(words, env=self.env, stdin=streams.get("stdin", subprocess.DEVNULL),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2)
            process.kill()  # OpenSSH 9.2 misses a SIGTERM that arrives right before it waits
            process.communicate(timeout=WAIT_S)

    @contextlib.contextmanager
    def share(self, host: str, *options: str) -> Iterator[None]:
        """Open one login, which all sessions of the block use: OpenSSH's ControlMaster."""
        directory = Path(tempfile.mkdtemp(prefix="sk-"))  # the path of a socket is short
        place = directory / "c"
        try:
            with self.background(host, "-M", "-N", "-S", str(place), *options) as master:
                wait_until(lambda: place.exists() or master.poll() is not None, "the login")
                assert master.poll() is None, master.communicate()[1].decode()
                self.shared = ("-o", f"ControlPath={place}")
                yield
        finally:
            self.shared = ()
            shutil.rmtree(directory)


def find_sshd() -> Path | None:
    """Return OpenSSH's server: the machine's, or a copy that scripts/setup unpacked."""
    unpacked = Path(sys.prefix, "sshd/usr/sbin/sshd")
    found = shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin")
    return Path(found) if found else unpacked if unpacked.exists() else None


def _descendants(pid: int) -> list[int]:
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [one for child in children for one in (*_descendants(child), child)]


class SshServer:
    """OpenSSH's server on loopback, as an unprivileged user in a mount namespace with one account."""

    def __init__(self, sshd: Path) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="sk-sshd-"))
        self.port = free_port()
        self.user_key = self.place / "user"
        for key in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.place / key], check=True)
        (self.place / "passwd").write_text("tester:NP:65534:65534::/:/bin/sh\n")
        self.place.chmod(0o755)
        shutil.chown(self.place / "host", 65534)
        shutil.copy(sshd, self.place / "sshd")
        lines = [
            f"Port {self.port}", "ListenAddress 127.0.0.1", "AddressFamily inet",
            f"HostKey {self.place}/host", "StrictModes no", "UsePAM no",
            f"AuthorizedKeysFile {self.place}/user.pub", "PidFile none", *self._parts(sshd),
        ]  # fmt: skip
        (self.place / "config").write_text("\n".join(lines) + "\n")
        self.process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def _parts(sshd: Path) -> list[str]:
        """Newer servers have parts whose paths are compiled in."""
        parts = sshd.parents[2] / "usr/lib/openssh"
        names = (("SshdSessionPath", "sshd-session"), ("SshdAuthPath", "sshd-auth"))
        return [f"{name} {parts / file}" for name, file in names if (parts / file).exists()]

    def __enter__(self) -> SshServer:
        serve = (
            f"mount --bind {self.place}/passwd /etc/passwd && exec setpriv --reuid 65534 --regid 65534 --clear-groups"
        )
        command = f"{serve} {self.place}/sshd -D -e -f {self.place}/config"
        with open(self.place / "log", "wb") as log:
            self.process = subprocess.Popen(["unshare", "--mount", "sh", "-c", command], stderr=log)
        wait_until(lambda: b"Server listening" in (self.place / "log").read_bytes(), "the SSH server to listen")
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process is not None
        self.cut()
        self.process.terminate()
        self.process.wait(WAIT_S)
        shutil.rmtree(self.place)

    def cut(self) -> None:
        """End all connections."""
        assert self.process is not None
        for process in _descendants(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    @property
    def options(self) -> list[str]:
        """Options of `ssh` for this server."""
        known = ["-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={self.place}/known"]
        return ["-F", "none", "-p", str(self.port), "-i", str(self.user_key), *known]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def has(program: str) -> bool:
    return shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin") is not None
