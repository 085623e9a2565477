"""`snapshot changes`, `export` and `import`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.archives import Item, device, folder, tar
from support.cli import skerry
from support.server import Server

from skerry import Client, Sandbox, Snapshot


@pytest.fixture(scope="module")
def brought(server: Server) -> Iterator[str]:
    """A snapshot that was imported from stdin."""
    archive = tar(folder("home"), Item("home/note", b"mine"), device("dev/null"))
    done = skerry("snapshot", "import", "-", "brought", server=server.address, stdin=archive)
    assert (done.returncode, done.stdout) == (0, b"brought\n")
    assert done.stderr == b"left out dev/null: it is a device\n"
    yield "brought"
    with Client(server.address) as client:
        Snapshot.get("brought", server=client).delete()


def test_changes_are_listed_line_by_line(server: Server, brought: str) -> None:
    with Sandbox(brought, server=server.address) as sandbox:
        sandbox.files.write("/home/note", "other")
        sandbox.files.write("/home/\x1b[2J", "hostile")
        done = skerry("snapshot", "changes", brought, sandbox.id, server=server.address)
        assert done.stdout.decode().splitlines() == ["A /home/\\x1b[2J", "M /home/note"]
        told = json.loads(skerry("snapshot", "changes", "--json", brought, sandbox.id, server=server.address).stdout)
        assert {"path": "/home/note", "kind": "modified", "type": "file", "raw_path": None} in told["changes"]
    done = skerry("snapshot", "changes", brought, server=server.address)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"hint: name another" in done.stderr


def test_archive_can_be_piped_between_commands(server: Server, brought: str, tmp_path: Path) -> None:
    done = skerry("snapshot", "export", brought, "-", server=server.address)
    assert done.returncode == 0
    assert done.stderr == b"wrote 1 files, 4\n"
    made = skerry("image", "import", "-", "local/x", server=server.address, stdin=done.stdout)
    assert made.stdout.startswith(b"local/x sha256:")
    again = skerry("image", "import", "-", "local/x", server=server.address, stdin=done.stdout)
    assert (again.returncode, again.stdout) == (2, b"")
    file = str(tmp_path / "x.tar.zst")
    assert skerry("-q", "image", "export", "local/x", file, server=server.address).stderr == b""
    told = json.loads(skerry("image", "import", "--replace", "--json", file, "local/x", server=server.address).stdout)
    assert told["name"] == "local/x"
    quiet = skerry("-q", "image", "verify", "local/x", server=server.address)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, b"", b"")
    assert skerry("image", "rm", "local/x", server=server.address).stderr == b"local/x: removed\n"
    nothing = skerry("image", "import", str(tmp_path / "nothing"), "local/x", server=server.address)
    assert (nothing.returncode, b"No such file" in nothing.stderr) == (2, True)


def test_snapshot_becomes_an_image_for_all_users(server: Server, brought: str) -> None:
    done = skerry("image", "from", brought, "local/y", server=server.address)
    assert (done.returncode, done.stdout.startswith(b"local/y sha256:")) == (0, True)
    with Sandbox("local/y", server=server.address) as sandbox:
        assert sandbox.files.read_text("/home/note") == "mine"
    told = json.loads(skerry("image", "from", "--json", brought, "local/y", server=server.address).stdout)
    assert told["name"] == "local/y"
    skerry("image", "rm", "local/y", server=server.address)
    nothing = skerry("image", "from", "nothing", "local/y", server=server.address)
    assert (nothing.returncode, b"snapshot" in nothing.stderr) == (2, True)
