"""Images go out as archives that other tools read, and come back as the same tree."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import stat
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support.descriptors import descriptors, left_over
from support.server import wait_until

from skerry.errors import SkerryError
from skerry.images.archive import packer
from skerry.images.archive.layout import About
from skerry.images.archive.pack import PackProcess
from skerry.images.archive.unpack import unpack
from skerry.storage import tree
from skerry.types import TransferResult

WEIRD = os.fsdecode(b"\xff\xfe\n=")
LONG = "/".join(["directory-with-a-long-name"] * 8)
ABOUT = About(
    name="demo", created_at=1_700_000_000.5, user="user", cwd="/workspace", env={"A": "é=1\n", "PATH": "/bin"},
    entrypoint=("/bin/sh",), cmd=("-c", "true"),
)  # fmt: skip


@pytest.fixture
def layers(tmp_path: Path) -> list[Path]:
    """Two, the upper one with a whiteout; one of everything that a sandbox can make."""
    base, upper = tmp_path / "base", tmp_path / "upper"
    for directory in ("etc", "var/lib/skerry/journal", "run/skerry", "dev/pts", "proc", "home/user", LONG):
        (base / directory).mkdir(parents=True)
    upper.mkdir()
    (base / "etc/gone").write_text("hidden by the upper layer")
    (base / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n")
    (upper / "etc").mkdir()
    os.mknod(upper / "etc/gone", stat.S_IFCHR, os.makedev(0, 0))
    for path in ("var/lib/skerry/journal/1", "run/skerry/socket", "dev/console"):
        (base / path).write_text("the keeper's own")
    home = base / "home/user"
    (home / "plain").write_bytes(os.urandom(3000))
    (home / "empty").touch()
    (home / WEIRD).write_text("a name")
    (base / LONG / WEIRD).write_text("a long name that is not UTF-8")
    os.link(home / "plain", home / "again")
    (home / "link").symlink_to("../../../etc/shadow")
    (home / "far").symlink_to("x" * 3000)
    os.link(home / "link", home / "link-again", follow_symlinks=False)
    os.mkfifo(home / "fifo", 0o640)
    with open(home / "holes", "wb") as file:
        for at in (0, 1 << 22, 1 << 25):
            file.seek(at)
            file.write(b"data")
        file.truncate((1 << 25) + (1 << 20))
    os.truncate(home / "empty", 1 << 20)
    os.setxattr(home / "plain", "user.note", b"\0\n=\xff")
    os.setxattr(home, "user.dir", b"x")
    (home / "setuid").write_bytes(b"\x7fELF")
    os.chown(home / "setuid", 1000, 1000)
    os.chown(home / "link", 1000, 65533, follow_symlinks=False)
    (home / "setuid").chmod(0o6711)
    (home / "old").write_text("before the epoch of most")
    os.utime(home / "old", ns=(0, 1))
    home.chmod(0o1777)
    return [upper, base]


def packed(layers: list[Path]) -> tuple[bytes, TransferResult]:
    packing = PackProcess(layers, ABOUT)
    try:
        whole = b"".join(iter(packing.read, b""))
        return whole, packing.finish()
    finally:
        packing.close()


def members(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return {one.name: opened.extractfile(one).read() for one in opened}  # type: ignore[union-attr]


def layer_of(archive: bytes) -> bytes:
    found = members(archive)
    manifest = json.loads(found["manifest.json"])
    return found[manifest[0]["Layers"][0]]


def facts(root: Path) -> dict[bytes, tuple[object, ...]]:
    """The properties that a tree's digest leaves out: times and holes."""
    return {
        entry.path: (
            entry.stat.st_mtime_ns,
            stat.S_ISREG(entry.stat.st_mode) and entry.stat.st_blocks * 512 < entry.stat.st_size - (1 << 16),
        )
        for entry in tree.walk(root)
    }


def expected(layers: list[Path], target: Path) -> Path:
    """The merged tree as `cp` sees it, without Skerry's own paths."""
    subprocess.run(["cp", "-a", str(layers[1]), str(target)], check=True)
    for path in ("etc/gone", "dev/console"):
        (target / path).unlink()
    for path in ("var/lib/skerry", "run/skerry", "dev/pts"):
        shutil.rmtree(target / path)
    for path in ("etc", "dev", "run", "var/lib"):
        found = os.stat((layers[0] if path == "etc" else layers[1]) / path)
        os.utime(target / path, ns=(found.st_atime_ns, found.st_mtime_ns))
    os.utime(target, ns=(os.stat(layers[0]).st_atime_ns, os.stat(layers[0]).st_mtime_ns))
    return target


def test_an_exported_tree_round_trips(layers: list[Path], tmp_path: Path) -> None:
    before = descriptors()
    archive, moved = packed(layers)
    assert left_over(before) == 0
    assert moved.skipped == ()
    with open(tmp_path / "layer.tar", "w+b") as file:
        file.write(layer_of(archive))
        file.seek(0)
        assert unpack(file.fileno(), tmp_path / "back").notices == ()
    there = expected(layers, tmp_path / "there")
    assert facts(tmp_path / "back") == facts(there)
    assert tree.digest(tmp_path / "back") == tree.digest(there)


