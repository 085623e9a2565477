"""Unpack archives of layers: valid content is kept, invalid content is harmless."""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support.archives import Item, device, folder, gzipped, hard_link, link, tar, zstandard
from support.server import wait_until

from skerry import linux
from skerry.errors import QuotaExceeded, SkerryError
from skerry.images import child
from skerry.images.archive.tar import LayerReader
from skerry.images.archive.unpack import Damaged, Unpacked, UnpackLimits, unpack

Unpack = Callable[..., tuple[Path, Unpacked]]


@pytest.fixture
def unpacked(tmp_path: Path) -> Unpack:
    """Unpacks bytes into a new tree. A refused archive must have left nothing."""

    def work(data: bytes, **how: object) -> tuple[Path, Unpacked]:
        target = tmp_path / "tree"
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.seek(0)
            try:
                return target, unpack(file.fileno(), target, **how)  # type: ignore[arg-type]
            except BaseException:
                assert os.listdir(tmp_path) == []
                raise

    return work


def listed(root: Path) -> dict[str, str]:
    """Every path with its kind."""
    kinds = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFLNK: "link", stat.S_IFCHR: "gone"}
    found = {}
    for above, directories, files in os.walk(root):
        for name in directories + files:
            path = Path(above, name)
            found[str(path.relative_to(root))] = kinds[stat.S_IFMT(path.lstat().st_mode)]
    return found


ORDINARY = (
    folder("./", 0o755),
    folder("./etc"),
    Item("./etc/passwd", b"root:x:0:0\n"),
    Item("./bin/tool", b"x" * 70_000, mode=0o4755, mtime=1_600_000_000.25),
    folder("./home/me", 0o700, 1000, 1001),
    Item("./home/me/" + "long" * 60, b"deep", uid=1000, gid=1001, pax={"SCHILY.xattr.user.note": "kept"}),
    link("./sbin", "bin"),
    link("./absolute", "/etc/passwd"),
    hard_link("./etc/again", "./etc/passwd"),
)


@pytest.mark.parametrize(
    ("packed", "form"),
    [(bytes, tarfile.GNU_FORMAT), (gzipped, tarfile.PAX_FORMAT), (zstandard, tarfile.PAX_FORMAT),
     (lzma.compress, tarfile.GNU_FORMAT)],
    ids=["plain", "gzip", "zstd", "xz"],
)  # fmt: skip
def test_an_ordinary_layer_keeps_names_modes_owners_times_and_links(
    unpacked: Unpack, packed: Callable[[bytes], bytes], form: int
) -> None:
    plain = tar(*ORDINARY, form=form)
    root, told = unpacked(packed(plain))
    assert told.digest == f"sha256:{hashlib.sha256(plain).hexdigest()}"
    assert (told.entries, told.files, told.notices) == (len(ORDINARY), 3, ())
    assert (root / "etc/passwd").read_text() == "root:x:0:0\n"
    tool, home = (root / "bin/tool").lstat(), (root / "home/me").lstat()
    assert (stat.S_IMODE(tool.st_mode), tool.st_size, int(tool.st_mtime)) == (0o4755, 70_000, 1_600_000_000)
    assert (stat.S_IMODE(home.st_mode), home.st_uid, home.st_gid) == (0o700, 1000, 1001)
    assert (os.readlink(root / "sbin"), os.readlink(root / "absolute")) == ("bin", "/etc/passwd")
    assert (root / "etc/again").stat().st_ino == (root / "etc/passwd").stat().st_ino
    assert int(root.stat().st_mtime) == 1_700_000_000
    if form == tarfile.PAX_FORMAT:
        assert os.getxattr(root / "home/me" / ("long" * 60), "user.note") == b"kept"


def test_several_compressed_members_are_one_archive(unpacked: Unpack) -> None:
    plain = tar(Item("a", b"1" * 5000), Item("b", b"2"))
    root, _ = unpacked(gzipped(plain[:700]) + gzipped(plain[700:]))
    assert listed(root) == {"a": "file", "b": "file"}


