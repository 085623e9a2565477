"""Sandboxes as seen by the real OpenSSH, scp, sftp, rsync and git."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import socket
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server import Server, wait_until
from support.ssh import OpenSsh, free_port, has

from skerry import Sandbox

HEADROOM = "1G"
NAME = "dev"


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    with Sandbox(name=NAME, server=server.address) as sandbox:
        yield sandbox
        sandbox.delete()


@pytest.fixture(scope="module")
def alone(server: Server, sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> OpenSsh:
    """Return a user with one login for each command."""
    return OpenSsh(server.address, tmp_path_factory.mktemp("user"))


@pytest.fixture(scope="module")
def ssh(server: Server, sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSsh]:
    """Return a user with one login that the tests share."""
    user = OpenSsh(server.address, tmp_path_factory.mktemp("shared"))
    with user.share(NAME):
        yield user


# -- commands ----------------------------------------------------------------------------------------------------------


def test_command_has_its_streams_and_its_exit_code(alone: OpenSsh) -> None:
    done = alone.run(NAME, "cat; echo problem >&2; pwd; exit 7", stdin=b"input\n")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"input\n/workspace\n", b"problem\n")


def test_killed_command_reports_its_signal(ssh: OpenSsh) -> None:
    assert ssh.run(NAME, "kill -TERM $$").returncode == 255


def test_shell_without_a_command_reads_lines(ssh: OpenSsh) -> None:
    done = ssh.run(NAME, options=("-T",), stdin=b"echo $((6 * 7))\nshopt -q login_shell && echo login\nexit 4\n")
    assert (done.returncode, done.stdout) == (4, b"42\nlogin\n")


def test_user_of_the_address_runs_the_command(ssh: OpenSsh, alone: OpenSsh) -> None:
    assert ssh.run(NAME, "id -un").stdout == b"user\n"
    assert alone.run(f"root@{NAME}", "id -u").stdout == b"0\n"
    unknown = alone.run(f"ghost@{NAME}", "id")
    assert unknown.returncode == 255
    assert b'user "ghost" not found' in unknown.stderr


def test_output_larger_than_the_journal_is_complete(ssh: OpenSsh) -> None:
    """A slow reader slows the command; nothing is dropped."""
    size = 80 << 20
    words = ssh.words("ssh", f"{NAME}.skerry", f"head -c {size} /dev/zero | tr '\\0' x")
    with subprocess.Popen(words, env=ssh.env, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        wait_until(lambda: ssh.run(NAME, "true").returncode == 0, "another session, while this one waits")
        rest = process.stdout.read()
    assert len(first + rest) == size
    assert rest.count(b"x") == len(rest)


def test_input_is_sent_while_output_is_read(ssh: OpenSsh) -> None:
    data = os.urandom(8 << 20)
    assert ssh.run(NAME, "cat", stdin=data).stdout == data


def test_only_harmless_variables_are_accepted(alone: OpenSsh) -> None:
    sent = ("-o", "SetEnv LC_TIME=C.UTF-8 SECRET_TOKEN=1 LD_PRELOAD=/x GIT_PROTOCOL=version=2")
    done = alone.run(NAME, "echo $LC_TIME,$SECRET_TOKEN,$LD_PRELOAD,$GIT_PROTOCOL", options=sent)
    assert done.stdout == b"C.UTF-8,,,version=2\n"


def test_terminal_has_the_size_and_type_of_the_local_one(ssh: OpenSsh) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 37, 101, 0, 0))
    words = ssh.words(
        "ssh", "-tt", f"{NAME}.skerry", "stty size; echo $TERM; tty; read line; stty size; echo got-$line"
    )
    process = subprocess.Popen(
        words, env={**ssh.env, "TERM": "vt220"}, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(theirs)
    seen = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):
            while data := os.read(ours, 4096):
                seen.extend(data)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        wait_until(lambda: b"/dev/pts" in seen, "the first lines")
        assert seen.startswith(b"37 101\r\nvt220\r\n/dev/pts/")
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 60, 0, 0))
        process.send_signal(28)  # SIGWINCH
        wait_until(lambda: ssh.run(NAME, "stty size </dev/pts/0").stdout == b"20 60\n", "the new size")
        os.write(ours, b"typed\n")
        assert process.wait(60) == 0
        reader.join(60)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"20 60\r\n" in seen
    assert b"got-typed" in seen


def test_client_that_leaves_ends_its_command_with_its_children(ssh: OpenSsh, sandbox: Sandbox) -> None:
    with ssh.background(
        NAME, "-tt", "-o", "ControlPath=none", "-o", "RemoteCommand=sleep 1111 & sleep 1112"
    ) as process:
        wait_until(lambda: ssh.run(NAME, "pgrep -xc sleep").stdout == b"2\n", "both to run")
        process.kill()
    wait_until(lambda: sandbox.run("pgrep -x sleep").exit_code == 1, "both to end")


def test_command_that_ended_leaves_its_daemons(ssh: OpenSsh) -> None:
    """Editors start their server this way and return to it in later sessions."""
    ssh.run(NAME, "nohup sleep 2222 >/dev/null 2>&1 & echo started")
    assert ssh.run(NAME, "pkill -f 'sleep 2222'").returncode == 0


def test_unknown_sandbox_is_reported(alone: OpenSsh) -> None:
    done = alone.run("nosuch", "id")
    assert done.returncode == 255
    assert b"sandbox 'nosuch' not found" in done.stderr


def test_skerry_ssh_passes_its_arguments_to_openssh(server: Server, alone: OpenSsh) -> None:
    words = [str(alone.home / "skerry-here"), "--server", server.address, "ssh", f"root@{NAME}", "-T", "id -un; exit 5"]
    done = alone.execute(words)
    assert (done.returncode, done.stdout) == (5, b"root\n"), done.stderr


def test_host_key_belongs_to_the_user_and_not_to_the_sandbox(server: Server, alone: OpenSsh) -> None:
    """Neither a rollback, a fork nor a new sandbox with the name of a deleted one changes it."""
    known = (alone.home / "skerry" / "ssh" / "known_hosts").read_bytes()
    with Sandbox(name="again", server=server.address) as first:
        before = first.snapshot("before")
        assert alone.run("again", "echo 1").stdout == b"1\n"
        first.rollback(before)
        assert alone.run("again", "echo 2").stdout == b"2\n"
        (fork,) = first.fork()
        assert alone.run(fork.id, "echo 3").stdout == b"3\n"
        fork.delete()
        first.delete()
        before.delete()
    with Sandbox(name="again", server=server.address) as second:
        done = alone.run("again", "echo 4; find / -xdev -name 'ssh_host_*_key' -o -name host_ed25519 2>/dev/null")
        second.delete()
    assert (done.stdout, done.stderr) == (b"4\n", b"")
    assert (alone.home / "skerry" / "ssh" / "known_hosts").read_bytes() == known


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["-s", "-O"])
def test_scp_copies_both_ways(ssh: OpenSsh, tmp_path: Path, protocol: str) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "däta").write_bytes(data := os.urandom(3_000_000))
    (tmp_path / "tree" / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tree" / "tool").chmod(0o755)
    there = f"{NAME}.skerry:scp{protocol}"
    for words in (["-rp", str(tmp_path / "tree"), there], ["-rp", there, str(tmp_path / "back")]):
        done = ssh.execute(ssh.words("scp", "-q", protocol, *words))
        assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "back" / "däta").read_bytes() == data
    assert (tmp_path / "back" / "tool").stat().st_mode & 0o777 == 0o755
    assert int((tmp_path / "back" / "tool").stat().st_mtime) == int((tmp_path / "tree" / "tool").stat().st_mtime)


def test_sftp_session_changes_files(ssh: OpenSsh, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("one")
    batch = f"""
        mkdir box
        put {tmp_path}/one box/one
        rename box/one box/two
        symlink two box/link
        chmod 600 box/two
        ls -l box
        get box/link {tmp_path}/back
        rm box/link
        rm box/two
        rmdir box
        -cd box
        df -h
        pwd
    """
    done = ssh.execute(ssh.words("sftp", "-q", "-b", "-", f"{NAME}.skerry"), batch.encode())
    text = done.stdout.decode()
    assert done.returncode == 0, done.stderr
    assert "Remote working directory: /workspace" in text
    assert re.search(r"lrwxrwxrwx +1 1000 +1000 +3 .* link\n-rw------- +1 1000 +1000 +3 .* two\n", text)
    assert (tmp_path / "back").read_text() == "one"


def test_sftp_has_the_rights_of_its_user(ssh: OpenSsh, alone: OpenSsh, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    denied = ssh.execute(ssh.words("scp", "-q", str(tmp_path / "x"), f"{NAME}.skerry:/etc/x"))
    assert denied.returncode != 0
    assert b"permission denied" in denied.stderr.lower()
    root = alone.execute(alone.words("scp", "-q", str(tmp_path / "x"), f"root@{NAME}.skerry:/etc/x"))
    assert root.returncode == 0, root.stderr


def test_rsync_copies_the_difference(ssh: OpenSsh, tmp_path: Path) -> None:
    if not has("rsync"):
        pytest.skip("rsync is not installed")
    source = tmp_path / "source"
    source.mkdir()
    for number in range(30):
        (source / f"f{number}").write_bytes(os.urandom(10_000))
    shell = " ".join(ssh.words("ssh"))
    words = ["rsync", "-a", "--delete", "--stats", "-e", shell, f"{source}/", f"{NAME}.skerry:mirror/"]
    assert ssh.execute(words).returncode == 0
    (source / "f1").unlink()
    (source / "f2").write_text("new")
    again = ssh.execute(words)
    assert b"Number of regular files transferred: 1\n" in again.stdout, again.stderr
    back = ["rsync", "-a", "-e", shell, f"{NAME}.skerry:mirror/", f"{tmp_path}/back/"]
    assert ssh.execute(back).returncode == 0
    assert sorted(os.listdir(tmp_path / "back")) == sorted(os.listdir(source))
    assert (tmp_path / "back" / "f2").read_text() == "new"


def test_git_pushes_and_clones(ssh: OpenSsh, tmp_path: Path) -> None:
    ssh.run(NAME, "git init -q --bare project.git")
    env = {**ssh.env, "GIT_SSH_COMMAND": " ".join(ssh.words("ssh"))}
    author = ("-c", "user.name=A", "-c", "user.email=a@example.com")

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *author, *words], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    git("init", "-q", "-b", "main", "mine")
    (tmp_path / "mine" / "f").write_text("x")
    git("-C", "mine", "add", "f")
    git("-C", "mine", "commit", "-qm", "One")
    git("-C", "mine", "push", "-q", f"{NAME}.skerry:/workspace/project.git", "main")
    git("clone", "-q", "-b", "main", f"ssh://{NAME}.skerry/workspace/project.git", "copy")
    assert (tmp_path / "copy" / "f").read_text() == "x"


# -- forwarding --------------------------------------------------------------------------------------------------------

SERVE = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 8765)) if sys.argv[1] == "tcp" else socket.socket(socket.AF_UNIX)
if sys.argv[1] == "unix":
    listener.bind("/tmp/echo.sock"); listener.listen()
print("listening", flush=True)
while True:
    one, _ = listener.accept()
    data = b""
    while piece := one.recv(65536):
        data += piece
    one.sendall(data[::-1]); one.close()
"""


