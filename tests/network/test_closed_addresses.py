from __future__ import annotations

import resource
from ipaddress import ip_address

import pytest

from skerry.types.hosts import closed, is_own


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("127.0.0.1", "loopback"), ("127.255.255.254", "loopback"), ("::1", "loopback"), ("0.0.0.0", "unspecified"),
        ("0.1.2.3", "unspecified"), ("::", "unspecified"), ("10.0.0.1", "private"), ("172.16.0.1", "private"),
        ("172.31.255.255", "private"), ("192.168.1.1", "private"), ("fd00::1", "private"), ("fc00::1", "private"),
        ("100.64.0.1", "carrier-grade NAT"), ("100.127.255.255", "carrier-grade NAT"), ("169.254.1.1", "link-local"),
        ("fe80::1", "link-local"), ("fec0::1", "site-local"), ("224.0.0.1", "multicast"), ("ff02::1", "multicast"),
        ("255.255.255.255", "broadcast"), ("240.0.0.1", "reserved"), ("192.0.0.8", "protocol assignments"),
        ("198.18.0.1", "benchmarking"), ("198.19.255.255", "benchmarking"), ("100::1", "discard-only"),
        ("64:ff9b:1::1", "local NAT64"), ("192.88.99.1", "6to4 relay"),
    ],
)  # fmt: skip
def test_a_range_that_is_never_the_internet_is_closed(text: str, kind: str) -> None:
    assert closed(ip_address(text)) == kind


@pytest.mark.parametrize(
    "text", ["169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254",
             "fd20:ce::254", "::ffff:169.254.169.254"],
)  # fmt: skip
def test_metadata_addresses_are_closed_by_their_own_name(text: str) -> None:
    assert closed(ip_address(text)) == "metadata"


@pytest.mark.parametrize(
    ("text", "carried"),
    [
        ("::ffff:10.0.0.1", None), ("::10.0.0.1", None), ("64:ff9b::10.0.0.1", "10.0.0.1"),
        ("64:ff9b::a9fe:a9fe", "169.254.169.254"), ("2002:7f00:1::", "127.0.0.1"), ("2002:a00:1::5", "10.0.0.1"),
        ("2001:0:a00:1::", "10.0.0.1"), ("2001:0:cb00:7105:0:0:f5ff:fffe", "10.0.0.1"),
        ("::ffff:0:10.0.0.1", "10.0.0.1"),
    ],
)  # fmt: skip
def test_attack_a_closed_address_carried_inside_another_stays_closed(text: str, carried: str | None) -> None:
    kind = closed(ip_address(text))
    assert kind is not None
    assert carried is None or carried in kind


@pytest.mark.parametrize(
    "text",
    ["203.0.113.5", "192.0.2.1", "198.51.100.1", "2001:db8::1", "8.8.8.8", "172.32.0.1", "172.15.255.255", "11.0.0.1",
     "100.128.0.1", "198.20.0.1", "169.253.0.1", "64:ff9b::8.8.8.8", "2002:808:808::1", "2606:4700::1"],
)  # fmt: skip
def test_everything_else_is_open_documentation_ranges_too(text: str) -> None:
    assert closed(ip_address(text)) is None


@pytest.mark.parametrize("text", ["127.0.0.1", "127.9.8.7", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1", "fe80::1"])
def test_an_address_that_a_socket_can_be_bound_to_is_this_hosts_own(text: str) -> None:
    assert is_own(ip_address(text))


@pytest.mark.parametrize("text", ["203.0.113.253", "198.51.100.77"])
def test_an_address_of_others_is_not_this_hosts_own(text: str) -> None:
    assert not is_own(ip_address(text))


def test_doubt_counts_as_own() -> None:
    """Out of descriptors, the kernel cannot answer: then the address must not be dialled."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        doubted = is_own(ip_address("203.0.113.253"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert doubted