def test_whiteouts_become_those_of_overlayfs(unpacked: Unpack) -> None:
    root, _ = unpacked(tar(folder("a"), Item("a/.wh.old"), Item(".wh.top"), folder("b"), Item("b/.wh..wh..opq")))
    assert listed(root) == {"a": "directory", "a/old": "gone", "top": "gone", "b": "directory"}
    assert (root / "a/old").lstat().st_rdev == 0
    assert os.getxattr(root / "b", "trusted.overlay.opaque") == b"y"
    assert os.listxattr(root / "a") == []


@pytest.mark.parametrize("order", ["mark first", "mark last"])
def test_a_directory_that_is_hidden_and_made_again_shows_nothing_from_below(unpacked: Unpack, order: str) -> None:
    items = [Item(".wh.d"), folder("d"), Item("d/new", b"1")]
    root, _ = unpacked(tar(*(items if order == "mark first" else items[1:] + items[:1])))
    assert listed(root) == {"d": "directory", "d/new": "file"}
    assert os.getxattr(root / "d", "trusted.overlay.opaque") == b"y"


def test_a_directory_with_a_name_that_is_not_text_is_hidden(unpacked: Unpack) -> None:
    """The mark must not get lost on the way from the child, or deleted files of the image would return."""
    name = "d\udcff"
    root, _ = unpacked(tar(folder(name), Item(f"{name}/.wh..wh..opq"), Item(".wh.e\udcfe"), form=tarfile.GNU_FORMAT))
    assert os.getxattr(os.fsencode(root / name), "trusted.overlay.opaque") == b"y"
    assert stat.S_ISCHR((root / "e\udcfe").lstat().st_mode)


def test_aufs_files_are_skipped_and_plain_trees_have_no_whiteouts(unpacked: Unpack, tmp_path: Path) -> None:
    data = tar(folder(".wh..wh.plnk"), Item(".wh..wh.plnk/1.2", b"x"), Item(".wh..wh.aufs"), Item("kept", b"1"))
    root, _ = unpacked(data)
    assert listed(root) == {"kept": "file"}
    root.rename(tmp_path / "first")
    root, _ = unpacked(tar(Item(".wh.file", b"1")), layer=False)
    assert (root / ".wh.file").read_bytes() == b"1"


def test_a_later_entry_replaces_an_earlier_one(unpacked: Unpack) -> None:
    root, _ = unpacked(
        tar(
            Item("a", b"1"), Item("a", b"2"), folder("d/e"), Item("d/e/f", b"x"), Item("d", b"now a file"),
            link("l", "elsewhere"), Item("l", b"no link"), link("m", "d"), folder("m"), Item("m/x", b"1"),
        )
    )  # fmt: skip
    assert listed(root) == {"a": "file", "d": "file", "l": "file", "m": "directory", "m/x": "file"}
    assert (root / "a").read_bytes() == b"2"


def test_unnamed_directories_get_the_usual_mode(unpacked: Unpack) -> None:
    root, _ = unpacked(tar(Item("tmp/x"), Item("var/tmp/x"), Item("usr/x"), Item("root/.x")))
    modes = {name: oct(stat.S_IMODE((root / name).stat().st_mode)) for name in ("tmp", "var/tmp", "usr", "root", ".")}
    assert modes == {"tmp": "0o1777", "var/tmp": "0o1777", "usr": "0o755", "root": "0o700", ".": "0o755"}


# -- hostile ones -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/../x", "..", "./.wh..", ".wh...", "a/.wh."])
def test_a_path_that_leads_out_is_rejected(unpacked: Unpack, name: str) -> None:
    with pytest.raises(Damaged, match=r"leads out|invalid whiteout"):
        unpacked(tar(Item("first", b"1"), Item(name, b"x")))


def test_an_absolute_path_stays_in_the_tree(unpacked: Unpack) -> None:
    root, _ = unpacked(tar(Item("/etc/skerry-was-here", b"x"), Item("//a//./b", b"y")))
    assert listed(root) == {"etc": "directory", "etc/skerry-was-here": "file", "a": "directory", "a/b": "file"}


def test_a_link_leads_only_into_the_tree(unpacked: Unpack, tmp_path: Path) -> None:
    """Links to the host's root, upwards and through the process's descriptors: writes through them stay in the tree."""
    root, _ = unpacked(
        tar(
            folder("in"), link("host", "/"), Item("host/in/a", b"1"), link("up", "../../../../.."),
            Item("up/in/b", b"2"), link("in/here", "."), Item("in/here/c", b"3"),
        )
    )  # fmt: skip
    assert listed(root) == {
        "in": "directory", "in/a": "file", "in/b": "file", "in/c": "file",
        "host": "link", "up": "link", "in/here": "link",
    }  # fmt: skip
    assert os.listdir(tmp_path) == ["tree"]