@pytest.fixture(scope="module")
def echoes(sandbox: Sandbox) -> None:
    """Servers inside that answer with the reverse of their input, after its end."""
    sandbox.files.write("/tmp/serve.py", SERVE)
    for kind in ("tcp", "unix"):
        sandbox.spawn(["python3", "/tmp/serve.py", kind]).wait_for_output("listening")


def reversed_over(connection: socket.socket, data: bytes) -> bytes:
    with connection, connection.makefile("rb") as answers:
        connection.settimeout(60)
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return answers.read()


def opened(port: int) -> socket.socket:
    made: list[socket.socket] = []

    def connects() -> bool:
        with contextlib.suppress(OSError):
            made.append(socket.create_connection(("127.0.0.1", port), 60))
        return bool(made)

    wait_until(connects, "the forward to listen")
    return made[0]


def test_local_forwarding_reaches_ports_and_sockets_inside(alone: OpenSsh, echoes: None, tmp_path: Path) -> None:
    port, other, silent = free_port(), free_port(), free_port()
    options = ("-N", "-L", f"{port}:localhost:8765", "-L", f"{other}:/tmp/echo.sock", "-L", f"{silent}:127.0.0.1:9")
    with alone.background(NAME, *options):
        data = os.urandom(2_000_000)
        assert reversed_over(opened(port), data) == data[::-1]
        assert reversed_over(opened(other), b"abc") == b"cba"
        assert opened(silent).recv(1) == b""


