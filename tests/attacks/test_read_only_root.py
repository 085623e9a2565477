"""Attacks on a read-only root, from inside: writing outside of the writable places, and undoing it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server import Server

from skerry import Limits, Options, Sandbox, Volume
from skerry.errors import FileError, SandboxUnavailable
from skerry.runtimes import posture
from skerry.runtimes.adjust import WRITABLE

SEALED = Options(read_only_root=True)
LIMITS = Limits(memory="256M", disk="128M", pids=128)
# Prints each change that succeeded. Every top directory but the writable ones, and some files in them.
CHANGES = """
import os, sys
writable = {"workspace", "tmp", "home", "root", "proc", "sys", "dev"}
places = ["/", "/etc", "/usr/bin", "/usr/local/bin", "/var", "/var/lib", "/run", "/opt", "/etc/cron.d"]
places += ["/" + name for name in os.listdir("/") if name not in writable and os.path.isdir("/" + name)]
attempts = {
    "create": lambda place: os.close(os.open(place + "/made", os.O_CREAT | os.O_WRONLY)),
    "mkdir": lambda place: os.mkdir(place + "/made"),
    "symlink": lambda place: os.symlink("/etc", place + "/made"),
    "fifo": lambda place: os.mkfifo(place + "/made"),
    "link": lambda place: os.link("/etc/passwd", place + "/made"),
    "chmod": lambda place: os.chmod(place, 0o777),
    "chown": lambda place: os.chown(place, 1000, 1000),
    "times": lambda place: os.utime(place, (0, 0)),
    "xattr": lambda place: os.setxattr(place, "user.made", b"x"),
    "temporary": lambda place: os.close(os.open(place, os.O_TMPFILE | os.O_WRONLY)),
}
files = {
    "write": lambda: os.close(os.open("/etc/passwd", os.O_WRONLY)),
    "truncate": lambda: os.truncate("/etc/passwd", 0),
    "unlink": lambda: os.unlink("/etc/passwd"),
    "rename": lambda: os.rename("/etc/passwd", "/etc/passwd.old"),
    "swap": lambda: os.rename("/workspace", "/elsewhere"),
    "remove": lambda: os.rmdir("/opt"),
    "through the first process": lambda: os.close(os.open("/proc/1/root/etc/made", os.O_CREAT | os.O_WRONLY)),
    "through itself": lambda: os.close(os.open("/proc/self/root/etc/made", os.O_CREAT | os.O_WRONLY)),
}
attempts = {f"{name} {place}": (lambda work=work, place=place: work(place)) for name, work in attempts.items()
            for place in places} | files
for name, work in attempts.items():
    try:
        work()
        print(name)
    except OSError:
        pass
"""
# Prints each call that succeeded. The numbers are the same on every architecture from 424 on.
MOUNTS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
RDONLY, REMOUNT, BIND, MOVE = 1, 32, 4096, 8192
attempts = {
    "remount": lambda: libc.mount(b"none", b"/", None, REMOUNT, None),
    "remount of the mount": lambda: libc.mount(b"none", b"/", None, REMOUNT | BIND, None),
    "bind over etc": lambda: libc.mount(b"/tmp", b"/etc", None, BIND, None),
    "tmpfs over etc": lambda: libc.mount(b"tmpfs", b"/etc", b"tmpfs", 0, None),
    "move": lambda: libc.mount(b"/tmp", b"/etc", None, MOVE, None),
    "umount": lambda: libc.umount2(b"/tmp", 2),
    "umount of the root": lambda: libc.umount2(b"/", 2),
    "open_tree": lambda: libc.syscall(428, -100, b"/", 1),
    "fsopen": lambda: libc.syscall(430, b"overlay", 0),
    "mount_setattr": lambda: libc.syscall(442, -100, b"/", 0, (ctypes.c_uint64 * 4)(0, RDONLY, 0, 0), 32),
    "pivot_root": lambda: libc.pivot_root(b"/tmp", b"/tmp") if hasattr(libc, "pivot_root") else -1,
    "own mount namespace": lambda: libc.unshare(0x20000),
    "own user namespace": lambda: libc.unshare(0x10000000 | 0x20000),
    "mount namespace of the first process": lambda: libc.setns(os.open("/proc/1/ns/mnt", os.O_RDONLY), 0),
}
for name, work in attempts.items():
    try:
        if work() != -1:
            print(name)
    except OSError:
        pass
try:
    os.close(os.open("/etc/made", os.O_CREAT | os.O_WRONLY))
    print("writable afterwards")
except OSError:
    pass
"""


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address, limits=LIMITS, options=SEALED) as sandbox:
        yield sandbox


