"""Decisions: deny wins, names open no closed address, and a denial names the rule that would allow it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any, Literal

import pytest

from skerry.errors import InvalidRequest
from skerry.network.messages import InjectedSecret, Rules
from skerry.network.policy.policy import Policy
from skerry.network.policy.rules import parse_rule
from skerry.types.hosts import BadHost, Host, leads_to_host, parse_host, plain


def policy(*allow: str, deny: tuple[str, ...] = (), ceiling: tuple[str, ...] = ("*",), **more: Any) -> Policy:
    return Policy.compile(Rules(allow=allow, deny=deny, **more), ceiling)


def host(text: str) -> Host:
    return parse_host(text)


def connects(rules: Policy, text: str, port: int = 443) -> bool:
    return rules.connect(host(text), port).allowed


def reaches(rules: Policy, text: str, port: int, address: str, own: bool = False) -> bool:
    return connects(rules, text, port) and rules.address(host(text), port, ip_address(address), own).allowed


def test_the_default_is_nothing() -> None:
    nothing = policy()
    for text in ("a.example", "localhost", "10.0.0.1", "8.8.8.8", "[2606:4700::1]"):
        assert not connects(nothing, text)
    verdict = nothing.connect(host("a.example"), 443)
    assert (verdict.rule, verdict.unknown) == (None, False)
    assert verdict.why == "no rule allows a.example:443"
    assert verdict.hint == "--allow a.example"
    assert not nothing.name(host("a.example")).allowed


def test_a_name_without_ports_is_80_and_443() -> None:
    rules = policy("a.example")
    assert connects(rules, "a.example", 80)
    assert connects(rules, "a.example", 443)
    verdict = rules.connect(host("a.example"), 22)
    assert not verdict.allowed
    assert verdict.why == "a.example allows port 80,443, not 22"
    assert verdict.hint == "--allow a.example:22"
    assert connects(policy("*"), "a.example", 22)


@pytest.mark.parametrize("text", ["allowed.com.evil.com", "evilallowed.com", "allowed.co", "com", "x.allowed.com"])
def test_attack_a_name_like_an_allowed_one_is_another(text: str) -> None:
    assert not connects(policy("allowed.com"), text)


@pytest.mark.parametrize("text", ["ALLOWED.com", "allowed.com.", "AllOwed.COM."])
def test_attack_mixed_case_and_trailing_dots_change_nothing(text: str) -> None:
    assert connects(policy("allowed.com"), text)
    assert not connects(policy("*", deny=("allowed.com",)), text)
    assert not connects(policy("*", deny=("Allowed.Com.",)), text)


@pytest.mark.parametrize("text", ["evil\0.allowed.com", "allowed.com\0.evil", "аllowed.com", "allowed.com%00.evil"])
def test_attack_invalid_host_never_reaches_a_policy(text: str) -> None:
    with pytest.raises(BadHost):
        connects(policy("*", "*.allowed.com"), text)


def test_attack_an_idn_look_alike_matches_only_its_own_xn_form() -> None:
    assert not connects(policy("apple.com"), "xn--80ak6aa92e.com")
    assert connects(policy("xn--80ak6aa92e.com"), "XN--80AK6AA92E.COM")


def test_a_star_is_all_below_and_not_itself() -> None:
    rules = policy("*.example.org")
    assert connects(rules, "a.example.org")
    assert connects(rules, "b.a.example.org")
    assert not connects(rules, "example.org")
    assert not connects(rules, "aexample.org")
    assert not connects(rules, "10.0.0.1")


def test_deny_wins_over_every_allow() -> None:
    rules = policy("*", "a.example", "b.a.example:8080", deny=("*.a.example", "a.example:22", "192.0.2.0/24"))
    assert connects(rules, "a.example")
    assert not connects(rules, "a.example", 22)
    assert not connects(rules, "b.a.example", 8080)
    assert not rules.name(host("b.a.example")).allowed
    assert rules.name(host("a.example")).allowed, "one port of it is denied, not the name"
    verdict = rules.connect(host("b.a.example"), 8080)
    assert verdict.rule == "*.a.example"
    assert verdict.why == "b.a.example:8080 is denied by *.a.example"
    assert "take *.a.example out of deny" in (verdict.hint or "")
    assert not reaches(rules, "c.example", 443, "192.0.2.7"), "an address is denied whatever name leads to it"
    assert not connects(rules, "192.0.2.7")


SPELLINGS = [
    "10.0.0.1",
    "10.1",
    "167772161",
    "012.0.0.1",
    "0xa.0.0.1",
    "0xa000001",
    "[::ffff:10.0.0.1]",
    "[::10.0.0.1]",
]


@pytest.mark.parametrize("text", SPELLINGS)
def test_attack_a_private_address_in_any_spelling_stays_closed_in_an_open_network(text: str) -> None:
    rules = policy("*", "0.0.0.0/0:*", "::/0")
    assert not reaches(rules, text, 443, "10.0.0.1")
    named = policy("10.0.0.1")
    assert reaches(named, text, 443, "10.0.0.1")
    assert not connects(policy("*", deny=("10.0.0.1",)), text)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "::1", "10.0.0.5", "172.16.9.9", "192.168.0.1", "169.254.169.254", "100.64.0.1", "fd00::5", "fe80::1",
     "224.0.0.1", "255.255.255.255", "0.0.0.0", "::", "64:ff9b::a00:5", "2002:a00:5::", "198.18.0.1"],
)  # fmt: skip
def test_attack_no_name_leads_to_a_closed_address(address: str) -> None:
    for rules in (
        policy("*"),
        policy("a.example"),
        policy("*.example", "0.0.0.0/0", "::/0"),
        policy(on_unknown="learn"),
    ):
        verdict = rules.address(host("a.example"), 443, ip_address(address))
        assert not verdict.allowed
        hint = verdict.hint or ""
        rule = f"a.example@{address}"
        of_host = leads_to_host(ip_address(address))
        assert hint == (f"max.network in the server's settings must name it: {rule}" if of_host else f"--allow {rule}")
        opened = policy("*", rule, ceiling=("*", rule) if of_host else ("*",))
        assert reaches(opened, "a.example", 443, address), "the hint has the very rule that allows it"


def test_a_name_may_be_at_a_closed_address_that_its_rule_names() -> None:
    rules = policy("db.internal:5432@10.0.0.0/8")
    assert reaches(rules, "db.internal", 5432, "10.0.0.5")
    assert not reaches(rules, "db.internal", 5432, "192.168.0.1")
    assert not reaches(rules, "db.internal", 5433, "10.0.0.5")
    assert reaches(rules, "db.internal", 5432, "203.0.113.5"), "what is not closed needs no naming"
    assert not connects(rules, "10.0.0.5", 5432), "the name is opened, not the address"
    assert not rules.address(host("other.internal"), 5432, ip_address("10.0.0.5")).allowed


def test_a_range_that_is_allowed_opens_it_for_allowed_names_too() -> None:
    rules = policy("db.internal:5432", "10.0.0.0/8:5432")
    assert reaches(rules, "db.internal", 5432, "10.0.0.5")
    assert reaches(rules, "10.9.9.9", 5432, "10.9.9.9")
    assert not rules.address(host("db.internal"), 443, ip_address("10.0.0.5")).allowed


def test_a_range_wider_than_the_closed_one_does_not_name_it() -> None:
    for wide in ("0.0.0.0/0", "8.0.0.0/6"):
        assert not reaches(policy(wide), "10.0.0.5", 443, "10.0.0.5")
    assert reaches(policy("10.0.0.0/8"), "10.0.0.5", 443, "10.0.0.5")
    assert not reaches(policy("::/0"), "[fd00::1]", 443, "fd00::1")
    assert reaches(policy("fd00::/8"), "[fd00::1]", 443, "fd00::1")


def test_attack_metadata_is_opened_by_its_own_address_alone() -> None:
    for wide in ("169.254.0.0/16", "169.254.169.0/24", "a.example@169.254.0.0/16"):
        rules = policy("*", wide)
        assert not rules.address(host("a.example"), 80, ip_address("169.254.169.254")).allowed
        assert not reaches(rules, "169.254.169.254", 80, "169.254.169.254")
    named = policy("169.254.169.254:80", ceiling=("*", "169.254.169.254:80"))
    assert reaches(named, "169.254.169.254", 80, "169.254.169.254")


def test_attack_an_address_of_this_host_is_closed_wherever_it_is() -> None:
    rules = policy("*", "203.0.113.0/24:*", "a.example:*@203.0.113.0/24")
    assert not reaches(rules, "203.0.113.5", 443, "203.0.113.5", own=True)
    verdict = rules.address(host("a.example"), 443, ip_address("203.0.113.5"), own=True)
    assert "this host's own" in verdict.why
    assert verdict.hint == "max.network in the server's settings must name it: a.example@203.0.113.5"
    for address, rule in (("203.0.113.5", "a.example@203.0.113.5"), ("10.0.0.5", "a.example@10.0.0.0/8")):
        for ceiling in (("*", address), ("*", f"a.example@{address}")):
            assert reaches(policy(rule, ceiling=ceiling), "a.example", 443, address, own=True)


HOST_ADDRESSES = {
    "127.0.0.1": False, "127.9.8.7": False, "::1": False, "::ffff:127.0.0.1": False, "0.0.0.0": False, "::": False,
    "169.254.169.254": False, "169.254.1.1": False, "fe80::1": False, "fd00:ec2::254": False, "64:ff9b::7f00:1": False,
    "64:ff9b::a9fe:a9fe": False, "64:ff9b:1::7f00:1": False, "2002:7f00:1::": False, "203.0.113.5": True,
    "10.0.0.5": True, "2001:db8::5": True, "64:ff9b::cb00:7105": True,
}  # fmt: skip


@pytest.mark.parametrize("address", HOST_ADDRESSES)
@pytest.mark.parametrize("ceiling", [("*",), ("*", "0.0.0.0/0:*", "[::/0]:*"), ("*", "10.0.0.0/8:*", "fc00::/7"),
                                     ("*", "*.example"), ("*:22",), ("*", "db.example:*@192.168.0.1")])  # fmt: skip
def test_attack_rules_of_a_sandbox_open_no_address_of_the_host(address: str, ceiling: tuple[str, ...]) -> None:
    """A token of scope `use` may write any rule: only the operator opens what leads to the host."""
    found, own = plain(ip_address(address)), HOST_ADDRESSES[address]
    literal = f"[{address}]" if ":" in address else address
    for rules in (
        policy("*", f"{literal}:*", ceiling=ceiling),
        policy("*", f"a.example:*@{address}", ceiling=ceiling),
        policy("*", "127.0.0.0/8:*", "169.254.0.0/16:*", "10.0.0.0/8:*", "fe80::/10", ceiling=ceiling),
        policy("*", f"a.example:*@{address}", on_unknown="learn", ceiling=ceiling),
    ):
        assert not rules.address(host("a.example"), 443, found, own).allowed
        assert not reaches(rules, literal, 443, str(found), own)
    named = policy("*", f"a.example:*@{address}", ceiling=("*", f"a.example:443@{address}"))
    assert named.address(host("a.example"), 443, found, own).allowed, "the control: the operator names it"
    assert not named.address(host("b.example"), 443, found, own).allowed
    assert not named.address(host("a.example"), 22, found, own).allowed


@pytest.mark.parametrize(
    "text", ["127.0.0.1", "127.1", "2130706433", "0x7f.1", "017700000001", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0",
             "0", "[::]", "localhost", "LOCALHOST.", "x.localhost"],
)  # fmt: skip
def test_loopback_means_the_sandbox_itself_even_in_a_rule(text: str) -> None:
    """Only a program that asks the proxy for it gets this far: the kernel inside keeps loopback inside."""
    rules = policy("*", "127.0.0.0/8:*", "::1", "localhost", ceiling=("*", "127.0.0.0/8:*", "::1"), on_unknown="ask")
    verdict = rules.connect(host(text), 80)
    assert not verdict.allowed
    assert not verdict.unknown
    assert "is the sandbox itself" in verdict.why


def test_learn_allows_unknown_destinations_like_an_open_network() -> None:
    rules = policy("known.example", deny=("bad.example",), on_unknown="learn")
    verdict = rules.connect(host("a.example"), 22)
    assert verdict.allowed
    assert verdict.unknown
    assert "to learn" in verdict.why
    assert rules.name(host("a.example")).allowed
    assert not rules.connect(host("known.example"), 443).unknown
    assert not connects(rules, "bad.example")
    assert not connects(rules, "169.254.169.254", 80)
    assert rules.request(host("a.example"), 80, "GET", "/").allowed


def test_ask_needs_an_approval_on_connect() -> None:
    rules = policy("known.example", deny=("bad.example",), on_unknown="ask")
    assert rules.name(host("a.example")).allowed, "its address is made up: nothing is looked up yet"
    verdict = rules.connect(host("a.example"), 443)
    assert not verdict.allowed
    assert verdict.unknown
    for text, port in (("bad.example", 443), ("10.0.0.1", 80)):
        verdict = rules.connect(host(text), port)
        assert not verdict.allowed
        assert not verdict.unknown, "a yes could not open it"
    assert rules.connect(host("known.example"), 22).unknown


def secret(*hosts: str) -> InjectedSecret:
    return InjectedSecret(name="TOKEN", hosts=hosts, placeholder="p", value="v")


def test_a_host_that_a_secret_names_is_allowed_on_443_and_opened() -> None:
    rules = policy(secrets=(secret("api.example.com", "*.b.example", "c.example:8443"),))
    assert connects(rules, "api.example.com", 443)
    assert not connects(rules, "api.example.com", 80)
    assert connects(rules, "x.b.example", 443)
    assert connects(rules, "c.example", 8443)
    assert not connects(rules, "c.example", 443)
    assert rules.connect(host("api.example.com"), 443).rule == "secret TOKEN"
    assert rules.intercepts_tls(host("api.example.com"), 443)
    assert not rules.intercepts_tls(host("a.example"), 443)
    assert not connects(policy(deny=("api.example.com",), secrets=(secret("api.example.com"),)), "api.example.com")
    assert not rules.address(host("api.example.com"), 443, ip_address("10.0.0.1")).allowed


def test_peers_are_reached_by_name_on_every_port_unless_denied() -> None:
    rules = policy(peers={"db": "sb-aaaaaaaaaa", "web": "sb-bbbbbbbbbb"}, deny=("web:22",))
    assert rules.peer(host("DB.")) == "sb-aaaaaaaaaa"
    assert rules.peer(host("db.example")) is None
    assert connects(rules, "db", 5432)
    assert rules.name(host("db")).allowed
    assert not connects(rules, "web", 22)
    assert rules.connect(host("db"), 5432).rule == "peer db"


def test_the_operators_ceiling_is_judged_as_well() -> None:
    rules = policy("*", "b.example:22", ceiling=("*.corp.example", "b.example"), on_unknown="learn",
                   secrets=(secret("c.example"),), peers={"db": "sb-aaaaaaaaaa"})  # fmt: skip
    assert connects(rules, "a.corp.example")
    assert connects(rules, "b.example", 443)
    for text, port in (("b.example", 22), ("c.example", 443), ("a.example", 443), ("203.0.113.1", 443)):
        verdict = rules.connect(host(text), port)
        assert not verdict.allowed
        assert "max.network" in verdict.why
    assert not rules.name(host("a.example")).allowed
    assert connects(rules, "db", 5432)
    assert not policy("*", ceiling=()).connect(host("a.example"), 443).allowed
    asked = policy(ceiling=("b.example",), on_unknown="ask").connect(host("a.example"), 443)
    assert not asked.unknown, "nobody is asked for what can't be granted"


def test_a_ceiling_with_addresses_counts_up_the_closed_ones() -> None:
    rules = policy("a.example@10.0.0.0/8", "b.example@192.168.0.0/16", ceiling=("*@10.0.0.0/8",))
    assert reaches(rules, "a.example", 443, "10.0.0.5")
    assert not reaches(rules, "b.example", 443, "192.168.0.5")


def test_methods_and_paths_are_judged_where_requests_are_seen() -> None:
    rules = policy("GET,HEAD a.example/v1", "POST a.example/v1/hooks")
    a = host("a.example")

    def may(method: str, path: str) -> bool:
        return rules.request(a, 443, method, path, True).allowed

    assert rules.connect(a, 443).allowed
    assert rules.intercepts_tls(a, 443)
    assert rules.requests_only(a, 443)
    assert may("GET", "/v1")
    assert may("GET", "/v1/users?x=/../..")
    assert may("POST", "/v1/hooks/5")
    for method, path in (
        ("POST", "/v1"),
        ("get", "/v1"),
        ("GET", "/"),
        ("GET", "/v12"),
        ("DELETE", "/v1"),
        ("GET", "*"),
    ):
        assert not may(method, path)
    verdict = rules.request(a, 443, "DELETE", "/v1")
    assert verdict.rule == "GET,HEAD a.example/v1"
    assert verdict.hint == '--allow "DELETE a.example"'
    assert policy("DELETE a.example").request(a, 443, "DELETE", "/v1").allowed


@pytest.mark.parametrize(
    ("allow", "where", "method", "rule"),
    [
        ("GET a.example:8443/v1@10.0.0.5", ("a.example", 8443), "GET", "GET a.example:8443@10.0.0.5"),
        ("GET *.example", ("a.example", 443), "FOO", "a.example"),
        ("GET *@10.0.0.0/8", ("10.0.0.5", 443), "PUT", "PUT 10.0.0.5"),
    ],
)
def test_hint_for_a_request_is_a_valid_rule(allow: str, where: tuple[str, int], method: str, rule: str) -> None:
    verdict = policy(allow).request(host(where[0]), where[1], method, "/v2")
    assert verdict.hint == f'--allow "{rule}"'
    assert str(parse_rule(rule)) == rule


@pytest.mark.parametrize(
    "path",
    ["/v1/../admin", "/v1/%2e%2e/admin", "/v1/..;/admin", "/v1/..%2fadmin", "/v1%2f..%2fadmin", "/v1\\..\\admin",
     "/v1/%252e%252e/admin", "/v1/./x", "/v1/%5c../x", "/v1/%00", "/v1/%zz", "v1/x", "//v1/../x", "/v1/%2e%2e%2fadmin",
     "//v1/x", "//v1"],
)  # fmt: skip
def test_attack_a_path_that_could_be_read_differently_matches_nothing_that_allows(path: str) -> None:
    assert not policy("a.example/v1").request(host("a.example"), 80, "GET", path).allowed
    assert not policy("a.example", deny=("a.example/admin",)).request(host("a.example"), 80, "GET", path).allowed
    assert policy("a.example").request(host("a.example"), 80, "GET", path).allowed, "no rule looks at paths"


@pytest.mark.parametrize(
    "path",
    ["/admin", "/Admin/x", "//admin", "/%61dmin", "/admin?x", "/admin/", "/admin;a=b", "/admin;a=b/x", "/admin%3bx/y",
     "/admin%2fx", "/%2Fadmin", "/admin.", "/admin%20/x", "/;x/admin"],
)  # fmt: skip
def test_attack_a_denied_path_is_denied_in_every_spelling(path: str) -> None:
    rules = policy("a.example", deny=("a.example/admin", "DELETE a.example"))
    assert not rules.request(host("a.example"), 80, "GET", path).allowed
    assert rules.request(host("a.example"), 80, "GET", "/administrator").allowed
    assert not rules.request(host("a.example"), 80, "delete", "/").allowed
    assert rules.intercepts_tls(host("a.example"), 443)


@pytest.mark.parametrize("text", ["64:ff9b::cb00:7105", "2002:cb00:7105::1", "2001:0:0808:0808::34ff:8efa"])
def test_attack_an_address_that_carries_a_denied_one_is_denied(text: str) -> None:
    """NAT64, 6to4 and Teredo lead to 203.0.113.5."""
    rules = policy("*", deny=("203.0.113.0/24",))
    assert not rules.address(host("a.example"), 443, ip_address(text)).allowed
    assert policy("*").address(host("a.example"), 443, ip_address(text)).allowed


def test_attack_encoded_slash_does_not_match_an_allowed_path() -> None:
    """One server takes it for a segment below /v1, another for a name at the root."""
    a = host("a.example")
    assert not policy("a.example/v1").request(a, 80, "GET", "/v1%2fx").allowed
    assert policy("a.example/projects").request(a, 80, "GET", "/projects/group%2Fname/files").allowed
    assert policy("a.example/projects/group%2fname").request(a, 80, "GET", "/projects/group%2Fname/files").allowed
    assert not policy("a.example/projects/group%2fname").request(a, 80, "GET", "/projects/group/name").allowed


@pytest.mark.parametrize("on_unknown", ["learn", "ask"])
def test_attack_ceiling_paths_hold_for_unknown_destinations_too(on_unknown: Literal["learn", "ask"]) -> None:
    rules = Policy.compile(Rules(on_unknown=on_unknown), ("GET a.example/v1",))
    a = host("a.example")
    assert rules.request(a, 443, "GET", "/v1/x", True).unknown
    for method, path in (("DELETE", "/v1/x"), ("GET", "/admin")):
        verdict = rules.request(a, 443, method, path, True)
        assert not verdict.allowed
        assert not verdict.unknown, "nobody's yes would open it"


def test_host_with_an_unrestricted_rule_needs_no_interception() -> None:
    rules = policy("GET a.example/v1", "*.example", "GET b.org", inspect=("c.example", "d.example:8443"))
    assert not rules.requests_only(host("a.example"), 443)
    assert not rules.intercepts_tls(host("a.example"), 443)
    assert rules.intercepts_tls(host("b.org"), 443)
    assert rules.intercepts_tls(host("c.example"), 443)
    assert not rules.requests_only(host("c.example"), 443)
    assert rules.intercepts_tls(host("d.example"), 8443)
    assert not rules.intercepts_tls(host("d.example"), 443)


def test_an_upstream_proxy_leads_to_the_hosts_of_its_rules() -> None:
    rules = policy("a.example", proxies=((("a.example", "*.b.example"), "http://proxy.example:3128"),))
    assert rules.proxy_for(host("a.example"), 443) == "http://proxy.example:3128"
    assert rules.proxy_for(host("x.b.example"), 80) == "http://proxy.example:3128"
    assert rules.proxy_for(host("a.example"), 22) is None
    assert rules.proxy_for(host("c.example"), 443) is None


def test_attack_an_upstream_proxy_is_not_reached_from_inside_though_a_rule_names_it() -> None:
    """It would lead anywhere: only the worker uses it."""
    proxies = ((("a.example",), "http://proxy.internal:3128"), (("b.example",), "http://10.0.0.1:3129/"))
    rules = policy("a.example", "proxy.internal:3128@10.0.0.1", "*", "10.0.0.1:*", proxies=proxies)
    for text, port in (
        ("proxy.internal", 3128),
        ("PROXY.internal.", 3128),
        ("10.0.0.1", 3129),
        ("[::ffff:10.0.0.1]", 3129),
    ):
        verdict = rules.connect(host(text), port)
        assert not verdict.allowed
        assert not verdict.unknown
        assert not rules.request(host(text), port, "CONNECT", "x").allowed
        assert rules.upstream(host(text), port).allowed
        assert rules.address(host(text), port, ip_address("10.0.0.1")).allowed
    assert connects(rules, "proxy.internal", 443)
    assert not reaches(rules, "10.0.0.1", 3128, "10.0.0.1"), "nor by its address"
    assert not reaches(rules, "alias.internal", 3128, "10.0.0.1"), "nor by another name"
    assert not reaches(rules, "alias.internal", 3129, "10.0.0.1")


def test_half_a_policy_is_never_in_force() -> None:
    for wrong in (
        {"allow": ("a..b",)}, {"deny": ("a..b",)}, {"inspect": ("a..b",)}, {"secrets": (secret("a..b"),)},
        {"proxies": ((("a.example",), "ftp://x"),)},
    ):  # fmt: skip
        with pytest.raises(InvalidRequest):
            Policy.compile(Rules(**wrong))
    with pytest.raises(InvalidRequest, match=r"max\.network"):
        Policy.compile(Rules(), ("a..b",))


Unknown = Literal["deny", "ask", "learn"]


@pytest.mark.parametrize("text", ["a.example", "b.a.example", "10.1.2.3", "[fd00::1]", "203.0.113.9"])
def test_every_hint_of_a_refused_connection_is_a_rule_that_allows_it(text: str) -> None:
    for port in (22, 80, 443, 5432):
        hint = policy().connect(host(text), port).hint or ""
        rule = hint.removeprefix("--allow ")
        assert str(parse_rule(rule)) == rule
        assert connects(policy(rule), text, port)


def calls_of(work: Callable[[], object]) -> int:
    """Count the functions that Python enters: a measure that does not depend on the machine's load."""
    count = 0

    def count_one(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(count_one)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_ten_thousand_hosts_take_no_more_steps_to_decide_than_ten() -> None:
    def large(number: int) -> Policy:
        names = [f"h{i}.a{i % 97}.example" for i in range(number)]
        return policy(
            *names, *(f"*.w{i}.example:8000-8010" for i in range(number)), "10.0.0.0/8", "192.168.0.0/16",
            *(f"203.0.{i // 250}.{i % 250}" for i in range(number)), deny=tuple(f"d{i}.example" for i in range(number)),
        )  # fmt: skip

    few, many = large(10), large(10_000)
    for text in ("h9.a9.example", "x.y.w9.example", "d9.example", "unknown.example", "203.0.0.9", "8.8.8.8"):
        a, b = (calls_of(lambda rules=rules, text=text: rules.connect(host(text), 443)) for rules in (few, many))
        assert a == b
        assert few.connect(host(text), 443) == many.connect(host(text), 443)
