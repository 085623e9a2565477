"""The world's name server, which counts its queries."""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset


class NameServer:
    """`names`: a name → lists of addresses, one for each look-up in turn, the last of them for ever."""

    def __init__(self, names: dict[str, list[list[str]]]) -> None:
        self.names = dict(names)
        self.asked: Counter[tuple[str, str]] = Counter()
        self._turns: Counter[tuple[str, str]] = Counter()

    def teach(self, name: str, turns: list[list[str]]) -> None:
        self.names[name] = turns
        for kind in ("A", "AAAA"):
            del self._turns[name, kind]

    def answer(self, packet: bytes) -> bytes:
        query = dns.message.from_wire(packet)
        question = query.question[0]
        name, kind = question.name.to_text(omit_final_dot=True).lower(), dns.rdatatype.to_text(question.rdtype)
        self.asked[name, kind] += 1
        reply = dns.message.make_response(query)
        reply.flags |= dns.flags.AA | dns.flags.RA
        turns = self._turns_of(name)
        if turns is None:
            reply.set_rcode(dns.rcode.NXDOMAIN)
        elif turns and kind in ("A", "AAAA"):
            addresses = turns[min(self._turns[name, kind], len(turns) - 1)]
            self._turns[name, kind] += 1
            version = 4 if kind == "A" else 6
            mine = [address for address in addresses if ipaddress.ip_address(address).version == version]
            if mine:
                reply.answer.append(dns.rrset.from_text_list(question.name, 0, "IN", kind, mine))
        elif kind == "TXT":
            reply.answer.append(dns.rrset.from_text(question.name, 0, "IN", "TXT", '"an answer by tunnel"'))
        return reply.to_wire()

    def _turns_of(self, name: str) -> list[list[str]] | None:
        labels = name.split(".")
        wild = (f"*.{'.'.join(labels[n:])}" for n in range(1, len(labels)))
        return next((self.names[known] for known in (name, *wild) if known in self.names), None)


class Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: NameServer) -> None:
        self.server = server

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.transport.sendto(self.server.answer(data), addr)


async def serve_stream(server: NameServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            length = int.from_bytes(await reader.readexactly(2), "big")
            reply = server.answer(await reader.readexactly(length))
            writer.write(len(reply).to_bytes(2, "big") + reply)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()
