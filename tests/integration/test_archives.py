"""Images and snapshots out of one server and into another, and to other tools."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx2
import pytest
from support.archives import Item, folder, tar, zstandard
from support.pages import ROOT, commands
from support.server import Server, wait_until

from skerry import Client, Sandbox, Snapshot, keeper
from skerry.config import socket_path
from skerry.engine import faults
from skerry.errors import Conflict, InvalidRequest, NotFound, PermissionDenied
from skerry.storage import ImageStore, LayerStore, image_digest
from skerry.types import ImageInfo

TAR = "application/x-tar"


@pytest.fixture(scope="module")
def small(server: Server) -> str:
    """An image of one static program."""
    tree = server.state_dir / "small-tree"
    (tree / "home").mkdir(parents=True)
    for path in (tree, tree / "home"):
        path.chmod(0o755)
    shutil.copy(keeper.binary(), tree / "tool")
    (tree / "tool").chmod(0o755)
    os.setxattr(tree / "tool", "user.note", b"kept")
    layers = LayerStore(server.state_dir / "layers")
    stack = (layers.add_directory(tree),)
    image = ImageInfo(
        name="small", digest=image_digest(stack, {"A": "1"}, "root", "/home"), layers=stack, size=1,
        created_at=time.time(), cwd="/home", env={"A": "1"},
    )  # fmt: skip
    ImageStore(server.state_dir / "images", layers).put(image)
    return "small"


def packers(server: Server) -> int:
    """Processes that pack for it."""
    assert server.process is not None
    children = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    pids = [pid for listed in children for pid in listed.read_text().split()]
    return sum(b"skerry.images.archive.packer" in read_or_nothing(Path("/proc", pid, "cmdline")) for pid in pids)


def read_or_nothing(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has just ended
        return b""


def layer(archive: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        manifest = json.load(opened.extractfile("manifest.json"))  # type: ignore[arg-type]
        with tarfile.open(fileobj=opened.extractfile(manifest[0]["Layers"][0])) as inner:
            return {one.name: one for one in inner}


def test_exported_snapshot_has_no_keeper_files(client: Client, small: str, tmp_path: Path) -> None:
    with Sandbox(small, server=client) as sandbox:
        sandbox.run(["/tool", "--version"])
        sandbox.files.write("/home/note", "mine")
        snapshot = sandbox.snapshot()
        sandbox.files.write("/home/note", "later")
    moved = snapshot.export(tmp_path / "out.tar")
    found = layer((tmp_path / "out.tar").read_bytes())
    assert {"tool", "home/note"} <= found.keys()
    assert found["home/note"].size == 4
    assert not [name for name in found if "skerry" in name]
    assert (moved.files, moved.skipped) == (2, ())
    snapshot.export(tmp_path / "out.tar.gz")
    assert gzip.decompress((tmp_path / "out.tar.gz").read_bytes()) == (tmp_path / "out.tar").read_bytes()
    whole = io.BytesIO()
    client.images.export(small, whole)
    assert "tool" in layer(whole.getvalue())
    snapshot.delete()


def test_requests_of_the_http_page_export_and_import_a_snapshot(
    client: Client, server: Server, small: str, tmp_path: Path
) -> None:
    with Sandbox.create(small, server=client) as sandbox:
        exported = sandbox.snapshot("ready")
    requests = [line for line in commands(ROOT / "docs/reference/http.md") if "ready" in line and "napshots/" in line]
    assert len(requests) == 2
    alias = f'sk() {{ curl -sS --unix-socket {socket_path(server.state_dir)} "$@"; }}'
    done = subprocess.run(
        ["bash", "-ec", "\n".join([alias, *requests])], cwd=tmp_path, capture_output=True, timeout=100, check=True
    )
    made = json.loads(done.stdout)
    assert (made["snapshot"]["name"], made["notices"]) == ("again", [])
    imported = Snapshot.get("again", server=client)
    assert imported.changes(exported).changes == ()
    for one in (imported, exported):
        one.delete()


def test_failed_export_leaves_no_file(client: Client, small: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        client.images.export("nothing", tmp_path / "out.tar")
    with pytest.raises(InvalidRequest, match="No such file"):
        client.images.export(small, tmp_path / "nowhere/out.tar")
    assert os.listdir(tmp_path) == []


def test_disconnect_ends_the_export(server: Server) -> None:
    with server.http() as http, http.stream("GET", "/v1/images/export", params={"name": "base"}) as answer:
        assert answer.headers["content-type"] == "application/x-tar"
    wait_until(lambda: packers(server) == 0, "the packer to end")


# -- in again ---------------------------------------------------------------------------------------------------------


def on_disk(server: Server) -> tuple[set[str], list[str]]:
    """Return the layers, and the files of running imports."""
    work = server.state_dir / "cache/imports"
    return set(os.listdir(server.state_dir / "layers")), os.listdir(work) if work.exists() else []


@pytest.fixture(scope="module")
def lived(client: Client, small: str) -> Iterator[Snapshot]:
    """A snapshot of a sandbox that was used."""
    with Sandbox(small, env={"B": "2"}, server=client) as sandbox:
        sandbox.files.write("/home/note", "mine", mode=0o640)
        sandbox.files.link("note", "/home/link")
        sandbox.files.write(os.fsdecode(b"/home/\xff"), "a name")
        sandbox.files.write("/home/a/b/c", os.urandom(5000))
        sandbox.files.remove("/home/a/b/c")
        sandbox.files.chown("/home/note", "7:8")
        made = sandbox.snapshot("lived")
    yield made
    made.delete()


def test_exported_snapshot_is_imported_unchanged_and_usable(client: Client, lived: Snapshot, tmp_path: Path) -> None:
    lived.export(tmp_path / "one.tar.zst")
    back = Snapshot.import_(tmp_path / "one.tar.zst", "back", server=client)
    assert lived.changes(back).changes == ()
    assert (back.name, back.info.cwd, back.info.env, back.info.user) == ("back", "/home", {"A": "1"}, "root")
    assert back.info.sandbox is None
    back.export(tmp_path / "two.tar")
    with open(tmp_path / "two.tar", "rb") as file:
        again = Snapshot.import_(file, server=client)
    assert again.info.layers == back.info.layers
    with Sandbox(back, server=client) as sandbox:
        assert sandbox.files.read_text("note") == "mine"
        assert sandbox.run(["/tool", "--version"]).ok
        with pytest.raises(Conflict, match=sandbox.id):
            back.delete()
    with pytest.raises(Conflict, match="back"):
        Snapshot.import_(tmp_path / "two.tar", "back", server=client)
    for snapshot in (again, back):
        snapshot.delete()


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="skopeo is not installed: apt-get install skopeo")
def test_archive_converted_by_skopeo_is_imported(client: Client, lived: Snapshot, tmp_path: Path) -> None:
    """Through Docker's form, and as a layout with a compressed layer."""
    lived.export(tmp_path / "out.tar")
    for form in ("docker-archive:{}:demo:1", "oci-archive:{}"):
        target = tmp_path / "again.tar"
        argv = ["skopeo", "--insecure-policy", "copy", "-q", f"oci-archive:{tmp_path}/out.tar", form.format(target)]
        subprocess.run(argv, check=True, timeout=60)
        back = Snapshot.import_(target, server=client)
        assert lived.changes(back).changes == ()
        assert back.info.env == {"A": "1"}
        back.delete()
        target.unlink()


