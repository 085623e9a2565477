"""Attacks on E2B's protocols: credentials of others, two readings of one request, messages larger than they look."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import json
import socket
import zlib
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from support.e2b import SETTINGS, STREAM, Account, Box, events, output, signed, stream_error
from support.server import Server, wait_until

from skerry.codecs.api_keys import key_of
from skerry.config import socket_path
from skerry.server.wire.e2b.builds import MAX_KEPT, MAX_UPLOADS
from skerry.server.wire.e2b.messages import COMPRESSED, envelope

OPERATORS = SETTINGS


@pytest.fixture(scope="module")
def account(server: Server) -> Iterator[Account]:
    made = Account(server, "ann")
    with made.http:
        yield made


@pytest.fixture(scope="module")
def box(account: Account) -> Iterator[Box]:
    made = account.create()
    yield made
    assert account.api("DELETE", f"/sandboxes/{made.id}").status_code == 204


@pytest.fixture(scope="module")
def stranger(server: Server) -> Iterator[Box]:
    """Another owner's sandbox."""
    account = Account(server, "mallory")
    with account.http:
        made = account.create()
        yield made
        assert account.api("DELETE", f"/sandboxes/{made.id}").status_code == 204


def refused(answer: httpx2.Response, status: int) -> None:
    """Check that an answer is an error in a form of E2B."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert isinstance(body["code"], (int, str)), body
    assert body["message"], body


def raw(server: Server, request: bytes) -> bytes:
    """Send bytes as they are, and return the whole response."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(60)
        line.connect(str(socket_path(server.state_dir)))
        line.sendall(request)
        received = b""
        while piece := line.recv(65536):
            received += piece
    return received


# -- credentials ------------------------------------------------------------------------------------------------------


def test_access_token_of_another_sandbox_opens_nothing(box: Box, stranger: Box) -> None:
    own = stranger.account.create()
    try:
        for token in (stranger.token, own.token, stranger.token.replace(stranger.id, box.id)):
            headers = {**box.headers(), "X-Access-Token": token}
            refused(box.account.http.post("/process.Process/List", json={}, headers=headers), 401)
            refused(box.account.http.get("/files", params={"path": "/etc/passwd"}, headers=headers), 401)
            refused(box.account.http.get("/contexts", headers={**headers, "E2b-Sandbox-Port": "49999"}), 401)
    finally:
        stranger.account.api("DELETE", f"/sandboxes/{own.id}")


def test_api_key_is_no_access_token_and_the_reverse(box: Box) -> None:
    http = box.account.http
    refused(http.get("/files?path=/etc/passwd", headers={**box.headers(), "X-Access-Token": box.account.key}), 401)
    assert http.get("/v2/sandboxes", headers={"X-API-Key": key_of(box.account.key)}).status_code == 200
    same = key_of(box.account.key)
    wrong = (
        same.upper(),
        "e2b_" + same[4:].upper(),
        same + "0",
        same[:-1],
        f"{same[:-1]}{int(same[-1], 16) ^ 1:x}",
        f"skt_{same[4:]}",
    )
    for key in (box.token, box.made["trafficAccessToken"], box.account.key.upper(), box.account.key[:-1], *wrong):
        refused(http.get("/v2/sandboxes", headers={"X-API-Key": key}), 401)
        refused(http.get("/v2/sandboxes", headers={"Authorization": f"Bearer {key}"}), 401)
    refused(http.get("/files?path=/etc/passwd", headers={**box.headers(), "X-Access-Token": same}), 401)


def test_token_of_a_monitor_is_no_api_key(server: Server, box: Box) -> None:
    """A leaked token with the scope `metrics` lists, starts and deletes nothing."""
    with server.http() as http:
        key = {"X-API-Key": http.post("/v1/tokens", json={"scope": "metrics"}).raise_for_status().json()["secret"]}
        for method, path in (("GET", "/sandboxes"), ("GET", "/templates"), ("DELETE", f"/sandboxes/{box.id}")):
            refused(http.request(method, path, headers=key), 403)
        refused(http.post("/sandboxes", headers=key, json={"templateID": "base"}), 403)
    assert box.account.api("GET", f"/sandboxes/{box.id}").status_code == 200