@pytest.mark.parametrize("target", ["/proc/self/root", "/etc", "/proc/1/cwd", "l", "missing/../.."])
def test_a_link_to_a_host_path_is_not_followed(unpacked: Unpack, target: str) -> None:
    with pytest.raises(Damaged):
        unpacked(tar(link("l", target), Item("l/skerry-was-here", b"x")))
    assert not os.path.lexists("/etc/skerry-was-here")


@pytest.mark.parametrize("target", ["/etc/passwd", "etc/passwd", "../../etc/passwd", "d", "gone", "self"])
def test_a_hard_link_to_a_missing_file_is_rejected(unpacked: Unpack, target: str) -> None:
    with pytest.raises(Damaged):
        unpacked(tar(folder("d"), Item(".wh.gone"), hard_link("self", target)))


def test_a_hard_link_through_a_symlink_stays_in_the_tree(unpacked: Unpack) -> None:
    with pytest.raises(Damaged, match="hard link"):
        unpacked(tar(link("host", "/"), hard_link("stolen", "host/etc/shadow")))


def test_devices_are_skipped_and_reported(unpacked: Unpack) -> None:
    """A character device 0:0 too: in a layer it would hide a file of a lower one."""
    root, told = unpacked(
        tar(
            device("null"), device("disk", tarfile.BLKTYPE, (8, 0)), device("hide", numbers=(0, 0)),
            Item("kept", b"1"),
        )
    )  # fmt: skip
    assert listed(root) == {"kept": "file"}
    assert [notice.split(":")[0] for notice in told.notices] == ["left out null", "left out disk", "left out hide"]


def test_a_fifo_is_kept_and_nothing_lies_below_it(unpacked: Unpack) -> None:
    """The host never opens one."""
    pipe = Item("pipe", kind=tarfile.FIFOTYPE, mode=0o640, uid=7)
    root, told = unpacked(tar(pipe, hard_link("again", "pipe")))
    found = (root / "again").lstat()
    assert (stat.S_ISFIFO(found.st_mode), found.st_mode & 0o7777, found.st_uid, found.st_nlink) == (True, 0o640, 7, 2)
    assert told.notices == ()
    subprocess.run(["rm", "-r", str(root)], check=True)
    with pytest.raises(Damaged, match="not a directory"):
        unpacked(tar(pipe, Item("pipe/x", b"1")))


def holed(size: int, table: str, data: bytes = b"") -> bytes:
    """A file in GNU's sparse format 1.0, with the given map."""
    about = {"major": "1", "minor": "0", "name": "big", "realsize": str(size)}
    content = table.encode() + bytes(-len(table) % 512) + data
    return tar(Item("GNUSparseFile.0/big", content, pax={f"GNU.sparse.{key}": value for key, value in about.items()}))


def test_a_file_with_holes_keeps_them(unpacked: Unpack) -> None:
    root, _ = unpacked(holed(1 << 30, "3\n0\n2\n500000000\n3\n1073741824\n0\n", b"abcde"))
    found = (root / "big").stat()
    assert (found.st_size, found.st_blocks * 512 < 1 << 20) == (1 << 30, True)
    with open(root / "big", "rb") as file:
        assert file.read(3) == b"ab\0"
        file.seek(500_000_000 - 1)
        assert file.read(5) == b"\0cde\0"


@pytest.mark.parametrize(
    ("size", "table"),
    [
        pytest.param(9, "1\n0\n4\n", id="less data than it says"),
        pytest.param(9, "1\n0\n6\n", id="more data than it says"),
        pytest.param(9, "2\n3\n3\n0\n2\n", id="out of order"),
        pytest.param(9, "2\n0\n3\n2\n2\n", id="overlapping"),
        pytest.param(4, "1\n0\n5\n", id="beyond its end"),
        pytest.param(9, "2\n0\n5\n", id="a map that does not end"),
        pytest.param(9, "1\n0\n5\n7\n", id="a map that goes on"),
        pytest.param(9, "9999999\n", id="a map of too much"),
        pytest.param(9, "-1\n0\n5\n", id="a number below nothing"),
        pytest.param(9, "x\n", id="no number"),
    ],
)
def test_a_sparse_file_with_an_invalid_map_is_rejected(size: int, table: str) -> None:
    reader = LayerReader(io.BytesIO(holed(size, table, b"abcde")).read)
    with pytest.raises(Damaged):
        [list(reader.parts(entry)) for entry in reader]


