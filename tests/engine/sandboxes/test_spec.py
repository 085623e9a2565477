"""From a request to a plan: defaults, maxima, refusals. No host is touched."""

from __future__ import annotations

import pytest

from skerry.config import load
from skerry.engine.sandboxes.spec import new_id, resolve_limits, resolve_spec
from skerry.errors import InvalidRequest, QuotaExceeded
from skerry.types import SANDBOX_ID, CreateRequest, ImageInfo, Lifecycle, Limits, Network, Options

HOST = Limits(cpus=2, memory="8G")
IMAGE = ImageInfo(name="base", digest="sha256:0", layers=("sha256:0",), size=1, created_at=0.0, user="user")


def test_unset_options_come_from_the_operator() -> None:
    settings = load(environ={"SKERRY_LIMITS_MEMORY": "3G"})
    limits = resolve_limits(Limits(cpus=0.5), settings, HOST)
    assert limits == Limits(cpus=0.5, memory="3G", disk="5G", pids=512, open_files=65536)


def test_default_above_a_maximum_is_capped_and_a_request_is_rejected() -> None:
    settings = load(environ={"SKERRY_MAX_MEMORY": "1G"})
    assert resolve_limits(Limits(), settings, HOST).memory == "1G"
    with pytest.raises(QuotaExceeded, match=r"max\.memory"):
        resolve_limits(Limits(memory="1025M"), settings, HOST)


def test_limits_above_the_host_capacity_are_rejected() -> None:
    with pytest.raises(QuotaExceeded, match="this host"):
        resolve_limits(Limits(memory="9G"), load(environ={}), HOST)


@pytest.mark.parametrize("most", [{}, {"SKERRY_MAX_DISK": "1T"}])
def test_disk_above_the_storage_is_rejected(most: dict[str, str]) -> None:
    host, settings = Limits(disk="64G"), load(environ=most)
    with pytest.raises(QuotaExceeded, match=r"disk: 65G is more than the storage of this host has \(64G\)") as refused:
        resolve_limits(Limits(disk="65G"), settings, host)
    assert refused.value.hint == "ask for at most 64G"
    assert resolve_limits(Limits(disk="64G"), settings, host).disk == "64G"
    assert resolve_limits(Limits(), settings, Limits(disk="3G")).disk == "3G", "a default is capped"


def test_disk_above_the_maximum_of_the_operator_is_rejected() -> None:
    with pytest.raises(QuotaExceeded, match=r"max\.disk"):
        resolve_limits(Limits(disk="3G"), load(environ={"SKERRY_MAX_DISK": "2G"}), Limits(disk="64G"))


def test_lifetime_above_the_maximum_is_rejected() -> None:
    settings = load(environ={"SKERRY_MAX_LIFETIME": "1h"})
    with pytest.raises(QuotaExceeded, match=r"max\.lifetime"):
        resolve_spec(CreateRequest(lifecycle=Lifecycle(max_lifetime="2h")), IMAGE, settings, HOST)
    with pytest.raises(QuotaExceeded, match=r"never is more than max.lifetime allows \(1h\)"):
        resolve_spec(CreateRequest(lifecycle=Lifecycle(max_lifetime="never")), IMAGE, settings, HOST)
    assert resolve_spec(CreateRequest(), IMAGE, settings, HOST).lifecycle.max_lifetime == "1h"


@pytest.mark.parametrize(
    "clock", ["", "now", "2026-01-01", "2026-01-01 00:00:00", "2026-13-01T00:00:00Z", "1970-01-01T00:00:00Z", "9" * 99]
)
def test_clock_that_is_no_time_is_rejected(clock: str) -> None:
    with pytest.raises(InvalidRequest, match=r"options\.clock"):
        Options(reproducible=True, clock=clock)


def test_clock_needs_a_reproducible_sandbox() -> None:
    with pytest.raises(InvalidRequest, match="reproducible"):
        Options(clock="2026-01-01T00:00:00Z")


def test_ids_have_the_documented_form_and_differ() -> None:
    ids = {new_id("sb-") for _ in range(1000)}
    assert len(ids) == 1000
    assert all(SANDBOX_ID.fullmatch(one) for one in ids)


def test_unknown_guarantee_cannot_be_waived() -> None:
    with pytest.raises(InvalidRequest, match="secomp"):
        resolve_spec(CreateRequest(options=Options(waive_guarantees=("secomp",))), IMAGE, load(environ={}), HOST)
    assert resolve_spec(
        CreateRequest(options=Options(waive_guarantees=("no_swap", "disk_limit"))), IMAGE, load(environ={}), HOST
    )


def test_total_size_of_a_spec_is_bounded() -> None:
    with pytest.raises(InvalidRequest, match="longer than"):
        resolve_spec(
            CreateRequest(network=Network(deny=tuple(f"a.test/{'x' * 1_900}{n}" for n in range(500)))),
            IMAGE,
            load(environ={}),
            HOST,
        )
