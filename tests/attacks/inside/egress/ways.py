"""Ways out, tried where an attacker would: `python3 ways.py`, with a JSON object of id → [way, arguments] on stdin.
A way returns its gain; an OSError or `Refused` is a failure. Only the standard library, in the
sandbox's Python."""

from __future__ import annotations

import base64
import errno
import json
import os
import select
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

LIMIT_S, AT_ONCE = 10, 8
PROXY = ("198.18.0.2", 3128)
RESOLVER = "198.18.0.1"


class Refused(Exception):
    """It failed without an errno."""


# -- talking ------------------------------------------------------------------------------------------------------


def everything(caller: socket.socket, limit_s: float = 3, enough: bytes | None = None) -> bytes:
    """Read until the end, the limit, or `enough`. A reset is an end."""
    said, deadline = b"", time.monotonic() + limit_s
    while (left := deadline - time.monotonic()) > 0 and not (enough and enough in said) and len(said) < 1 << 20:
        caller.settimeout(left)
        try:
            data = caller.recv(65536)
        except TimeoutError:
            if not said:
                raise Refused("silence") from None
            break
        except (ConnectionResetError, ssl.SSLError):
            break
        if not data:
            break
        said += data
    return said


def answered(caller: socket.socket, request: bytes) -> str:
    """Return the gain, if the response came from the world and not from the proxy."""
    caller.sendall(request)
    said = everything(caller)
    if b'"address"' in said or b"canary" in said:
        return said.decode("latin-1")
    raise Refused(repr(said[:300]))


def head(host: str, path: str = "/", method: str = "GET", more: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}Connection: close\r\n\r\n".encode("latin-1")


def wrapped(caller: socket.socket, sni: str | None) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context.wrap_socket(caller, server_hostname=sni)


def called(host: str, port: int) -> socket.socket:
    """Resolve `host` with the C library, like most programs."""
    try:
        return socket.create_connection((host, port), 3)
    except UnicodeError as error:
        raise Refused(str(error)) from None


# -- the ways -----------------------------------------------------------------------------------------------------


def get(host: str, port: int = 80, path: str = "/", says: str | None = None, method: str = "GET") -> object:
    with called(host, port) as caller:
        return answered(caller, head(says or host, path, method))


def get_tls(
    host: str, port: int = 443, path: str = "/", sni: str | None = "", says: str | None = None, method: str = "GET"
) -> object:
    with called(host, port) as plain, wrapped(plain, host if sni == "" else sni) as caller:
        return answered(caller, head(says or host, path, method))


def look_up(host: str) -> object:
    return sorted({entry[4][0] for entry in socket.getaddrinfo(host, 80)})


def curl(*args: str, proxy: bool = False) -> object:
    argv = ["curl", "-gsSk", "--max-time", "6", *([] if proxy else ["--noproxy", "*"]), *args]
    done = subprocess.run(argv, capture_output=True, timeout=9)
    if done.returncode == 0 and (b'"address"' in done.stdout or b"canary" in done.stdout):
        return done.stdout.decode("latin-1")
    raise Refused(f"{done.returncode}: {done.stderr.decode('latin-1')}{done.stdout[:300].decode('latin-1')}")


def _through(request: bytes) -> socket.socket:
    """Past the proxy's answer to CONNECT, if that is yes."""
    caller = socket.create_connection(PROXY, 3)
    caller.sendall(request)
    said = everything(caller, enough=b"\r\n\r\n")
    if not said.startswith(b"HTTP/1.1 200"):
        raise Refused(repr(said[:300]))
    return caller


def connect(to: str, says: str = "x", sni: str | None = None, tls: bool = False, path: str = "/") -> object:
    """By the explicit proxy: CONNECT to one host, then SNI and Host of the same or of others."""
    request = f"CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n".encode("latin-1")
    with _through(request) as plain:
        if tls:
            with wrapped(plain, sni) as caller:
                return answered(caller, head(says, path))
        return answered(plain, head(says, path))


def connect_raw(request: str, then: str) -> object:
    with _through(request.encode("latin-1")) as caller:
        return answered(caller, then.encode("latin-1"))


def absolute(url: str, says: str, method: str = "GET", more: str = "") -> object:
    with socket.create_connection(PROXY, 3) as caller:
        return answered(caller, head(says, url, method, more))