def test_image_is_imported_from_an_archive_or_a_directory(client: Client, server: Server, tmp_path: Path) -> None:
    before = on_disk(server)
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    shutil.copy(keeper.binary(), root / "bin/tool")
    os.link(root / "bin/tool", root / "bin/again")
    (root / "l").symlink_to("/etc/shadow")
    os.mkfifo(root / "pipe")
    os.chown(root / "bin/tool", 7, 8)
    (root / "bin/tool").chmod(0o4755)
    made = client.images.import_(root, "local/dir:1")
    with Sandbox("local/dir:1", server=client) as sandbox:
        found = sandbox.files.stat("/bin/again")
        assert (found.uid, found.gid, found.mode) == (7, 8, 0o4755)
        assert sandbox.files.stat("/pipe").type == "fifo"
        assert sandbox.run(["/bin/tool", "--version"]).ok
        with pytest.raises(Conflict, match="in use"):
            client.images.remove("local/dir:1")
    with pytest.raises(Conflict, match="replace"):
        client.images.import_(root, "local/dir:1")
    notices: list[str] = []
    archive = zstandard(tar(folder("x"), Item("dev/null", kind=tarfile.CHRTYPE), Item("x/y", b"1")))
    other = client.images.import_(io.BytesIO(archive), "local/dir:1", replace=True, on_notice=notices.append)
    assert other.layers != made.layers
    assert [notice.split(":")[0] for notice in notices] == ["left out dev/null"]
    client.images.remove("local/dir:1")
    wait_until(lambda: on_disk(server) == before, "the layers to be collected")