def test_values_of_secrets_are_in_no_record_of_a_command(server: Server, account: Account) -> None:
    value = "hunter2-very-secret"
    box = account.create()
    with server.http() as http:
        given = [{"name": "KEY", "hosts": ["api.example.com"], "value": value}]
        http.patch(f"/v1/sandboxes/{box.id}", json={"secrets": given}).raise_for_status()
        box.run(f"echo {value * 20}")  # the record is cut inside of a value
        (record,) = http.get("/v1/audit", params={"sandbox": box.id, "type": "process"}).json()["records"]
        assert "*" * len(value) in record["result"]["details"]["cmd"]
        assert value[:4] not in str(record)
        assert value not in http.get("/v1/audit/export").text
    assert account.api("DELETE", f"/sandboxes/{box.id}").status_code == 204


def test_credentials_given_twice_are_refused(server: Server, box: Box) -> None:
    for name, value in (("X-API-Key", box.account.key), ("X-Access-Token", box.token), ("E2b-Sandbox-Id", box.id)):
        lines = f"{name}: other\r\n{name}: {value}\r\n"
        answer = raw(server, f"GET /v2/sandboxes HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{lines}\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 400 "), answer[:300]


def test_signature_of_another_sandbox_opens_nothing(box: Box, stranger: Box) -> None:
    http = box.account.http
    box.run("echo secret > s")
    for headers in ({}, {"E2b-Sandbox-Id": box.id}):
        query = signed(stranger, "s", "read")
        answer = http.get("/files", params=query, headers=headers)
        assert answer.status_code in (401, 404)
        assert "secret" not in answer.text


def test_signed_path_cannot_be_replaced_by_a_second_one(box: Box) -> None:
    """The signature and the handler must read the same path."""
    http, query = box.account.http, signed(box, "s", "read")
    box.run("echo signed > s; echo other > other")
    assert http.get("/files", params=query).text == "signed\n"
    rest = f"signature={quote(query['signature'])}"
    for paths in ("path=other&path=s", "path=s&path=other", "path=s&path=s", "path=s&p%61th=other"):
        refused(http.get(f"/files?{paths}&{rest}"), 401)
    refused(http.get(f"/files?path=s&username=root&{rest}"), 401)
    refused(http.get(f"/files?path=s&{rest}&signature=v1_x"), 401)


def test_signed_path_is_compared_byte_for_byte(box: Box) -> None:
    """A lenient decoder turns different bytes into the same replacement character."""
    query = signed(box, "a\ufffd", "read")
    box.run("echo other > $'a\\xff'; echo signed > $'a\\xef\\xbf\\xbd'")
    rest = f"signature={quote(query['signature'])}"
    assert box.account.http.get(f"/files?path=a%EF%BF%BD&{rest}").text == "signed\n"
    for path in ("a%FF", "a%EF%BF", "a\xff"):
        assert "other" not in box.account.http.get(f"/files?path={path}&{rest}").text


def test_signed_url_reads_and_writes_files_only(box: Box) -> None:
    query = signed(box, "s", "read")
    for method, path in (("GET", "/envs"), ("GET", "/metrics"), ("POST", "/files/compose"), ("GET", "/files/"),
                         ("POST", "/process.Process/List"), ("DELETE", "/files"), ("PUT", "/files")):  # fmt: skip
        answer = box.account.http.request(method, path, params=query, headers={"E2b-Sandbox-Id": box.id})
        assert answer.status_code in (401, 404, 405), (path, answer.text)
    for port, status in (("49999", 401), ("8080", 502), ("0", 400), ("65536", 400), ("99999", 400)):
        headers = {"E2b-Sandbox-Id": box.id, "E2b-Sandbox-Port": port}
        refused(box.account.http.get("/files", params=query, headers=headers), status)


