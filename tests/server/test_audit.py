"""The audit log over HTTP: which caller sees which records, parameters without secrets, and a full disk."""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.debian_programs import program
from support.listening_server import Listening
from support.pages import ROOT
from support.server import wait_until

from skerry.config import load
from skerry.errors import InvalidRequest
from skerry.server.http.auth import Authenticator

GUIDES = ROOT / "docs" / "guides"
SECRET = "hunter2-very-secret"


def records(http: httpx2.Client, **query: str | int) -> list[dict[str, Any]]:
    answer = http.get("/v1/audit", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["records"]
    return found


def test_token_creation_is_recorded_without_its_secret(listening: Listening) -> None:
    with listening.unix() as http:
        made = http.post("/v1/tokens", json={"scope": "use", "owner": "eve", "note": "of a test"}).json()
        record = records(http, type="token.create", limit=1)[0]
        lines = http.get("/v1/audit/export").text
    assert record["actor"] == f"uid:{os.geteuid()}"
    assert record["source"] == "mcp"  # this test runs in the server's process, like a tool of /mcp
    assert record["params"] == {"scope": "use", "owner": "eve", "note": "of a test"}
    assert record["result"]["status"] == 201
    assert record["result"]["details"] == {"id": made["id"]}
    assert made["secret"] not in lines


def test_record_names_the_token_and_the_address(listening: Listening, token: str) -> None:
    with listening.tcp(token) as http:
        assert http.post("/v1/sandboxes", json={"image": "none"}).status_code == 404
        record = records(http, type="sandbox.create", limit=1)[0]
    assert record["owner"] == "ann"
    assert record["actor"].startswith("tk-")
    assert record["source"] == "127.0.0.1"
    assert record["params"] == {"image": "none"}
    assert record["result"] | {"at": 0} == {"at": 0, "status": 404, "code": "not_found", "details": {}}


def created_from(server: Listening, *forwarded: str) -> str:
    """Return the recorded source of a request over TCP with these headers X-Forwarded-For."""
    with server.unix() as unix:
        secret = unix.post("/v1/tokens", json={"scope": "use", "owner": "proxied"}).json()["secret"]
        with server.tcp(secret) as http:
            headers = [("Authorization", f"Bearer {secret}"), *(("X-Forwarded-For", value) for value in forwarded)]
            http.post("/v1/sandboxes", json={"image": "none"}, headers=headers)
        return str(records(unix, type="sandbox.create", limit=1)[0]["source"])


def test_forged_forwarded_for_does_not_change_the_source(listening: Listening) -> None:
    """Without trusted proxies, the peer of the connection counts."""
    assert created_from(listening, "198.51.100.7") == "127.0.0.1"


def test_source_behind_a_trusted_proxy_is_its_client(tmp_path: Path) -> None:
    server = Listening(tmp_path, proxies=("127.0.0.0/8", "10.9.0.0/16")).start()
    try:
        assert created_from(server, "198.51.100.7") == "198.51.100.7"
        assert created_from(server, "203.0.113.1, 198.51.100.7") == "198.51.100.7", "the client claimed the first one"
        assert created_from(server, "203.0.113.1", "198.51.100.7, 10.9.0.1") == "198.51.100.7"
        assert created_from(server) == "127.0.0.1"
    finally:
        server.stop()
        server.engine.database.close()


PROXIES: dict[str, tuple[str, ...]] = {
    "nginx": ("-p", ".", "-c", "nginx.conf", "-e", "stderr", "-g", "daemon off; user root;"),
    "caddy": ("run", "--config", "Caddyfile", "--adapter", "caddyfile"),
}


@pytest.mark.parametrize(("name", "file"), [("nginx", "nginx.conf"), ("caddy", "Caddyfile")])
def test_proxies_of_the_guide_name_their_client_and_no_forged_one(tmp_path: Path, name: str, file: str) -> None:
    """With the guide's configuration, but without TLS."""
    proxy, port = program(name), free_port()
    server = Listening(tmp_path, proxies=("127.0.0.1/32",), hosts=("skerry.example.com",)).start()
    try:
        (config,) = re.findall(rf"```\w+\n# {file}\n(.*?)```", (GUIDES / "team.md").read_text(), re.DOTALL)
        config = re.sub(r"\n *(ssl_certificate|tls )[^\n]*", "", config).replace(":7070", f":{server.port}")
        config = config.replace("listen 8443 ssl", f"listen 127.0.0.1:{port}")
        config = config.replace("\nskerry.example.com:8443", f"\nhttp://skerry.example.com:{port}")
        (tmp_path / file).write_text(config)
        with server.unix() as http, (tmp_path / "log").open("wb") as log:
            secret = http.post("/v1/tokens", json={"scope": "use", "owner": "proxied"}).json()["secret"]
            home = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
            web = subprocess.Popen([proxy, *PROXIES[name]], cwd=tmp_path, env=home, stdout=log, stderr=log)
            try:
                wait_until(lambda: is_open(port) or web.poll() is not None, f"{name} to listen")
                assert web.poll() is None, (tmp_path / "log").read_text()
                subprocess.run(
                    ["curl", "-sS", "-m", "60", "--interface", "127.0.0.2", f"http://skerry.example.com:{port}/v1/sandboxes",
                     "--resolve", f"skerry.example.com:{port}:127.0.0.1", "-H", f"Authorization: Bearer {secret}",
                     "-H", "X-Forwarded-For: 203.0.113.1", "--json", '{"image": "none"}'],
                    check=True, capture_output=True,
                )  # fmt: skip
            finally:
                web.terminate()
                web.wait(60)
            (record,) = records(http, type="sandbox.create", owner="proxied")
        assert record["source"] == "127.0.0.2"
    finally:
        server.stop()
        server.engine.database.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def is_open(port: int) -> bool:
    with socket.socket() as line:
        line.settimeout(5)
        return line.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("192.0.2.1", "198.51.100.7", "192.0.2.1"),  # not a trusted proxy
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("10.0.0.1", "198.51.100.7, unknown", "10.0.0.1"),
        ("10.0.0.1", "198.51.100.7, 10.0.0.2, ", "10.0.0.1"),
        ("10.0.0.1", "198.51.100.7, [2001:db8::7]:80, 10.0.0.2", "10.0.0.2"),
        ("10.0.0.1", "fe80::1%\x1b[2J", "10.0.0.1"),
        ("10.0.0.1", "198.51.100.007", "10.0.0.1"),
        ("10.0.0.1", "\t2001:DB8:0::7 ", "2001:db8::7"),
        ("::ffff:10.0.0.1", "198.51.100.7", "198.51.100.7"),
        ("10.0.0.1", "198.51.100.7, ::ffff:10.0.0.2", "198.51.100.7"),
        ("not an address", "198.51.100.7", "not an address"),
    ],
)
def test_client_is_the_last_address_that_no_trusted_proxy_has(peer: str, forwarded: str, client: str) -> None:
    networks = (ipaddress.ip_network("10.0.0.0/29"), ipaddress.ip_network("::1"))
    authenticator = Authenticator(tokens=None, proxies=networks)  # type: ignore[arg-type]
    assert authenticator.client_of(peer, [(b"x-forwarded-for", forwarded.encode("latin-1"))]) == client


