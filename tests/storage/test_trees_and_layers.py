"""Trees, their digests, and the store of layers."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from skerry.errors import Conflict, InvalidRequest, NotFound
from skerry.storage import ImageStore, LayerStore, tree

NOBODY = 65534
Change = Callable[[Path], object]


def plant(root: Path, backwards: bool = False) -> Path:
    """A small tree with one of everything; made in another order it is the same tree."""
    root.mkdir()
    steps: list[Callable[[], object]] = [
        lambda: (root / "a").write_text("alpha"),
        lambda: (root / "link").symlink_to("/etc/shadow"),
        lambda: os.mkfifo(root / "fifo"),
        lambda: os.mknod(root / "whiteout", 0o20000, os.makedev(0, 0)),
        lambda: (root / "dir").mkdir(),
        lambda: (root / "setuid").write_bytes(b"\x7fELF"),
    ]
    for step in reversed(steps) if backwards else steps:
        step()
    (root / "setuid").chmod(0o4755)
    (root / "dir" / "b").write_bytes(b"\0" * 5000)
    os.link(root / "dir" / "b", root / "dir" / "b-again")
    os.setxattr(root / "a", "user.note", b"x")
    os.setxattr(root / "dir", "trusted.overlay.opaque", b"y")
    os.chown(root / "link", 1000, 1000, follow_symlinks=False)
    return root


def test_the_same_tree_has_the_same_digest(tmp_path: Path) -> None:
    one, two = plant(tmp_path / "one"), plant(tmp_path / "two", backwards=True)
    os.utime(two / "a", (1, 1))
    assert tree.digest(one) == tree.digest(two)
    subprocess.run(["cp", "-a", str(one), str(tmp_path / "copy")], check=True)
    assert tree.digest(tmp_path / "copy") == tree.digest(one)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda root: (root / "a").write_text("alphA"), id="content"),
        pytest.param(lambda root: (root / "a").chmod(0o600), id="mode"),
        pytest.param(lambda root: os.chown(root / "a", 1, 0), id="owner"),
        pytest.param(lambda root: os.chown(root / "link", 1, 1, follow_symlinks=False), id="owner of a link"),
        pytest.param(lambda root: os.rename(root / "a", root / "A"), id="name"),
        pytest.param(lambda root: (root / "new").touch(), id="a file more"),
        pytest.param(lambda root: (root / "fifo").unlink(), id="a file less"),
        pytest.param(lambda root: os.setxattr(root / "a", "user.note", b"y"), id="attribute"),
        pytest.param(lambda root: os.removexattr(root / "dir", "trusted.overlay.opaque"), id="opaqueness"),
        pytest.param(lambda root: ((root / "link").unlink(), (root / "link").symlink_to("/etc/passwd")), id="target"),
        pytest.param(lambda root: ((root / "fifo").unlink(), (root / "fifo").touch()), id="type"),
        pytest.param(lambda root: root.chmod(0o700), id="mode of the root"),
    ],
)
def test_any_change_that_a_sandbox_could_see_changes_the_digest(tmp_path: Path, change: Change) -> None:
    root = plant(tmp_path / "root")
    before = tree.digest(root)
    change(root)
    assert tree.digest(root) != before


def test_digest_fields_are_separated(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for root, names in ((one, ("ab", "c")), (two, ("a", "bc"))):
        root.mkdir()
        for name in names:
            (root / name).touch()
    assert tree.digest(one) != tree.digest(two)


def test_a_tree_too_deep_to_walk_is_rejected_but_removable(tmp_path: Path) -> None:
    place = os.open(tmp_path, os.O_RDONLY)
    for _ in range(tree.MAX_DEPTH + 50):
        os.mkdir("d", dir_fd=place)
        below = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    os.close(place)
    with pytest.raises(InvalidRequest, match="deeper"):
        tree.digest(tmp_path)
    tree.remove(tmp_path / "d")
    assert os.listdir(tmp_path) == []


def test_a_file_of_terabytes_that_is_a_hole_has_a_digest_at_once(tmp_path: Path) -> None:
    digests = set()
    for at, data in ((1 << 43, b"a"), (1 << 43, b"b"), ((1 << 43) - (1 << 20), b"a")):
        with open(tmp_path / "huge", "wb") as file:
            file.truncate((1 << 43) + 1)
            file.seek(at)
            file.write(data)
        digests.add(tree.digest(tmp_path))
        (tmp_path / "huge").unlink()
    assert len(digests) == 3


def test_names_that_are_not_utf8_are_supported(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff\xfe\n")).touch()
    assert tree.digest(tmp_path).startswith("sha256:")
    tree.remove(tmp_path)


def test_hard_links_count_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(1 << 20))
    alone = tree.disk_use(tmp_path)
    os.link(tmp_path / "a", tmp_path / "b")
    assert tree.disk_use(tmp_path) == alone


def test_removing_a_tree_stops_at_a_mount(tmp_path: Path) -> None:
    mounted = tmp_path / "root/mounted"
    mounted.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "skerry-test", str(mounted)], check=True)
    (mounted / "kept").touch()
    try:
        with pytest.raises(OSError, match="busy"):
            tree.remove(tmp_path / "root")
        assert (mounted / "kept").exists()
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


@pytest.fixture
def layers(tmp_path: Path) -> LayerStore:
    return LayerStore(tmp_path / "layers")


def test_a_layer_is_found_under_its_digest(layers: LayerStore, tmp_path: Path) -> None:
    expected = tree.digest(plant(tmp_path / "new"))
    assert not layers.has(expected)
    digest = layers.add_directory(tmp_path / "new")
    assert digest == expected
    assert not (tmp_path / "new").exists()
    assert layers.digests() == [digest]
    assert (layers.path(digest) / "a").read_text() == "alpha"
    assert layers.size(digest) == tree.disk_use(layers.path(digest))
    assert layers.verify(digest)


def test_the_same_layer_is_stored_once(layers: LayerStore, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        trees = [plant(tmp_path / f"new-{number}") for number in range(8)]
        assert len(set(pool.map(layers.add_directory, trees))) == 1
    assert len(os.listdir(layers.root)) == 1
    assert not any(root.exists() for root in trees)


def test_a_tree_with_the_wrong_digest_is_rejected(layers: LayerStore, tmp_path: Path) -> None:
    plant(tmp_path / "new")
    with pytest.raises(InvalidRequest, match="not sha256"):
        layers.add_directory(tmp_path / "new", "sha256:" + "0" * 64)
    assert layers.digests() == []
    assert (tmp_path / "new").exists()


def test_a_damaged_layer_is_found_named_and_not_served_until_it_is_replaced(layers: LayerStore, tmp_path: Path) -> None:
    digest = layers.add_directory(plant(tmp_path / "new"))
    assert layers.check(digest) == layers.path(digest)
    with open(layers.path(digest) / "dir/b", "r+b") as file:
        file.seek(4000)
        file.write(b"\1")
    assert layers.check(digest), "nobody has looked yet"
    assert not layers.verify(digest)
    with pytest.raises(Conflict, match=f"{digest} is damaged"):
        layers.check(digest)
    images = ImageStore(tmp_path / "images", layers)
    assert layers.add_directory(plant(tmp_path / "again")) == digest
    assert layers.verify(digest)
    assert layers.check(digest)
    assert images.collect(lambda: {digest}) == []
    assert len(os.listdir(layers.root)) == 2, "sandboxes may still stand on the damaged files"
    assert images.collect(set) == [digest]
    assert images.collect(set) == os.listdir(layers.root) == []


def test_a_removed_layer_is_gone(layers: LayerStore, tmp_path: Path) -> None:
    digest = layers.add_directory(plant(tmp_path / "new"))
    layers.remove(digest)
    layers.remove(digest)
    assert os.listdir(layers.root) == []
    with pytest.raises(NotFound):
        layers.size(digest)
    with pytest.raises(NotFound):
        layers.verify(digest)


@pytest.mark.parametrize("digest", ["", "..", "sha256:..", "sha256:" + "A" * 64, "sha256:" + "0" * 63, "0" * 64, "\0"])
def test_only_digests_become_paths(layers: LayerStore, digest: str) -> None:
    with pytest.raises(InvalidRequest):
        layers.path(digest)
    with pytest.raises(InvalidRequest):
        layers.remove(digest)


def test_a_tree_on_another_file_system_is_rejected(layers: LayerStore, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "skerry-test", str(elsewhere)], check=True)
    try:
        plant(elsewhere / "new")
        with pytest.raises(InvalidRequest, match="another file system"):
            layers.add_directory(elsewhere / "new")
        assert os.listdir(layers.root) == []
    finally:
        subprocess.run(["umount", str(elsewhere)], check=True)


def test_an_unprivileged_host_user_reaches_no_layer(layers: LayerStore, tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents):
        if os.stat(parent).st_mode & 0o001 == 0:
            parent.chmod(0o711)
    root = plant(tmp_path / "new")
    shutil.copy("/bin/true", root / "setuid")
    (root / "setuid").chmod(0o4755)
    program = layers.path(layers.add_directory(root)) / "setuid"
    for argv in (["ls", str(layers.root)], ["cat", str(program)], [str(program)]):
        try:
            done = subprocess.run(argv, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True)
        except PermissionError:
            continue
        assert done.returncode != 0
        assert b"Permission denied" in done.stderr
