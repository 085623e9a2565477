"""Import archives of images: Skerry's, Docker's, skopeo's and hostile ones."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.archives import Item, folder, gzipped, hard_link, link, tar, zstandard

from skerry.errors import InvalidRequest, SkerryError
from skerry.images.archive.intake import ArchivedImage, Intake
from skerry.images.archive.tar import Damaged
from skerry.images.archive.unpack import UnpackLimits
from skerry.images.registry.manifests import host_platform
from skerry.storage import LayerStore

Take = Callable[[bytes], ArchivedImage]
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
ROOT = tar(folder("etc"), Item("etc/hostname", b"one\n"), Item("gone", b"1"))
UPPER = tar(Item(".wh.gone"), Item("etc/hostname", b"two\n"))


class Store:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.layers = LayerStore(home / "layers")
        self.pinned: list[str] = []
        self.check: Callable[[], None] = lambda: None

    def take(self, data: bytes, most: int = 1 << 30) -> ArchivedImage:
        intake = Intake(
            self.layers, self.home / "scratch", limits=UnpackLimits(bytes=most, min_free=0), pinned=self.pinned.append,
            passed=lambda step: None, check=lambda: self.check(),
        )  # fmt: skip
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.seek(0)
            try:
                return intake.run(file.fileno())
            finally:
                assert os.listdir(self.home) == ["layers"]
                assert not [name for name in os.listdir(self.layers.root) if name.startswith(".")]
                assert sorted(set(self.pinned)) == self.layers.digests()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def sha(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def blob(data: bytes) -> Item:
    return Item(f"blobs/sha256/{hashlib.sha256(data).hexdigest()}", data)


def said(data: bytes, kind: str, **more: Any) -> dict[str, Any]:
    return {"mediaType": kind, "digest": sha(data), "size": len(data), **more}


def config(*layers: bytes, **process: Any) -> bytes:
    machine = {"architecture": host_platform().architecture, "os": "linux"}
    return json.dumps({**machine, "config": process, "rootfs": {"diff_ids": [sha(one) for one in layers]}}).encode()


def manifest(about: bytes, *layers: tuple[bytes, str]) -> bytes:
    told = {"schemaVersion": 2, "mediaType": MANIFEST, "config": said(about, CONFIG)}
    return json.dumps({**told, "layers": [said(data, kind) for data, kind in layers]}).encode()


def index(*manifests: dict[str, Any]) -> Item:
    return Item("index.json", json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}).encode())


VERSION = Item("oci-layout", b'{"imageLayoutVersion": "1.0.0"}')


def layout(**changes: Any) -> bytes:
    """A layout of two layers, gzip and zstd; one part of it may be another's."""
    lower, upper = gzipped(ROOT), zstandard(UPPER)
    about = changes.get("config", config(ROOT, UPPER, User="7", WorkingDir="app", Env=["A=1", "B"], Cmd=["x"]))
    one = manifest(about, (lower, f"{LAYER}+gzip"), (upper, f"{LAYER}+zstd"))
    blobs = [blob(about), blob(one), changes.get("lower", blob(lower)), blob(upper)]
    return tar(*blobs, changes.get("index", index(said(one, MANIFEST))), VERSION)


def docker_save(about: bytes, *layers: Item, names: list[str] | None = None) -> bytes:
    listed = [{"Config": "about.json", "Layers": names or [one.name for one in layers], "RepoTags": None}]
    return tar(Item("about.json", about), *layers, Item("manifest.json", json.dumps(listed).encode()))


def test_a_layout_becomes_its_layers(store: Store) -> None:
    taken = store.take(layout())
    upper, lower = (store.layers.path(layer) for layer in taken.layers)
    assert (lower / "etc/hostname").read_text() == "one\n"
    assert (upper / "etc/hostname").read_text() == "two\n"
    assert (upper / "gone").is_char_device()
    assert (taken.user, taken.cwd, taken.env, taken.cmd) == ("7", "/app", {"A": "1", "B": ""}, ("x",))
    assert store.take(zstandard(layout())).layers == taken.layers  # a compressed one, stored once


def test_docker_save_output_becomes_its_layers(store: Store) -> None:
    """Also as older ones wrote it: a layer that is there already is a link to it, and an empty one holds nothing."""
    empty = tar()
    layers = [Item("1/layer.tar", ROOT), link("2/layer.tar", "../1/layer.tar"), Item("3/layer.tar", gzipped(empty))]
    archive = docker_save(config(ROOT, ROOT, empty, Entrypoint=["/run"]), *layers)
    taken = store.take(gzipped(archive))
    assert len(taken.layers) == 1
    assert (taken.entrypoint, taken.user, taken.cwd) == (("/run",), "root", "/")


def test_a_root_file_system_is_one_layer(store: Store) -> None:
    items = (Item("etc/.wh.kept", b"a name", uid=7), hard_link("again", "etc/.wh.kept"), link("l", "/etc/shadow"))
    journal = Item("var/lib/skerry/journal", b"of the sandbox that it was")
    taken = store.take(zstandard(tar(*items, journal)))
    (layer,) = taken.layers
    root = store.layers.path(layer)
    assert sorted(os.listdir(root)) == ["again", "etc", "l", "var"]
    assert (root / "etc/.wh.kept").stat().st_nlink == 2
    assert os.listdir(root / "var/lib") == []
    assert (taken.user, taken.env) == ("root", None)


