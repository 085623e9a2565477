"""The host treats files of a sandbox as hostile: nothing leads it outside, blocks it or forges output."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

from support.archives import Item, folder, tar

from skerry import Client, Sandbox, Snapshot, keeper

HOSTILE = r"""
import os, shutil
os.makedirs("/h/deep")
os.symlink("/etc/shadow", "/h/link")
os.symlink("/proc/self/root/etc/shadow", "/h/magic")
os.symlink("../" * 40 + "etc/shadow", "/h/upwards")
os.mkfifo("/h/fifo")
os.remove("/etc/hostname"); os.mkfifo("/etc/hostname")
os.remove("/etc/issue"); os.symlink("/etc/shadow", "/etc/issue")
shutil.rmtree("/srv"); os.symlink("/", "/srv")
with open("/h/huge", "wb") as file: file.truncate(1 << 43)
open(b"/h/\xff\x1b[2J\n", "w").close()
for number in range(400): os.setxattr("/etc/debian_version", "user." + "x" * 240 + str(number), b"")
os.chdir("/h/deep")
for _ in range(300): os.mkdir("d" * 200); os.chdir("d" * 200)
"""


def test_hostile_tree_is_listed_without_following_or_opening_files(client: Client) -> None:
    with Sandbox(server=client) as sandbox:
        before = sandbox.snapshot()
        sandbox.run(["python3", "-c", HOSTILE], user="root", check=True)
        told = {one.path: (one.kind, one.type) for one in before.changes().changes}
        expected = {
            "/h/link": ("added", "link"), "/h/magic": ("added", "link"), "/h/upwards": ("added", "link"),
            "/h/fifo": ("added", "other"), "/etc/hostname": ("modified", "other"), "/etc/issue": ("modified", "link"),
            "/srv": ("modified", "link"), "/h/huge": ("added", "file"),
            os.fsdecode(b"/h/\xff\x1b[2J\n"): ("added", "file"), "/etc/debian_version": ("modified", "file"),
        }  # fmt: skip
        assert told.items() >= expected.items()
        assert sum(path.startswith("/h/deep/") for path in told) == 300
        assert not [path for path in told if path.startswith("/srv/")]
        after = sandbox.snapshot()
        sandbox.run("rm -rf /h; echo > /workspace/x", user="root", check=True)
        assert {one.path: one.kind for one in after.changes().changes}["/h"] == "deleted"
        assert after.changes(before).changes != ()
    for snapshot in (after, before):
        snapshot.delete()


def test_hostile_tree_is_exported_unchanged_without_host_files(client: Client, tmp_path: Path) -> None:
    program = Path(keeper.binary()).read_bytes()
    root = tar(folder("h"), folder("etc"), Item("tool", program, mode=0o755), Item("var/lib/x", b"1"))
    begin = Snapshot.import_(io.BytesIO(root), server=client)
    with Sandbox(begin, server=client) as sandbox:
        files = sandbox.files
        files.link("/etc/shadow", "/h/link")
        files.link("/", "/h/root")
        files.write(os.fsdecode(b"/h/\xff\x1b[2J\n"), "a name")
        files.mkdir("/h/" + "/".join(["d" * 200] * 19), parents=True)
        files.remove("/var/lib/x")
        snapshot = sandbox.snapshot()
    moved = snapshot.export(tmp_path / "out.tar")
    assert moved.skipped == ()
    with tarfile.open(tmp_path / "out.tar") as archive:
        manifest = json.load(archive.extractfile("manifest.json"))  # type: ignore[arg-type]
        with tarfile.open(fileobj=archive.extractfile(manifest[0]["Layers"][0])) as layer:
            names = {one.name: one for one in layer}
    assert (names["h/link"].linkname, names["h/root"].linkname) == ("/etc/shadow", "/")
    assert not [name for name in names if name.startswith("h/root/") or "skerry" in name]
    assert os.fsdecode(b"h/\xff\x1b[2J\n") in names
    back = Snapshot.import_(tmp_path / "out.tar", server=client)
    assert snapshot.changes(back).changes == ()
    for one in (back, snapshot, begin):
        one.delete()