@pytest.mark.parametrize(
    "text", ["0.0.0.0/0", "::/0", "*", "10.0.0.1/8", "proxy.example", "fe80::1%eth0", "10.0.0", ""]
)
def test_setting_of_trusted_proxies_is_strict(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not an address or a network"):
        load(flags={"server.trusted_proxies": [text]})


def test_setting_of_trusted_proxies_has_addresses_and_networks() -> None:
    given = load(flags={"server.trusted_proxies": "10.1.0.0/24, 127.0.0.1, ::1"})
    assert given["server.trusted_proxies"] == ("10.1.0.0/24", "127.0.0.1/32", "::1/128")


def test_secret_values_are_in_no_record(listening: Listening, token: str) -> None:
    with listening.tcp(token) as http:
        body = {
            "env": {"PASSWORD": SECRET},
            "secrets": [{"name": "KEY", "hosts": ["api.example.com"], "value": SECRET}],
            "lifecycle": {"on_start": [f"login {SECRET}"]},
        }
        http.post("/v1/sandboxes", json=body)
        run = {"cmd": ["true"], "env": {"TOKEN": SECRET}, "stdin": SECRET}
        http.post("/v1/sandboxes/none/processes?wait=true", json=run)
        found = records(http, limit=2)
    assert found[1]["params"] == {
        "env": ["PASSWORD"], "secrets": ["KEY"], "lifecycle": {"on_start": [f"login {'*' * len(SECRET)}"]},
    }  # fmt: skip
    assert found[0]["params"] == {"ref": "none", "wait": True, "cmd": ["true"], "env": ["TOKEN"]}
    with listening.unix() as http:
        assert SECRET not in http.get("/v1/audit/export").text


def test_other_owners_records_are_not_found(listening: Listening, token: str) -> None:
    with listening.unix() as http:
        bob = http.post("/v1/tokens", json={"scope": "review", "owner": "bob"}).json()["secret"]
        with listening.tcp(bob) as other:
            other.post("/v1/sandboxes", json={"image": "of-bob"})
            assert {record["owner"] for record in records(other, limit=1000)} == {"bob"}
            assert other.get("/v1/audit", params={"owner": "ann"}).status_code == 404
            for path in ("/v1/audit/export", "/v1/audit/verify", "/v1/audit/keys"):
                assert other.get(path).status_code == 403
            assert other.post("/v1/audit/keys").status_code == 403
        with listening.tcp(token) as http_ann:
            assert "of-bob" not in http_ann.get("/v1/audit", params={"limit": 1000}).text
        assert {"ann", "bob"} <= {record["owner"] for record in records(http, limit=1000)}


def test_reads_are_not_recorded(listening: Listening) -> None:
    with listening.unix() as http:
        before = records(http, limit=1)[0]["seq"]
        for path in ("/v1/sandboxes", "/v1/tokens", "/v1/sandboxes/none", "/v1/audit", "/healthz"):
            http.get(path)
        assert records(http, limit=1)[0]["seq"] == before


def test_log_verifies_and_a_rotated_key_continues_it(listening: Listening) -> None:
    with listening.unix() as http:
        report = http.get("/v1/audit/verify").json()
        assert report["ok"], report
        old = [key["id"] for key in http.get("/v1/audit/keys").json()["keys"] if key["current"]]
        keys = http.post("/v1/audit/keys")
        assert keys.status_code == 201
        assert [key["id"] for key in keys.json()["keys"] if key["current"]] != old
        report = http.get("/v1/audit/verify").json()
        assert report["ok"], report
        assert report["sealed"] == report["last"]


def test_control_characters_and_long_values_are_bounded(listening: Listening, token: str) -> None:
    forged = '"}\n{"seq":1,"prev":"","at":1,"type":"token.create"}\n\x1b[2J'
    with listening.tcp(token) as http:
        http.post("/v1/sandboxes/none/processes?wait=true", json={"cmd": ["sh", "-c", forged, "x" * 5000]})
        record = records(http, limit=1)[0]
        http.put("/v1/sandboxes/none/files", params={"path": b"/tmp/\xff\xfe"}, content=b"data")
        assert records(http, limit=1)[0]["type"] == "file.write"
    assert record["params"]["cmd"][:3] == ["sh", "-c", forged]
    assert len(record["params"]["cmd"][3]) == 200
    assert len(record["params"]["cmd_sha256"]) == 64
    with listening.unix() as http:
        lines = http.get("/v1/audit/export").text.splitlines()
        assert all(json.loads(line)["seq"] == number for number, line in enumerate(lines, 1))
        assert http.get("/v1/audit/verify").json()["ok"]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "before=0", "since=nan", "type=%00", "sandbox=../x", "unknown=1", "since=-1"]
)
def test_invalid_queries_are_refused(listening: Listening, query: str) -> None:
    with listening.unix() as http:
        assert http.get(f"/v1/audit?{query}").status_code == 400


