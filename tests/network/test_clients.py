"""Every client works where it is allowed, without settings inside, and fails at once where it is denied."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import go_programs
from support.server import Server
from world.git import TOKEN, USER
from world.world import World

from skerry import Network, Result, Sandbox

HERE = Path(__file__).parent
CA = "/usr/local/share/ca-certificates/world.crt"
DATABASE = """
import socket, struct, sys
with socket.create_connection((sys.argv[1], 5432), 10) as one:
    for question in (b"select 1", b"select 2"):
        one.sendall(struct.pack("!I", len(question)) + question)
        print(one.recv(4 + len(question) + 5)[4:].decode())
"""
MAIL = """
import smtplib, socket, sys
with socket.create_connection((sys.argv[1], 2525), 10) as one:
    print(one.makefile().readline())
"""
URLLIB = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())"
NODE = "fetch(process.argv[1]).then(a => a.text()).then(console.log, e => { console.error(e); process.exit(1) })"
NODE_TLS = "require('https').get(process.argv[1], a => a.pipe(process.stdout)).on('error', e => { throw e })"
SSH = "ssh -F none -i /tmp/ssh-key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o BatchMode=yes"


@dataclass(frozen=True)
class Client:
    """A command with a host in it, and its output if it got there. `{name}` is taken from HOSTS or from REFUSED."""

    command: str
    prints: str
    host: str
    user: str = "user"


CLIENTS = {
    "curl": Client("curl -sS https://{host}/some/path", '"/some/path"', "api"),
    "curl without the proxy variables": Client("curl -sS --noproxy '*' https://{host}/some", '"/some"', "api"),
    "curl over plain HTTP": Client("curl -fsS http://{host}/some/path", '"/some/path"', "api"),
    "curl that uploads": Client(
        "head -c 3000000 /dev/zero | curl -fsS -T - http://{host}/up", '"length": 3000000', "api"
    ),
    "wget": Client("wget -qO- --tries=1 https://{host}/some/path", '"/some/path"', "api"),
    "wget without the proxy variables": Client("wget -qO- --tries=1 --no-proxy https://{host}/a", '"/a"', "api"),
    "python": Client(f"python3 -c {shlex.quote(URLLIB)} https://{{host}}/some/path", '"/some/path"', "api"),
    "python without the proxy variables": Client(
        f"env -u https_proxy -u HTTPS_PROXY python3 -c {shlex.quote(URLLIB)} https://{{host}}/a", '"/a"', "api"
    ),
    "node's fetch": Client(f"NODE_EXTRA_CA_CERTS={CA} node -e {shlex.quote(NODE)} https://{{host}}/a", '"/a"', "api"),
    "node's https": Client(
        f"NODE_EXTRA_CA_CERTS={CA} node -e {shlex.quote(NODE_TLS)} https://{{host}}/a", '"/a"', "api"
    ),
    "go": Client("/opt/clients/go get https://{host}/some/path", '"/some/path"', "api"),
    "go without the proxy variables": Client(
        "env -u HTTPS_PROXY -u https_proxy /opt/clients/go get https://{host}/some/path", '"/some/path"', "api"
    ),
    "go on a port of its own": Client("/opt/clients/go dial {host}:7", "hello from go", "api"),
    "pip": Client(
        "pip install --no-input --retries 0 --target /tmp/wheels --index-url https://{host}/simple tinylib && "
        "PYTHONPATH=/tmp/wheels python3 -c 'import tinylib; print(tinylib.ANSWER)'",
        "42\n",
        "index",
    ),
    "npm": Client(
        f"mkdir -p /tmp/npm && cd /tmp/npm && NODE_EXTRA_CA_CERTS={CA} npm install --no-audit --no-fund "
        "--fetch-retries=0 --registry https://{host} tiny-lib && node -e 'console.log(require(\"tiny-lib\"))'",
        "42\n",
        "npm",
    ),
    "apt": Client(
        "echo 'deb [trusted=yes] http://{host} ./' >/tmp/world.list && "
        "apt='apt-get -o Dir::Etc::SourceList=/tmp/world.list -o Dir::Etc::SourceParts=/nowhere -o Acquire::Retries=0 "
        "-o APT::Update::Error-Mode=any' && $apt -q update && $apt -qy install tinytool && "
        "cat /usr/share/tinytool/answer",
        "42\n",
        "apt",
        user="root",
    ),
    "git over https": Client(
        "rm -rf /tmp/tiny && git clone -q https://{host}/tiny.git /tmp/tiny && cat /tmp/tiny/README",
        "a repository of the test world",
        "git",
    ),
    "git that pushes over https": Client(
        f"rm -rf /tmp/tiny && git clone -q https://{USER}:{TOKEN}@{{host}}/tiny.git /tmp/tiny && cd /tmp/tiny && "
        "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m more && "
        "git push -q origin HEAD:refs/heads/more && git ls-remote -q origin more",
        "refs/heads/more",
        "git",
    ),
    "git over ssh": Client(
        f"rm -rf /tmp/tiny && GIT_SSH_COMMAND='{SSH}' git clone -q root@{{host}}:tiny.git /tmp/tiny && "
        "cat /tmp/tiny/README",
        "a repository of the test world",
        "git",
    ),
    "ssh": Client(f"{SSH} root@{{host}}", "hello by ssh", "git"),
    "a database's driver": Client(f"python3 -c {shlex.quote(DATABASE)} {{host}}", "rows:select 2", "api"),
    "a client that listens first": Client(f"python3 -c {shlex.quote(MAIL)} {{host}}", "220 the test world", "api"),
    "bash": Client("exec 3<>/dev/tcp/{host}/7 && echo by bash >&3 && head -1 <&3", "by bash", "api"),
}


@pytest.fixture(scope="module")
def sandbox(world: World, world_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    hosts = ("api.example.test", "api.example.test:7,2525,5432", "index.example.test", "npm.example.test")
    network = Network(allow=(*hosts, "apt.example.test", "git.example.test:22,443"))
    with Sandbox(server=world_server.address, network=network) as sandbox:
        sandbox.files.write(CA, world.certificate, user="root")
        sandbox.run("update-ca-certificates", user="root", check=True)
        sandbox.files.write("/tmp/ssh-key", world.ssh_key, mode=0o600)
        sandbox.files.write("/opt/clients/go", _go_client(tmp_path_factory.mktemp("go")), mode=0o755, user="root")
        yield sandbox


def _go_client(place: Path) -> bytes:
    return go_programs.build(HERE / "goclient", place / "go").read_bytes()


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_works_where_it_is_allowed(world: World, sandbox: Sandbox, name: str) -> None:
    client = CLIENTS[name]
    world.reset()
    result = sandbox.run(client.command.replace("{host}", f"{client.host}.example.test"), user=client.user, timeout=60)
    assert client.prints in result.stdout, result.stderr
    assert result.ok
    assert result.denied == ()
    assert world.strays() == []


@pytest.mark.parametrize("name", CLIENTS)
def test_client_fails_at_once_where_it_is_denied(world: World, sandbox: Sandbox, name: str) -> None:
    client = CLIENTS[name]
    world.reset()
    result = sandbox.run(client.command.replace("{host}", "evil.test"), user=client.user, timeout=30)
    assert not result.timed_out
    assert not result.ok
    assert client.prints not in result.stdout
    _is_told(result, "evil.test")
    assert world.asked() == {}
    assert world.strays() == []


def _is_told(result: Result, host: str) -> None:
    told = [attempt for attempt in result.denied if attempt.host == host]
    assert told, result.denied
    assert all(attempt.why and attempt.process == result.id for attempt in told), told
    assert any(attempt.hint and host in attempt.hint for attempt in told), told


def test_java_works_where_it_is_allowed(world: World, sandbox: Sandbox, tmp_path: Path) -> None:
    """With a runtime made of this machine's JDK, if it has one."""
    if not shutil.which("jlink") or not shutil.which("javac"):
        pytest.skip("this machine has no JDK (jlink, javac)")
    jre = tmp_path / "jre"
    subprocess.run(["jlink", "--add-modules", "java.base", "--strip-debug", "--no-man-pages", "--no-header-files",
                    "--output", str(jre)], check=True)  # fmt: skip
    subprocess.run(["javac", "-d", str(jre), str(HERE / "javaclient/Client.java")], check=True)
    sandbox.files.upload(jre, "/tmp/jre")
    for url, fine in (("http://api.example.test/a", True), ("http://evil.test/a", False), ("http://10.20.0.5/", False)):
        world.reset()
        result = sandbox.run(["/tmp/jre/bin/java", "-cp", "/tmp/jre", "Client", url], timeout=60)
        assert result.ok == fine, result.stderr
        assert ('"/a"' in result.stdout) == fine
        assert bool(result.denied) != fine
        assert world.strays() == []