def test_the_same_tree_gives_the_same_archive(layers: list[Path]) -> None:
    assert packed(layers)[0] == packed(layers)[0]


def _tool(name: str, *arguments: str) -> str:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed: apt-get install {name}")
    done = subprocess.run([name, *arguments], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_skopeo_reads_both_formats(layers: list[Path], tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    archive.write_bytes(packed(layers)[0])
    for form in ("oci-archive", "docker-archive"):
        config = json.loads(_tool("skopeo", "inspect", "--config", f"{form}:{archive}"))
        assert config["config"] == {
            "User": "user", "WorkingDir": "/workspace", "Env": ["A=é=1\n", "PATH=/bin"], "Entrypoint": ["/bin/sh"],
            "Cmd": ["-c", "true"],
        }  # fmt: skip
        _tool("skopeo", "--insecure-policy", "copy", "-q", f"{form}:{archive}", f"dir:{tmp_path / form}")


def test_umoci_unpacks_it_to_the_same_tree(layers: list[Path], tmp_path: Path) -> None:
    """Another's code, from the archive to files with owners, times, attributes and holes."""
    archive = tmp_path / "image.tar"
    archive.write_bytes(packed(layers)[0])
    (tmp_path / "layout").mkdir()
    _tool("tar", "-xf", str(archive), "-C", str(tmp_path / "layout"))
    _tool("umoci", "unpack", "--image", f"{tmp_path / 'layout'}:latest", str(tmp_path / "bundle"))
    root, there = tmp_path / "bundle/rootfs", expected(layers, tmp_path / "there")
    assert {path: mtime for path, (mtime, _) in facts(root).items()} == {
        path: mtime for path, (mtime, _) in facts(there).items()
    }
    assert tree.digest(root) == tree.digest(there)


def test_gnu_tar_reads_its_layer(layers: list[Path], tmp_path: Path) -> None:
    (tmp_path / "back").mkdir()
    argv = ["tar", "-x", "--xattrs", "--numeric-owner", "-C", str(tmp_path / "back")]
    subprocess.run(argv, input=layer_of(packed(layers)[0]), check=True)
    there = expected(layers, tmp_path / "there")
    assert tree.digest(tmp_path / "back") == tree.digest(there)
    assert (tmp_path / "back/home/user/holes").stat().st_blocks < 1000


Plant = Callable[[Path], object]


def nested(root: Path, names: list[str]) -> None:
    """Step by step, since the whole path may be longer than the kernel takes."""
    place = os.open(root, os.O_RDONLY)
    for name in names:
        os.mkdir(name, dir_fd=place)
        below = os.open(name, os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    os.close(place)


@pytest.mark.parametrize(
    ("plant", "reason"),
    [
        pytest.param(
            lambda root: os.mknod(root / "x", stat.S_IFCHR | 0o600, os.makedev(1, 3)), "a device", id="device"
        ),
        pytest.param(lambda root: os.mknod(root / "x", stat.S_IFSOCK), "a socket", id="socket"),
        pytest.param(lambda root: nested(root, ["n" * 200] * 20), "too long", id="long path"),
    ],
)
def test_unsupported_files_are_skipped_and_reported(tmp_path: Path, plant: Plant, reason: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    plant(root)
    (root / "kept").touch()
    archive, moved = packed([root])
    assert [reason in one.reason for one in moved.skipped] == [True]
    with tarfile.open(fileobj=io.BytesIO(layer_of(archive))) as layer:
        assert "kept" in layer.getnames()


def test_oversized_attributes_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(packer, "_MAX_ATTRIBUTES", 50)
    for name, value in (("long", bytes(40)), ("short", b"1")):
        Path(name).touch()
        os.setxattr(name, "user.a", value)
    layer = packer.Layer()
    whole = b"".join(layer.pieces())
    assert layer.skipped == [(b"long", "only its attributes: they are too long")]
    assert (whole.count(b"SCHILY.xattr.user.a"), b"long" in whole) == (1, True)


def test_a_too_deep_tree_is_exported_without_its_deepest_parts(tmp_path: Path) -> None:
    nested(tmp_path, ["d"] * (tree.MAX_DEPTH + 5))
    assert packed([tmp_path])[1].skipped != ()  # no archive holds it, but nothing fails


def is_group(number: int) -> bool:
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_dead_packer_is_reported_and_an_abandoned_one_ends(tmp_path: Path) -> None:
    before = descriptors()
    packing = PackProcess([tmp_path], ABOUT)
    os.killpg(packing.pid, signal.SIGKILL)
    assert b"".join(iter(packing.read, b"")) == b""
    with pytest.raises(SkerryError, match="without a report"):
        packing.finish()
    packing.close()
    packing = PackProcess([tmp_path], ABOUT)
    packing.close()
    packing.close()
    wait_until(lambda: not is_group(packing.pid), "all of its processes to be gone")
    assert left_over(before) == 0
