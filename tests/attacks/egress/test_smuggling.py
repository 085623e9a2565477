"""Request smuggling: every way to make two readers of HTTP disagree about the end of a request. The tests
check the bytes that reached the other side."""

from __future__ import annotations

import re

import pytest
from attacks.egress.conftest import Raid
from support.egress_attack import Try, tried
from world.world import World

from skerry import Sandbox

HOST = "paths.example.test"  # only GET and HEAD of /public may go there
OK = f"GET /public HTTP/1.1\r\nHost: {HOST}\r\n"
BAD = f"GET /private HTTP/1.1\r\nHost: {HOST}\r\n\r\n"
POST = f"GET /public HTTP/1.1\r\nHost: {HOST}\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n"
SMUGGLED = {
    "pipelined past a judged request": f"{OK}\r\n{BAD}",
    "pipelined past a body": f"{POST}Content-Length: 3\r\n\r\nabc{BAD}",
    "pipelined for another host": f"{OK}\r\nGET /public HTTP/1.1\r\nHost: evil.test\r\n\r\n",
    "CL.TE": f"{POST}Content-Length: {len(BAD) + 5}\r\n{CHUNKED}\r\n0\r\n\r\n{BAD}",
    "TE.CL": f"{POST}{CHUNKED}Content-Length: 4\r\n\r\n{len(BAD):x}\r\n{BAD}\r\n0\r\n\r\n",
    "two lengths": f"{POST}Content-Length: 0\r\nContent-Length: {len(BAD)}\r\n\r\n{BAD}",
    "a list of lengths": f"{POST}Content-Length: 0, {len(BAD)}\r\n\r\n{BAD}",
    "a signed length": f"{POST}Content-Length: +0\r\n\r\n{BAD}",
    "a length in hex": f"{POST}Content-Length: 0x0\r\n\r\n{BAD}",
    "TE.TE, two codings": f"{POST}{CHUNKED}Transfer-Encoding: identity\r\n\r\n0\r\n\r\n{BAD}",
    "TE with a tab": f"{POST}Transfer-Encoding:\tchunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n{BAD}",
    "TE with a space before the colon": f"{POST}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{BAD}",
    "TE of an unknown coding": f"{POST}Transfer-Encoding: xchunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n{BAD}",
    "TE folded over two lines": f"{POST}Transfer-Encoding:\r\n chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n{BAD}",
    "TE with a NUL": f"{POST}Transfer-Encoding: chunked\0\r\nContent-Length: 5\r\n\r\n0\r\n\r\n{BAD}",
    "a chunk extension with a bare LF": f"{POST}{CHUNKED}\r\n2;\nxx\r\n{len(BAD):x}\r\n0\r\n\r\n{BAD}0\r\n\r\n",
    "a chunk's size with 0x": f"{POST}{CHUNKED}\r\n0x0\r\n\r\n{BAD}",
    "a chunk's size with a sign": f"{POST}{CHUNKED}\r\n-0\r\n\r\n{BAD}",
    "a chunk's size that overflows": f"{POST}{CHUNKED}\r\n100000000000000000\r\n\r\n{BAD}",
    "a chunk without its CRLF": f"{POST}{CHUNKED}\r\n1\r\nx0\r\n\r\n{BAD}",
    "chunks ended by bare LF": f"{POST}{CHUNKED}\r\n0\n\n{BAD}",
    "a trailer that is a request": f"{POST}{CHUNKED}\r\n0\r\n{BAD}",
    "lines ended by bare LF": f"GET /public HTTP/1.1\nHost: {HOST}\n\n{BAD}",
    "a header with a bare LF": f"{OK}X: a\nGET /private HTTP/1.1\r\n\r\n{BAD}",
    "a header with a bare CR": f"{OK}X: a\rGET /private HTTP/1.1\r\rX: y\r\n\r\n{BAD}",
    "two Host headers": f"{OK}Host: evil.test\r\n\r\n{BAD}",
    "a folded Host header": f"GET /public HTTP/1.1\r\nHost: {HOST}\r\n evil.test\r\n\r\n{BAD}",
    "no Host header": f"GET /public HTTP/1.1\r\n\r\n{BAD}",
    "HTTP/1.0 with a body that goes on": f"GET /public HTTP/1.0\r\nHost: {HOST}\r\nConnection: keep-alive\r\n\r\n{BAD}",
    "HTTP/0.9": f"GET /private\r\n{BAD}",
    "HTTP/2 by prior knowledge": f"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{BAD}",
    "h2c by upgrade": f"{OK}Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: A\r\n\r\n{BAD}",
    "an upgrade that is none": f"{OK}Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n{BAD}",
    "expect, and no body": f"{POST}Expect: 100-continue\r\nContent-Length: 10\r\n\r\n{BAD}",
    "a line before the request": f"\r\n\r\n{BAD}",
    "a space before the method": f" GET /private HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "a target with a space": f"GET /public HTTP/1.1\r\nX: /private HTTP/1.1\r\nHost: {HOST}\r\n\r\n{BAD}",
    "a target with CR": f"GET /public\rGET /private HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "a header that the next hop drops": f"{OK}Connection: close, Host\r\n\r\n{BAD}",
    "an overridden method": f"{OK}X-HTTP-Method-Override: DELETE\r\nConnection: close\r\n\r\n",
    "an overridden URL": f"{OK}X-Original-URL: /private\r\nX-Rewrite-URL: /private\r\nConnection: close\r\n\r\n",
    "headers without an end": f"{OK}{'X: ' + 'a' * 200 + chr(13) + chr(10)}" * 2000,
    "the proxy's protocol": f"PROXY TCP4 192.0.2.1 203.0.113.66 1 80\r\n{OK}\r\n{BAD}",
    "a request in the first bytes of TLS": f"\x16\x03\x01\x00\x05{BAD}",
    "TLS to the plain port of a judged host": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + "\0" * 505,
    "nothing like HTTP": f"\0\1\2\3{BAD}",
}
PLAIN = {name: Try("raw", [HOST, 80, data, '"/private"', False, 1.5]) for name, data in SMUGGLED.items()}
INSPECTED = {
    name: Try(
        "raw_tls", ["inspected.example.test", 443, data.replace(HOST, "inspected.example.test"), '"/private"', 1.5]
    )
    for name, data in SMUGGLED.items()
}
# Headers that only a careless server would take for another request: they are not the proxy's to judge.
HARMLESS = {"an overridden URL", "an overridden method", "a target with a space"}


