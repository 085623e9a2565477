"""Reaching for a network of any kind."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import socket
import struct

from attack import FACTS, NUMBER, Refused, attack, call, first_gain, main

HELLO = b"hello from the host"
ALLOWED_FAMILIES = {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
NLM_REQUEST_CREATE_ACK = 0x1 | 0x4 | 0x400
SIOCSIFFLAGS, SIOCBRADDBR = 0x8914, 0x89A0


def greeted(family: int, kind: int, address: object) -> object:
    """Talks to a service that the test runs on the host."""
    with socket.socket(family, kind) as caller:
        caller.settimeout(2)
        caller.connect(address)
        if kind == socket.SOCK_DGRAM:
            caller.send(b"hello?")
        if (said := caller.recv(100)) != HELLO:
            raise Refused(repr(said))
        return said


@attack("host")
def call_a_service_on_the_hosts_loopback() -> object:
    return greeted(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", FACTS["tcp"]))


@attack("host")
def call_a_service_on_the_hosts_loopback_by_udp() -> object:
    return greeted(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", FACTS["udp"]))


@attack("host")
def call_a_service_on_the_hosts_loopback_by_ipv6() -> object:
    return greeted(socket.AF_INET6, socket.SOCK_STREAM, ("::1", FACTS["tcp6"]))


@attack("host")
def call_a_service_on_the_hosts_own_address() -> object:
    return greeted(socket.AF_INET, socket.SOCK_STREAM, (FACTS["address"], FACTS["tcp"]))


@attack("host")
def call_a_service_on_the_hosts_own_address_by_udp() -> object:
    return greeted(socket.AF_INET, socket.SOCK_DGRAM, (FACTS["address"], FACTS["udp"]))


@attack("host")
def call_a_service_through_a_mapped_ipv6_address() -> object:
    return greeted(socket.AF_INET6, socket.SOCK_STREAM, (f"::ffff:{FACTS['address']}", FACTS["tcp"]))


@attack("host")
def call_an_abstract_unix_socket_of_the_host() -> object:
    return greeted(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + FACTS["abstract"])


@attack("host")
def call_a_unix_socket_of_the_host_by_its_path() -> object:
    return greeted(socket.AF_UNIX, socket.SOCK_STREAM, FACTS["path"])


@attack("host")
def find_an_interface_other_than_lo() -> object:
    if not (found := [name for _, name in socket.if_nameindex() if name != "lo"]):
        raise Refused("lo only")
    return found


@attack("host")
def find_an_interface_in_sysfs() -> object:
    if not (found := [name for name in os.listdir("/sys/class/net") if name != "lo"]):
        raise Refused("lo only")
    return found


@attack("host")
def find_a_route() -> object:
    with open("/proc/net/route") as file:
        found = [line for line in file.readlines()[1:] if line.split()[0] != "lo"]
    with open("/proc/net/ipv6_route") as file:
        found += [line for line in file if line.split()[-1] != "lo"]
    if not found:
        raise Refused("none")
    return found


@attack("host")
def find_a_unix_socket_with_a_host_path() -> object:
    with open("/proc/net/unix") as file:
        if not (found := [line for line in file if FACTS["run_dir"] in line]):
            raise Refused("none")
    return found


@attack("host")
def open_a_raw_socket() -> object:
    families = ((socket.AF_INET, socket.IPPROTO_ICMP), (socket.AF_INET, socket.IPPROTO_TCP), (socket.AF_INET6, 58))
    return first_gain(*(lambda way=way: socket.socket(way[0], socket.SOCK_RAW, way[1]).fileno() for way in families))


@attack("host")
def open_a_raw_socket_of_any_protocol() -> object:
    return socket.socket(socket.AF_INET, socket.SOCK_RAW, 255).fileno()


@attack("host")
def ping_the_host() -> object:
    def ping(kind: int) -> object:
        with socket.socket(socket.AF_INET, kind, socket.IPPROTO_ICMP) as caller:
            caller.settimeout(2)
            caller.connect((FACTS["address"], 0))
            caller.send(struct.pack("!BBHHH4s", 8, 0, 0x6BC4 if kind == socket.SOCK_RAW else 0, 1, 1, b"ping"[:4]))
            return len(caller.recv(200))

    def connected() -> object:
        """A raw socket with a route to the host is as good: the checksum is not the point."""
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as caller:
            return caller.connect((FACTS["address"], 0))

    return first_gain(lambda: ping(socket.SOCK_DGRAM), connected)


@attack("host")
def send_to_a_broadcast_or_multicast_address() -> object:
    def send(address: str) -> object:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as caller:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            caller.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 0)  # stays on this host where it is allowed
            return caller.connect((address, 9))

    return first_gain(lambda: send("224.0.0.251"), lambda: send("255.255.255.255"))


@attack("host")
def open_a_socket_of_another_family() -> object:
    found = []
    refusals = set()
    kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET)
    for family, kind in itertools.product(range(64), kinds):
        if family in ALLOWED_FAMILIES:
            continue
        try:
            socket.socket(family, kind, 0).close()
            found.append(family)
        except OSError as error:
            refusals.add(error.errno)
    # ESOCKTNOSUPPORT and its like would come from the family's own code: it was reached, or its module loaded
    if found or refusals - {errno.EAFNOSUPPORT, errno.ENOSYS, errno.EPERM}:
        return found, refusals
    raise Refused("none")


@attack("host")
def open_a_vsock() -> object:
    return socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).fileno()


@attack("host")
def open_a_packet_socket() -> object:
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).fileno()


@attack(None)
def hide_a_family_in_the_upper_half_of_a_register() -> object:
    """A filter that denies by comparing 64 bits lets 2**32 + 40 through, of which the kernel sees 40."""
    families = ((1 << 32) + family for family in (40, 38, 17, 16, 2))
    return first_gain(*(lambda family=family: call(NUMBER["socket"], family, 1, 0) for family in families))


@attack("host")
def reach_a_protocol_whose_module_the_host_would_load() -> object:
    """Protocols are picked by type as well: DCCP (CVE-2017-6074) answers to type 6 with protocol 0."""
    ways = [(socket.AF_INET, 6, 0), (socket.AF_INET6, 6, 0), (socket.AF_INET, 5, 0), (socket.AF_INET, 4, 0)]
    ways += [(socket.AF_INET, 5, 132), (socket.AF_INET, 1, 132), (socket.AF_INET, 2, 136), (socket.AF_INET, 1, 262)]
    ways += [(socket.AF_INET, 2, 115), (socket.AF_INET, 1, 256), (socket.AF_INET, 6, 33), (socket.AF_INET, 10, 0)]
    reached = []
    for way in ways:
        try:
            socket.socket(*way).close()
            reached.append((way, "ok"))
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EACCES):
                reached.append((way, errno.errorcode[error.errno or 0]))
    if not reached:
        raise Refused("none")
    return reached


@attack("host")
def talk_to_another_part_of_the_kernel_by_netlink() -> object:
    found = []
    for protocol in range(1, 23):
        try:
            socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol).close()
            found.append(protocol)
        except OSError:
            continue
    if not found:
        raise Refused("route only")
    return found


def netlink(kind: int, body: bytes) -> object:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.settimeout(2)
        kernel.bind((0, 0))
        kernel.send(struct.pack("=IHHII", 16 + len(body), kind, NLM_REQUEST_CREATE_ACK, 1, 0) + body)
        answer = kernel.recv(65536)
    code = struct.unpack("=i", answer[16:20])[0]
    if code != 0:
        raise OSError(-code, os.strerror(-code))
    return kind


def attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


@attack("namespace")
def make_an_interface() -> object:
    def make(kind: bytes) -> object:
        words = attribute(3, b"attack0\0") + attribute(18, attribute(1, kind + b"\0"))
        return netlink(16, struct.pack("=BxHiII", 0, 0, 0, 0, 0) + words)

    return first_gain(*(lambda kind=kind: make(kind) for kind in (b"dummy", b"veth", b"bridge", b"ifb", b"vcan")))


@attack("namespace")
def take_lo_down_and_up_by_netlink() -> object:
    netlink(16, struct.pack("=BxHiII", 0, 0, 1, 0, 1))
    return netlink(16, struct.pack("=BxHiII", 0, 0, 1, 1, 1))


@attack("namespace")
def add_an_address() -> object:
    return netlink(20, struct.pack("=BBBBi", 2, 32, 0, 0, 1) + attribute(2, bytes([192, 0, 2, 77])))


@attack("namespace")
def add_a_route() -> object:
    netlink(16, struct.pack("=BxHiII", 0, 0, 1, 1, 1))
    body = struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 3, 253, 1, 0)
    return netlink(24, body + attribute(4, struct.pack("=i", 1)))


@attack("namespace")
def change_an_interface_by_ioctl() -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as caller:
        fcntl.ioctl(caller, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", 0x49))
    return "lo"


@attack("namespace")
def mark_packets() -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as caller:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 7)
    return "marked"


@attack("namespace")
def send_from_a_foreign_address() -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as caller:
        caller.setsockopt(socket.IPPROTO_IP, 19, 1)  # IP_TRANSPARENT
    return "transparent"


@attack("namespace")
def change_the_packet_filter() -> object:
    """IPT_SO_SET_REPLACE or, without it, any error but EPERM for an unprivileged user."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as caller:
        try:
            caller.setsockopt(socket.IPPROTO_IP, 64, b"\0" * 96)
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EACCES):
                raise
            return errno.errorcode[error.errno or 0]
    return "replaced"


if __name__ == "__main__":
    main()
