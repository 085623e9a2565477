"""Attacks by files left in a sandbox's root: links, FIFOs and worse at the places where the host mounts, and where
runtime and keeper read and write, the next time that it starts."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.server import Server

from skerry import Limits, Sandbox
from skerry.config import run_dir
from skerry.errors import SandboxUnavailable, SkerryError

DEEP = 'import os\nos.chdir("/var/tmp")\nfor _ in range(6000): os.mkdir("d" * 200); os.chdir("d" * 200)'
ODD = 'for name in (b"\\xff\\xfe", b"a\\nb", b"\\x1b[31m"): open(b"/workspace/" + name, "w")'
LIMITS = Limits(memory="256M", disk="128M", pids=128)


@contextmanager
def left_behind(server: Server, line: str) -> Iterator[Sandbox]:
    """A sandbox in which root ran a line, stopped."""
    sandbox = Sandbox.create(name="left", limits=LIMITS, server=server.address)
    try:
        done = sandbox.run(line, user="root", timeout=60)
        assert done.ok, done.stderr
        sandbox.stop()
        yield sandbox
    finally:
        sandbox.delete()


def unit_of(server: Server, sandbox: Sandbox) -> Path:
    return next(path for path in server.state_dir.glob(f"**/{sandbox.id}") if (path / "upper").is_dir())


@pytest.mark.parametrize("target", ["/etc", "/tmp", "../../../../../../tmp", "/proc/self/root", "nowhere"])
@pytest.mark.parametrize("place", ["proc", "sys", "dev", "run"])
def test_link_in_place_of_a_mount_point_is_rejected(server: Server, place: str, target: str) -> None:
    """Created on the disk itself: a mount point cannot be replaced from inside in any known way."""
    with left_behind(server, "true") as sandbox:
        upper = unit_of(server, sandbox) / "upper"
        if (upper / place).is_dir():
            shutil.rmtree(upper / place)
        (upper / place).symlink_to(target)
        before = sorted(Path("/tmp").iterdir()), sorted(Path("/etc").iterdir())
        with pytest.raises(SandboxUnavailable, match=f"/{place}"):
            sandbox.resume()
        assert sandbox.info().state in ("stopped", "failed")
        assert (run_dir(server.state_dir) / "m" / sandbox.id).exists() is False
        assert [path for path in sorted(Path("/etc").iterdir()) if path not in before[1]] == []


@pytest.mark.parametrize(
    "line", ["mv /run /run-old && ln -s /etc /run", "mv /run /run-old && ln -s /proc/self/root /run"]
)
def test_link_above_a_mount_point_is_rejected_at_the_next_start(server: Server, line: str) -> None:
    """This one can be made from inside: the directory above a mount may be renamed."""
    with left_behind(server, line) as sandbox, pytest.raises(SandboxUnavailable, match="/run"):
        sandbox.resume()


# After each of these the sandbox starts again or reports the reason in a typed error; the server survives.
LEFT = {
    "a FIFO as the list of users": "rm /etc/passwd && mkfifo /etc/passwd",
    "a link to a FIFO as the list of users": "mkfifo /opt/f && ln -sf ../opt/f /etc/passwd",
    "a FIFO behind a linked directory": "mkdir /opt/e && mkfifo /opt/e/passwd && mv /etc /opt/f && ln -s /opt/e /etc",
    "a terminal as the list of users": "ln -sf /dev/ptmx /etc/passwd",
    "a list of users that is a terabyte long": "rm /etc/passwd && truncate -s 1T /etc/passwd",
    "a list of users that is one endless line": "tr '\\0' x < /dev/zero | head -c 30M > /etc/passwd",
    "a list of users that has no end": "ln -sf /dev/zero /etc/passwd",
    "a list of users that is the kernel's memory": "ln -sf /proc/kcore /etc/passwd",
    "a directory as the list of users": "rm /etc/passwd && mkdir /etc/passwd",
    "users that lie": "printf 'user:x:0:0::/:/bin/sh\\nroot:x:4294967295:-1::/:\\nuser:x:99999:0:::\\n' > /etc/passwd",
    "a FIFO as the list of groups": "rm /etc/group && mkfifo /etc/group",
    "many groups": "for i in $(seq 20000); do echo g$i:x:$i:user; done > /etc/group",
    "a workspace that is a link to the root": "rm -rf /workspace && ln -s / /workspace",
    "a workspace that is a link to PID 1's files": "rm -rf /workspace && ln -s /proc/1/fd /workspace",
    "a workspace that is a FIFO": "rm -rf /workspace && mkfifo /workspace",
    "no workspace": "rm -rf /workspace",
    "a FIFO as sudo": "rm -f /usr/local/bin/sudo && mkfifo /usr/local/bin/sudo",
    "a directory as sudo": "rm -f /usr/local/bin/sudo && mkdir /usr/local/bin/sudo",
    "programs that are elsewhere": "rm -rf /usr/local/bin && ln -s /etc /usr/local/bin",
    "a FIFO as the shell": "rm /bin/bash && mkfifo /bin/bash",
    "a shell that is the keeper": "cp --remove-destination /bin/true /bin/bash && ln -sf /proc/1/exe /bin/sh",
    "no home": "rm -rf /home/user && ln -s /proc/1/root /home/user",
    "a full disk": "dd if=/dev/zero of=/var/tmp/1 bs=1M; dd if=/dev/zero of=/var/tmp/2 bs=1k; true",
    "a very deep directory": f"python3 -c '{DEEP}'",
    "names that are not text": f"python3 -c '{ODD}'",
}  # fmt: skip


@pytest.mark.parametrize("what", LEFT)
def test_sandbox_restarts_or_reports_the_reason(server: Server, what: str) -> None:
    with left_behind(server, LEFT[what]) as sandbox:
        with contextlib.suppress(SkerryError, OSError):
            sandbox.resume()
            for user in ("user", "root", "1000"):
                sandbox.run(["/bin/true"], user=user, cwd="/", timeout=10)
            sandbox.run("true", timeout=10)
            sandbox.files.list("/workspace")
            sandbox.files.write("/workspace/new", "x")
        assert server.http().get("/healthz").status_code == 200


def test_overlay_markers_cannot_be_set_from_inside(server: Server) -> None:
    """Whiteouts, opaque directories and redirects control which files of lower layers an overlay hides."""
    code = (
        "import os\n"
        "said = []\n"
        "for space in ('trusted', 'security', 'system', 'user'):\n"
        "    for name, value in (('opaque', b'y'), ('redirect', b'/../etc'), ('metacopy', b''), ('whiteout', b'y')):\n"
        "        try: os.setxattr('/usr/share/doc', f'{space}.overlay.{name}', value)\n"
        "        except OSError: continue\n"
        "        said.append(f'{space}.overlay.{name}')\n"
        "print(*said)\n"
        "import ctypes\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "open('/opt/there', 'w').close()\n"
        "print(libc.renameat2(-100, b'/opt/there', -100, b'/opt/moved', 4))\n"  # RENAME_WHITEOUT
    )
    with Sandbox(server=server.address, limits=LIMITS) as sandbox:
        before = sandbox.run("ls /usr/share/doc | wc -l").stdout
        said, whiteout = sandbox.run(["python3", "-c", code], user="root", check=True).stdout.splitlines()
        assert all(name.startswith("user.") for name in said.split())
        assert whiteout == "-1"
        sandbox.stop()
        sandbox.resume()
        assert sandbox.run("ls /usr/share/doc | wc -l").stdout == before


@pytest.mark.parametrize("driver", ["btrfs", "plain"])
def test_deep_and_odd_trees_are_deleted(own_server: Server, driver: str) -> None:
    odd = 'import os, socket\nsocket.socket(socket.AF_UNIX).bind("/var/tmp/s"); os.mkdir(b"/var/tmp/\\xff\\n")'
    plain = "cd /var/tmp && mkdir -m 0 closed && ln -s /etc link && mkfifo fifo && ln -s / closed/root"
    line = f"{plain} && python3 -c '{odd}' && python3 -c '{DEEP}'"
    server = own_server.start(SKERRY_STORAGE_DRIVER=driver)
    waive = {"waive_guarantees": ("disk_limit",)} if driver == "plain" else {}
    body = {"limits": {"memory": "256M"}, "options": waive}
    with server.http() as http:
        made = http.post("/v1/sandboxes", json=body)
        assert made.status_code == 201, made.text
        sandbox = Sandbox.get(made.json()["id"], server=server.address)
        assert sandbox.run(line, user="root", timeout=60).ok
        sandbox.delete()
    assert server.leftovers() == []
    left = [path.relative_to(server.state_dir) for path in server.state_dir.glob(f"**/{sandbox.id}*")]
    assert [path for path in left if path.parts[0] != "traces"] == []  # a trace is kept longer than its sandbox


def test_fifo_does_not_block_a_start(server: Server) -> None:
    """Runtimes read the list of users: for as long as they wait, one of few places to start from is taken."""
    left = left_behind(server, LEFT["a FIFO as the list of users"])
    with left as sandbox, pytest.raises(SandboxUnavailable, match="/etc/passwd"):
        sandbox.resume()