@pytest.mark.parametrize("body", [b"<html>", b"", tar(Item("../x", b"1")), tar(Item("a", bytes(5000)))[:3000]])
def test_invalid_archive_is_rejected_and_leaves_nothing(client: Client, server: Server, body: bytes) -> None:
    before = on_disk(server)
    with pytest.raises(InvalidRequest, match="archive"):
        Snapshot.import_(io.BytesIO(body), "bad", server=client)
    with pytest.raises(NotFound):
        Snapshot.get("bad", server=client)
    assert on_disk(server) == before


def test_interrupted_import_leaves_nothing(server: Server) -> None:
    before = on_disk(server)

    def half() -> Iterator[bytes]:
        yield tar(Item("a", bytes(3 << 20)))[: 2 << 20]
        wait_until(lambda: on_disk(server)[1], "the import to begin")
        raise ConnectionAbortedError

    with server.http() as http, pytest.raises(ConnectionAbortedError):
        http.post("/v1/snapshots/import", content=half(), headers={"content-type": TAR})
    wait_until(lambda: on_disk(server) == before, "the half import to be gone")


def test_import_permissions_depend_on_the_token(client: Client, server: Server, tmp_path: Path) -> None:
    token = client.tokens.create(scope="use", owner="other").secret
    archive = tar(Item("a", b"1"))
    with Client(server.address, token=token) as user:
        with pytest.raises(PermissionDenied):
            user.images.import_(io.BytesIO(archive), "mine")
        mine = Snapshot.import_(io.BytesIO(archive), "mine", server=user)
        assert mine.info.owner == "other"
        with pytest.raises(Conflict, match="image"):
            Snapshot.import_(io.BytesIO(archive), "base", server=user)
        with pytest.raises(NotFound):
            Snapshot.get("mine", server=client)
        mine.delete()


def test_stalled_import_frees_its_slot(own_server: Server) -> None:
    own_server.start(SKERRY_ARCHIVE_STALL_TIMEOUT="1s")

    def one_piece() -> Iterator[bytes]:
        yield tar(Item("a", bytes(3 << 20)))[: 2 << 20]
        wait_until(lambda: on_disk(own_server)[1], "the import to begin")
        wait_until(lambda: not on_disk(own_server)[1], "it to be given up")

    with ExitStack() as stack, own_server.http() as http:
        with suppress(httpx2.TransportError):  # the answer may come while it is still being sent
            answer = http.post("/v1/snapshots/import", content=one_piece(), headers={"content-type": TAR})
            assert "the archive stalled" in answer.text
        export = {"method": "GET", "url": "/v1/images/export", "params": {"name": "base"}}
        held = [stack.enter_context(http.stream(**export)) for _ in range(4)]  # type: ignore[arg-type]
        assert all(answer.status_code == 200 for answer in held)
        assert http.request(**export).status_code == 429  # type: ignore[arg-type]

        def free() -> bool:
            with http.stream(**export) as answer:  # type: ignore[arg-type]
                return answer.status_code == 200

        wait_until(free, "the slots of those who read nothing")
    wait_until(lambda: packers(own_server) == 0, "the packers to end")


def test_server_killed_at_any_step_of_an_import_leaves_it_complete_or_absent(own_server: Server) -> None:
    """Each one starts where the one before was killed, and is to be killed at the next step."""
    headers, before = {"content-type": "application/x-tar"}, None
    for last, point in zip((None, *faults.IMPORT), (*faults.IMPORT, ""), strict=True):
        own_server.start(SKERRY_FAULT=point)
        before = before or on_disk(own_server)
        with own_server.http() as http:
            there = http.get("/v1/snapshots/subject").status_code == 200
            assert there == (last == "import.named")
            if there:
                http.delete("/v1/snapshots/subject").raise_for_status()
            assert on_disk(own_server) == before
            if point:
                with pytest.raises(httpx2.TransportError):
                    http.post(
                        "/v1/snapshots/import", params={"name": "subject"}, content=tar(Item(point, b"1")),
                        headers=headers,
                    )  # fmt: skip
                assert own_server.process is not None
                assert own_server.process.wait(60) == -9
