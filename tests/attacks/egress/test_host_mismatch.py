"""Names that disagree: CONNECT, SNI, Host and the request's own target must be of one mind, wherever they are seen."""

from __future__ import annotations

import pytest
from attacks.egress.conftest import Raid
from support.egress_attack import Try, tried
from world import places
from world.world import World

from skerry import Sandbox

API, EVIL, OTHER = "api.example.test", "evil.test", "a.files.example.test"
DISAGREEING = {
    "SNI of a refused host": Try("get_tls", {"host": API, "sni": EVIL}),
    "SNI of another allowed host": Try("get_tls", {"host": API, "sni": OTHER}),
    "no SNI": Try("get_tls", {"host": API, "sni": None}),
    "SNI with NUL": Try("hello", [API, 443, "api.example.test\0.evil.test"]),
    "SNI with NUL before": Try("hello", [API, 443, "evil.test\0.api.example.test"]),
    "SNI of an address": Try("hello", [API, 443, places.METADATA]),
    "SNI that is empty": Try("hello", [API, 443, ""]),
    "SNI in bytes, slowly": Try("hello", [API, 443, EVIL, "bytes"]),
    "SNI in bytes, slowly, on a port of its own": Try("hello", [API, 8443, EVIL, "bytes"]),
    "SNI cut into records": Try("hello", [API, 443, EVIL, "records"]),
    "SNI cut into records, on a port of its own": Try("hello", [API, 8443, EVIL, "records"]),
    "SNI after that of an allowed host": Try("hello", [API, 443, EVIL, "", API]),
    "SNI before that of an allowed host": Try("hello", [API, 443, API, "", EVIL]),
    "SNI of another on a port of its own": Try("get_tls", {"host": API, "port": 8443, "sni": EVIL}),
    "SNI with bytes of the upper half": Try("hello", [API, 443, "\xe1pi.example.test"]),
    "Host of a refused host": Try("get", [API, 80, "/", EVIL]),
    "Host of another allowed host": Try("get", [API, 80, "/", OTHER]),
    "Host of metadata": Try("get", [API, 80, "/", places.METADATA]),
    "Host with NUL": Try("get", [API, 80, "/", "api.example.test\0evil.test"]),
    "Host with another port": Try("get", [API, 80, "/", "api.example.test:22"]),
    "Host with a user": Try("get", [API, 80, "/", "api.example.test@evil.test"]),
    "Host with a path": Try("get", [API, 80, "/", "api.example.test/evil.test"]),
    "Host with a comma": Try("get", [API, 80, "/", "api.example.test, evil.test"]),
    "absolute-form to another host": Try("get", [API, 80, f"http://{EVIL}/", API]),
    "absolute-form to another allowed host": Try("get", [API, 80, f"http://{OTHER}/", API]),
    "absolute-form to metadata": Try("get", [API, 80, f"http://{places.METADATA}/", API]),
    "absolute-form and Host disagree": Try("absolute", [f"http://{API}/", EVIL]),
    "CONNECT inside a plain connection": Try(
        "raw", [API, 80, f"CONNECT {EVIL}:80 HTTP/1.1\r\nHost: {EVIL}\r\n\r\n", " 200"]),
    "CONNECT, then SNI of another": Try(
        "connect", {"to": f"{API}:443", "says": EVIL, "sni": EVIL, "tls": True}),
    "CONNECT, then no SNI": Try("connect", {"to": f"{API}:443", "says": API, "sni": None, "tls": True}),
    "CONNECT, then Host of a third": Try("connect", {"to": f"{API}:80", "says": EVIL}),
    "CONNECT with Host of another": Try(
        "connect_raw",
        [f"CONNECT {EVIL}:80 HTTP/1.1\r\nHost: {API}:80\r\n\r\n", f"GET / HTTP/1.1\r\nHost: {EVIL}\r\n\r\n"]),
    "CONNECT to the proxy itself": Try("connect", {"to": "198.18.0.2:3128", "says": EVIL}),
    "CONNECT to the resolver": Try("connect", {"to": "198.18.0.1:53", "says": EVIL}),
    "CONNECT to a made-up address": Try("connect", {"to": "198.18.0.77:80", "says": EVIL}),
    "absolute-form to the proxy itself": Try("absolute", ["http://198.18.0.2:3128/", "198.18.0.2:3128"]),
    "origin-form to the proxy": Try("absolute", ["/", API]),
    "https in absolute-form": Try("absolute", [f"https://{API}/", API]),
    "another scheme in absolute-form": Try("absolute", [f"ftp://{API}/", API]),
    "fronting of an inspected host": Try(
        "get_tls", {"host": "inspected.example.test", "path": "/public", "says": EVIL}),
    "fronting of an inspected host by another allowed one": Try(
        "get_tls", {"host": "inspected.example.test", "path": "/public", "says": API}),
    "a path beside the allowed one": Try("get", ["paths.example.test", 80, "/private"]),
    "a path that begins like the allowed one": Try("get", ["paths.example.test", 80, "/publicity"]),
    "a path out of the allowed one": Try("get", ["paths.example.test", 80, "/public/../private"]),
    "a path out by percent": Try("get", ["paths.example.test", 80, "/public/%2e%2e/private"]),
    "a path out by a percent slash": Try("get", ["paths.example.test", 80, "/public/..%2fprivate"]),
    "a path out by a backslash": Try("get", ["paths.example.test", 80, "/public/..\\private"]),
    "a path with two slashes": Try("get", ["paths.example.test", 80, "//private"]),
    "a method that is not allowed": Try(
        "get", {"host": "paths.example.test", "path": "/public", "method": "POST"}),
    "a method in small letters": Try(
        "get", {"host": "paths.example.test", "path": "/public", "method": "get"}),
    "a path of an inspected host": Try(
        "get_tls", {"host": "inspected.example.test", "path": "/private"}),
    "a method of an inspected host": Try(
        "get_tls", {"host": "inspected.example.test", "path": "/public", "method": "DELETE"}),
    "an upgrade past the policy": Try("websocket", ["paths.example.test", 80, "/private"]),
    "an upgrade with Host of another": Try("websocket", [API, 80, "/", EVIL]),
    "an upgrade of an inspected host past the policy": Try(
        "websocket", ["inspected.example.test", 443, "/private", None, True]),
    "a redirect to metadata": Try(
        "followed", [f"http://{API}/redirect?to=http://{places.METADATA}/latest"]
    ),
    "a redirect to a refused host": Try("followed", [f"http://{API}/redirect?to=http://{EVIL}/"]),
    "SOCKS 4": Try("socks", [4, EVIL, places.EVIL]),
    "SOCKS 5": Try("socks", [5, EVIL, places.EVIL]),
    "SOCKS 5 to an allowed port": Try("socks", [5, EVIL, places.EVIL, [API, 80]]),
    "SOCKS 4 to metadata": Try("socks", [4, EVIL, places.METADATA]),
}  # fmt: skip