def smuggled(calls: list[dict[str, object]]) -> list[str]:
    """Return the request lines that reached the other side although the policy does not allow them."""
    lines = [line for call in calls for line in request_lines(str(call["raw"]))]
    return [line for line in lines if not line.startswith(("GET /public ", "HEAD /public "))]


def request_lines(raw: str) -> list[str]:
    """Return every line that any reader could take for a request line: a reader without framing finds them all, so that
    a body is let off only where there is one way to read how long it is."""
    lines = []
    while raw:
        head, end, raw = raw.partition("\r\n\r\n")
        first, *fields = re.split(r"\r\n|\r|\n", head)
        lines.append(first)
        if not end:
            break
        framing = [field for field in fields if re.match(r"(?i)\s*(content-length|transfer-encoding)\s*:", field)]
        length = re.fullmatch(r"Content-Length: ([0-9]+)", framing[0]) if len(framing) == 1 else None
        if framing == ["Transfer-Encoding: chunked"]:
            raw = re.sub(r"\A(?:[1-9a-f][0-9a-f]*\r\n(?s:.*?)\r\n)*?(?:0\r\n\r\n|\Z)", "", raw)
        elif length:
            raw = raw[int(length[1]) :]
        elif framing:
            lines += [f"two ways to read: {framing}"]
    return lines


@pytest.mark.parametrize("name", SMUGGLED)
def test_request_smuggling_is_blocked(raid: Raid, guest: Sandbox, name: str) -> None:
    seen = raid(PLAIN, guest)
    if name not in HARMLESS:
        assert seen.outcomes[name].gained is None, seen.outcomes[name]
    assert seen.outcomes[name].broken is None, seen.outcomes[name]
    assert seen.strays == []


@pytest.mark.parametrize("name", SMUGGLED)
def test_request_smuggling_in_inspected_tls_is_blocked(raid: Raid, guest: Sandbox, name: str) -> None:
    seen = raid(INSPECTED, guest)
    if name not in HARMLESS:
        assert seen.outcomes[name].gained is None, seen.outcomes[name]
    assert seen.outcomes[name].broken is None, seen.outcomes[name]
    assert seen.strays == []


@pytest.mark.parametrize("batch", [PLAIN, INSPECTED], ids=["plain", "inspected"])
def test_no_line_of_a_denied_request_reaches_the_server(raid: Raid, guest: Sandbox, batch: dict[str, Try]) -> None:
    assert smuggled(raid(batch, guest).calls) == []


def test_control_pipelined_request_arrives_without_isolation(raid: Raid, world: World) -> None:
    name = "pipelined past a judged request"
    seen = raid({name: PLAIN[name]})
    assert seen.outcomes[name].gained is not None
    assert smuggled(seen.calls)


def test_allowed_requests_can_be_pipelined(world: World, guest: Sandbox) -> None:
    three = "".join(f"GET /public/{n} HTTP/1.1\r\nHost: {HOST}\r\n\r\n" for n in range(3))
    seen = tried(world, guest, {"three": Try("raw", [HOST, 80, three, '"/public/2"'])})
    assert seen.outcomes["three"].gained is not None
    assert [line for call in seen.calls for line in call["requests"]] == [f"GET /public/{n}" for n in range(3)]
