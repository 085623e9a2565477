"""Closed addresses stay closed, however they are spelled, named or embedded."""

from __future__ import annotations

import socket

import pytest
from attacks.egress.conftest import TRAPS, Raid
from support.egress_attack import Try
from world import places

from skerry import Sandbox

# 169.254.169.254 as inet_aton reads it; the last ones are no address to it, and must not become one.
SPELLINGS = {
    "dotted": "169.254.169.254",
    "decimal": "2852039166",
    "octal": "025177524776",
    "hex": "0xa9fea9fe",
    "dotted octal": "0251.0376.0251.0376",
    "dotted hex": "0xA9.0xFE.0xA9.0xFE",
    "mixed bases": "169.0xfe.0251.254",
    "three parts": "169.254.43518",
    "two parts": "169.16689662",
}
NOT_SPELLINGS = {"a trailing dot": "169.254.169.254.", "leading zeros": "169.254.0169.0254", "too many": "1.1.1.1.1"}
SIXES = {
    "mapped": "::ffff:169.254.169.254",
    "mapped in hex": "::ffff:a9fe:a9fe",
    "compatible": "::169.254.169.254",
    "nat64": "64:ff9b::169.254.169.254",
    "6to4": "2002:a9fe:a9fe::1",
    "teredo": "2001:0:a9fe:a9fe::1",
    "unique local": places.PRIVATE_6,
    "not served": places.EVIL_6,
    "host's own": places.HOST_SIDE_6,
    "link-local": "fe80::1%lo",
}
OTHERS = {
    "private": places.PRIVATE,
    "shared by carriers": places.CARRIER,
    "host's own": places.HOST_SIDE,
    "the wire's other end": places.FAR_SIDE,
    "no rule's": places.EVIL,
    "all ones": "255.255.255.255",
    "multicast": "224.0.0.1",
}

RAW = {
    **{f"get: {what}": Try("get", [text]) for what, text in (SPELLINGS | NOT_SPELLINGS | OTHERS).items()},
    **{f"curl: {what}": Try("curl", [f"http://{text}/"]) for what, text in (SPELLINGS | OTHERS).items()},
    **{f"get: ipv6 {what}": Try("get", [text]) for what, text in SIXES.items()},
    **{f"tls: {what}": Try("get_tls", {"host": text, "sni": None}) for what, text in OTHERS.items()},
    "get: an allowed host's address": Try("get", [places.API, 80, "/", "api.example.test"]),
    "tls: an allowed host's address and name": Try(
        "get_tls", {"host": places.API, "sni": "api.example.test", "says": "api.example.test"}
    ),
    "get: by another port": Try("get", [places.PRIVATE, 8080]),
    "get: the host's loopback": Try("get", ["127.0.0.1", 80]),
    "get: the host's loopback by zero": Try("get", ["0.0.0.0", 80]),
    "get: the host's loopback by ::1": Try("get", ["::1", 80]),
    "get: an address that no name was given": Try("get", ["198.18.200.200", 80]),
}
# Targets that never answer, with or without isolation: no address, no host, or a canary without TLS.
SILENT = {f"get: {what}" for what in NOT_SPELLINGS} | {"tls: host's own", "get: ipv6 link-local"}
SILENT |= {f"{way}: {what}" for way in ("get", "curl", "tls") for what in ("all ones", "multicast")}
SILENT |= {f"get: ipv6 {what}" for what in ("mapped", "mapped in hex", "compatible", "nat64", "6to4", "teredo")}
PROXIED = {
    f"{way}: {what}": Try(way, [to.format(text), *more])
    for what, text in (SPELLINGS | NOT_SPELLINGS | OTHERS | {f"ipv6 {k}": f"[{v}]" for k, v in SIXES.items()}).items()
    for way, to, more in (("connect", "{}:80", []), ("absolute", "http://{}/", ["api.example.test"]))
}
TRAPPED = {
    **{f"get: {name}": Try("get", [name], told=name) for name in TRAPS},
    **{f"tls: {name}": Try("get_tls", [name]) for name in TRAPS},
    **{f"connect: {name}": Try("connect", [f"{name}:80", name]) for name in TRAPS},
}
# From `Network.open()`, which opens only public addresses.
PUBLIC = ("no rule's", "not served", "an allowed host's", "the wire's other end")
CLOSED = {name: one for name, one in (RAW | PROXIED).items() if not any(word in name for word in PUBLIC)}

HOSTS_NAMES = ("localhost", "LOCALHOST.", "localhost.localdomain", "ip6-localhost", "x.localhost", socket.gethostname())
CLOSED |= {f"connect: {name}": Try("connect", [f"{name}:80", name]) for name in HOSTS_NAMES}
CLOSED |= {f"absolute: {name}": Try("absolute", [f"http://{name}/", name]) for name in HOSTS_NAMES}


@pytest.mark.parametrize("name", RAW)
def test_no_raw_address_is_reached(raid: Raid, guest: Sandbox, name: str) -> None:
    raid(RAW, guest).failed(name, RAW[name])


@pytest.mark.parametrize("name", PROXIED)
def test_no_raw_address_is_reached_through_the_proxy_variables(raid: Raid, guest: Sandbox, name: str) -> None:
    raid(PROXIED, guest).failed(name, PROXIED[name])


@pytest.mark.parametrize("name", TRAPPED)
def test_allowed_name_opens_no_closed_address(raid: Raid, guest: Sandbox, name: str) -> None:
    raid(TRAPPED, guest).failed(name, TRAPPED[name])


@pytest.mark.parametrize("name", CLOSED)
def test_open_network_keeps_closed_ranges_closed(raid: Raid, open_guest: Sandbox, name: str) -> None:
    raid(CLOSED, open_guest).failed(name, CLOSED[name])


@pytest.mark.parametrize("name", RAW)
def test_default_sandbox_reaches_nothing(raid: Raid, closed_guest: Sandbox, name: str) -> None:
    raid(RAW, closed_guest).failed(name, RAW[name])


@pytest.mark.parametrize("name", sorted(RAW.keys() - SILENT))
def test_control_same_requests_reach_a_canary_without_isolation(raid: Raid, name: str) -> None:
    outcome = raid(RAW).outcomes[name]
    assert outcome.gained is not None, outcome