def test_dynamic_forwarding_uses_the_network_policy_of_the_sandbox(alone: OpenSsh, echoes: None) -> None:
    def through(port: int, host: bytes, target: int) -> tuple[int, socket.socket]:
        connection = opened(port)
        connection.sendall(b"\5\1\0")
        assert connection.recv(2) == b"\5\0"
        connection.sendall(b"\5\1\0\3" + bytes([len(host)]) + host + target.to_bytes(2, "big"))
        answer = connection.recv(10)
        return answer[1] if len(answer) > 1 else 1, connection

    port = free_port()
    with alone.background(NAME, "-N", "-D", str(port)):
        code, connection = through(port, b"localhost", 8765)
        assert code == 0
        assert reversed_over(connection, b"abc") == b"cba"
        for host in (b"192.0.2.1", b"example.com"):
            _, connection = through(port, host, 80)  # OpenSSH reports success before it knows
            assert reversed_over(connection, b"") == b""


def test_remote_forwarding_reaches_this_machine(alone: OpenSsh, ssh: OpenSsh) -> None:
    with socket.create_server(("127.0.0.1", 0)) as here:
        here.settimeout(60)
        target = f"127.0.0.1:{here.getsockname()[1]}"
        options = ("-N", "-R", f"7654:{target}", "-R", f"0:{target}", "-R", f"/tmp/remote.sock:{target}")
        with alone.background(NAME, *options, "-o", "ExitOnForwardFailure=yes") as process:
            assert process.stderr is not None
            allocated = re.search(rb"Allocated port (\d+)", process.stderr.readline())
            assert allocated is not None
            places = ("('127.0.0.1', 7654)", f"('127.0.0.1', {allocated[1].decode()})", "'/tmp/remote.sock'")
            for place in places:
                _ask_from_inside(ssh, here, place)
        wait_until(lambda: ssh.run(NAME, "pgrep -f 'skerry-keeper listen'").returncode == 1, "the listeners to end")


