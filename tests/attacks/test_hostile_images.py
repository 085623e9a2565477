"""Images of strangers: each trick is refused when it is pulled, or harmless when a sandbox starts from it."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.archives import Item, device, folder, hard_link, link, tar
from support.registry import Fake, Made
from support.server import Server

from skerry import Client, FileError, InvalidRequest, NotFound, Sandbox, SkerryError
from skerry import keeper as keepers
from skerry.storage import LayerStore

MARK = "skerry-hostile-was-here"


@pytest.fixture(scope="module")
def fake() -> Iterator[Fake]:
    with Fake().running() as registry:
        yield registry


Pull = Callable[..., Path]


@pytest.fixture
def pull(server: Server, client: Client, fake: Fake) -> Iterator[Pull]:
    """Pulls an image of these layers, bottom first, under the name `hostile`; gives the tree of the upmost."""

    def work(*layers: bytes, **config: object) -> Path:
        fake.push(Made(layers, config=dict(config)))
        image = client.images.pull(f"{fake.host}/app", name="hostile")
        return LayerStore(server.state_dir / "layers").path(image.layers[0])

    yield work
    for name in ("hostile",):
        try:
            client.images.remove(name)
        except NotFound:
            continue


def tool() -> Item:
    return Item("tool", keepers.binary().read_bytes(), mode=0o755)


@pytest.mark.parametrize(("name", "target"), [("proc", "/etc"), ("sys", "../../../../etc"), ("dev", "tmp")])
def test_image_whose_proc_sys_or_dev_is_a_link_is_not_started(
    pull: Pull, client: Client, name: str, target: str
) -> None:
    before = sorted(os.listdir("/etc"))
    pull(tar(tool(), folder("tmp", 0o1777), link(name, target)))
    with pytest.raises(SkerryError, match=name), Sandbox("hostile", server=client):
        pytest.fail("it was started")
    assert sorted(os.listdir("/etc")) == before


@pytest.mark.parametrize("place", ["proc", "sys", "dev"])
def test_link_in_place_of_a_mount_point_is_invalid_input(client: Client, pull: Pull, place: str) -> None:
    pull(tar(link(place, "/tmp")))
    with pytest.raises(InvalidRequest, match=f"'hostile' cannot be used: /{place}"):
        Sandbox(image="hostile", server=client).start()


def test_image_whose_upper_layer_replaces_proc_by_a_link_is_not_started(pull: Pull, client: Client) -> None:
    pull(tar(tool(), folder("proc"), folder("sys"), folder("dev")), tar(Item(".wh.proc"), link("proc", "/etc")))
    with pytest.raises(SkerryError, match="proc"), Sandbox("hostile", server=client):
        pytest.fail("it was started")


HOSTILE = {
    "a path upwards": (Item(f"../../../../../tmp/{MARK}", b"x"),),
    "a path upwards in the middle": (folder("a"), Item(f"a/../../tmp/{MARK}", b"x")),
    "a file through a link upwards": (link("l", "../../../../../../tmp"), Item(f"l/{MARK}", b"x")),
    "a file through a link to a process's root": (link("l", "/proc/self/root/tmp"), Item(f"l/{MARK}", b"x")),
    "a file in place of a link's target": (link("l", f"/tmp/{MARK}"), folder("l/x")),
    "a hard link to the host's passwords": (hard_link("stolen", "/etc/shadow"),),
    "a hard link upwards": (hard_link("stolen", "../../../../../../etc/shadow"),),
    "a hard link through a link": (link("l", "/"), hard_link("stolen", "l/etc/shadow")),
    "a whiteout upwards": (Item(".wh...", b""),),
    "a whiteout of the root": (Item(".wh..", b""),),
}


@pytest.mark.parametrize("trick", HOSTILE)
def test_layer_with_paths_outside_is_rejected(pull: Pull, server: Server, client: Client, trick: str) -> None:
    layers = LayerStore(server.state_dir / "layers").digests()
    with pytest.raises(InvalidRequest):
        pull(tar(Item("first", b"1"), *HOSTILE[trick]))
    assert not os.path.lexists(f"/tmp/{MARK}")
    assert not os.path.lexists(f"/{MARK}")
    assert LayerStore(server.state_dir / "layers").digests() == layers
    assert [name for name in os.listdir(server.state_dir / "cache/blobs") if name.startswith("tree-")] == []


def test_devices_setuid_files_attributes_and_absolute_links_are_harmless(pull: Pull, client: Client) -> None:
    """All in one image, which starts: dangerous entries are left out, or have no effect inside and outside."""
    root = pull(
        tar(
            tool(), folder("proc"), folder("sys"), folder("dev"), folder("bin"),
            Item("bin/su", keepers.binary().read_bytes(), mode=0o6755),
            Item("bin/capable", b"x", mode=0o755, pax={"SCHILY.xattr.security.capability": "\x01\x00\x00\x02"}),
            Item("hidden", b"x", pax={"SCHILY.xattr.trusted.overlay.redirect": "/etc"}),
            device("dev/mem", numbers=(1, 1)), device("dev/sda", tarfile.BLKTYPE, (8, 0)),
            device("zero", numbers=(0, 0)), link("shadow", "/etc/shadow"), link("host", "/proc/1/root/etc"),
            Item("odd owner", b"x", uid=4_000_000_000, gid=70_000),
        )
    )  # fmt: skip
    assert not os.path.lexists(root / "dev/mem")
    assert not os.path.lexists(root / "dev/sda")
    assert not os.path.lexists(root / "zero")
    assert os.listxattr(root / "bin/capable") == os.listxattr(root / "hidden") == []
    assert (root / "odd owner").stat().st_uid == 65534
    closed = [above for above in root.parents if stat.S_IMODE(above.stat().st_mode) & 0o077 == 0]
    assert closed, "nobody but root gets to where a setuid file lies"
    with Sandbox("hostile", server=client) as sandbox:
        assert sandbox.run(["/bin/su", "--version"], user="1000").ok
        with pytest.raises(FileNotFoundError):
            sandbox.files.read_bytes("/shadow")
        with pytest.raises(FileError):  # ELOOP: the keeper goes through no link of /proc's
            sandbox.files.read_bytes("/host/shadow")


def test_hostile_image_configuration_is_rejected(pull: Pull, client: Client) -> None:
    layer = tar(tool(), folder("proc"), folder("sys"), folder("dev"))
    for config in ({"Env": ["A\0B=1"]}, {"User": "a\0b"}, {"WorkingDir": "/a\0b"}, {"Env": "PATH=/bin"}, {"Cmd": [1]}):
        with pytest.raises(InvalidRequest):
            pull(layer, **config)
    pull(layer, User="nobody-has-this-name")
    with pytest.raises(InvalidRequest, match="user"), Sandbox("hostile", server=client):
        pytest.fail("it was started")
    pull(layer, WorkingDir="../../etc")
    with Sandbox("hostile", server=client) as sandbox:
        assert sandbox.run(["/tool", "--version"]).ok