def raw(host: str, port: int, data: str, wanted: str, end: bool = False, limit_s: float = 3) -> object:
    """These bytes (latin-1) to an allowed host; the gain is an answer that has `wanted` in it."""
    with called(host, port) as caller:
        caller.sendall(data.encode("latin-1"))
        if end:
            caller.shutdown(socket.SHUT_WR)
        said = everything(caller, limit_s)
        if wanted.encode("latin-1") in said:
            return said.decode("latin-1")
        raise Refused(repr(said[:600]))


def raw_tls(host: str, port: int, data: str, wanted: str, limit_s: float = 3) -> object:
    with called(host, port) as plain, wrapped(plain, host) as caller:
        caller.sendall(data.encode("latin-1"))
        said = everything(caller, limit_s)
        if wanted.encode("latin-1") in said:
            return said.decode("latin-1")
        raise Refused(repr(said[:600]))


def hello(host: str, port: int, sni: str, cut: str = "", first: str | None = None) -> object:
    """A TLS ClientHello by hand, with any bytes as its SNI, and perhaps another SNI before it. `cut`: into "bytes", a
    pause after the first, or into "records". The gain is a ServerHello."""
    entry = b""
    for name in (name.encode("latin-1") for name in (first, sni) if name is not None):
        entry += b"\0" + struct.pack("!H", len(name)) + name
    names = struct.pack("!HHH", 0, len(entry) + 2, len(entry)) + entry
    groups = struct.pack("!HHHH", 10, 4, 2, 23)
    signatures = struct.pack("!HHHHH", 13, 6, 4, 0x0403, 0x0804)
    versions = struct.pack("!HHBH", 43, 3, 2, 0x0303)
    extensions = names + groups + signatures + versions
    body = b"\x03\x03" + os.urandom(32) + b"\0" + struct.pack("!HHH", 4, 0xC02B, 0xC02F) + b"\x01\0"
    body += struct.pack("!H", len(extensions)) + extensions
    message = b"\x01" + struct.pack("!I", len(body))[1:] + body
    size = 20 if cut == "records" else len(message)
    parts = [message[at : at + size] for at in range(0, len(message), size)]
    records = b"".join(b"\x16\x03\x01" + struct.pack("!H", len(part)) + part for part in parts)
    with called(host, port) as caller:
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(records)) if cut == "bytes" else ():
            caller.sendall(records[at : at + 1])
            time.sleep(0.6 if at == 0 else 0)
        if cut != "bytes":
            caller.sendall(records)
        said = everything(caller, 2)
        if said[:1] == b"\x16":
            return "a ServerHello"
        raise Refused(repr(said[:60]))


def dns(labels: list[str], kind: int = 1, server: str = RESOLVER, tcp: bool = False, flags: int = 0x0100) -> object:
    """A question by hand, any bytes in its labels. The gain is an answer with records in it."""
    name = b"".join(bytes([len(label)]) + label.encode("latin-1") for label in labels) + b"\0"
    query = struct.pack("!HHHHHH", 4711, flags, 1, 0, 0, 0) + name + struct.pack("!HH", kind, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM) as caller:
        caller.settimeout(2)
        caller.connect((server, 53))
        caller.send(struct.pack("!H", len(query)) + query if tcp else query)
        said = caller.recv(4096)[2 * tcp :]
    number, answer_flags, _, answers = struct.unpack("!HHHH", said[:8])
    if number == 4711 and answers:
        return said.hex()
    raise Refused(f"rcode {answer_flags & 15}, {answers} answers")


def udp(host: str, port: int, data: str = "knock", family: int = socket.AF_INET) -> object:
    with socket.socket(family, socket.SOCK_DGRAM) as caller:
        caller.settimeout(1)
        caller.connect((host, port))
        caller.send(data.encode("latin-1"))
        said = _datagram(caller)
        if port == 53 and said[4:12] == bytes(8):
            raise Refused("an error of the resolver's, with nothing in it")
        return said


