"""`skerry tunnel` with a real SSH server on loopback."""

from __future__ import annotations

import contextlib
import http.client
import re
import signal
import socket
import subprocess
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import SKERRY, environment, skerry
from support.pages import ROOT, commands
from support.server import WAIT_S, Server, wait_until
from support.ssh import SshServer, find_sshd, free_port

from skerry import Sandbox
from skerry.cli.commands.tunnel import TunnelRequest, _request
from skerry.errors import InvalidRequest


@pytest.fixture(scope="module")
def ssh_server() -> Iterator[SshServer]:
    sshd = find_sshd()
    if sshd is None:
        pytest.skip("OpenSSH's server is not installed, and scripts/setup could not download it")
    with SshServer(sshd) as server:
        yield server


@pytest.fixture(scope="module")
def web(sandbox: Sandbox) -> None:
    """Start a web server inside."""
    sandbox.files.write("/tmp/web/index.html", "from inside")
    sandbox.spawn(["python3", "-m", "http.server", "8000", "--bind", "127.0.0.1", "-d", "/tmp/web"])
    sandbox.wait_for_port(8000)


class Tunnel:
    """`skerry tunnel` in the background, and its lines so far."""

    def __init__(self, server: Server, *words: str) -> None:
        self.lines: list[str] = []
        env = environment(SKERRY_SERVER=server.address, PYTHONUNBUFFERED="1")
        self.process = subprocess.Popen(
            [*SKERRY, "tunnel", *words], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def ports(self) -> list[int]:
        found = [re.fullmatch(r"127\.0\.0\.1:(\d+) -> \S+:\d+", line) for line in self.lines]
        return [int(match[1]) for match in found if match]

    def port(self, count: int = 1) -> int:
        """Return the port of that connection."""
        wait_until(lambda: len(self.ports()) >= count or self.process.poll() is not None, "the tunnel")
        assert self.process.poll() is None, self.lines
        return self.ports()[count - 1]

    def __enter__(self) -> Tunnel:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)


def read(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
        return str(answer.read().decode())


def test_port_is_reachable_on_the_ssh_server_also_after_a_broken_connection(
    server: Server, sandbox: Sandbox, ssh_server: SshServer, web: None
) -> None:
    command = next(line for line in commands(ROOT / "docs/guides/ssh.md") if line.startswith("skerry tunnel"))
    assert command.split()[1:] == ["tunnel", "dev", "8000", "me@server.example.com"]
    before = {path for path in Path("/tmp").glob("skerry-*") if (path / "s").exists()}
    with Tunnel(server, sandbox.id, "8000", "tester@127.0.0.1", "--", *ssh_server.options) as tunnel:
        port = tunnel.port()
        assert read(port) == "from inside"
        ssh_server.cut()
        assert tunnel.port(2) == port
        assert read(port) == "from inside"
        assert any("ended; connecting again in 1 s" in line for line in tunnel.lines)
    assert tunnel.process.returncode == 0
    assert {path for path in Path("/tmp").glob("skerry-*") if (path / "s").exists()} <= before


def test_broken_connection_is_given_up_after_the_retry_time(server: Server, sandbox: Sandbox, web: None) -> None:
    sshd = find_sshd()
    if sshd is None:
        pytest.skip("OpenSSH's server is not installed, and scripts/setup could not download it")
    with SshServer(sshd) as own:
        assert own.process is not None
        words = ("--retry", "1500ms", sandbox.id, "8000", "tester@127.0.0.1", "--", *own.options)
        with Tunnel(server, *words) as tunnel:
            assert read(tunnel.port()) == "from inside"
            own.process.send_signal(signal.SIGSTOP)  # it accepts no connection, but its children end
            own.cut()
            own.process.kill()
            assert tunnel.process.wait(WAIT_S) != 0
    assert any("error: the connection to tester@127.0.0.1 could not be made again for" in line for line in tunnel.lines)


def test_shared_connection_of_the_user_is_not_used(
    server: Server, sandbox: Sandbox, ssh_server: SshServer, web: None, tmp_path: Path
) -> None:
    """Its master would get the message that HOST listens, and would keep the port."""
    with tempfile.TemporaryDirectory(prefix="sk-") as directory:  # the path of a socket is short
        control, config = Path(directory, "c"), tmp_path / "config"
        config.write_text(f"Host *\n    ControlMaster auto\n    ControlPath {control}\n")
        options = [str(config) if word == "none" else word for word in ssh_server.options]
        with subprocess.Popen(["ssh", "-N", *options, "tester@127.0.0.1"], stdin=subprocess.DEVNULL) as master:
            wait_until(lambda: control.exists() or master.poll() is not None, "the shared connection")
            with Tunnel(server, sandbox.id, "8000", "tester@127.0.0.1", "--", *options) as tunnel:
                port = tunnel.port()
                assert read(port) == "from inside"
            wait_until(lambda: not is_open(port), "the end of the port")
            assert master.poll() is None
            master.terminate()


def is_open(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), WAIT_S):
        return True
    return False