@pytest.mark.parametrize("user", ["user", "root"])
@pytest.mark.parametrize("script", [CHANGES, MOUNTS], ids=["changes", "mounts"])
def test_nothing_outside_of_the_writable_places_changes(sandbox: Sandbox, script: str, user: str) -> None:
    done = sandbox.run(["python3", "-c", script], user=user)
    assert (done.stdout, done.exit_code) == ("", 0), done.stderr
    assert "read_only_root" in (sandbox.cached_info.isolation or pytest.fail("no isolation")).guarantees


def test_the_attacks_succeed_where_the_root_is_writable(server: Server) -> None:
    with Sandbox(server=server.address, limits=LIMITS) as writable:
        done = writable.run(["python3", "-c", CHANGES], user="root")
    assert {"create /etc", "chmod /usr/bin", "xattr /", "through the first process"} & set(done.stdout.splitlines())


@pytest.mark.parametrize("place", ["/workspace", "/tmp", "/var/tmp", "/home/user", "/root"])
def test_writable_places_keep_files_and_modes(sandbox: Sandbox, place: str) -> None:
    user = "root" if place == "/root" else "user"
    assert sandbox.run(["mkdir", "-p", f"{place}/kept"], user=user).ok
    sandbox.files.write(f"{place}/kept/a", "1", user=user)
    assert sandbox.run(f"mv {place}/kept/a {place}/kept/b && cp {place}/kept/b /tmp/c.{user}", user=user).ok
    if place.endswith("tmp"):
        assert sandbox.run(["stat", "-c", "%a", place]).stdout == "1777\n"


def test_files_of_the_api_stay_within_the_writable_places(sandbox: Sandbox) -> None:
    with pytest.raises(FileError):
        sandbox.files.write("/etc/made", "x", user="root")
    with pytest.raises(FileError):
        sandbox.files.mkdir("/opt/made", user="root")
    sandbox.files.write("/tmp/moved", "x")
    sandbox.files.move("/tmp/moved", "/workspace/moved")
    assert sandbox.files.read_text("/workspace/moved") == "x"
    assert not sandbox.files.exists("/etc/made")


def test_a_started_sandbox_is_sealed_again_and_keeps_its_changes(server: Server) -> None:
    with Sandbox(server=server.address, limits=LIMITS, options=SEALED) as sealed:
        sealed.review.start()
        assert sealed.run("echo a > /workspace/a && echo b > ~/b").ok
        sealed.stop()
        assert sealed.run("cat /workspace/a ~/b").stdout == "a\nb\n"
        assert sealed.run("touch /etc/x", user="root").exit_code == 1
        assert [file.path for file in sealed.review.changes().files] == ["a"]
        with Sandbox(sealed.snapshot(), server=server.address) as open_again:
            assert open_again.run("cat /workspace/a ~/b && touch /etc/x", user="root").stdout.startswith("a\n")


def test_volumes_are_writable_also_below_a_writable_place(server: Server) -> None:
    volume = Volume.create("sealed", server=server.address)
    try:
        volumes = {"/data": "sealed", "/workspace/cache": "sealed"}
        for place, name in volumes.items():
            with Sandbox(server=server.address, limits=LIMITS, options=SEALED, volumes={place: name}) as sealed:
                assert sealed.run(f"touch {place}/kept && touch /etc/x", user="root").exit_code == 1
                assert sealed.files.exists(f"{place}/kept")
    finally:
        volume.delete()


@pytest.mark.parametrize("place", ["workspace", "home", "var/lib/skerry"])
def test_link_in_place_of_a_writable_place_is_rejected(server: Server, place: str) -> None:
    sealed = Sandbox.create(name="linked", limits=LIMITS, options=SEALED, server=server.address)
    try:
        sealed.stop()
        upper = next(path for path in server.state_dir.glob(f"**/{sealed.id}") if (path / "upper").is_dir()) / "upper"
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(upper / place)
        (upper / place).parent.mkdir(parents=True, exist_ok=True)
        (upper / place).symlink_to("/etc")
        with pytest.raises(SandboxUnavailable, match=f"/{place}"):
            sealed.resume()
    finally:
        sealed.delete()


def test_posture_check_detects_a_writable_root_and_a_missing_place() -> None:
    assert not all(Path("/", place).is_mount() for place in WRITABLE)
    with pytest.raises(SandboxUnavailable, match=r"root is not read-only|the mount on /"):
        posture.check_read_only(os.getpid())