def udp_unconnected(host: str, port: int) -> object:
    """Sent without an error: the wire shows whether it left."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as caller:
        caller.settimeout(0.5)
        for _ in range(3):
            caller.sendto(b"\xc0" + bytes(1199), (host, port))
        return _datagram(caller)


def _datagram(caller: socket.socket) -> bytes:
    try:
        return caller.recv(2000)
    except TimeoutError:
        raise Refused("nothing came back") from None


def any_socket(family: int, kind: int, protocol: int = 0) -> object:
    return socket.socket(family, kind, protocol).fileno()


def abstract(name: str) -> object:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(2)
        caller.connect("\0" + name)
        return caller.recv(100)


def unix(path: str) -> object:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(path)
        return path


def socks(version: int, host: str, address: str, where: tuple[str, int] = PROXY) -> object:
    with socket.create_connection(tuple(where), 3) as caller:
        if version == 5:
            caller.sendall(b"\x05\x01\0")
            if everything(caller, 1.5)[:2] != b"\x05\0":
                raise Refused("no SOCKS 5 here")
            caller.sendall(b"\x05\x01\0\x03" + bytes([len(host)]) + host.encode() + struct.pack("!H", 80))
        else:
            caller.sendall(b"\x04\x01" + struct.pack("!H", 80) + socket.inet_aton(address) + b"me\0")
        said = everything(caller, 1.5)
        if said[:2] in (b"\x05\0", b"\0\x5a"):
            return answered(caller, head(host))
        raise Refused(repr(said[:100]))


def websocket(host: str, port: int, path: str, says: str | None = None, tls: bool = False) -> object:
    """Upgrade, then speak: the far side sends everything back."""
    with called(host, port) as plain:
        caller = wrapped(plain, host) if tls else plain
        key = base64.b64encode(os.urandom(16)).decode()
        more = f"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
        request = f"GET {path} HTTP/1.1\r\nHost: {says or host}\r\nConnection: Upgrade\r\n{more}\r\n"
        caller.sendall(request.encode())
        said = everything(caller, enough=b"\r\n\r\n")
        if not said.startswith(b"HTTP/1.1 101"):
            raise Refused(repr(said[:300]))
        caller.sendall(b"\x81\x85\0\0\0\0hello")
        said = everything(caller, enough=b"hello")
        if b"hello" not in said:
            raise Refused(repr(said))
        return said.decode("latin-1")


def followed(url: str) -> object:
    """curl with -L, as most programs follow redirects."""
    return curl("-L", url)


def own_ports() -> list[int]:
    """Return the listening ports of this network namespace."""
    ports = set()
    for name in ("tcp", "tcp6"):
        with open(f"/proc/net/{name}") as file:
            ports |= {int(line.split()[1].rpartition(":")[2], 16) for line in file.readlines()[1:] if " 0A " in line}
    return sorted(ports)


def door_port(says: str, data: str | None = None) -> object:
    """Straight to the worker's own port, past the redirection."""
    failure: Exception = Refused("nobody listens")
    for port in own_ports():
        for host in ("127.0.0.1", "127.0.0.2", "::1"):
            try:
                with socket.create_connection((host, port), 2) as caller:
                    return answered(caller, data.encode("latin-1") if data else head(says))
            except (OSError, Refused) as error:
                failure = error
    raise failure


def listen_beside(reuse: bool = True) -> object:
    """Binding the worker's port as well, on any address, with every option that shares it."""
    took = []
    for port in own_ports():
        for family, host in (
            (socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET, "127.0.0.9"),
            (socket.AF_INET6, "::"), (socket.AF_INET6, "::1"), (socket.AF_INET6, "::ffff:127.0.0.1"),
        ):  # fmt: skip
            with socket.socket(family) as squatter:
                squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                try:
                    squatter.bind((host, port))
                    squatter.listen()
                    took.append((host, port))
                except OSError:
                    continue
    if took:
        return took
    raise Refused("every one is taken")


NETLINK_REQUEST = 0x1 | 0x4 | 0x400  # REQUEST, ACK, CREATE


def _netlink(protocol: int, kind: int, body: bytes) -> object:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as kernel:
        kernel.settimeout(2)
        kernel.bind((0, 0))
        kernel.send(struct.pack("=IHHII", 16 + len(body), kind, NETLINK_REQUEST, 1, 0) + body)
        code = struct.unpack("=i", kernel.recv(65536)[16:20])[0]
    if code != 0:
        raise OSError(-code, os.strerror(-code))
    return "done"


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def remove_local_route() -> object:
    """Without `local default dev lo` nothing would come to the door."""
    body = struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 255, 3, 254, 2, 0)
    return _netlink(0, 25, body + _attribute(4, struct.pack("=i", 1)))


def add_rule() -> object:
    """A routing rule of one's own."""
    return _netlink(0, 32, struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 0, 0, 7, 0))