def test_upload_of_a_template_needs_the_token_of_its_url(account: Account, stranger: Box) -> None:
    made = account.api("POST", "/v3/templates", json={"name": "attacked"})
    assert made.status_code == 202
    url = account.api("GET", "/templates/attacked/files/f00").json()["url"]
    path = "/" + url.partition("//")[2].partition("/")[2]
    theirs = stranger.account.api("GET", "/templates/attacked/files/f00").json()["url"]
    token = theirs.rpartition("token=")[2]
    for bad in (f"{path}&token=x", f"{path}.", path.replace("attacked", "other"), path.replace("f00", "..%2Ff00"),
                path.replace("f00", "%2E%2E"), path.partition("?")[0], f"{path}&more=1"):  # fmt: skip
        answer = account.http.put(bad, content=b"x")
        assert answer.status_code in (400, 401, 404), (bad, answer.text)
    assert account.http.put(f"{path.partition('?')[0]}?token={token}", content=b"theirs").status_code == 200
    assert account.api("GET", "/templates/attacked/files/f00").json()["present"] is False


# -- two readings of one request --------------------------------------------------------------------------------------


def test_host_name_and_header_must_name_the_same_sandbox(box: Box, stranger: Box) -> None:
    http = box.account.http
    names = {"Host": f"49983-{stranger.id}.boxes.example"}
    refused(http.get("/files?path=/etc/passwd", headers={**box.headers(), **names}), 400)
    refused(http.get("/health", headers={**names, "X-Access-Token": box.token}), 401)
    same = {"Host": f"49983-{box.id}.boxes.example"}
    assert http.get("/health", headers={**box.headers(), **same}).status_code == 204


@pytest.mark.parametrize(
    "host",
    ["{port}-{id}.boxes.example.evil.test", "{port}-{id}.xboxes.example", "x.{port}-{id}.boxes.example",
     "{port}-{id}.boxes.example.", "{port}_{id}.boxes.example", "-{id}.boxes.example", "{port}-.boxes.example",
     "{port}-{id}/.boxes.example", "{port}-..boxes.example", "{port}-{id}%2e.boxes.example",
     "999999-{id}.boxes.example"],
)  # fmt: skip
def test_similar_host_names_are_no_sandbox(box: Box, host: str) -> None:
    name = host.format(port=49983, id=box.id)
    bare = box.account.http.get("/envs", headers={"Host": name})
    assert bare.status_code in (400, 401, 404, 421), bare.text


@pytest.mark.parametrize(
    ("name", "port"),
    [("../x", "49983"), ("a/b", "49983"), ("", "49983"), ("é", "49983"), ("x" * 300, "49983"), ("{id}", "-1"),
     ("{id}", "4 9"), ("{id}", "0x1"), ("{id}", "49983,1"), ("{id}", "４９９８３")],
)  # fmt: skip
def test_malformed_routing_headers_get_errors_of_e2b(box: Box, name: str, port: str) -> None:
    headers: dict[str, Any] = {
        "E2b-Sandbox-Id": name.format(id=box.id).encode(), "E2b-Sandbox-Port": port.encode(),
        "X-Access-Token": box.token,
    }  # fmt: skip
    refused(box.account.http.get("/health", headers=headers), 400)


def test_paths_with_dots_and_slashes_reach_no_other_route(box: Box, account: Account) -> None:
    for path in (f"/sandboxes/{box.id}/%2e%2e/{box.id}", f"/sandboxes/%2e%2e/{box.id}", "/sandboxes//",
                 "/v2/%2e%2e/v1/tokens", "/sandboxes/..%2f..%2fv1%2ftokens", f"/v2/sandboxes/{box.id}%00",
                 "/templates/..%2f/tags"):  # fmt: skip
        answer = account.api("GET", path)
        assert answer.status_code in (400, 404, 405), (path, answer.text)
        assert "tk-" not in answer.text


def test_path_of_a_file_stays_inside_the_sandbox(box: Box) -> None:
    box.run("ln -s /../../../../.. up; ln -s /proc/1/root/../../.. root")
    marker = box.account.http.get("/files", params={"path": "/etc/hostname"}, headers=box.headers()).text
    for path in ("../../../../../../etc/hostname", "up/etc/hostname", "/proc/self/root/../../etc/hostname"):
        answer = box.account.http.get("/files", params={"path": path}, headers=box.headers())
        assert answer.status_code in (400, 403, 404) or answer.text == marker, path
    for path in ("/var/lib/skerry", "/run/skerry/keeper.sock", "/proc/1/mem", "/proc/1/environ", "/proc/kcore"):
        answer = box.account.http.get("/files", params={"path": path}, headers=box.headers())
        assert answer.status_code != 200 or not answer.content, path