def _ask_from_inside(ssh: OpenSsh, here: socket.socket, place: str) -> None:
    family = "AF_UNIX" if place.startswith("'") else "AF_INET"
    program = f"""
import socket, time
for _ in range(600):
    s = socket.socket(socket.{family})
    try:
        s.connect({place}); break
    except OSError:
        s.close(); time.sleep(0.1)
s.sendall(b'question'); s.shutdown(1)
print(s.makefile('rb').read().decode(), end='')
"""
    answer: list[bytes] = []
    asking = threading.Thread(target=lambda: answer.append(ssh.run(NAME, "python3 -", stdin=program.encode()).stdout))
    asking.start()
    connection, _ = here.accept()
    with connection:
        connection.settimeout(60)
        with connection.makefile("rb") as question:
            assert question.read() == b"question"
        connection.sendall(b"answer")
    asking.join(60)
    assert answer == [b"answer"]


def test_command_can_use_a_forwarded_port_from_its_start(alone: OpenSsh) -> None:
    with socket.create_server(("127.0.0.1", 0)) as here:
        here.settimeout(60)
        # OpenSSH waits for the end of forwarded connections
        answering = threading.Thread(target=lambda: here.accept()[0].close())
        answering.start()
        options = ("-R", f"7655:127.0.0.1:{here.getsockname()[1]}")
        done = alone.run(NAME, "exec 3<>/dev/tcp/127.0.0.1/7655 && cat <&3 && echo open", options=options)
        answering.join(60)
    assert done.stdout == b"open\n", done.stderr