@pytest.mark.parametrize("name", DISAGREEING)
def test_contradictory_host_names_are_denied(raid: Raid, guest: Sandbox, name: str) -> None:
    raid(DISAGREEING, guest).failed(name, DISAGREEING[name])


def test_denied_requests_reach_no_server(raid: Raid, guest: Sandbox) -> None:
    arrived = " ".join(call["raw"] for call in raid(DISAGREEING, guest).calls)
    for word in ("evil", "/private", "/publicity", places.METADATA, "POST", "DELETE", "CONNECT", "files.example"):
        assert word not in arrived.replace(f"to=http://{places.METADATA}", "").replace("to=http://evil.test", "")


def test_consistent_host_names_are_allowed(world: World, guest: Sandbox) -> None:
    batch = {
        "plain": Try("get", [API]),
        "plain on another port": Try("get", [API, 8080, "/", f"{API}:8080"]),
        "TLS": Try("get_tls", [API]),
        "TLS on another port": Try("get_tls", [API, 8443]),
        "CONNECT": Try("connect", {"to": f"{API}:443", "says": API, "sni": API, "tls": True}),
        "CONNECT without TLS": Try("connect", {"to": f"{API}:80", "says": API}),
        "absolute-form": Try("absolute", [f"http://{API}/", API]),
        "an allowed path": Try("get", ["paths.example.test", 80, "/public/a"]),
        "an allowed path by TLS": Try("get_tls", {"host": "paths.example.test", "path": "/public/a"}),
        "an inspected path": Try("get_tls", {"host": "inspected.example.test", "path": "/public/a?b"}),
        "an upgrade": Try("websocket", [API, 80, "/"]),
        "an upgrade by TLS": Try("websocket", [API, 443, "/", None, True]),
        "an upgrade of an inspected host": Try("websocket", ["inspected.example.test", 443, "/public", None, True]),
        "a redirect to an allowed host": Try("followed", [f"http://{API}/redirect?to=https://{OTHER}/"]),
        "TLS in bytes, slowly": Try("hello", [API, 443, API, "bytes"]),
        "TLS in records": Try("hello", [API, 443, API, "records"]),
        "over IPv6": Try("get", ["six.example.test"]),
        "a service that speaks first": Try("raw", [API, 2525, "", "220 the test world"]),
        "a raw echo": Try("raw", [API, 7, "anything\0at all", "anything\0at all"]),
    }
    seen = tried(world, guest, batch)
    assert {name: outcome for name, outcome in seen.outcomes.items() if outcome.gained is None} == {}
    assert seen.strays == []


def test_fronting_inside_uninspected_tls_is_not_seen(world: World, guest: Sandbox) -> None:
    """As documented in the guides: content of a tunnel is not visible, unless the host is inspected."""
    seen = tried(world, guest, {"fronting": Try("get_tls", {"host": API, "says": EVIL})})
    assert seen.outcomes["fronting"].gained is not None
    assert seen.strays == []


def test_control_redirect_to_metadata_works_without_isolation(raid: Raid) -> None:
    redirects = {name: one for name, one in DISAGREEING.items() if one.way == "followed"}
    assert all(outcome.gained is not None for outcome in raid(redirects).outcomes.values())
