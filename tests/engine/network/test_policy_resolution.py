"""Requested policies are resolved into stored policies."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.config import Settings, load
from skerry.engine.network import policy_resolution
from skerry.errors import InvalidRequest, NotFound, QuotaExceeded
from skerry.types import Handler, Network, NetworkChange, Preset


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load(environ={}, operator_file=tmp_path / "none", flags={"max.bandwidth": "1M", "max.connections": 100})


def test_preset_name_without_rules_is_rejected_with_a_hint(settings: Settings) -> None:
    with pytest.raises(InvalidRequest, match="'pip'") as refused:
        policy_resolution.resolve(Network(presets=("pip",)), settings, policy_resolution.no_peer)
    assert "SDK" in (refused.value.hint or "")
    with pytest.raises(InvalidRequest, match=r"network\.deny"):
        policy_resolution.resolve(Network(deny=("http://a.test",)), settings, policy_resolution.no_peer)
    carried = Network(presets=(Preset(name="pip", allow=("index.test",)),))
    assert policy_resolution.resolve(carried, settings, policy_resolution.no_peer) == carried


def test_peers_are_stored_by_id(settings: Settings) -> None:
    kept = policy_resolution.resolve(Network(peers={"db": "my-db"}), settings, {"my-db": "sb-aaaaaaaaaa"}.__getitem__)
    assert kept.peers == {"db": "sb-aaaaaaaaaa"}
    with pytest.raises(NotFound):
        policy_resolution.resolve(Network(peers={"db": "other"}), settings, policy_resolution.no_peer)


@pytest.mark.parametrize(
    ("wish", "name"), [({"bytes_per_second": "2M"}, "max.bandwidth"), ({"max_connections": 101}, "max.connec")]
)
def test_rule_beyond_the_operators_maximum_is_rejected_by_name(
    settings: Settings, wish: dict[str, str], name: str
) -> None:
    with pytest.raises(QuotaExceeded, match=name):
        policy_resolution.resolve(Network(**wish), settings, policy_resolution.no_peer)  # type: ignore[arg-type]


def test_allowing_a_rule_removes_its_deny_and_vice_versa() -> None:
    network = Network(allow=("a.test", "b.test"), deny=("c.test",))
    network = policy_resolution.apply_change(network, NetworkChange(allow=("c.test", "a.test")))
    assert (network.allow, network.deny) == (("a.test", "b.test", "c.test"), ())
    network = policy_resolution.apply_change(network, NetworkChange(deny=("a.test",)))
    assert (network.allow, network.deny) == (("b.test", "c.test"), ("a.test",))


def test_change_of_thousands_of_rules_checks_each_once() -> None:
    """Comparing each pair would block other callers for seconds."""
    there, denied = (tuple(f"{letter}{n}.test" for n in range(10_000)) for letter in "ab")
    change = NetworkChange(allow=denied, deny=there)
    network = policy_resolution.apply_change(Network(allow=there, deny=denied), change)
    assert (network.allow, network.deny) == (denied, there)


def test_added_preset_replaces_the_preset_of_the_same_name() -> None:
    pip, npm, mirror = (
        Preset(name=name, allow=(host,)) for name, host in (("pip", "a.test"), ("npm", "b.test"), ("pip", "c.test"))
    )
    network = policy_resolution.apply_change(
        Network(allow=("x.test",), presets=(pip, npm)), NetworkChange(presets=(mirror,))
    )
    assert (network.allow, network.presets) == (("x.test",), (mirror, npm))
    assert policy_resolution.apply_change(network, NetworkChange(allow=("y.test",))).presets == (mirror, npm)


def test_new_sandbox_without_a_policy_gets_the_operators_default(tmp_path: Path) -> None:
    rules = {"network.allow": "mirror.test", "network.deny": "bad.test"}
    settings = load(environ={}, operator_file=tmp_path / "none", flags=rules)
    kept = policy_resolution.resolve_new(None, settings, policy_resolution.no_peer)
    assert (kept.allow, kept.deny) == (("mirror.test",), ("bad.test",))
    explicit = policy_resolution.resolve_new(Network(), settings, policy_resolution.no_peer)
    assert (explicit.allow, explicit.deny) == ((), ("bad.test",))


@pytest.mark.parametrize(
    ("host", "port", "rule"),
    [
        ("a.test", 8443, "a.test:8443"),
        ("a.test", None, "a.test"),
        ("fd00::1", 22, "[fd00::1]:22"),
        ("10.0.0.1", 5, "10.0.0.1:5"),
    ],
)
def test_remembered_rule_names_exactly_the_requested_destination(host: str, port: int | None, rule: str) -> None:
    assert policy_resolution.rule_of(host, port) == rule


def test_rules_of_a_change_are_stored_in_canonical_form() -> None:
    network = policy_resolution.apply_change(Network(deny=("api.test",)), NetworkChange(allow=("API.Test.",)))
    assert (network.allow, network.deny) == (("api.test",), ())


def test_policy_of_a_create_is_stored_in_canonical_form(settings: Settings) -> None:
    kept = policy_resolution.resolve(
        Network(allow=("A.test", "a.test.", "0xa000001:22")), settings, policy_resolution.no_peer
    )
    assert kept.allow == ("a.test", "10.0.0.1:22")


@pytest.mark.parametrize("name", ["max.network", "network.allow", "network.deny"])
def test_invalid_rule_of_the_operator_is_rejected_at_startup(name: str, tmp_path: Path) -> None:
    good = load(environ={}, operator_file=tmp_path / "none", flags={name: "*.example.test"})
    policy_resolution.check_settings(good)
    bad = load(environ={}, operator_file=tmp_path / "none", flags={name: "http://a.test"})
    with pytest.raises(InvalidRequest, match=f"^{name}: 'http://a.test'"):
        policy_resolution.check_settings(bad)


def test_handlers_are_stored_with_canonical_hosts_once_each(settings: Settings) -> None:
    given = Network(handlers=(Handler(host="GET,get API.test:443", redirect="b.test"),), mirror=("A.test", "a.test"))
    kept = policy_resolution.resolve(given, settings, policy_resolution.no_peer)
    assert ([one.host for one in kept.handlers], kept.mirror) == (["GET api.test:443"], ("a.test",))
    twice = Network(handlers=(Handler(host="a.test", redirect="b.test"), Handler(host="A.test", redirect="c.test")))
    with pytest.raises(InvalidRequest, match=r"a\.test has 2 handlers"):
        policy_resolution.resolve(twice, settings, policy_resolution.no_peer)


@pytest.mark.parametrize("host", ["a.test@10.0.0.1", "http://a.test", "a.test/../b", "a test", "a.test:0"])
def test_handler_of_an_invalid_host_is_rejected_by_name(settings: Settings, host: str) -> None:
    for network in (Network(handlers=(Handler(host=host, redirect="b.test"),)), Network(mirror=(host,))):
        with pytest.raises(InvalidRequest, match=r"network\.(handlers|mirror)"):
            policy_resolution.resolve(network, settings, policy_resolution.no_peer)


def test_added_handlers_come_first_and_replace_those_of_their_host() -> None:
    a, b, c = (Handler(host=f"{name}.test", redirect="x.test") for name in "abc")
    other = Handler(host="B.test", redirect="y.test")
    before = Network(handlers=(a, b), mirror=("a.test",))
    after = policy_resolution.apply_change(before, NetworkChange(handlers=(c, other)))
    assert [(one.host, one.redirect) for one in after.handlers] == [
        ("c.test", "x.test"), ("b.test", "y.test"), ("a.test", "x.test"),
    ]  # fmt: skip
    assert after.mirror == ("a.test",)
    less = policy_resolution.apply_change(after, NetworkChange(remove_handlers=("A.test", "none.test"), mirror=()))
    assert ([one.host for one in less.handlers], less.mirror) == (["c.test", "b.test"], ())
    many = tuple(Handler(host=f"h{number}.test", redirect="x.test") for number in range(63))
    with pytest.raises(InvalidRequest, match="more than 64"):
        policy_resolution.apply_change(after, NetworkChange(handlers=many))
