"""Records every packet that leaves the host side: its protocol and destination."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections import Counter

_ETH_P_ALL, _HOST, _OUTGOING = 3, 0, 4
_TCP, _UDP, _FRAGMENT, _ICMP6 = 6, 17, 44, 58
_SYN, _ACK = 0x02, 0x10


class Wire:
    """`seen`: ("tcp", address, port) → number of openings; for other protocols, number of packets."""

    def __init__(self, device: str) -> None:
        self.seen: Counter[tuple[str, str, int]] = Counter()
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_ALL))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self.socket.bind((device, _ETH_P_ALL))
        self.socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self.socket, self._read)

    def _read(self) -> None:
        for _ in range(256):
            try:
                packet, (_, ethertype, kind, _, _) = self.socket.recvfrom(128)
            except BlockingIOError:
                return
            if kind != _OUTGOING and (what := _wanted(ethertype, packet)):
                self.seen[what] += 1


def _wanted(ethertype: int, packet: bytes) -> tuple[str, str, int] | None:
    if ethertype == 0x0800:
        protocol, target, body = packet[9], packet[16:20], packet[(packet[0] & 15) * 4 :]
    elif ethertype == 0x86DD:
        protocol, target, body = packet[6], packet[24:40], packet[40:]
    else:
        return None  # ARP
    address = str(ipaddress.ip_address(target))
    if protocol == _TCP:
        opens = len(body) > 13 and body[13] & (_SYN | _ACK) == _SYN
        return ("tcp", address, int.from_bytes(body[2:4], "big")) if opens else None
    if protocol == _UDP:
        return "udp", address, int.from_bytes(body[2:4], "big")
    if ethertype == 0x86DD and (protocol == 0 or (protocol == _ICMP6 and 130 <= body[0] <= 137)):
        return None  # the kernel's neighbour and group discovery
    return f"protocol {protocol}", address, 0
