"""From what was asked for to a policy that is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.config import Settings, load
from skerry.engine import egress
from skerry.errors import InvalidRequest, NotFound, QuotaExceeded
from skerry.types import Network, NetworkChange, Preset


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load(environ={}, operator_file=tmp_path / "none", flags={"max.bandwidth": "1M", "max.connections": 100})


def test_a_preset_by_its_name_alone_is_refused_with_a_hint(settings: Settings) -> None:
    with pytest.raises(InvalidRequest, match="'pip'") as refused:
        egress.settled(Network(presets=("pip",)), settings, egress.no_peer)
    assert "SDK" in (refused.value.hint or "")
    with pytest.raises(InvalidRequest, match=r"network\.deny"):
        egress.settled(Network(deny=("http://a.test",)), settings, egress.no_peer)
    carried = Network(presets=(Preset(name="pip", allow=("index.test",)),))
    assert egress.settled(carried, settings, egress.no_peer) == carried


def test_peers_are_kept_by_their_ids(settings: Settings) -> None:
    kept = egress.settled(Network(peers={"db": "my-db"}), settings, {"my-db": "sb-aaaaaaaaaa"}.__getitem__)
    assert kept.peers == {"db": "sb-aaaaaaaaaa"}
    with pytest.raises(NotFound):
        egress.settled(Network(peers={"db": "other"}), settings, egress.no_peer)


@pytest.mark.parametrize(
    ("wish", "name"), [({"bandwidth": "2M"}, "max.bandwidth"), ({"connections": 101}, "max.connec")]
)
def test_more_than_the_operator_allows_is_refused_by_name(settings: Settings, wish: dict[str, str], name: str) -> None:
    with pytest.raises(QuotaExceeded, match=name):
        egress.settled(Network(**wish), settings, egress.no_peer)  # type: ignore[arg-type]


def test_a_rule_that_is_allowed_leaves_deny_and_the_other_way() -> None:
    network = Network(allow=("a.test", "b.test"), deny=("c.test",))
    network = egress.changed(network, NetworkChange(allow=("c.test", "a.test")))
    assert (network.allow, network.deny) == (("a.test", "b.test", "c.test"), ())
    network = egress.changed(network, NetworkChange(deny=("a.test",)))
    assert (network.allow, network.deny) == (("b.test", "c.test"), ("a.test",))


def test_a_change_of_thousands_of_rules_takes_one_look_at_each() -> None:
    """With a look at each pair of them, nobody else would be answered for seconds."""
    there, denied = (tuple(f"{letter}{n}.test" for n in range(20_000)) for letter in "ab")
    change = NetworkChange(allow=denied, deny=there)
    network = egress.changed(Network(allow=there, deny=denied), change)
    assert (network.allow, network.deny) == (denied, there)


def test_a_preset_that_is_added_takes_the_place_of_one_of_its_name() -> None:
    pip, npm, mirror = (
        Preset(name=name, allow=(host,)) for name, host in (("pip", "a.test"), ("npm", "b.test"), ("pip", "c.test"))
    )
    network = egress.changed(Network(allow=("x.test",), presets=(pip, npm)), NetworkChange(presets=(mirror,)))
    assert (network.allow, network.presets) == (("x.test",), (mirror, npm))
    assert egress.changed(network, NetworkChange(allow=("y.test",))).presets == (mirror, npm)


def test_without_a_wish_the_operator_says_what_a_new_sandbox_may_reach(tmp_path: Path) -> None:
    rules = {"network.allow": "mirror.test", "network.deny": "bad.test"}
    settings = load(environ={}, operator_file=tmp_path / "none", flags=rules)
    kept = egress.of_new(None, settings, egress.no_peer)
    assert (kept.allow, kept.deny) == (("mirror.test",), ("bad.test",))
    explicit = egress.of_new(Network(), settings, egress.no_peer)
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
def test_a_rule_names_just_what_was_asked_about(host: str, port: int | None, rule: str) -> None:
    assert egress.rule_of(host, port) == rule


def test_rules_are_kept_in_their_one_spelling() -> None:
    network = egress.changed(Network(deny=("api.test",)), NetworkChange(allow=("API.Test.",)))
    assert (network.allow, network.deny) == (("api.test",), ())


def test_what_is_asked_for_is_kept_in_one_spelling_too(settings: Settings) -> None:
    kept = egress.settled(Network(allow=("A.test", "a.test.", "0xa000001:22")), settings, egress.no_peer)
    assert kept.allow == ("a.test", "10.0.0.1:22")


@pytest.mark.parametrize("name", ["max.network", "network.allow", "network.deny"])
def test_an_operators_rule_that_cannot_be_read_is_refused_at_the_start(name: str, tmp_path: Path) -> None:
    good = load(environ={}, operator_file=tmp_path / "none", flags={name: "*.example.test"})
    egress.check_settings(good)
    bad = load(environ={}, operator_file=tmp_path / "none", flags={name: "http://a.test"})
    with pytest.raises(InvalidRequest, match=f"^{name}: 'http://a.test'"):
        egress.check_settings(bad)
