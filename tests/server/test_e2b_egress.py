"""From E2B's network options to policies: there, an allowed destination is reachable although a rule denies it."""

from __future__ import annotations

from typing import Any

import pytest

from skerry.errors import InvalidRequest
from skerry.network.messages import Rules
from skerry.network.policy.policy import Policy
from skerry.network.policy.rules import canonical
from skerry.server.wire.e2b.egress import network_of, shown
from skerry.server.wire.e2b.values import NetworkOptions
from skerry.types.hosts import parse_host

ALL = "0.0.0.0/0"


def reachable(host: str, *, internet: bool = True, **options: Any) -> bool:
    """Decide like the gateway: by the host, then by its address."""
    network = network_of(NetworkOptions(**options), internet)
    policy = Policy.compile(Rules(allow=canonical(network.allow), deny=canonical(network.deny)))
    place: Any = parse_host(host)
    return policy.connect(place, 443).allowed and (host[0].isalpha() or policy.address(place, 443, place).allowed)


@pytest.mark.parametrize(
    ("options", "open_", "closed"),
    [
        ({}, "1.1.1.1 example.com", "10.0.0.1 169.254.169.254 127.0.0.1"),
        ({"deny_out": (ALL,)}, "", "1.1.1.1 example.com"),
        ({"deny_out": (ALL,), "allow_out": ("1.1.1.1", "example.com")}, "1.1.1.1 example.com", "8.8.8.8 a.example"),
        ({"deny_out": ("8.8.8.0/24",)}, "8.8.9.1", "8.8.8.8"),
        ({"deny_out": ("8.8.8.0/24",), "allow_out": ("8.8.8.8",)}, "8.8.8.8 1.1.1.1", "8.8.8.7 8.8.8.9 8.8.8.0"),
        ({"deny_out": ("8.8.8.8",), "allow_out": ("8.8.0.0/16",)}, "8.8.8.8", ""),
        ({"deny_out": (ALL, "8.8.8.8"), "allow_out": ("8.8.8.8",)}, "8.8.8.8", "8.8.8.9"),
        ({"deny_out": ("evil.example", "8.8.8.8/31"), "allow_out": ("8.8.8.9",)}, "8.8.8.9", "evil.example 8.8.8.8"),
        ({"internet": False, "allow_out": ("1.1.1.1",)}, "1.1.1.1", "8.8.8.8"),
        ({"internet": False, "allow_internet_access": True}, "1.1.1.1", ""),
        ({"deny_out": ("192.168.0.0/16",), "allow_out": ("192.168.7.7",)}, "192.168.7.7", "192.168.7.8"),
    ],
)
def test_allowed_destination_is_reachable_although_a_rule_denies_it(
    options: dict[str, Any], open_: str, closed: str
) -> None:
    assert {host: reachable(host, **options) for host in open_.split()} == dict.fromkeys(open_.split(), True)
    assert {host: reachable(host, **options) for host in closed.split()} == dict.fromkeys(closed.split(), False)


def test_options_of_a_policy_are_shown() -> None:
    options = NetworkOptions(deny_out=(ALL, "::/0"), allow_out=("1.1.1.1", "example.com", "2001:db8::/32"))
    assert shown(network_of(options, True)) == {
        "allowOut": ["1.1.1.1", "2001:db8::/32", "example.com"], "denyOut": [ALL],
    }  # fmt: skip
    assert shown(network_of(NetworkOptions(deny_out=("9.9.9.9",)), True)) == {"allowOut": [], "denyOut": ["9.9.9.9"]}


@pytest.mark.parametrize(
    "options",
    [
        {"allow_out": ("example.com",)}, {"allow_out": ("example.com",), "deny_out": ("8.8.8.8",)},
        {"deny_out": ("8.8.8.8:53",)}, {"deny_out": ("a b",)}, {"deny_out": ("",)}, {"allow_out": ("*",)},
        {"deny_out": ("1.1.1.1",) * 2000}, {"egress_proxy": {"address": "x:1"}}, {"rules": {"a": []}},
    ],
)  # fmt: skip
def test_option_without_a_counterpart_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="network"):
        network_of(NetworkOptions(**options), True)


def test_lists_that_divide_each_other_are_bounded() -> None:
    denied, allowed = ("2000::/3",) * 900, tuple(f"2{number:03x}::1" for number in range(900))
    with pytest.raises(InvalidRequest, match="too many ranges"):
        network_of(NetworkOptions(deny_out=denied, allow_out=allowed), True)
