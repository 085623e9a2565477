"""`skerry audit` against a real server, and its verification of files without one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import skerry
from support.listening_server import Listening

from skerry import Client


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    listening = Listening(tmp_path_factory.mktemp("audited")).start()
    address = f"unix://{listening.socket}"
    with Client(address) as client:
        for number in range(30):
            client.tokens.create(owner=f"owner-{number}", note="line\nbreak \x1b[2J")
    yield address
    listening.stop()


def words(server: str, *arguments: str) -> str:
    done = skerry("audit", *arguments, server=server)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_audit_lists_oldest_first_and_escapes(server: str) -> None:
    lines = words(server, "--type", "token.create").splitlines()
    assert len(lines) == 30
    assert "owner=owner-0" in lines[0]
    assert "owner=owner-29" in lines[-1]
    assert lines[-1].endswith("-> 201")
    assert "\x1b" not in "".join(lines)
    found = [json.loads(line) for line in words(server, "--type", "token", "-n", "3", "--json").splitlines()]
    assert [record["params"]["owner"] for record in found] == ["owner-27", "owner-28", "owner-29"]
    assert words(server, "--type", "token", "--since", "1h", "--actor", "tk-nobody") == ""


def test_sdk_reads_all_pages(server: str) -> None:
    with Client(server) as client:
        records = list(client.audit.records(type="token.create"))
        assert len(records) == 30
        assert [record.seq for record in records] == sorted((record.seq for record in records), reverse=True)
        assert len(list(client.audit.records(type="token.create", limit=7))) == 7
        assert client.audit.verify().ok


def test_export_verifies_without_a_server(server: str, tmp_path: Path) -> None:
    export, key = tmp_path / "audit.jsonl", tmp_path / "audit.pub"
    assert words(server, "verify").startswith("ok: ")
    export.write_text(words(server, "export"))
    key.write_text(words(server, "key"))
    known = ("verify", str(export), "--key", str(key))
    assert skerry("audit", *known).stdout.startswith(b"ok: ")
    lines = export.read_text().splitlines()
    lines[4] = lines[4].replace("owner-", "other-")
    export.write_text("".join(f"{line}\n" for line in lines))
    done = skerry("audit", *known)
    assert done.returncode == 1
    assert b"record 5: record 5 was edited" in done.stdout
    report = json.loads(skerry("audit", *known, "--json").stdout)
    assert report["problems"][0]["seq"] == 5


def test_log_that_was_cut_to_nothing_is_no_valid_one(server: str, tmp_path: Path) -> None:
    key, export, segments = tmp_path / "audit.pub", tmp_path / "empty.jsonl", tmp_path / "segments"
    key.write_text(words(server, "key"))
    export.write_text("")
    segments.mkdir()
    for place in (export, segments):
        done = skerry("audit", "verify", str(place), "--key", str(key))
        assert (done.returncode, b"the log is empty" in done.stdout) == (1, True)


def test_checkpoint_finds_an_older_export(server: str, tmp_path: Path) -> None:
    export, key, point = tmp_path / "audit.jsonl", tmp_path / "audit.pub", tmp_path / "point"
    key.write_text(words(server, "key"))
    export.write_text(words(server, "export"))
    with Client(server) as client:
        client.tokens.create(owner="later")
        client.audit.verify()
    point.write_text(words(server, "key", "--checkpoint"))
    assert skerry("audit", "verify", str(export), "--key", str(key)).returncode == 0
    done = skerry("audit", "verify", str(export), "--key", str(key), "--checkpoint", str(point))
    assert done.returncode == 1
    assert b"the checkpoint has record" in done.stdout


def test_rotated_key_is_introduced_by_the_old_one(server: str, tmp_path: Path) -> None:
    old, export = tmp_path / "old.pub", tmp_path / "audit.jsonl"
    old.write_text(words(server, "key").splitlines()[0])
    assert words(server, "rotate").strip() not in old.read_text()
    export.write_text(words(server, "export"))
    assert skerry("audit", "verify", str(export), "--key", str(old)).returncode == 0


@pytest.mark.parametrize("text", ["", "not a key", "AAAA"])
def test_invalid_key_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(text)
    (tmp_path / "log").write_text("not a log\n")
    done = skerry("audit", "verify", str(tmp_path / "log"), "--key", str(tmp_path / "key"))
    assert done.returncode != 0
    assert b"Traceback" not in done.stderr
    without = skerry("audit", "verify", str(tmp_path))
    assert (without.returncode, b"--key: required to verify a directory" in without.stderr) == (2, True)


def test_export_is_verified_with_the_keys_of_the_server(server: str, tmp_path: Path) -> None:
    export = tmp_path / "audit.jsonl"
    export.write_text(words(server, "export"))
    assert words(server, "verify", str(export)).startswith("ok: ")
    lines = export.read_text().splitlines()
    export.write_text("".join(f"{line}\n" for line in lines[:7] + lines[8:]))
    done = skerry("audit", "verify", str(export), server=server)
    assert (done.returncode, b"records 8 to 8 are missing" in done.stdout) == (1, True)
