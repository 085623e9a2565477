"""Attacks on the one socket of the keeper's that is inside: sudo's. They ask for a command that would leave a mark in
/root, where only root can; the mark is what an attack gains."""

from __future__ import annotations

import array
import os
import socket
import struct
import time

from attack import Refused, attack, first_gain, main

DOOR = "/run/skerry/sudo.sock"
START, SIGNAL = 1, 2


def strings(words: list[bytes]) -> bytes:
    return struct.pack("!I", len(words)) + b"".join(struct.pack("!I", len(word)) + word for word in words)


def request(argv: list[bytes], kind: int = START, user: bytes = b"root", uid: int = 0) -> bytes:
    """As keeper/internal/spawn encodes it."""
    head = struct.pack("!B7I", kind, 1, 9, uid, uid, 0, 1, 0) + struct.pack("!I", 0)
    body = head + strings([b"/", b"/usr/bin:/bin", user]) + strings(argv) + strings([b"PATH=/usr/bin:/bin"])
    return struct.pack("!I", len(body)) + body


def knock(data: bytes, fds: list[int], rest: bytes = b"") -> bytes:
    with socket.socket(socket.AF_UNIX) as door:
        door.settimeout(7)
        door.connect(DOOR)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        door.sendmsg([data], rights)
        if rest:
            door.sendall(rest)
        try:
            return door.recv(100)
        except (TimeoutError, ConnectionResetError):
            return b""


def marked(name: str) -> object:
    """Whether the command ran as root: anybody may look for the mark in /tmp, only root could have given it to root."""
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
def ask_as_somebody_else() -> object:
    return ask("sudo-other")


@attack(None, by=("nobody",))
def ask_with_forged_credentials() -> object:
    """SO_PEERCRED is the kernel's word; what a message claims about its sender must not count."""
    null = os.open("/dev/null", os.O_RDWR)
    data = request([b"/bin/sh", b"-c", b"echo > /tmp/sudo-forged"])

    def forged(uid: int) -> object:
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(5)
            door.connect(DOOR)
            claim = struct.pack("=iii", os.getpid(), uid, uid)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * 3))
            door.sendmsg([data], [(socket.SOL_SOCKET, 2, claim), rights])
            door.recv(100)
        return marked("sudo-forged")

    return first_gain(lambda: forged(0), lambda: forged(1000), lambda: ask("sudo-forged", uid=1000))


@attack(None, by=("nobody",))
def use_the_shim() -> object:
    os.system("/run/skerry/bin/sudo sh -c 'echo > /tmp/sudo-shim' 2>/dev/null")
    return marked("sudo-shim")


@attack(None, by=("nobody",))
def be_the_keepers_launcher() -> object:
    """The same program, told to be a launcher, with a socket of ours: it may fork, though only with our own rights."""
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
        lambda: os.unlink(DOOR),
        lambda: os.rename(DOOR, DOOR + "-old"),
        lambda: os.symlink("/tmp/mine", "/run/skerry/mine"),
        lambda: os.chmod(DOOR, 0o600),
    )


@attack(None, by=("user",))
def crowd_the_door() -> object:
    """Garbage, floods, half requests, too many and wrong fds. Whether the keeper stands is the test's to ask."""
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
            with socket.socket(socket.AF_UNIX) as door:
                door.connect(DOOR)
                door.sendmsg(
                    [data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if data and fds else []
                )
    broken = struct.pack("!I", 100) + b"\xff" * 100
    for _ in range(3000):  # fds with a request that can't be read, over and over: are they closed once?
        with socket.socket(socket.AF_UNIX) as door:
            door.connect(DOOR)
            door.sendmsg([broken], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * 3))])
    raise Refused("nothing to gain but its fall")


@attack(None, by=("user",))
def leave_sockets_that_linger_at_the_door() -> object:
    """Closing such a socket waits for an hour: who closes it last must not be the one that everybody waits for."""
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
        with socket.socket(socket.AF_UNIX) as door:
            door.connect(DOOR)
            fds = array.array("i", [stuck.fileno()] * 3)
            door.sendmsg([struct.pack("!I", 100)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
            time.sleep(0.005)  # the keeper has them now, so ours is not the last
            stuck.close()
    raise Refused("nothing to gain but its fall")


if __name__ == "__main__":
    main()