def test_numbers_of_thousands_of_digits_in_the_list_of_users_are_no_server_error(account: Account) -> None:
    box = account.create()
    try:
        root, unknown = (base64.b64encode(f"{name}:".encode()).decode() for name in ("root", "nobody-here"))
        line = "printf 'x:x:%05000d:0::/:\\n' 1 >> /etc/passwd; printf 'x:x:%05000d:\\n' 1 >> /etc/group"
        body = envelope(json.dumps({"process": {"cmd": "/bin/bash", "args": ["-c", line]}}).encode())
        answer = box.call("process.Process/Start", body, STREAM, Authorization=f"Basic {root}")
        assert events(answer.content)[-2]["end"]["exitCode"] == 0
        answer = box.call("filesystem.Filesystem/Stat", {"path": "/"}, Authorization=f"Basic {unknown}")
        refused(answer, 401)  # the list was read again
        assert box.call("filesystem.Filesystem/Stat", {"path": "/"}).json()["entry"]["owner"] == "root"
    finally:
        assert account.api("DELETE", f"/sandboxes/{box.id}").status_code == 204


def test_query_that_is_not_utf8_gets_an_error_of_e2b(account: Account) -> None:
    for query in ("limit=%ff", "nextToken=%ff", "metadata=%ff%fe", "limit=1&limit=2", "order=%00", "state=%ff"):
        answer = account.api("GET", f"/v2/sandboxes?{query}")
        assert answer.status_code in (200, 400), (query, answer.text)
        if answer.status_code == 400:
            refused(answer, 400)


