"""From a request to a plan: defaults, maxima, refusals. No host is touched."""

from __future__ import annotations

import pytest

from skerry.config import load
from skerry.engine.plan import new_id, resolve, resolve_limits
from skerry.errors import InvalidRequest, QuotaExceeded
from skerry.types import SANDBOX_ID, CreateRequest, ImageInfo, Lifecycle, Limits, Network, Options

HOST = Limits(cpus=2, memory="8G")
IMAGE = ImageInfo(name="base", digest="sha256:0", layers=("sha256:0",), size=1, created_at=0.0, user="user")


def test_what_is_not_asked_for_comes_from_the_operator() -> None:
    settings = load(environ={"SKERRY_LIMITS_MEMORY": "3G"})
    limits = resolve_limits(Limits(cpus=0.5), settings, HOST)
    assert limits == Limits(cpus=0.5, memory="3G", disk="5G", pids=512, open_files=65536)


def test_a_default_beyond_a_maximum_is_cut_and_a_wish_is_refused() -> None:
    settings = load(environ={"SKERRY_MAX_MEMORY": "1G"})
    assert resolve_limits(Limits(), settings, HOST).memory == "1G"
    with pytest.raises(QuotaExceeded, match=r"max\.memory"):
        resolve_limits(Limits(memory="1025M"), settings, HOST)


def test_nobody_gets_more_than_the_host_has() -> None:
    with pytest.raises(QuotaExceeded, match="this host"):
        resolve_limits(Limits(memory="9G"), load(environ={}), HOST)


def test_a_life_beyond_the_maximum_is_refused() -> None:
    settings = load(environ={"SKERRY_MAX_LIFE": "1h"})
    with pytest.raises(QuotaExceeded, match=r"max\.life"):
        resolve(CreateRequest(lifecycle=Lifecycle(life="2h")), IMAGE, settings, HOST)
    assert resolve(CreateRequest(), IMAGE, settings, HOST).lifecycle.life == "1h"


def test_what_this_version_can_not_do_is_refused_not_ignored() -> None:
    request_ = CreateRequest(options=Options(reproducible=True))
    with pytest.raises(InvalidRequest, match="this version"):
        resolve(request_, IMAGE, load(environ={}), HOST)


def test_ids_have_the_promised_shape_and_differ() -> None:
    ids = {new_id("sb-") for _ in range(1000)}
    assert len(ids) == 1000
    assert all(SANDBOX_ID.fullmatch(one) for one in ids)


def test_a_guarantee_that_does_not_exist_can_not_be_waived() -> None:
    with pytest.raises(InvalidRequest, match="secomp"):
        resolve(CreateRequest(options=Options(waive=("secomp",))), IMAGE, load(environ={}), HOST)
    assert resolve(CreateRequest(options=Options(waive=("no_swap", "disk_limit"))), IMAGE, load(environ={}), HOST)


def test_a_description_of_a_sandbox_is_bounded_as_a_whole() -> None:
    with pytest.raises(InvalidRequest, match="longer than"):
        resolve(
            CreateRequest(network=Network(deny=tuple(f"a.test/{'x' * 1_900}{n}" for n in range(500)))),
            IMAGE,
            load(environ={}),
            HOST,
        )