def machine(architecture: str) -> dict[str, Any]:
    return {"platform": {"architecture": architecture, "os": "linux"}}


def test_the_image_for_this_platform_is_chosen(store: Store) -> None:
    about = config(ROOT)
    ours, other = manifest(about, (ROOT, LAYER)), manifest(b"{}", (b"never looked at", LAYER))
    both = index(
        said(other, MANIFEST, **machine("mips")), said(ours, MANIFEST, **machine(host_platform().architecture))
    )
    assert len(store.take(tar(VERSION, both, blob(ours), blob(about), blob(ROOT))).layers) == 1


ONE = said(b"", MANIFEST)
HOSTILE: dict[str, bytes] = {
    "no archive": b"<html>",
    "nothing": b"",
    "an empty archive": tar(),
    "cut off": layout()[:4000],
    "a layout without an index": tar(VERSION),
    "an index that is a link": tar(VERSION, link("index.json", "/etc/passwd")),
    "an index that is a FIFO": tar(VERSION, Item("index.json", kind=tarfile.FIFOTYPE)),
    "an index that is no JSON": tar(VERSION, Item("index.json", b"{")),
    "an index of nothing": tar(VERSION, index()),
    "an index of what is not there": tar(VERSION, index(ONE)),
    "an index of two images": tar(VERSION, index(ONE, ONE)),
    "an index for another machine": tar(VERSION, index(said(b"", MANIFEST, **machine("mips")), ONE)),
    "an index of an index of an index of an index": tar(
        VERSION, *(blob(json.dumps({"manifests": []}).encode()) for _ in "a"),
        index(said(json.dumps({"manifests": []}).encode(), INDEX)),
    ),
    "a digest that is a path": tar(VERSION, index({**ONE, "digest": "sha256:../../../../etc/passwd"})),
    "a size that is none": tar(VERSION, index({**ONE, "size": -1})),
    "a document of gigabytes": tar(VERSION, index({**ONE, "size": 1 << 33}), blob(b"")),
    "a blob that is not what its name says": layout(lower=Item(blob(gzipped(ROOT)).name, gzipped(UPPER))),
    "a blob that is a link to another": layout(lower=link(blob(gzipped(ROOT)).name, "/etc/passwd")),
    "a blob that is a directory": layout(lower=folder(blob(gzipped(ROOT)).name)),
    "a layer that is not what the configuration says": layout(config=config(UPPER, ROOT)),
    "fewer layers than the configuration says": layout(config=config(ROOT)),
    "a configuration that is none": layout(config=b"[]"),
    "an environment that can't be": layout(config=config(ROOT, UPPER, Env=["A\0=1"])),
    "a user that can't be": layout(config=config(ROOT, UPPER, User="x" * 300)),
    "another machine": layout(config=json.dumps({**json.loads(config(ROOT, UPPER)), "architecture": "mips"}).encode()),
    "a saved image of no layer": docker_save(config()),
    "a saved image that is not there": docker_save(config(ROOT), names=["1/layer.tar"]),
    "a saved image of the host": docker_save(config(ROOT), names=["../../../../../../etc/passwd"]),
    "a saved image of the host by its root": docker_save(config(ROOT), names=["/etc/passwd"]),
    "a saved image of the host by a link": docker_save(config(ROOT), link("l", "/etc/passwd")),
    "a saved image of the host by a link upwards": docker_save(config(ROOT), link("l", "../../../../etc/passwd")),
    "a saved image with a NUL": docker_save(config(ROOT), names=["\0"]),
    "a saved image of a FIFO": docker_save(config(ROOT), Item("l", kind=tarfile.FIFOTYPE)),
    "a saved image with another layer": docker_save(config(ROOT), Item("l", UPPER)),
    "two saved images": tar(Item("manifest.json", json.dumps([{"Config": "", "Layers": []}] * 2).encode())),
    "a layer that leads out": docker_save(config(tar(Item("../x", b"1"))), Item("l", tar(Item("../x", b"1")))),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_invalid_archives_are_rejected_and_leave_nothing(store: Store, name: str) -> None:
    with pytest.raises(InvalidRequest):
        store.take(HOSTILE[name])
    assert len(store.layers.digests()) <= 1  # of two layers the first may have been right: it is collected


def test_layers_share_one_size_limit(store: Store) -> None:
    big = [tar(Item(name, bytes(1 << 20))) for name in "ab"]
    archive = docker_save(config(*big), *(Item(f"{number}.tar", gzipped(one)) for number, one in enumerate(big)))
    with pytest.raises(Damaged, match="more than"):
        store.take(archive, most=3 << 19)


def test_a_cancelled_import_ends_at_its_next_step(store: Store) -> None:
    class Left(SkerryError):
        pass

    def check() -> None:
        raise Left("gone")

    store.check = check
    with pytest.raises(Left):
        store.take(layout())


def test_a_reader_of_streams_needs_no_file(store: Store) -> None:
    source, sink = os.pipe()
    try:
        os.write(sink, gzipped(ROOT))
        os.close(sink)
        intake = Intake(
            store.layers, store.home / "scratch", limits=UnpackLimits(min_free=0), pinned=store.pinned.append,
            passed=lambda step: None, check=lambda: None,
        )  # fmt: skip
        assert len(intake.run(source).layers) == 1
    finally:
        os.close(source)
