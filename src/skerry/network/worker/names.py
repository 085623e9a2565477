"""The name server that a sandbox sees. It asks nobody: a name that the policy could allow gets a made-up address that
leads to the worker, every other name does not exist. So nothing can be told to the outside by asking for names."""

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

from skerry.network.hosts import BadHost, Name, parse_host
from skerry.network.policy import Policy
from skerry.network.worker.attempts import Attempts, safe
from skerry.network.worker.book import Book, is_made_up
from skerry.network.worker.limits import Turns
from skerry.network.worker.streams import Wire
from skerry.network.worker.whose import Whose

TTL: Final = 30
QUERY_MOST: Final = 1024
_A_SECOND, _BURST = 500, 1000
_AT_ONCE: Final = 64
_TCP_IDLE_S: Final = 10.0
_TCP_MOST: Final = 200
_HEAD: Final = struct.Struct("!HHHHHH")
_REVERSE: Final = ".in-addr.arpa"
# now: when the first record of a type comes, the worker can't read modules any more
dns.rdata.load_all_types()  # type: ignore[no-untyped-call]


class Names:
    """One sandbox's. Every answer is computed at once and from what is at hand."""

    def __init__(
        self, policy: Callable[[], Policy], book: Book, attempts: Attempts, whose: Whose, own: str = ""
    ) -> None:
        """`own`: what the sandbox calls itself."""
        self._own = own.lower()
        self._policy, self._book, self._attempts, self._whose = policy, book, attempts, whose
        self._turns = Turns(_A_SECOND, _BURST)
        self._flooded = False

    def drain(self, sock: socket.socket) -> bool:
        """Answers what is waiting on the UDP socket, so much of it at a time. Whether there is a flood of it."""
        for _ in range(_AT_ONCE):
            try:
                query, sender = sock.recvfrom(QUERY_MOST + 1)
            except OSError:
                return False
            reply = self.answer(query, lambda sender=sender: self._asker(sender))  # type: ignore[misc]
            if reply is not None:
                with contextlib.suppress(OSError):
                    sock.sendto(reply, sender)
        return self._flooded

    async def serve(self, client: Wire, cgroup: int | None) -> None:
        """The same over TCP, one question after the other."""
        waiting = b""
        for _ in range(_TCP_MOST):
            while len(waiting) < 2 or len(waiting) < 2 + int.from_bytes(waiting[:2], "big"):
                if len(waiting) >= 2 and int.from_bytes(waiting[:2], "big") > QUERY_MOST:
                    return
                async with asyncio.timeout(_TCP_IDLE_S):
                    data = await client.read(4096)
                if not data:
                    return
                waiting += data
            size = 2 + int.from_bytes(waiting[:2], "big")
            query, waiting = waiting[2:size], waiting[size:]
            reply = self.answer(query, lambda: cgroup)
            if reply is None:
                return
            await client.write(len(reply).to_bytes(2, "big") + reply)

    def answer(self, query: bytes, asker: Callable[[], int | None]) -> bytes | None:
        """The reply; None where silence is right: what is no query at all must not be answered, for it could be an
        answer to an answer."""
        if len(query) < _HEAD.size:
            return None
        number, flags, questions, answers, authorities, more = _HEAD.unpack_from(query)
        if flags & dns.flags.QR:
            return None
        self._flooded = not self._turns.take()
        if self._flooded:
            self._attempts.refused("name", "(many)", f"more than {_A_SECOND} look-ups a second")
            return _bare(number, flags, dns.rcode.REFUSED)
        if flags & 0x7800:
            return _bare(number, flags, dns.rcode.NOTIMP)
        if len(query) > QUERY_MOST or (questions, answers, authorities) != (1, 0, 0) or more > 1:
            return _bare(number, flags, dns.rcode.FORMERR)
        try:
            message = dns.message.from_wire(query)
            return self._reply(message, asker)
        except (dns.exception.DNSException, ValueError, struct.error):
            return _bare(number, flags, dns.rcode.FORMERR)

    def _reply(self, query: dns.message.Message, asker: Callable[[], int | None]) -> bytes:
        question = query.question[0]
        reply = dns.message.make_response(query, recursion_available=True)
        if question.rdclass != dns.rdataclass.IN:
            reply.set_rcode(dns.rcode.REFUSED)
            return reply.to_wire()
        text = question.name.to_text(omit_final_dot=True)
        if text.lower().endswith(_REVERSE):
            self._reverse(text[: -len(_REVERSE)], question, reply)
            return reply.to_wire()
        try:
            name = parse_host(_spelled(question.name))
        except BadHost as error:
            self._attempts.refused("name", text, f"not a host's name: {error}", cgroup=asker())
            reply.set_rcode(dns.rcode.NXDOMAIN)
            return reply.to_wire()
        if isinstance(name, Name):
            self._forward(name, question, reply, asker)
        else:  # an address that somebody asks for by name: it needs no answer to be connected to
            reply.set_rcode(dns.rcode.NXDOMAIN)
        return reply.to_wire()

    def _forward(
        self, name: Name, question: dns.rrset.RRset, reply: dns.message.Message, asker: Callable[[], int | None]
    ) -> None:
        if name in ("localhost", self._own) or name.endswith(".localhost"):
            if question.rdtype == dns.rdatatype.A:
                _add(reply, question, "127.0.0.1")
            elif question.rdtype == dns.rdatatype.AAAA:
                _add(reply, question, "::1")
            return
        verdict = self._policy().name(name)
        if not verdict.allowed:
            self._attempts.refused("name", name, verdict.why, rule=verdict.rule, hint=verdict.hint, cgroup=asker())
            reply.set_rcode(dns.rcode.NXDOMAIN)
        elif question.rdtype in (dns.rdatatype.A, dns.rdatatype.ANY):
            address = self._book.address(name)
            if address is None:
                self._attempts.refused("name", name, "every made-up address is in use", cgroup=asker())
                reply.set_rcode(dns.rcode.SERVFAIL)
            else:
                _add(reply, question, str(address), dns.rdatatype.A)

    def _reverse(self, text: str, question: dns.rrset.RRset, reply: dns.message.Message) -> None:
        name = None
        with contextlib.suppress(ValueError):
            address = IPv4Address(".".join(reversed(text.split("."))))
            name = self._book.name(address) if is_made_up(address) else None
        if name is None:
            reply.set_rcode(dns.rcode.NXDOMAIN)
        elif question.rdtype in (dns.rdatatype.PTR, dns.rdatatype.ANY):
            _add(reply, question, f"{name}.", dns.rdatatype.PTR)

    def _asker(self, sender: tuple[str, int]) -> int | None:
        """Without a source of its own a datagram comes from the very address that it went to, whichever that was."""
        with contextlib.suppress(ValueError):
            address = IPv4Address(sender[0])
            return self._whose.udp((address, sender[1]), (address, 53))
        return None


def _spelled(name: dns.name.Name) -> bytes:
    """Its labels as they came, with no escapes; a dot inside a label would make another name of it."""
    labels = name.labels[:-1]
    if any(b"." in label for label in labels):
        raise BadHost(f"{safe(name.to_text(), 60)!r} has a dot inside a label")
    return b".".join(labels)


def _add(
    reply: dns.message.Message, question: dns.rrset.RRset, text: str, kind: dns.rdatatype.RdataType | None = None
) -> None:
    kind = question.rdtype if kind is None else kind
    data = dns.rdata.from_text(dns.rdataclass.IN, kind, text)
    reply.answer.append(dns.rrset.from_rdata(question.name, TTL, data))


def _bare(number: int, flags: int, code: int) -> bytes:
    """A reply that repeats nothing of the question, for what is not worth reading."""
    return _HEAD.pack(number, 0x8080 | flags & 0x7900 | code, 0, 0, 0, 0)