def test_holes_count_toward_the_size_limit(unpacked: Unpack) -> None:
    with pytest.raises(Damaged, match="more than"):
        unpacked(holed(1 << 40, "1\n0\n5\n", b"abcde"))


def test_attributes_for_the_hosts_kernel_are_left_out(unpacked: Unpack) -> None:
    hostile = {
        f"SCHILY.xattr.{name}": "y"
        for name in ("trusted.overlay.opaque", "trusted.overlay.redirect", "security.capability", "user.overlay.opaque",
                     "system.posix_acl_access")
    }  # fmt: skip
    item = folder("d")
    item.pax = dict(hostile)
    root, told = unpacked(tar(item, Item("f", b"1", pax=dict(hostile))))
    assert os.listxattr(root / "d") == os.listxattr(root / "f") == []
    assert len(told.notices) == 2 * len(hostile)


def test_owners_beyond_a_sandboxs_range_become_nobody(unpacked: Unpack) -> None:
    root, told = unpacked(tar(Item("f", b"1", uid=65_536, gid=4_000_000_000)))
    assert ((root / "f").stat().st_uid, (root / "f").stat().st_gid) == (65534, 65534)
    assert len(told.notices) == 1


@pytest.mark.parametrize(
    ("limits", "data"),
    [
        pytest.param({"bytes": 1 << 20}, gzipped(tar(Item("zeros", bytes(2 << 20)))), id="bytes"),
        pytest.param({"bytes": 1 << 20}, gzipped(tar(Item("a")) + bytes(2 << 20)), id="bytes after its end"),
        pytest.param({"entries": 50}, tar(*(Item(f"f{n}") for n in range(51))), id="entries"),
        pytest.param({}, tar(Item("/".join("d" * 300))), id="depth"),
        pytest.param({}, tar(Item("/".join(["d" * 250] * 17))), id="path"),
        pytest.param({}, tar(Item("n" * 256)), id="name"),
        pytest.param({}, tar(Item("a", pax={"comment": "x" * (2 << 20)})), id="header"),
        pytest.param({}, tar(Item("a", pax={"GNU.sparse.major": "1"})), id="sparse"),
        pytest.param({}, tar(Item("a", kind=b"V")), id="unknown kind"),
        pytest.param({}, tar(Item("a", b"1", pax={"size": "999999999999999999"})), id="size"),
        pytest.param({}, tar(Item("a", b"1", pax={"size": "-1"})), id="negative size"),
        pytest.param({}, tar(Item("f", b"1"), Item("f/below", b"2")), id="below a file"),
        pytest.param({}, tar(link("l", "x" * 5000)), id="long link"),
    ],
)
def test_an_archive_above_its_limits_is_rejected(unpacked: Unpack, limits: dict[str, int], data: bytes) -> None:
    with pytest.raises(Damaged):
        unpacked(data, limits=UnpackLimits(**limits))


def test_a_decompression_bomb_is_rejected(unpacked: Unpack) -> None:
    """One and a half GiB in a few KiB; after the archive's end, so that this disk need not hold them."""
    piece = zstandard(bytes(128 << 20))
    data = zstandard(tar(Item("a"))) + piece * 12
    assert len(data) < 200_000
    with pytest.raises(Damaged, match="bomb"):
        unpacked(data)


def test_a_nearly_full_disk_is_reported(unpacked: Unpack) -> None:
    with pytest.raises(QuotaExceeded, match="full"):
        unpacked(tar(Item("a", bytes(3 << 20))), limits=UnpackLimits(min_free=1 << 60))