def test_answer_waits_for_the_disk(listening: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails to sync: the caller gets an error instead of a success without a record on disk. Afterwards,
    the log goes on and is whole."""

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with listening.unix() as http:
        with monkeypatch.context() as broken:
            broken.setattr(os, "fdatasync", fail)
            answer = http.post("/v1/tokens", json={"scope": "use", "owner": "eve"})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["details"]) == (503, "audit_unavailable", {"effect": True})
            assert "the action had its effect" in error["hint"]
            assert http.get("/v1/audit", params={"limit": 1}).status_code == 200
            calls = len(listening.engine.calls)
            refused = http.post("/v1/sandboxes", json={"image": "none"}).json()["error"]
            assert (refused["code"], "nothing was done" in refused["hint"]) == ("audit_unavailable", True)
            assert len(listening.engine.calls) == calls, "a disk that failed is tried again before the next effect"
        assert http.post("/v1/tokens", json={"scope": "use", "owner": "eve"}).status_code == 201
        after, failed = records(http, type="token.create", limit=2)
        assert (failed["result"]["status"], failed["result"]["code"]) == (503, "audit_unavailable")
        assert failed["result"]["details"]["id"].startswith("tk-"), "the effect has happened"
        assert after["result"]["status"] == 201
        assert http.get("/v1/audit/verify").json()["ok"]


def test_export_of_a_disk_that_fails_is_an_error(listening: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the response begins: a part of the log with the status 200 would look like all of it."""

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with listening.unix() as http:
        http.post("/v1/tokens", json={"scope": "use", "owner": "eve"}).raise_for_status()
        with monkeypatch.context() as broken:
            broken.setattr(os, "fdatasync", fail)
            for path in ("export", "verify"):
                answer = http.get(f"/v1/audit/{path}")
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "audit_unavailable")
                assert "cannot be sealed" in answer.json()["error"]["hint"]
        assert http.get("/v1/audit/export").text.endswith("\n")
        assert http.get("/v1/audit/verify").json()["ok"]


