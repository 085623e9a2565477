"""Images and snapshots out of one server and into another, and to other tools."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import Server, wait_until

from skerry import Client, Sandbox, keeper
from skerry.errors import InvalidRequest, NotFound
from skerry.storage import ImageStore, LayerStore, image_digest
from skerry.types import ImageInfo


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.address) as made:
        yield made


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


def packers() -> int:
    """Processes that pack, whoever started them."""
    found = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found += b"skerry.images.packer" in (entry / "cmdline").read_bytes()
            except OSError:
                continue
    return found


def layer(archive: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        manifest = json.load(opened.extractfile("manifest.json"))  # type: ignore[arg-type]
        with tarfile.open(fileobj=opened.extractfile(manifest[0]["Layers"][0])) as inner:
            return {one.name: one for one in inner}


def test_a_snapshot_goes_out_without_what_is_the_keepers(client: Client, small: str, tmp_path: Path) -> None:
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


def test_an_archive_that_is_not_to_be_had_leaves_no_file(client: Client, small: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        client.images.export("nothing", tmp_path / "out.tar")
    with pytest.raises(InvalidRequest, match="No such file"):
        client.images.export(small, tmp_path / "nowhere/out.tar")
    assert os.listdir(tmp_path) == []


def test_a_caller_who_leaves_ends_the_packing(server: Server) -> None:
    with server.http() as http, http.stream("GET", "/v1/images/export", params={"name": "base"}) as answer:
        assert answer.headers["content-type"] == "application/x-tar"
    wait_until(lambda: packers() == 0, "the packer to end")