def test_empty_files_cannot_use_the_last_inodes(tmp_path: Path) -> None:
    """They take no block, so no reserve of bytes would ever stop them."""
    linux.mount("none", str(tmp_path), "tmpfs", 0, "size=64m,nr_inodes=2000")
    try:
        with tempfile.TemporaryFile() as file:
            file.write(tar(*(Item(f"f{number}") for number in range(1950)), Item("more", bytes(3 << 20))))
            file.seek(0)
            with pytest.raises(QuotaExceeded, match="almost out of inodes"):
                unpack(file.fileno(), tmp_path / "tree", limits=UnpackLimits(min_free=0))
        assert os.listdir(tmp_path) == []
    finally:
        linux.umount(str(tmp_path))


@pytest.mark.parametrize("packed", [bytes, gzipped, zstandard], ids=["plain", "gzip", "zstd"])
@pytest.mark.parametrize("share", [0.0001, 0.6])
def test_a_truncated_archive_is_rejected(unpacked: Unpack, packed: Callable[[bytes], bytes], share: float) -> None:
    data = packed(tar(*(Item(f"f{n}", os.urandom(3000)) for n in range(10))))
    with pytest.raises(Damaged):
        unpacked(data[: max(1, int(len(data) * share))])


@pytest.mark.parametrize("kind", ["empty", "html", "noise", "flipped"])
def test_data_that_is_not_an_archive_is_rejected(unpacked: Unpack, kind: str) -> None:
    flipped = bytearray(gzipped(tar(Item("a", os.urandom(5000)))))
    flipped[2000] ^= 1
    data = {"empty": b"", "html": b"<html>" * 200, "noise": os.urandom(2000), "flipped": bytes(flipped)}[kind]
    with pytest.raises(Damaged):
        unpacked(data)


def test_a_cancelled_unpack_leaves_nothing(unpacked: Unpack) -> None:
    class Cut(Exception):
        """Stands for a server that closes."""

    def stop(_: int) -> None:
        raise Cut

    with pytest.raises(Cut):
        unpacked(tar(Item("a", bytes(3 << 20))), progress=stop)


def test_the_child_is_confined_to_the_tree(tmp_path: Path) -> None:
    program = (
        "from skerry.images.archive.confine import confine\n"
        "import os, socket; confine(); print(sorted(os.listdir('/')), os.listdir('..'))\n"
        "for what in (lambda: os.chroot('/'), lambda: os.mknod('d', 0o20666, os.makedev(1, 3)), lambda: os.setuid(1),\n"
        "             lambda: os.kill(SERVER, 0), lambda: os.setxattr('in', 'trusted.x', b'1')):\n"
        "    try: what(); print('could')\n"
        "    except OSError as error: print(error.errno)\n"
    ).replace("SERVER", str(os.getpid()))
    (tmp_path / "in").mkdir()
    ran = child.lines(
        [sys.executable, "-I", "-c", program], {"PATH": os.environ["PATH"]}, "a test", cwd=tmp_path, isolated=True
    )
    assert [line.text for line in ran if line.text] == ["['in'] ['in']", "1", "1", "1", "3", "1"]


def test_the_child_imports_no_code_from_the_tree(tmp_path: Path) -> None:
    for place in map(Path, sys.path):
        if place.is_absolute() and place.is_dir():
            planted = tmp_path / place.relative_to("/") / "colorsys.py"
            planted.parent.mkdir(parents=True, exist_ok=True)
            planted.write_text("print('code of strangers')\n")
    program = "from skerry.images.archive.confine import confine\nconfine()\nimport colorsys\n"
    ran = child.lines(
        [sys.executable, "-I", "-c", program], {"PATH": os.environ["PATH"]}, "a test", cwd=tmp_path, isolated=True
    )
    with pytest.raises(SkerryError, match="No module named 'colorsys'"):
        assert [line.text for line in ran] == []


def test_the_child_ends_with_its_server(tmp_path: Path) -> None:
    program = (
        "import os; from pathlib import Path; from skerry.images.archive.unpack import unpack\n"
        "r, w = os.pipe(); os.write(w, b'x' * 100); print('ready', flush=True)\n"
        f"unpack(r, Path({str(tmp_path / 'tree')!r}))"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        wait_until(lambda: _children(server.pid), "the child to be there")
        family = _children(server.pid)
        server.send_signal(signal.SIGKILL)
        server.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family), "the child to be gone")


def _children(pid: int) -> list[int]:
    found = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return found + [below for child in found for below in _children(child)]