def test_answer_waits_for_the_record_of_its_result(listening: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result alone has the ID of a new object and says that another one is gone."""
    synced: list[bytes] = []
    real = os.fdatasync

    def note(descriptor: int) -> None:
        real(descriptor)
        with open(f"/proc/self/fd/{descriptor}", "rb") as file:
            synced.append(file.read())

    with listening.unix() as http, monkeypatch.context() as noted:
        noted.setattr(os, "fdatasync", note)
        made = http.post("/v1/tokens", json={"scope": "use", "owner": "eve"}).raise_for_status().json()
        assert f'"params":{{"id":"{made["id"]}"}}'.encode() in synced[-1]
        before = synced[-1].count(b'"type":"result"')
        http.delete(f"/v1/tokens/{made['id']}").raise_for_status()
        assert synced[-1].count(b'"type":"result"') == before + 1


def test_answer_of_an_effect_inside_waits_with_sync_all(
    listening: Listening, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests' server has `audit.sync = "all"`."""
    synced: list[bytes] = []
    real = os.fdatasync

    def note(descriptor: int) -> None:
        real(descriptor)
        with open(f"/proc/self/fd/{descriptor}", "rb") as file:
            synced.append(file.read())

    with listening.tcp(token) as http, monkeypatch.context() as noted:
        noted.setattr(os, "fdatasync", note)
        for number in range(20):
            before = synced[-1].count(b'"type":"result"') if synced else 0
            http.post(f"/v1/sandboxes/dev/processes/p-{number:010d}/stdin", content=b"x").raise_for_status()
            assert f'"process":"p-{number:010d}"'.encode() in synced[-1]
            assert synced[-1].count(b'"type":"result"') > before


def test_full_disk_fails_the_action_and_the_server_recovers(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(disk)], check=True)
    try:
        (disk / "state").mkdir()
        server = Listening(disk / "state").start()
        try:
            with server.unix() as http:
                assert http.post("/v1/tokens", json={"scope": "use"}).status_code == 201
                subprocess.run(["dd", "if=/dev/zero", f"of={disk}/full", "bs=4k"], check=False, capture_output=True)
                # The reserve holds the records of some more actions; then nothing is done any more.
                codes = []
                run = {"cmd": ["x" * 200] * 32}
                for _ in range(1000):
                    codes.append(http.post("/v1/sandboxes/none/processes?wait=true", json=run).status_code)
                    if codes[-1] == 503:
                        break
                assert codes[-1] == 503
                assert set(codes[:-1]) <= {404}
                calls = len(server.engine.calls)
                answer = http.post("/v1/sandboxes", json={"image": "none"})
                assert answer.json()["error"]["code"] == "audit_unavailable"
                assert "No space left" in answer.json()["error"]["message"]
                assert len(server.engine.calls) == calls  # the handler was not called
                assert http.get("/healthz").status_code == 200
                (disk / "full").unlink()
                assert http.post("/v1/tokens", json={"scope": "use"}).status_code == 201
                report = http.get("/v1/audit/verify").json()
                assert report["ok"], report
        finally:
            server.stop()
            server.engine.database.close()
    finally:
        subprocess.run(["umount", str(disk)], check=True)