def test_taken_port_inside_fails_the_forward(alone: OpenSsh, echoes: None) -> None:
    done = alone.run(NAME, options=("-N", "-R", "8765:127.0.0.1:1", "-o", "ExitOnForwardFailure=yes"))
    assert done.returncode == 255
    assert b"remote port forwarding failed for listen port 8765" in done.stderr


def test_editor_installs_a_server_and_talks_to_it(alone: OpenSsh) -> None:
    """As VS Code's Remote-SSH does: a script on the input of `bash` starts a server on a free port of loopback, and
    later connections reach it through a SOCKS forward of the same login."""
    script = b"""
mkdir -p ~/.editor && cd ~/.editor && echo hello > index.html
nohup python3 -u -m http.server 0 --bind 127.0.0.1 > log 2>&1 < /dev/null &
until grep -q port log; do sleep 0.1; done
sed -n 's/.* port \\([0-9]*\\) .*/listeningOn==\\1==/p' log
"""
    port = free_port()
    words = alone.words("ssh", "-T", "-D", str(port), f"{NAME}.skerry", "bash")
    with subprocess.Popen(words, env=alone.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(script)
        process.stdin.flush()
        found = re.fullmatch(rb"listeningOn==(\d+)==\n", process.stdout.readline())
        assert found is not None
        code = int(found[1])
        connection = opened(port)
        with connection:
            connection.sendall(b"\5\1\0" + b"\5\1\0\1\x7f\0\0\1" + code.to_bytes(2, "big"))
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            with connection.makefile("rb") as answers:
                assert answers.read().endswith(b"hello\n")
        process.stdin.close()
        assert process.wait(60) == 0
    assert alone.run(NAME, "pkill -f http.server").returncode == 0


# -- the agent ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def agent(alone: OpenSsh, tmp_path: Path) -> Iterator[None]:
    """Start an SSH agent of the user with one key."""
    place = tmp_path / "a"
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(place)], stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(place.exists, "the agent")
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "mine", "-f", tmp_path / "k"], check=True
            )
            alone.env["SSH_AUTH_SOCK"] = str(place)
            subprocess.run(["ssh-add", "-q", tmp_path / "k"], check=True, env=alone.env)
            yield
        finally:
            alone.env.pop("SSH_AUTH_SOCK", None)
            process.terminate()


def test_agent_is_forwarded_only_if_allowed(alone: OpenSsh, agent: None, sandbox: Sandbox) -> None:
    refused = alone.run(NAME, "echo [$SSH_AUTH_SOCK]; ssh-add -l", options=("-A",))
    assert (refused.returncode, refused.stdout) == (2, b"[]\n")
    words = [str(alone.home / "skerry-here"), "ssh", "-A", NAME, "ssh-add -l; stat -c %a $(dirname $SSH_AUTH_SOCK)"]
    allowed = alone.execute(words)
    assert re.fullmatch(rb"256 SHA256:\S+ mine \(ED25519\)\n700\n", allowed.stdout), allowed.stderr
    wait_until(lambda: sandbox.run("ls -d /tmp/skerry-agent-*").exit_code == 2, "the socket to be removed")
