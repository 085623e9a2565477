"""Other protocols than TCP, and internal services: no packet leaves, and the denial comes at once."""

from __future__ import annotations

import socket

import pytest
from attacks.egress.conftest import Raid
from support.egress_attack import Try
from support.server import Server
from world import places

from skerry import Sandbox
from skerry.config import run_dir, socket_path

QUIC = "\xc0\0\0\0\1\x08" + "\0" * 1190
BATCH = {
    "udp": Try("udp", [places.API, 9]),
    "udp like QUIC to an allowed host's address": Try("udp", [places.API, 443, QUIC]),
    "udp without an answer": Try("udp_unconnected", [places.EVIL, 443]),
    "udp to metadata": Try("udp", [places.METADATA, 80]),
    "udp to port 53 that is no question": Try("udp", [places.EVIL, 53, "a secret that is no question"]),
    "udp to broadcast": Try("udp", ["255.255.255.255", 9]),
    "udp to a group": Try("udp", ["224.0.0.251", 5353]),
    "udp over IPv6": Try("udp", [places.EVIL_6, 443, QUIC, socket.AF_INET6]),
    "udp over IPv6 to port 53": Try("udp", [places.EVIL_6, 53, "a secret", socket.AF_INET6]),
    "ICMP by a raw socket": Try("any_socket", [socket.AF_INET, socket.SOCK_RAW, 1]),
    "ICMP by a datagram socket": Try("any_socket", [socket.AF_INET, socket.SOCK_DGRAM, 1]),
    "ICMPv6 by a raw socket": Try("any_socket", [socket.AF_INET6, socket.SOCK_RAW, 58]),
    "TCP by a raw socket": Try("any_socket", [socket.AF_INET, socket.SOCK_RAW, 6]),
    "whole packets": Try("any_socket", [socket.AF_INET, socket.SOCK_RAW, 255]),
    "SCTP": Try("any_socket", [socket.AF_INET, socket.SOCK_STREAM, 132]),
    "UDP-Lite": Try("any_socket", [socket.AF_INET, socket.SOCK_DGRAM, 136]),
    "MPTCP": Try("any_socket", [socket.AF_INET, socket.SOCK_STREAM, 262]),
    "AF_VSOCK": Try("any_socket", [40, socket.SOCK_STREAM]),
    "AF_PACKET": Try("any_socket", [17, socket.SOCK_RAW, 0x0300]),
    "AF_ALG": Try("any_socket", [38, socket.SOCK_SEQPACKET]),
    "AF_XDP": Try("any_socket", [44, socket.SOCK_RAW]),
    "AF_BLUETOOTH": Try("any_socket", [31, socket.SOCK_RAW]),
    "an abstract socket of the host": Try("abstract", [places.ABSTRACT]),
    "netfilter by netlink": Try("any_socket", [16, socket.SOCK_RAW, 12]),
    "the rules flushed": Try("flush_filter", []),
    "the local route removed": Try("remove_local_route", []),
    "a routing rule added": Try("add_rule", []),
    "a socket marked": Try("options", [places.EVIL, 80, 1, 36, 1]),
    "a socket bound to a device": Try("options", [places.EVIL, 80, 1, 25, "near\0"]),
    "a source route": Try("options", [places.EVIL, 80, 0, 4, "\x83\x07\x04\x0a\x14\x00\x05\x00"]),
    "IP_TRANSPARENT": Try("options", [places.EVIL, 80, 0, 19, 1]),
    "another source address": Try("source", [places.EVIL, 80, places.HOST_SIDE]),
    "straight to the worker's port": Try("door_port", ["api.example.test"]),
    "straight to the worker's port, as to a proxy": Try(
        "door_port", ["", "GET http://api.example.test/ HTTP/1.1\r\nHost: api.example.test\r\n\r\n"]
    ),
    "straight to the worker's port, by CONNECT": Try(
        "door_port", ["", "CONNECT api.example.test:80 HTTP/1.1\r\nHost: api.example.test\r\n\r\n"]
    ),
    "the worker's port beside it": Try("listen_beside", []),
    "the host's connections in /proc/net/tcp": Try("read_proc", ["/proc/net/tcp", "0100007F:0016"]),
    "another route in /proc/net/route": Try("read_proc", ["/proc/net/route", "near"]),
}
# Answered where nothing is in the way; the others need no canary to show that they can be done, or can't be here.
WITH_CONTROL = ["udp like QUIC to an allowed host's address", "AF_PACKET", "an abstract socket of the host",
                "ICMP by a raw socket", "whole packets", "netfilter by netlink", "a routing rule added"]  # fmt: skip


@pytest.mark.parametrize("user", ["user", "root"])
@pytest.mark.parametrize("name", BATCH)
def test_nothing_but_tcp_leaves(raid: Raid, guest: Sandbox, name: str, user: str) -> None:
    raid(BATCH, guest, user).failed(name, BATCH[name])


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("udp", "ECONNREFUSED"),
        ("udp like QUIC to an allowed host's address", "ECONNREFUSED"),
        ("udp over IPv6", "EPERM"),  # dropped before it needs an entry in the host's neighbour table
    ],
)
def test_udp_is_denied_at_once(raid: Raid, guest: Sandbox, name: str, error: str) -> None:
    assert raid(BATCH, guest).outcomes[name].failed == error


def test_server_socket_is_not_reachable(raid: Raid, guest: Sandbox, world_server: Server) -> None:
    """The API's, the keeper's, the worker's: none has a path inside, nor an abstract name."""
    paths = [
        str(socket_path(world_server.state_dir)),
        *(str(path) for path in run_dir(world_server.state_dir).rglob("*")),
    ]
    batch = {path: Try("unix", [path]) for path in paths} | {
        f"abstract {name}": Try("abstract", [name]) for name in ("skerry", "skerry-network", "skerry-worker")
    }
    seen = raid(batch, guest, "root")
    assert {name: outcome for name, outcome in seen.outcomes.items() if outcome.failed is None} == {}
