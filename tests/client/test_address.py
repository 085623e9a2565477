"""Selection of the server, and rejected addresses."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.client.transport.address import parse_address, resolve
from skerry.client.transport.connection import http_request, transport_options
from skerry.client.transport.requests import files, sandboxes
from skerry.config import load, socket_path
from skerry.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "url", "socket"),
    [
        ("unix:///run/x.sock", "http://localhost", "/run/x.sock"),
        ("http://127.0.0.1:7070", "http://127.0.0.1:7070", None),
        ("https://box.example/", "https://box.example", None),
        ("http://[::1]:7070", "http://[::1]:7070", None),
    ],
)
def test_address_is_parsed(text: str, url: str, socket: str | None) -> None:
    address = parse_address(text)
    assert (address.url, address.socket, address.own) == (url, socket, False)


@pytest.mark.parametrize(
    "text",
    ["", "x", "unix://relative", "unix:relative", "ftp://x", "http://", "http://h:99999", "http://h:x", "http://u:p@h",
     "http://h/path", "http://h?q", "http://h#f", "http://h\r\nx: y", "unix:///a b"],
)  # fmt: skip
def test_invalid_address_is_rejected(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not an address"):
        parse_address(text)


def test_token_with_header_syntax_is_rejected() -> None:
    for token in ("a\r\nx: y", "a b", "ä", ""):
        with pytest.raises(InvalidRequest, match="token"):
            parse_address("http://h", token)


def test_default_is_the_local_server_with_autostart(tmp_path: Path) -> None:
    settings = load(environ={"SKERRY_STATE_DIR": str(tmp_path)})
    address = resolve(None, settings)
    assert address.own
    assert address.socket == str(socket_path(tmp_path))


def test_argument_overrides_the_environment() -> None:
    settings = load(environ={"SKERRY_SERVER": "http://a:1", "SKERRY_TOKEN": "skt_x"})
    assert resolve(None, settings).url == "http://a:1"
    assert resolve("http://b:2", settings).url == "http://b:2"
    assert not resolve(None, settings).own


def test_token_is_sent_and_never_shown() -> None:
    address = parse_address("http://h:1", "skt_secret")
    assert http_request(address, sandboxes.server()).headers["authorization"] == "Bearer skt_secret"
    assert "secret" not in repr(address) + str(address)


def test_proxy_of_the_environment_is_ignored() -> None:
    assert transport_options(parse_address("http://h:1", "skt_secret"))["trust_env"] is False


def test_query_encodes_its_values() -> None:
    request = http_request(parse_address("http://h:1"), files.query_file("dev", "stat", "/a b&c=d/é+%2f?#", "u"))
    assert request.url.params["path"] == "/a b&c=d/é+%2f?#"
    assert request.url.params["user"] == "u"
    assert request.url.path == "/v1/sandboxes/dev/files/stat"
    assert request.headers["host"] == "h:1"


def test_non_utf8_bytes_in_a_query_are_preserved() -> None:
    request = http_request(parse_address("http://h:1"), files.query_file("dev", "stat", "/a\udcff\udc80ü", None))
    assert request.url.raw_path.endswith(b"?path=%2Fa%FF%80%C3%BC")


def test_large_body_is_sent_in_pieces_with_the_same_headers() -> None:
    address = parse_address("http://h:1")
    small, large = (http_request(address, files.write_file("dev", "/f", b"x" * size)) for size in (1000, 1_000_000))
    assert set(small.headers) == set(large.headers)
    assert (large.headers["host"], large.headers["content-length"]) == ("h:1", "1000000")
    pieces = list(large.stream)  # type: ignore[call-overload]
    assert len(pieces) > 1
    assert b"".join(pieces) == b"x" * 1_000_000
