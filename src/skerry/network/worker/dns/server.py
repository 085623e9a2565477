"""The DNS server that a sandbox sees. It sends no queries: a name that the policy could allow gets a fake IP that leads
to the worker, every other name does not exist. So look-ups cannot carry data out."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import Final

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from skerry.network.policy.policy import Policy
from skerry.network.worker.audit import AttemptReporter, printable
from skerry.network.worker.dns.fake_ips import FakeIpTable, is_fake_ip
from skerry.network.worker.rate_limit import TokenBucket
from skerry.network.worker.socket_owner import SocketOwner
from skerry.network.worker.streams import SocketStream
from skerry.types.hosts import BadHost, Name, parse_host

TTL: Final = 30
MAX_QUERY: Final = 1024
_QUERIES_PER_SECOND, _QUERY_BURST = 500, 1000
_MAX_PER_WAKEUP: Final = 64
_TCP_IDLE_TIMEOUT_S: Final = 10.0
_MAX_TCP_QUERIES: Final = 200
_HEAD: Final = struct.Struct("!HHHHHH")
_REVERSE_SUFFIX: Final = ".in-addr.arpa"
# now: the worker cannot read modules later, when the first record of a type arrives
dns.rdata.load_all_types()  # type: ignore[no-untyped-call]


class DnsServer:
    """The DNS server of one sandbox. Every answer is computed at once, from local data."""

    def __init__(
        self,
        policy: Callable[[], Policy],
        fake_ips: FakeIpTable,
        attempts: AttemptReporter,
        socket_owner: SocketOwner,
        hostname: str = "",
    ) -> None:
        """`hostname`: the sandbox's host name."""
        self.hostname = hostname.lower()
        self._policy, self._fake_ips, self._attempts, self._socket_owner = policy, fake_ips, attempts, socket_owner
        self._rate_limit = TokenBucket(_QUERIES_PER_SECOND, _QUERY_BURST)
        self._flooded = False

    def drain(self, sock: socket.socket) -> bool:
        """Answer queries that wait on the UDP socket, a limited number at a time. Return whether they come too fast."""
        for _ in range(_MAX_PER_WAKEUP):
            try:
                query, sender = sock.recvfrom(MAX_QUERY + 1)
            except OSError:
                return False
            reply = self.answer(query, lambda sender=sender: self._sender_cgroup(sender))  # type: ignore[misc]
            if reply is not None:
                with contextlib.suppress(OSError):
                    sock.sendto(reply, sender)
        return self._flooded

    async def serve(self, client: SocketStream, cgroup: int | None) -> None:
        """Answer queries over TCP, one after another."""
        buffer = b""
        for _ in range(_MAX_TCP_QUERIES):
            while len(buffer) < 2 or len(buffer) < 2 + int.from_bytes(buffer[:2], "big"):
                if len(buffer) >= 2 and int.from_bytes(buffer[:2], "big") > MAX_QUERY:
                    return
                async with asyncio.timeout(_TCP_IDLE_TIMEOUT_S):
                    data = await client.read(4096)
                if not data:
                    return
                buffer += data
            size = 2 + int.from_bytes(buffer[:2], "big")
            query, buffer = buffer[2:size], buffer[size:]
            reply = self.answer(query, lambda: cgroup)
            if reply is None:
                return
            await client.write(len(reply).to_bytes(2, "big") + reply)

    def answer(self, query: bytes, find_cgroup: Callable[[], int | None]) -> bytes | None:
        """Return the reply, or None: a datagram that is not a query gets no answer, or two servers could answer each
        other forever."""
        if len(query) < _HEAD.size:
            return None
        number, flags, questions, answers, authorities, more = _HEAD.unpack_from(query)
        if flags & dns.flags.QR:
            return None
        self._flooded = not self._rate_limit.take()
        if self._flooded:
            self._attempts.denied("name", "(many)", f"more than {_QUERIES_PER_SECOND} look-ups a second")
            return _header_only(number, flags, dns.rcode.REFUSED)
        if flags & 0x7800:
            return _header_only(number, flags, dns.rcode.NOTIMP)
        if len(query) > MAX_QUERY or (questions, answers, authorities) != (1, 0, 0) or more > 1:
            return _header_only(number, flags, dns.rcode.FORMERR)
        try:
            message = dns.message.from_wire(query)
            return self._reply(message, find_cgroup)
        except (dns.exception.DNSException, ValueError, struct.error):
            return _header_only(number, flags, dns.rcode.FORMERR)

    def _reply(self, query: dns.message.Message, find_cgroup: Callable[[], int | None]) -> bytes:
        question = query.question[0]
        reply = dns.message.make_response(query, recursion_available=True)
        if question.rdclass != dns.rdataclass.IN:
            reply.set_rcode(dns.rcode.REFUSED)
            return reply.to_wire()
        text = question.name.to_text(omit_final_dot=True)
        if text.lower().endswith(_REVERSE_SUFFIX):
            self._answer_reverse(text[: -len(_REVERSE_SUFFIX)], question, reply)
            return reply.to_wire()
        try:
            name = parse_host(_raw_name(question.name))
        except BadHost as error:
            self._attempts.denied("name", text, f"not a host name: {error}", cgroup=find_cgroup())
            reply.set_rcode(dns.rcode.NXDOMAIN)
            return reply.to_wire()
        if isinstance(name, Name):
            self._answer_name(name, question, reply, find_cgroup)
        else:  # an address queried as a name: connecting to it needs no answer
            reply.set_rcode(dns.rcode.NXDOMAIN)
        return reply.to_wire()

    def _answer_name(
        self, name: Name, question: dns.rrset.RRset, reply: dns.message.Message, find_cgroup: Callable[[], int | None]
    ) -> None:
        if name in ("localhost", self.hostname) or name.endswith(".localhost"):
            if question.rdtype == dns.rdatatype.A:
                _add_answer(reply, question, "127.0.0.1")
            elif question.rdtype == dns.rdatatype.AAAA:
                _add_answer(reply, question, "::1")
            return
        verdict = self._policy().name(name)
        if not verdict.allowed:
            self._attempts.denied("name", name, verdict.why, rule=verdict.rule, hint=verdict.hint, cgroup=find_cgroup())
            reply.set_rcode(dns.rcode.NXDOMAIN)
        elif question.rdtype in (dns.rdatatype.A, dns.rdatatype.ANY):
            address = self._fake_ips.address(name)
            if address is None:
                self._attempts.denied("name", name, "every fake IP is in use", cgroup=find_cgroup())
                reply.set_rcode(dns.rcode.SERVFAIL)
            else:
                _add_answer(reply, question, str(address), dns.rdatatype.A)

    def _answer_reverse(self, text: str, question: dns.rrset.RRset, reply: dns.message.Message) -> None:
        name = None
        with contextlib.suppress(ValueError):
            address = IPv4Address(".".join(reversed(text.split("."))))
            name = self._fake_ips.name(address) if is_fake_ip(address) else None
        if name is None:
            reply.set_rcode(dns.rcode.NXDOMAIN)
        elif question.rdtype in (dns.rdatatype.PTR, dns.rdatatype.ANY):
            _add_answer(reply, question, f"{name}.", dns.rdatatype.PTR)

    def _sender_cgroup(self, sender: tuple[str, int]) -> int | None:
        """Return the sender's cgroup. A datagram without an explicit source comes from the address that it went to."""
        with contextlib.suppress(ValueError):
            address = IPv4Address(sender[0])
            return self._socket_owner.udp((address, sender[1]), (address, 53))
        return None


def _raw_name(name: dns.name.Name) -> bytes:
    """Return the labels as they came, without escapes. A dot inside a label would make it another name."""
    labels = name.labels[:-1]
    if any(b"." in label for label in labels):
        raise BadHost(f"{printable(name.to_text(), 60)!r} has a dot inside a label")
    return b".".join(labels)


def _add_answer(
    reply: dns.message.Message, question: dns.rrset.RRset, text: str, kind: dns.rdatatype.RdataType | None = None
) -> None:
    kind = question.rdtype if kind is None else kind
    data = dns.rdata.from_text(dns.rdataclass.IN, kind, text)
    reply.answer.append(dns.rrset.from_rdata(question.name, TTL, data))


def _header_only(number: int, flags: int, code: int) -> bytes:
    """Return a reply without a copy of the question, for queries that are not worth parsing."""
    return _HEAD.pack(number, 0x8080 | flags & 0x7900 | code, 0, 0, 0, 0)
