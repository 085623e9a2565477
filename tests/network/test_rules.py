"""The grammar of rules: their meaning, their canonical spelling, and errors that name the wrong part."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from skerry.errors import InvalidRequest
from skerry.network.policy.rules import (
    ALL_PORTS,
    check_rules,
    check_secret_hosts,
    narrowest_rule,
    parse_proxy,
    parse_rule,
)
from skerry.types import Network, Preset
from skerry.types.hosts import parse_host


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("api.example.com", "api.example.com"),
        ("API.Example.com.", "api.example.com"),
        ("*.Example.com", "*.example.com"),
        ("*", "*"),
        ("*:443", "*:443"),
        ("db.internal:5432", "db.internal:5432"),
        ("a.example:8443,443", "a.example:443,8443"),
        ("a.example:8000-8099", "a.example:8000-8099"),
        ("a.example:*", "a.example:*"),
        ("a.example:1-65535", "a.example:*"),
        ("10.0.0.5", "10.0.0.5"),
        ("0xa000005:22", "10.0.0.5:22"),
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.0.0.0/8:5432", "10.0.0.0/8:5432"),
        ("10.0.0.5/32", "10.0.0.5"),
        ("10.0.0.5/v1", "10.0.0.5/v1"),
        ("10.0.0.5:80/24", "10.0.0.5:80/24"),
        ("fd00::1", "fd00::1"),
        ("fd00::/8", "fd00::/8"),
        ("[fd00::1]", "fd00::1"),
        ("[fd00::1]:22", "[fd00::1]:22"),
        ("[fd00::/8]:22", "[fd00::/8]:22"),
        ("[::ffff:10.0.0.1]:22", "10.0.0.1:22"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("a.example/v1/users", "a.example/v1/users"),
        ("a.example/", "a.example"),
        ("a.example:8080/v1", "a.example:8080/v1"),
        ("get,HEAD a.example/v1", "GET,HEAD a.example/v1"),
        ("POST *.a.example", "POST *.a.example"),
        ("a.example/8", "a.example/8"),
        ("a.example/@types/node", "a.example/@types/node"),
        ("db.internal:5432@10.0.0.5", "db.internal:5432@10.0.0.5"),
        ("db.internal@10.0.0.0/8,fd00::/8", "db.internal@10.0.0.0/8,fd00::/8"),
        ("db.internal@[fd00::1]", "db.internal@fd00::1"),
        ("GET a.example:8080/v1@10.0.0.5", "GET a.example:8080/v1@10.0.0.5"),
        ("*@10.0.0.0/8", "*@10.0.0.0/8"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
    ],
)
def test_a_rule_has_one_spelling_that_parses_to_itself(text: str, canonical: str) -> None:
    rule = parse_rule(text)
    assert str(rule) == canonical
    assert parse_rule(canonical) == rule


@pytest.mark.parametrize(
    ("text", "what", "right"),
    [
        ("https://api.example.com/v1", "'https://'", '"api.example.com/v1"'),
        ("https://me:pw@api.example.com/", "a rule has no", '"api.example.com"'),
        ("api_x.example.com", "underscore", "like"),
        ("a*.example.com", "a star stands for whole labels", '"*.example.com"'),
        ("*.*.example.com", "a star", '"*.example.com"'),
        ("*example.com", "a star", '"*.example.com"'),
        ("example.*", "a star", '"*.example.com"'),
        ("a..example", "a label is empty", "like"),
        ("a.example:", "'' is not a port", '"8000-8099"'),
        ("a.example:http", "'http' is not a port", '"8000-8099"'),
        ("a.example:0", "'0' is not a port between 1 and 65535", '"443"'),
        ("a.example:65536", "'65536' is not a port", '"443"'),
        ("a.example:20-10", "'20-10' is not a port", '"443"'),
        ("a.example:1,,2", "is not a port", '"443"'),
        ("10.0.0.1/8", "bits set beyond its prefix", '"10.0.0.0/8" or "10.0.0.1"'),
        ("10.0.0.0/33", "'10.0.0.0/33' is not an address or range", '"10.0.0.0/8"'),
        ("10.0.0.256", "not an IPv4 address", "like"),
        ("1.2.3.4.5", "ends in a number", "like"),
        ("*.10.0.0.1", "has no subdomains", '"10.0.0.1"'),
        ("[fd00::1", "brackets hold an IPv6 address", '"[fd00::1]:22"'),
        ("[10.0.0.1]:22", "brackets hold", '"[fd00::1]:22"'),
        ("[fd00::1]x", "neither ports nor a path", "like"),
        ("fe80::1%eth0", "is not a host", "no zone"),
        ("::/0x", "is not a host", "brackets"),
        ("a.example@10.0.0.300", "'10.0.0.300' is not an address or range", '"10.0.0.5"'),
        ("a.example@", "'' after the @ is not an address", '"db.internal:5432@10.0.0.5"'),
        ("a.example@db", "'db' is not an address", "10.0.0.5"),
        ("user@a.example", "'a.example' after the @ is not an address", "db.internal"),
        ("10.0.0.5@10.0.0.5", "an address has no @", "only"),
        ("a.example/../b", "not a plain path", 'no ".."'),
        ("a.example/%2e%2e/b", "not a plain path", 'no ".."'),
        ("a.example/v1?x=1", "not a plain path", "no query"),
        ("a.example/a b", "before the space", '"GET,HEAD'),
        ("GET  a.example", "an extra space", '"GET,HEAD'),
        ("GTE a.example", "'GTE' before the space is not an HTTP method", '"GET"'),
        ("GET,PSOT a.example", "'PSOT'", '"POST"'),
        ("a.example,b.example", "it contains ','", "write one rule per host"),
        ("a.example b.example", "before the space", "write one rule per host"),
        ("api example.com", "'API' before the space is not an HTTP method", "write one rule per host"),
        ("G3T a.example", "'G3T' before the space", '"GET,HEAD'),
        ("a.example\n", "it contains '\\n'", "like"),
        ("evil\0.allowed.com", "NUL byte", "like"),
        ("bücher.example", "not ASCII", '"xn--bcher-kva.example"'),
        ("straße.example", "not ASCII", '"xn--strae-oqa.example"'),  # IDNA 2003: strasse.example
        ("", "it is empty", "like"),
        ("a" * 3000, "longer than", "like"),
    ],
)  # fmt: skip
def test_invalid_rule_names_the_wrong_part_and_a_right_one(text: str, what: str, right: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_rule(text)
    assert what in caught.value.message
    assert right in (caught.value.hint or "")
    assert caught.value.message.startswith("network.allow: ")
    assert caught.value.message.isprintable()
    assert not text or caught.value.message.count(repr(text)) < 2, "it is shown once"


def test_omitted_parts_are_none() -> None:
    rule = parse_rule("a.example")
    assert (rule.ports, rule.methods, rule.path, rule.at, rule.subdomains) == (None, (), "", (), False)
    assert parse_rule("*").matches_all
    assert parse_rule("a.example:*").ports == ALL_PORTS
    assert parse_rule("10.0.0.0/8").range == ip_network("10.0.0.0/8")


def test_every_rule_of_a_policy_is_checked() -> None:
    check_rules(Network(allow=("a.example", "*"), deny=("b.example",), inspect=("c.example:8443",)))
    for network, where in (
        (Network(allow=("a..b",)), "network.allow"),
        (Network(deny=("a..b",)), "network.deny"),
        (Network(deny=("a.example@10.0.0.1",)), "network.deny"),
        (Network(inspect=("a..b",)), "network.inspect"),
        (Network(inspect=("GET a.example",)), "network.inspect"),
        (Network(presets=("pip",)), "network.presets"),
        (Network(presets=(Preset(name="pip", allow=("http://a",)),)), "network.presets.pip"),
        (Network(presets=(Preset(name="pip", proxy="ftp://a"),)), "network.presets.pip.proxy"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            check_rules(network)
        assert caught.value.message.startswith(where)


def test_a_secret_goes_to_hosts_only() -> None:
    check_secret_hosts("TOKEN", ("api.example.com", "*.example.com", "a.example:8443", "10.0.0.5"))
    for host in ("*", "10.0.0.0/8", "a.example/v1", "GET a.example", "a.example@10.0.0.1", "a..b"):
        with pytest.raises(InvalidRequest, match=r"^secrets\.TOKEN\.hosts"):
            check_secret_hosts("TOKEN", (host,))


def test_a_proxy_is_a_plain_http_address() -> None:
    assert parse_proxy("http://proxy.example:3128") == ("proxy.example", 3128)
    assert parse_proxy("http://10.0.0.1:3128/") == (ip_address("10.0.0.1"), 3128)
    for url in (
        "https://a.example",
        "http://",
        "http://a:b@c",
        "http://a.example/x",
        "a.example:3128",
        "http://a\0b:1",
    ):
        with pytest.raises(InvalidRequest):
            parse_proxy(url)


def test_the_narrowest_rule_for_something() -> None:
    assert narrowest_rule(parse_host("a.example"), 443) == "a.example"
    assert narrowest_rule(parse_host("a.example"), 22) == "a.example:22"
    assert narrowest_rule(parse_host("a.example"), 5432, ip_address("10.0.0.5")) == "a.example:5432@10.0.0.5"
    assert narrowest_rule(parse_host("a.example"), 443, ip_address("fd00::5")) == "a.example@fd00::5"
    assert narrowest_rule(parse_host("[fd00::1]"), 22) == "[fd00::1]:22"
    assert narrowest_rule(parse_host("10.0.0.1"), 80) == "10.0.0.1"