def test_web_page_of_another_origin_is_refused(box: Box) -> None:
    for headers in ({"Origin": "https://evil.test"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        refused(box.account.http.get("/envs", headers={**box.headers(), **headers}), 403)
    kind = {**box.headers(49999), "Content-Type": "text/plain"}
    refused(box.account.http.post("/execute", content=b'{"code":"1"}', headers=kind), 415)


# -- messages larger than they look -----------------------------------------------------------------------------------


def test_message_of_millions_of_values_is_refused(box: Box) -> None:
    """16 MiB of JSON hold five million objects, which would take seconds and a gigabyte."""
    many = b'{"path":"/","x":[' + b"{}," * 200_000 + b"{}]}"
    refused(box.call("filesystem.Filesystem/Stat", many), 429)
    assert stream_error(box.call("process.Process/Start", envelope(many), STREAM)) == "resource_exhausted"
    deep = b'{"path":"/","x":' + b"[" * 90_000 + b"]" * 90_000 + b"}"
    refused(box.call("filesystem.Filesystem/Stat", deep), 400)


def test_compressed_message_cannot_grow_without_bound(box: Box) -> None:
    bomb = gzip.compress(b'{"path":"' + bytes(64 << 20) + b'"}')
    refused(box.call("filesystem.Filesystem/Stat", bomb, **{"Content-Encoding": "gzip"}), 429)
    answer = box.call(
        "process.Process/Start", envelope(bomb, COMPRESSED), STREAM, **{"Connect-Content-Encoding": "gzip"}
    )
    assert stream_error(answer) == "resource_exhausted"


MALFORMED = {
    "bytes after the end": gzip.compress(b'{"path":"/"}') + b"more",
    "cut off": gzip.compress(b'{"path":"/"}')[:-4],
    "two members": gzip.compress(b"{}") * 2,
    "zlib": zlib.compress(b'{"path":"/"}'),
    "plain": b"not gzip",
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_compressed_message_is_refused(box: Box, what: str) -> None:
    body = MALFORMED[what]
    refused(box.call("filesystem.Filesystem/Stat", body, **{"Content-Encoding": "gzip"}), 400)
    headers = {"Connect-Content-Encoding": "gzip"}
    answer = box.call("process.Process/Start", envelope(body, COMPRESSED), STREAM, **headers)
    assert stream_error(answer) == "invalid_argument"
    kind = box.headers(**{"Content-Encoding": "gzip", "Content-Type": "application/octet-stream"})
    refused(box.account.http.post("/files?path=packed", content=body, headers=kind), 400)


def test_bytes_after_a_compressed_upload_are_not_collected(box: Box) -> None:
    """zlib keeps what follows the end of a stream in memory, all of it."""

    def chunks() -> Iterator[bytes]:
        yield gzip.compress(b"content")
        for _ in range(64):
            yield bytes(65536)

    headers = box.headers(**{"Content-Encoding": "gzip", "Content-Type": "application/octet-stream"})
    with contextlib.suppress(httpx2.TransportError):  # the server may close the connection while the client sends
        refused(box.account.http.post("/files?path=packed", content=chunks(), headers=headers), 400)
    assert box.account.http.get("/files?path=packed", headers=box.headers()).status_code == 404


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "GZIP2", "identity, gzip"])
def test_unknown_encodings_are_refused(box: Box, encoding: str) -> None:
    answer = box.call("filesystem.Filesystem/Stat", b"{}", **{"Content-Encoding": encoding})
    refused(answer, 501)
    headers = box.headers(**{"Content-Encoding": encoding, "Content-Type": "application/octet-stream"})
    refused(box.account.http.post("/files?path=packed", content=b"x", headers=headers), 415)


@pytest.mark.parametrize("kind", ["", "text/plain", "application/connect+xml", "application/json+proto", "application/",
                                  "application/connect+json, application/json", "application/grpc"])  # fmt: skip
def test_unknown_content_types_have_no_effect(box: Box, kind: str) -> None:
    body = json.dumps({"process": {"cmd": "/bin/touch", "args": ["/tmp/touched"]}}).encode()
    refused(box.call("process.Process/Start", envelope(body), kind), 415)
    refused(box.call("filesystem.Filesystem/MakeDir", b'{"path":"/tmp/touched"}', kind), 415)
    assert output(box.run("ls /tmp/touched")) == b""


def test_unknown_version_of_the_protocol_is_refused(box: Box) -> None:
    for version in ("2", "", "1, 1"):
        headers = {"Connect-Protocol-Version": version}
        refused(box.call("filesystem.Filesystem/Stat", b'{"path":"/"}', **headers), 400)


# -- the control plane ------------------------------------------------------------------------------------------------


def test_malformed_bodies_of_the_control_plane_are_no_server_errors(account: Account, box: Box) -> None:
    kind = {"X-API-Key": account.key, "Content-Type": "application/json"}
    bodies = (b"", b"[]", b"null", b"{", b'"x"', b'{"memory":"x"}', b'{"timeout":1e99}', b'{"timeout":-1}',
              b'{"duration":true}', b'{"count":0}', b'{"count":100000}', b"\xff", b"[" * 5000)  # fmt: skip
    fields = {
        "": (b'{"timeout"',), "pause": (b'{"memory"',), "connect": (b'{"timeout"', b'{"memory"'),
        "timeout": (b'{"timeout"',), "refreshes": (b'{"duration"',), "fork": (b'{"timeout"', b'{"count"'),
    }  # fmt: skip
    for path, known in fields.items():
        for body in bodies:
            if body.startswith(b'{"') and not body.startswith(known):  # other fields are ignored
                continue
            if path == "pause" and not body:
                continue
            url = f"/sandboxes/{box.id}/{path}" if path else "/sandboxes"
            answer = account.http.post(url, content=body, headers=kind)
            assert 400 <= answer.status_code < 500, (path, body[:40], answer.text)
            assert answer.json()["code"] == answer.status_code
    assert account.http.get("/health", headers=box.headers()).status_code == 204


def upload_path(account: Account, name: str) -> str:
    url: str = account.api("GET", f"/templates/attacked/files/{name}").json()["url"]
    return "/" + url.partition("//")[2].partition("/")[2]


def test_upload_leaves_the_operators_free_space(make_server: Callable[[], Server]) -> None:
    full = make_server().start(SKERRY_SERVER_WIRE="e2b", SKERRY_STORAGE_MIN_FREE_SPACE="900T")
    try:
        account = Account(full, "mallory")
        with account.http:
            answer = account.http.put(upload_path(account, "f00"), content=bytes(1 << 20))
            refused(answer, 429)
            assert "storage.min_free_space" in answer.json()["message"]
            assert account.api("GET", "/templates/attacked/files/f00").json()["present"] is False
        assert [one for one in (full.state_dir / "e2b-uploads").rglob("*") if one.is_file()] == []
    finally:
        full.retire()


def test_unfinished_uploads_of_one_owner_are_bounded(server: Server) -> None:
    attacker, other = Account(server, "uploader"), Account(server, "victim")
    with attacker.http, other.http, contextlib.ExitStack() as stack:
        for number in range(MAX_UPLOADS):
            line = stack.enter_context(socket.socket(socket.AF_UNIX))
            line.connect(str(socket_path(server.state_dir)))
            head = (
                f"PUT {upload_path(attacker, f'f{number}')} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n"
            )
            line.sendall(head.encode() + b"part")

        def upload(account: Account) -> int:
            return account.http.put(upload_path(account, "last"), content=b"x").status_code

        wait_until(lambda: upload(attacker) == 429, "the bound")
        assert upload(other) == 200
        stack.close()
        wait_until(lambda: upload(attacker) == 200, "the uploads to end")
    left = [one for one in (server.state_dir / "e2b-uploads").rglob("*") if one.is_file()]
    assert {one.name for one in left} <= {"last", "f00"}, left


def test_prepared_builds_of_one_owner_do_not_evict_those_of_others(server: Server, account: Account) -> None:
    def prepare(account: Account) -> str:
        made = account.api("POST", "/v3/templates", json={"name": "many"})
        assert made.status_code == 202, made.text
        return f"/templates/many/builds/{made.json()['buildID']}/status"

    kept, attacker = prepare(account), Account(server, "builder")
    with attacker.http:
        statuses = [prepare(attacker) for _ in range(2 * MAX_KEPT)]
        found = [attacker.api("GET", one).status_code for one in (statuses[0], statuses[-MAX_KEPT], statuses[-1])]
    assert found == [404, 200, 200]
    assert account.api("GET", kept).status_code == 200


def test_state_in_a_label_is_untrusted(server: Server, account: Account) -> None:
    """The label is the owner's to change. A failure there would stop the pauses of all other owners."""
    labels = ('{"pause":true,"end":-1e300}', '{"pause":true,"end":1e999}', '{"x":' + "[" * 3000, "{", "[]",
              '{"end":"x"}', '{"pause":true,"timeout":99999999999999999999,"end":0}')  # fmt: skip
    spoiled, paused = account.create(), account.create(autoPause=True)
    with server.http() as http:
        for label in labels:
            changed = http.patch(f"/v1/sandboxes/{spoiled.id}", json={"labels": {"skerry.e2b": label}})
            assert changed.status_code in (200, 400), changed.text
            assert account.api("GET", f"/sandboxes/{spoiled.id}").status_code == 200, label[:40]
            assert account.api("GET", "/v2/sandboxes").status_code == 200
    account.api("POST", f"/sandboxes/{paused.id}/timeout", json={"timeout": 0})
    wait_until(lambda: account.api("GET", f"/sandboxes/{paused.id}").json()["state"] == "paused", "the pause")
    for one in (spoiled, paused):
        assert account.api("DELETE", f"/sandboxes/{one.id}").status_code == 204


def test_signature_in_the_form_of_the_sdk_has_no_other_form(box: Box) -> None:
    """The words of a signature are joined by colons; they cannot be split in another way."""
    token = box.token
    box.run("echo x > 'a:read:b'; echo a > a")
    text = f"a:read:b:read::{token}"
    value = "v1_" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    http = box.account.http
    assert http.get("/files", params={"path": "a:read:b", "signature": value}).status_code == 200
    other = http.get("/files", params={"path": "a", "username": "b:read:", "signature": value})
    assert other.status_code in (400, 401), other.text
