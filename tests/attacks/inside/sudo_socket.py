"""Attacks on the only keeper socket inside a sandbox: the socket of sudo. They request a command that leaves a mark
owned by root; the mark is the gain of an attack."""

from __future__ import annotations

import array
import os
import socket
import struct
import time

from attack import Refused, attack, first_gain, main

SOCKET = "/run/skerry/sudo.sock"
START, SIGNAL = 1, 2


def strings(words: list[bytes]) -> bytes:
    return struct.pack("!I", len(words)) + b"".join(struct.pack("!I", len(word)) + word for word in words)


def request(argv: list[bytes], kind: int = START, user: bytes = b"root", uid: int = 0) -> bytes:
    """As keeper/internal/launchproto encodes it."""
    head = struct.pack("!B7I", kind, 1, 9, uid, uid, 0, 1, 0) + struct.pack("!I", 0)
    body = head + strings([b"/", b"/usr/bin:/bin", user]) + strings(argv) + strings([b"PATH=/usr/bin:/bin"])
    return struct.pack("!I", len(body)) + body


def knock(data: bytes, fds: list[int], rest: bytes = b"") -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(7)
        connection.connect(SOCKET)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        connection.sendmsg([data], rights)
        if rest:
            connection.sendall(rest)
        try:
            return connection.recv(100)
        except (TimeoutError, ConnectionResetError):
            return b""


def marked(name: str) -> object:
    """Return whether the command ran as root: every user can see the mark in /tmp, only root can create it as root."""
    for _ in range(20):
        try:
            if os.stat(f"/tmp/{name}").st_uid == 0:
                return name
        except FileNotFoundError:
            time.sleep(0.01)
    raise Refused("no mark")


def ask(name: str, **words: object) -> object:
    null = os.open("/dev/null", os.O_RDWR)
    path = f"/tmp/{name}".encode()
    knock(request([b"/bin/sh", b"-c", b"echo > " + path], **words), [null, null, null])  # type: ignore[arg-type]
    return marked(name)


@attack(None, by=("nobody",))
def ask_as_another_user() -> object:
    return ask("sudo-other")


@attack(None, by=("nobody",))
def ask_with_forged_credentials() -> object:
    """SO_PEERCRED is the kernel's word; the claims of a message about its sender are ignored."""
    null = os.open("/dev/null", os.O_RDWR)
    data = request([b"/bin/sh", b"-c", b"echo > /tmp/sudo-forged"])

    def forged(uid: int) -> object:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5)
            connection.connect(SOCKET)
            claim = struct.pack("=iii", os.getpid(), uid, uid)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * 3))
            connection.sendmsg([data], [(socket.SOL_SOCKET, 2, claim), rights])
            connection.recv(100)
        return marked("sudo-forged")

    return first_gain(lambda: forged(0), lambda: forged(1000), lambda: ask("sudo-forged", uid=1000))


@attack(None, by=("nobody",))
def use_the_shim() -> object:
    os.system("/run/skerry/bin/sudo sh -c 'echo > /tmp/sudo-shim' 2>/dev/null")
    return marked("sudo-shim")


@attack(None, by=("nobody",))
def be_the_keepers_launcher() -> object:
    """Run the keeper as a launcher with a socket of the attacker: it may fork, but only with the attacker's rights."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        os.dup2(theirs.fileno(), 3)
        os.execv("/run/skerry/bin/skerry-keeper", ["skerry-keeper", "launcher"])
    null = os.open("/dev/null", os.O_RDWR)
    data = request([b"/bin/sh", b"-c", b"echo > /tmp/sudo-launcher"])
    ours.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * 3))])
    return marked("sudo-launcher")


@attack(None, by=("nobody", "user"))
def be_the_keeper() -> object:
    """`init` outside of PID 1 must do nothing: it would signal and reap everything that it may."""
    child = os.fork()
    if child == 0:
        os.execv("/run/skerry/bin/skerry-keeper", ["skerry-keeper", "init"])
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        return "it ran"
    raise Refused("it refused")


@attack(None, by=("nobody",))
def take_the_socket_away() -> object:
    return first_gain(
        lambda: os.unlink(SOCKET),
        lambda: os.rename(SOCKET, SOCKET + "-old"),
        lambda: os.symlink("/tmp/mine", "/run/skerry/mine"),
        lambda: os.chmod(SOCKET, 0o600),
    )


@attack(None, by=("user",))
def flood_the_socket() -> object:
    """Garbage, floods, half requests, too many and wrong fds. The test checks whether the keeper survives."""
    null = os.open("/dev/null", os.O_RDWR)
    good = request([b"/bin/true"])
    for data in (
        b"",
        b"\0",
        b"\xff" * 4,
        b"\xff" * 4096,
        b"\0\0\0\0",
        struct.pack("!I", 1 << 20),
        good[:-1],
        os.urandom(999),
    ):
        for fds in ([], [null], [null] * 3, [null] * 100):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(SOCKET)
                connection.sendmsg(
                    [data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if data and fds else []
                )
    broken = struct.pack("!I", 100) + b"\xff" * 100
    for _ in range(3000):  # fds with a request that can't be read, over and over: are they closed once?
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(SOCKET)
            connection.sendmsg([broken], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * 3))])
    raise Refused("nothing to gain but its crash")


@attack(None, by=("user",))
def leave_sockets_that_linger() -> object:
    """Closing such a socket waits for an hour: the last close must not happen in a thread that others wait for."""
    for _ in range(70):
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        stuck = socket.socket()
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        stuck.connect(listener.getsockname())
        stuck.setblocking(False)
        try:
            while True:
                stuck.send(b"x" * 65536)
        except BlockingIOError:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(SOCKET)
            fds = array.array("i", [stuck.fileno()] * 3)
            connection.sendmsg([struct.pack("!I", 100)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
            time.sleep(0.005)  # the keeper has them now, so ours is not the last
            stuck.close()
    raise Refused("nothing to gain but its crash")


if __name__ == "__main__":
    main()
