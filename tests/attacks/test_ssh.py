"""Attacks on SSH to sandboxes: foreign keys, names that a shell could run, and programs inside that lie."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from support.server import Server
from support.ssh import OpenSsh

from skerry import Sandbox
from skerry.client._async.client import AsyncClient
from skerry.client.ssh.channels import MAX_LINE, _Arrival, _decode, _Ready
from skerry.client.ssh.streams import Command, lines
from skerry.errors import Conflict
from skerry.types import RunRequest


@pytest.fixture(scope="module")
def user(server: Server, sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> OpenSsh:
    return OpenSsh(server.address, tmp_path_factory.mktemp("user"))


def test_foreign_key_is_refused(user: OpenSsh, sandbox: Sandbox, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    foreign = ("-i", str(tmp_path / "key"), "-o", "IdentityFile=none", "-o", "BatchMode=yes")
    config = user.config.read_text()
    user.config.write_text(re.sub(r" *IdentityFile .*\n", "", config))
    try:
        done = user.run(sandbox.id, "id", options=foreign)
    finally:
        user.config.write_text(config)
    assert (done.returncode, done.stdout) == (255, b"")
    assert b"Permission denied (publickey)" in done.stderr


def test_foreign_host_key_is_refused(server: Server, user: OpenSsh, sandbox: Sandbox, tmp_path: Path) -> None:
    """A ProxyCommand with other keys, such as another user's, does not pass for the user's own."""
    place = user.home / "skerry" / "ssh" / "host_ed25519"
    shutil.copy(place, tmp_path / "host")
    try:
        place.unlink()
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", place], check=True)
        done = user.run(sandbox.id, "id")
    finally:
        shutil.copy(tmp_path / "host", place)
        place.with_suffix(".pub").unlink(missing_ok=True)
    assert done.returncode == 255
    assert b"Host key verification failed" in done.stderr


@pytest.mark.parametrize("name", ["$(touch PLACE)", "`touch PLACE`", "x;touch PLACE;", "x'\ntouch PLACE\n'"])
def test_host_name_with_shell_syntax_runs_nothing(user: OpenSsh, tmp_path: Path, name: str) -> None:
    """CVE-2023-51385: OpenSSH before 9.6, without its distribution's fix, let a shell run a host name."""
    place = tmp_path / "ran"
    done = user.run(name.replace("PLACE", str(place)), "id")
    assert done.returncode == 255
    assert not place.exists()


@pytest.mark.parametrize("name", ["-oProxyCommand=touch PLACE", "a b", "$(touch PLACE)", "root@-oX=1", "x\ny"])
def test_sandbox_name_that_is_none_never_reaches_openssh(user: OpenSsh, tmp_path: Path, name: str) -> None:
    place = tmp_path / "ran"
    done = user.execute([str(user.home / "skerry-here"), "ssh", name.replace("PLACE", str(place)), "id"])
    assert done.returncode == 2
    assert not place.exists()


def test_program_inside_cannot_take_a_forwarded_connection(user: OpenSsh, sandbox: Sandbox) -> None:
    """A connection that was accepted for the host leaves the sandbox only with its ticket, and a wrong ticket opens
    nothing on the host."""
    program = """
import os, socket, threading
ports = []
for line in open('/proc/net/tcp').read().splitlines()[1:]:
    fields = line.split()
    if fields[3] == '0A':
        ports.append(int(fields[1].split(':')[1], 16))
ports.remove(7777)
for port in ports:
    s = socket.create_connection(('127.0.0.1', port), 60)
    s.settimeout(60)
    s.sendall(b'0' * 32 + b'stolen')
    try:
        print(len(ports), s.recv(10))
    except ConnectionResetError:
        print(len(ports), b'')
"""
    with socket.create_server(("127.0.0.1", 0)) as here:
        target = ("-R", f"7777:127.0.0.1:{here.getsockname()[1]}")
        done = user.run(sandbox.id, "python3 -", options=target, stdin=program.encode())
        assert done.stdout == b"1 b''\n", done.stderr
        here.setblocking(False)
        with pytest.raises(BlockingIOError):
            here.accept()


async def test_endless_line_of_a_listener_ends_it(server: Server, sandbox: Sandbox) -> None:
    async with AsyncClient(server.address) as client:
        command = Command(client, sandbox.id, RunRequest(cmd="yes | tr -d '\\n'"))
        await command.start()
        with pytest.raises(Conflict, match="too long"):
            async for _ in lines(command, MAX_LINE):
                pass
        await command.aclose()


@pytest.mark.parametrize("line", [b"", b"{}", b"[]", b'{"back": "1"}', b"\xff", b"[" * 5000, b'{"back": 1e99}'])
def test_lines_of_a_listener_are_parsed_strictly(line: bytes) -> None:
    for kind in (_Ready, _Arrival):
        with pytest.raises(Conflict):
            _decode(line, kind)


def test_ssh_reaches_only_sandboxes_of_the_users_token(server: Server, sandbox: Sandbox, tmp_path: Path) -> None:
    with server.http() as http:
        token = http.post("/v1/tokens", json={"scope": "use", "owner": "mallory"}).json()["secret"]
    other = OpenSsh(server.address, tmp_path)
    other.env["SKERRY_TOKEN"] = token
    done = other.run(sandbox.id, "id")
    assert (done.returncode, done.stdout) == (255, b"")
    assert b"not found" in done.stderr