def test_port_without_a_listener_is_reported_once(server: Server, sandbox: Sandbox, ssh_server: SshServer) -> None:
    port = str(free_port())
    words = ("--listen", port, sandbox.id, "8001", "tester@127.0.0.1", "--", *ssh_server.options)
    with Tunnel(server, *words) as tunnel:
        assert tunnel.port() == int(port)
        for _ in range(2):
            with pytest.raises((ConnectionError, http.client.HTTPException)):
                read(int(port))
        wait_until(lambda: any("nothing listens on port 8001" in line for line in tunnel.lines), "the message")
    assert sum("nothing listens on port 8001" in line for line in tunnel.lines) == 1


def test_taken_port_of_the_ssh_server_is_an_error(server: Server, sandbox: Sandbox, ssh_server: SshServer) -> None:
    words = ("--listen", str(ssh_server.port), sandbox.id, "8000", "tester@127.0.0.1", "--", *ssh_server.options)
    done = skerry("tunnel", *words, server=server.address)
    assert done.returncode != 0
    assert b"remote port forwarding failed" in done.stderr
    assert b"error: ssh to tester@127.0.0.1 ended with exit code 255" in done.stderr


def test_foreign_key_at_the_ssh_server_is_an_error(
    server: Server, sandbox: Sandbox, ssh_server: SshServer, tmp_path: Path
) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    options = [*ssh_server.options, "-o", "BatchMode=yes"]
    options[options.index("-i") + 1] = str(tmp_path / "key")
    done = skerry("tunnel", sandbox.id, "8000", "tester@127.0.0.1", "--", *options, server=server.address)
    assert done.returncode != 0
    assert b"Permission denied" in done.stderr


@pytest.mark.parametrize("host", ["-oProxyCommand=touch /tmp/x", "", " ", "a\nb"])
def test_host_that_ssh_would_read_as_an_option_is_refused(host: str) -> None:
    with pytest.raises(InvalidRequest, match="not the name of an SSH server"):
        _request(host, "0", ())


@pytest.mark.parametrize("listen", ["", "x", "70000", "a b:1", "1:2:3", "-1", ":1"])
def test_address_on_the_server_is_parsed_strictly(listen: str) -> None:
    with pytest.raises(InvalidRequest, match="--listen"):
        _request("host", listen, ())


def test_command_line_has_the_users_options_and_ends_with_the_host() -> None:
    request = _request("me@host", "0.0.0.0:9000", ("-p", "2222"))
    assert request == TunnelRequest("me@host", "0.0.0.0", 9000, ("-p", "2222"))
    words = request.command(Path("/tmp/d/s"))
    assert words[-6:] == ["-R", "0.0.0.0:9000:/tmp/d/s", "-p", "2222", "--", "me@host"]
