"""The messages of E2B's envd in both encodings; the protocol is off unless the operator names it."""

from __future__ import annotations

import base64
import gzip
import json

import pytest
from support.listening_server import Listening

from skerry.config import BY_NAME
from skerry.errors import InvalidRequest
from skerry.server.http import audit
from skerry.server.wire.e2b import app
from skerry.server.wire.e2b.builds import Builds
from skerry.server.wire.e2b.connect import _plain
from skerry.server.wire.e2b.errors import RpcError
from skerry.server.wire.e2b.messages import MESSAGES, EnvelopeReader, decode, encode, envelope
from skerry.server.wire.e2b.routes.filesystem import Watchers
from skerry.server.wire.e2b.users import UserTable
from skerry.server.wire.e2b.values import moment

ENTRY = {
    "name": "ä.txt", "type": "FILE_TYPE_FILE", "path": "/home/user/ä.txt", "size": 1 << 40, "mode": 0o644,
    "permissions": "-rw-r--r--", "owner": "user", "group": "user", "modifiedTime": 1_700_000_000.25,
    "metadata": {"a": "b", "": ""}, "isSymlink": True,
}  # fmt: skip


def test_protocols_of_others_are_off_by_default(listening: Listening) -> None:
    assert BY_NAME["server.wire"].default == ()
    with listening.unix() as http:
        answer = http.post("/sandboxes", headers={"X-API-Key": "e2b_0"}, json={"templateID": "base"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_setting_accepts_known_protocols_only() -> None:
    assert BY_NAME["server.wire"].parse("e2b", "server.wire") == ("e2b",)
    with pytest.raises(InvalidRequest, match="not a protocol"):
        BY_NAME["server.wire"].parse(["modal"], "server.wire")


@pytest.mark.parametrize("form", ["json", "proto"])
def test_messages_survive_a_round_trip(form: str) -> None:
    start = {
        "process": {"cmd": "/bin/bash", "args": ["-l", "-c", ""], "envs": {"A": "1", "B": ""}, "cwd": "/tmp"},
        "pty": {"size": {"cols": 80, "rows": 24}}, "tag": "t", "stdin": True,
    }  # fmt: skip
    assert decode("StartRequest", encode("StartRequest", start, form), form) == start
    event = {"event": {"end": {"exitCode": -1, "exited": False, "status": "signal: killed", "error": "signal: killed"}}}
    assert decode("EventResponse", encode("EventResponse", event, form), form) == event
    data = {"event": {"data": {"stdout": bytes(range(256))}}}
    assert decode("EventResponse", encode("EventResponse", data, form), form) == data


def test_protobuf_has_the_bytes_of_the_published_schema() -> None:
    assert encode("ProcessSelector", {"pid": 300}, "proto") == b"\x08\xac\x02"
    assert encode("EndEvent", {"exitCode": -1, "exited": True, "status": "x"}, "proto") == b"\x08\x01\x10\x01\x1a\x01x"
    timestamp = encode("EntryInfo", {"name": "n", "modifiedTime": 5.5}, "proto")
    assert timestamp == b"\x0a\x01n\x4a\x08\x08\x05\x10" + b"\x80\xca\xb5\xee\x01"
    assert decode("SendSignalRequest", b"\x0a\x02\x08\x07\x10\x09", "proto") == {
        "process": {"pid": 7}, "signal": "SIGNAL_SIGKILL",
    }  # fmt: skip


@pytest.mark.parametrize("seconds", [1e300, -1e300, 253402300800.0, -62135596801.0])
def test_time_outside_of_the_calendar_is_its_first_or_last(seconds: float) -> None:
    shown = json.loads(encode("EntryInfo", {"modifiedTime": seconds}, "json"))["modifiedTime"]
    assert shown == ("9999-12-31T23:59:59.000000000Z" if seconds > 0 else "0001-01-01T00:00:00.000000000Z")
    assert len(encode("EntryInfo", {"modifiedTime": seconds}, "proto")) < 32
    assert moment(seconds).startswith("9999-" if seconds > 0 else "0001-")


def test_json_has_the_forms_of_protobuf() -> None:
    shown = json.loads(encode("EntryInfo", ENTRY, "json"))
    assert shown["size"] == str(1 << 40)
    assert shown["modifiedTime"] == "2023-11-14T22:13:20.250000000Z"
    assert json.loads(encode("DataEvent", {"stdout": b"\xff"}, "json")) == {
        "stdout": base64.b64encode(b"\xff").decode()
    }
    assert decode("WatchRequest", b'{"include_entry": true, "newer": [1]}', "json") == {"includeEntry": True}
    assert decode("SendSignalRequest", b'{"signal": 15}', "json") == {"signal": "SIGNAL_SIGTERM"}


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a", b"\x0a\x05ab", b"\x08", b"\x80" * 11, b"\x00\x00", b"\x0b", b"\x0a\x02\xff\xfe", b"\x0d\x01",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    ],
)  # fmt: skip
def test_malformed_protobuf_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode("PathRequest", data, "proto")


@pytest.mark.parametrize(
    "text", ["[]", '{"path": 1}', '{"path":', '{"recursive": "yes"}', "\xff", "[" * 5000, '{"path": {}}']
)
def test_malformed_json_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        decode("WatchRequest", text.encode("latin-1"), "json")


def test_deeply_nested_protobuf_is_refused() -> None:
    assert all(
        field.kind in MESSAGES or field.kind[0].islower() or field.number for m in MESSAGES.values() for field in m
    )
    data = b""
    for _ in range(200_000):
        data = b"\x0a" + bytes([0x80 | len(data) & 0x7F, len(data) >> 7]) + data if len(data) < 16000 else data
    decode("ListRequest", data, "proto")  # unknown fields are not entered


def test_envelopes_may_arrive_in_any_pieces() -> None:
    reader, found = EnvelopeReader(100), []
    stream = envelope(b"one") + envelope(b"", 2) + envelope(b"x" * 100)
    for byte in stream:
        found += list(reader.feed(bytes([byte])))
    assert found == [(0, b"one"), (2, b""), (0, b"x" * 100)]
    assert reader.is_complete
    with pytest.raises(InvalidRequest, match="larger than"):
        list(reader.feed(envelope(b"x" * 101)))


def test_compressed_messages_are_bounded() -> None:
    assert _plain(gzip.compress(b"hello"), "gzip") == b"hello"
    with pytest.raises(InvalidRequest, match="larger than 16 MiB"):
        _plain(gzip.compress(bytes(32 << 20)), "gzip")
    with pytest.raises(InvalidRequest, match="not valid gzip"):
        _plain(b"no", "gzip")
    with pytest.raises(RpcError):
        _plain(b"no", "br")


def test_every_recorded_field_of_every_route_is_known_to_the_audit_log() -> None:
    """As for the server's own routes. Fields that no table names are not recorded."""
    users = UserTable()
    api = app.api_routes(None, Builds(None, None), None, None)  # type: ignore[arg-type]
    routes = [*api, *app.envd_routes(users, Watchers()), *app.code_routes(users)]
    assert len({(route.method, route.path) for route in api}) == len(api)
    reads = ("/Connect", "/List", "/ListDir", "/Stat", "Watcher", "Dir", "Events")
    for route in routes:
        changes = route.method != "GET" and not route.path.endswith(reads)
        assert (route.effect is not None) == (changes or route.path.endswith("/MakeDir")), route.path
    recorded = audit.RECORDED | audit.NAMES_ONLY
    assert not {"env_vars", "envVars", "metadata", "signature"} & recorded
