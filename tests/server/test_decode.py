"""Requests are decoded strictly, and errors name the field."""

from __future__ import annotations

import os

import pytest

from skerry.errors import InvalidRequest
from skerry.server.http.decode import decode_json, decode_query
from skerry.server.routes.files import PathQuery, WriteQuery, parse_range
from skerry.server.routes.processes import RunQuery
from skerry.server.routes.sandboxes import SandboxQuery
from skerry.types import CreateRequest, PreviewRequest, RunRequest


@pytest.mark.parametrize(
    ("body", "message", "field"),
    [
        (b'{"imag": "base"}', "imag: unknown field", "imag"),
        (b'{"limits": {"ram": 1}}', "limits.ram: unknown field", "limits.ram"),
        (b'{"limits": {"cpus": "x"}}', "limits.cpus: expected `float | null`, got `str`", "limits.cpus"),
        (b'{"network": {"allow": ["a", 1]}}', "network.allow[1]: expected `str`, got `int`", "network.allow[1]"),
        (b"[]", "the body: expected `object`, got `array`", None),
        (b"", "the body is not valid JSON: it is empty", None),
        (b"{", "the body is not valid JSON: Input data was truncated", None),
        (b'{"image": "\xff"}', "the body is not valid JSON", None),
        (b'{"env": {"A": "' + b"[" * 10000 + b'"', "the body is not valid JSON", None),
    ],
)
def test_invalid_body_is_rejected_by_field_name(body: bytes, message: str, field: str | None) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_json(body, CreateRequest)
    assert refused.value.message.startswith(message)
    assert refused.value.details.get("field") == field


def test_deep_nesting_is_rejected() -> None:
    with pytest.raises(InvalidRequest):
        decode_json(b'{"isolation": ' + b'{"a":' * 100_000, dict)


def test_missing_field_is_named() -> None:
    with pytest.raises(InvalidRequest, match="port: this field is required"):
        decode_json(b"{}", PreviewRequest)


def test_error_of_a_value_check_keeps_its_hint() -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_json(b'{"limits": {"cpus": 0}}', CreateRequest)
    assert refused.value.message == "limits.cpus: 0.0 is out of range"
    assert refused.value.hint == "between 0.01 and 4096"


def test_unknown_field_error_lists_the_known_ones() -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_json(b'{"command": "ls"}', RunRequest)
    assert refused.value.hint is not None
    assert "cmd" in refused.value.hint


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (b"token=skt_x", "token: unknown parameter"),
        (b"wait=true&wait=false", "wait: given twice"),
        (b"wait=perhaps", "wait: expected `bool`, got `str`"),
        (b"wait", "the query string cannot be read"),
        (b"wait=%ff", "the query string cannot be read"),
        (b"wait=\xc3\xbc", "the query string cannot be read"),
        (b"&".join(b"a=%d" % n for n in range(1000)), "the query string cannot be read"),
    ],
)
def test_invalid_query_is_rejected_by_name(query: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_query(query, RunQuery)
    assert refused.value.message.startswith(message)


def test_repeated_label_is_a_list_of_conditions() -> None:
    query = decode_query(b"label=a=1&label=b=x%3Dy&state=running", SandboxQuery)
    assert query.labels == {"a": "1", "b": "x=y"}
    assert query.state == "running"


@pytest.mark.parametrize("query", [b"label=a", b"label=a=1&label=a=2", b"label==x", b"state=asleep"])
def test_invalid_labels_and_states_are_rejected(query: bytes) -> None:
    with pytest.raises(InvalidRequest):
        _ = decode_query(query, SandboxQuery).labels


@pytest.mark.parametrize("text", ["null", "true", "1", "a b+c", "ü/ß", "..", "%2e"])
def test_path_is_taken_literally(text: str) -> None:
    from urllib.parse import quote

    assert decode_query(b"path=" + quote(text, safe="").encode(), PathQuery).path == text


@pytest.mark.parametrize("query", [b"path=", b"path=%00", b"user=x", b"path=a&mode=99", b"path=a&mode=0x1ff"])
def test_invalid_paths_and_modes_are_rejected(query: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_query(query, WriteQuery)


@pytest.mark.parametrize(
    ("wish", "span"),
    [
        ("bytes=0-99", (0, 99)),
        ("bytes=990-", (990, None)),
        ("bytes=-10", (None, 10)),
        ("bytes=0-0", (0, 0)),
        (" bytes=1-2 ", (1, 2)),
    ],
)
def test_range_is_parsed(wish: str, span: tuple[int | None, int | None]) -> None:
    assert parse_range(wish) == span


@pytest.mark.parametrize(
    "wish", ["bytes=5-4", "bytes=-", "bytes=0-1,3-4", "lines=0-1", "bytes=a-b", "", "bytes=" + "9" * 40 + "-"]
)
def test_invalid_range_is_ignored(wish: str) -> None:
    assert parse_range(wish) is None


def test_only_a_path_may_contain_non_utf8_bytes() -> None:
    read = decode_query(b"path=/a%ff%C3%BC%ed%b2%80", PathQuery)
    assert read.path == "/a\udcffü\udced\udcb2\udc80"
    assert os.fsencode(read.path) == b"/a\xff\xc3\xbc\xed\xb2\x80"
    for query in (b"path=a&user=%ff", b"path=a&%ff=b", b"path=a&mode=%ff"):
        with pytest.raises(InvalidRequest):
            decode_query(query, WriteQuery)


def test_path_may_be_as_long_as_the_kernel_allows() -> None:
    assert decode_query(b"path=" + b"%ff" * 4096, PathQuery)
    with pytest.raises(InvalidRequest, match="longer"):
        decode_query(b"path=" + b"%c3%bc" * 2049, PathQuery)
