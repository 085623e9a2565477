"""A sandbox and its disk: accounting, errors on a full disk, and a host with a full disk."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.server import Server, wait_until

from skerry import Limits, Sandbox, Volume
from skerry.errors import Conflict, QuotaExceeded
from skerry.storage import ImageStore, LayerStore, image_digest
from skerry.types import ImageInfo

MiB = 1 << 20


def write(sandbox: Sandbox, name: str, mib: int) -> str:
    """Return the error, if any."""
    return sandbox.run(["dd", "if=/dev/zero", f"of={name}", "bs=1M", f"count={mib}", "conv=fsync"]).stderr


def test_files_held_only_by_a_snapshot_do_not_count_towards_the_limit(server: Server) -> None:
    with Sandbox(server=server.address, limits=Limits(disk="100M")) as sandbox:
        assert "copied" in write(sandbox, "first", 80)
        snapshot = sandbox.snapshot("disk-counted")
        sandbox.run("rm first", check=True)
        assert "copied, " in write(sandbox, "second", 80)
        wait_until(lambda: "quota" in write(sandbox, "third", 40), "the disk is full")
        assert sandbox.run("echo usable; cat /etc/hostname").ok
        sandbox.run("rm second third", check=True)
        wait_until(lambda: "quota" not in write(sandbox, "third", 40), "there is room after deleting")
        with Sandbox(snapshot, server=server.address, limits=Limits(disk="20M")) as other:
            assert other.run("stat -c %s first").stdout == f"{80 * MiB}\n"
            assert "quota" not in write(other, "own", 10), "what it inherited does not count"
            assert "quota" in write(other, "own", 40)
        snapshot.delete()


def test_hundred_thousand_files_fit_by_default(server: Server) -> None:
    many = "import os\nfor a in range(100):\n os.mkdir(str(a))\n for b in range(1000): os.mknod(f'{a}/{b}')"
    with Sandbox(server=server.address) as sandbox:
        sandbox.run(["python3", "-c", f"import os; os.mkdir('many'); os.chdir('many')\n{many}"], check=True)
        assert sandbox.run("find many -type f | wc -l").stdout == "100000\n"


def test_image_with_a_damaged_layer_is_not_used(server: Server) -> None:
    tree = server.state_dir / "damaged-tree"
    tree.mkdir()
    (tree / "file").write_text("as it should be")
    layers = LayerStore(server.state_dir / "layers")
    images = ImageStore(server.state_dir / "images", layers)
    stack = (layers.add_directory(tree), *images.get("base").layers)
    digest = image_digest(stack, {}, "root", "/")
    images.put(ImageInfo(name="damaged", digest=digest, layers=stack, size=1, created_at=0))
    with Sandbox("damaged", server=server.address) as sandbox:
        assert sandbox.run("cat /file").stdout == "as it should be"
    (layers.path(stack[0]) / "file").write_text("as it is")
    assert not layers.verify(stack[0])
    with pytest.raises(Conflict, match=stack[0]):
        Sandbox("damaged", server=server.address).start()
    images.remove("damaged")


def test_snapshots_forks_and_rollback_work_with_copying_storage(own_server: Server) -> None:
    own_server.start(SKERRY_STORAGE_DRIVER="loop")
    with Sandbox(server=own_server.address, limits=Limits(disk="64M")) as sandbox:
        sandbox.run("echo first > file; sudo rm /etc/issue", check=True)
        snapshot = sandbox.snapshot()
        sandbox.run("echo second > file", check=True)
        with sandbox.fork(1)[0] as fork:
            assert fork.run("cat file; ls /etc/issue").stdout == "second\n"
        sandbox.rollback(snapshot)
        assert sandbox.run("cat file; ls /etc/issue").stdout == "first\n"
        with Sandbox(snapshot, server=own_server.address) as other:
            assert other.run("cat file; ls /etc/issue").stdout == "first\n"
    snapshot.delete()
    volume = Volume.create("data", "64M", server=own_server.address)
    with Sandbox(server=own_server.address, limits=Limits(disk="64M"), volumes={"/data": volume}) as sandbox:
        sandbox.run("echo kept > /data/note", check=True)
        with pytest.raises(Conflict, match="stop the sandbox first"):
            volume.clone("half")
        assert "No space" in sandbox.run("dd if=/dev/zero of=/data/big bs=1M count=80; rm /data/big").stderr
        sandbox.stop()
        copy = volume.clone("copy")
    with Sandbox(server=own_server.address, limits=Limits(disk="64M"), volumes={"/data": copy}) as sandbox:
        assert sandbox.run("cat /data/note").stdout == "kept\n"
    for one in (volume, copy):
        one.delete()


@pytest.fixture
def small_host(make_state: Callable[[], Path], tmp_path: Path) -> Iterator[Server]:
    """A server on a host disk of 600 MiB; its image is stored elsewhere."""
    lent = make_state()
    disk, mounted = tmp_path / "disk", tmp_path / "host"
    state = mounted / "state"
    mounted.mkdir()
    disk.touch()
    os.truncate(disk, 600 * MiB)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(disk)], check=True)
    subprocess.run(["mount", "-o", "loop", str(disk), str(mounted)], check=True)
    for part in ("layers", "images"):
        (state / part).mkdir(parents=True, mode=0o700)
        subprocess.run(["mount", "--bind", str(lent / part), str(state / part)], check=True)
    server = Server(state)
    server.log = tmp_path / "log"
    yield server
    (mounted / "hog").unlink(missing_ok=True)
    server.remove_all()
    server.end()
    left = server.leftovers()
    for part in ("layers", "images", ".."):  # lazily: another test's mount namespace may have a copy
        subprocess.run(["umount", "--lazy", str(state / part)], check=True)
    Server(lent).retire()
    assert left == []


def take_all(host: Path) -> Path:
    file = host / "hog"
    with open(file, "wb") as hog:
        for step in (16 * MiB, MiB, 4096):
            take_steps(hog.fileno(), step)
    return file


def take_steps(fd: int, step: int) -> None:
    for offset in itertools.count(os.fstat(fd).st_size, step):
        try:
            os.posix_fallocate(fd, offset, step)
        except OSError:
            return


def test_sandboxes_survive_a_full_host_disk_and_deleting_helps(small_host: Server) -> None:
    server = small_host.start(SKERRY_STORAGE_MIN_FREE_SPACE="64M")
    busy, quiet = (Sandbox(server=server.address).start() for _ in range(2))
    quiet.files.write("kept", "as it was")
    hog = take_all(server.state_dir.parent)

    with pytest.raises(QuotaExceeded, match="reserve"):
        Sandbox(server=server.address).start()
    assert "No space left" in write(busy, "all", 700)
    assert busy.run("echo usable").stdout == "usable\n"
    assert quiet.run("cat kept").stdout == "as it was"
    for number in range(50):  # running processes are still recorded
        assert quiet.run(f"exit {number}").exit_code == number
    with contextlib.suppress(QuotaExceeded):  # complete or absent; and no call hangs
        quiet.snapshot("on-a-full-disk")
    assert quiet.run("cat kept").stdout == "as it was"
    server.end()
    server.start(SKERRY_STORAGE_MIN_FREE_SPACE="64M")
    assert quiet.run("cat kept").stdout == "as it was", "a server can begin on a full disk"
    busy.delete()
    wait_until(lambda: "No space" not in write(quiet, "more", 32), "there is room where the deleted one was")
    assert os.statvfs(server.state_dir).f_bavail < 16, "and the host's disk was full all the time"

    hog.unlink()
    with Sandbox(server=server.address) as another:
        assert another.run("echo made").stdout == "made\n"
    with server.http() as http:
        assert http.get(f"/v1/usage?sandbox={busy.id}").json()["total"]["cpu_s"] > 0, "kept until there was room"
    quiet.delete()