def flush_filter() -> object:
    """nft flush ruleset: without the redirection the inside would answer itself."""
    batch = struct.pack("=IHHIIBBH", 20, 16, 1, 1, 0, 0, 0, 10 << 8)
    delete = struct.pack("=IHHIIBBH", 20, (10 << 8) | 2, 5, 2, 0, 2, 0, 0)
    end = struct.pack("=IHHIIBBH", 20, 17, 1, 3, 0, 0, 0, 10 << 8)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as kernel:
        kernel.settimeout(2)
        kernel.bind((0, 0))
        kernel.send(batch + delete + end)
        code = struct.unpack("=i", kernel.recv(65536)[16:20])[0]
    if code:
        raise OSError(-code, os.strerror(-code))
    return "flushed"


def read_proc(name: str, wanted: str) -> object:
    with open(name) as file:
        text = file.read()
    if wanted in text:
        return text[:2000]
    raise Refused(f"{len(text)} characters without it")


def source(host: str, port: int, bind: str) -> object:
    """From an address of another's."""
    with socket.socket() as caller:
        caller.setsockopt(socket.IPPROTO_IP, 15, 1)  # IP_FREEBIND
        caller.settimeout(3)
        caller.bind((bind, 0))
        caller.connect((host, port))
        return answered(caller, head(host))


def options(host: str, port: int, level: int, option: int, value: int | str) -> object:
    """A socket option that could lead packets elsewhere, then a connection."""
    with socket.socket() as caller:
        caller.settimeout(3)
        caller.setsockopt(level, option, value if isinstance(value, int) else value.encode("latin-1"))
        caller.connect((host, port))
        return answered(caller, head(host))


def half_open(host: str, port: int, count: int, hold_s: float = 1.0) -> object:
    """Openings that say nothing; then one that would be allowed."""
    held = []
    for _ in range(count):
        caller = socket.socket()
        caller.setblocking(False)
        try:
            caller.connect((host, port))
        except BlockingIOError:
            pass
        except OSError:
            caller.close()
            break
        held.append(caller)
    select.select([], held, [], 0.5) if len(held) < 1000 else time.sleep(0.5)
    time.sleep(hold_s)
    return len(held)


def many(way: str, count: int, arguments: list[Any]) -> object:
    """Repeat the same and count the outcomes."""
    ends: dict[str, int] = {}
    for _ in range(count):
        try:
            WAYS[way](*arguments)
            end = "gained"
        except Refused as refusal:
            end = f"refused: {str(refusal)[:40]}"
        except OSError as error:
            end = errno.errorcode.get(error.errno or 0, str(error)[:40])
        ends[end] = ends.get(end, 0) + 1
    return json.dumps(ends)


WAYS: dict[str, Callable[..., object]] = {
    name: value for name, value in list(globals().items()) if callable(value) and not name.startswith("_")
}

# -- running them -------------------------------------------------------------------------------------------------


def _outcome(way: str, arguments: object) -> dict[str, str]:
    try:
        function = WAYS[way]
        gained = function(**arguments) if isinstance(arguments, dict) else function(*arguments)  # type: ignore[misc]
        return {"gained": repr(gained)[:4000]}
    except Refused as refusal:
        return {"failed": str(refusal)[:2000]}
    except OSError as error:
        return {"failed": errno.errorcode.get(error.errno or 0, f"{type(error).__name__}: {error}")}
    except BaseException:
        return {"broken": traceback.format_exc()[-2000:]}


def _begin(way: str, arguments: object) -> tuple[int, int]:
    near, far = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(near)
        signal.alarm(LIMIT_S)
        os.write(far, json.dumps(_outcome(way, arguments)).encode())
        os._exit(0)
    os.close(far)
    return child, near


def _end(child: int, near: int) -> dict[str, str]:
    with os.fdopen(near, "rb") as pipe:
        said = pipe.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return {"killed": signal.Signals(os.WTERMSIG(status)).name}
    return json.loads(said) if said else {"broken": "it said nothing"}


def main() -> None:
    jobs = list(json.load(sys.stdin).items())
    outcomes = {}
    while jobs:
        now, jobs = jobs[:AT_ONCE], jobs[AT_ONCE:]
        begun = [(name, _begin(*job)) for name, job in now]
        outcomes.update({name: _end(*started) for name, started in begun})
    print(json.dumps(outcomes))  # noqa: T201


if __name__ == "__main__":
    main()
