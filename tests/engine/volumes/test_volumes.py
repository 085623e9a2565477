"""Volumes: shared by sandboxes, outliving them, bounded, and no way out of one."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from support.server import Server, wait_until

from skerry import Client, Sandbox, Volume
from skerry.engine import faults
from skerry.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded, SandboxUnavailable, SkerryError

OPERATORS = """
[volumes]
size = "64M"
[max]
volume_size = "1G"
[mounts.datasets]
path = "{0}/datasets"
[mounts.work]
path = "{0}/work"
read_only = false
[mounts.of-root]
path = "{0}"
read_only = false
[mounts.linked]
path = "{0}/link/datasets"
[mounts.vanishing]
path = "{0}/vanishing"
"""
MiB = 1 << 20
HOST_USER = 4321


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories that the operator lists."""
    made = tmp_path_factory.mktemp("host")
    for name in ("datasets", "work", "vanishing"):
        (made / name).mkdir()
    (made / "link").symlink_to(made)
    (made / "datasets" / "note").write_text("from the host\n")
    (made / "work" / "of-root").write_text("")
    os.chown(made / "work", HOST_USER, HOST_USER)
    return made


@pytest.fixture(scope="module")
def server(make_server: Callable[[], Server], host: Path) -> Iterator[Server]:
    """Start a server with an operator's file."""
    settings = host / "config.toml"
    settings.write_text(OPERATORS.format(host))
    made = make_server().start(SKERRY_CONFIG=str(settings))
    yield made
    made.retire()


@pytest.fixture
def volume(client: Client) -> Iterator[Volume]:
    made = client.volumes.create("data")
    yield made
    for sandbox in Sandbox.list(server=client):
        sandbox.delete()
    made.delete()


def out(sandbox: Sandbox, line: str) -> str:
    done = sandbox.run(line)
    return done.stdout + done.stderr


def options(sandbox: Sandbox, path: str) -> set[str]:
    """Return the options of the mount on a path, as the sandbox sees it, or nothing."""
    return set(sandbox.run(["findmnt", "-no", "OPTIONS", path]).stdout.strip().split(",")) - {""}


def test_volume_is_shared_by_sandboxes_and_outlives_them(client: Client, volume: Volume) -> None:
    assert (volume.info.size, volume.info.kind, volume.info.sandboxes) == ("64M", "volume", ())
    with (
        Sandbox(volumes={"/data": "data"}, server=client) as one,
        Sandbox(volumes={"/mnt/deep/data": volume, "/again": volume.read_only}, server=client) as other,
    ):
        assert one.info().volumes == {"/data": "data"}
        assert other.info().volumes == {"/again": "data:ro", "/mnt/deep/data": "data"}
        one.run("echo first > /data/a; sudo sh -c 'echo root > /data/b; chown 33:44 /data/b'", check=True)
        assert (
            out(other, "stat -c '%n %u:%g' /mnt/deep/data/*") == "/mnt/deep/data/a 1000:1000\n/mnt/deep/data/b 33:44\n"
        )
        other.run("echo second >> /mnt/deep/data/a", check=True)
        assert "Read-only file system" in out(other, "touch /again/c; sudo touch /again/c")
        assert one.run("cat /data/a").stdout == "first\nsecond\n"
        one.spawn("flock /data/lock sh -c 'touch /data/locked; sleep 1000'")
        wait_until(lambda: one.files.exists("/data/locked"), "the lock to be taken")
        assert not other.run("flock -n /mnt/deep/data/lock true").ok, "a lock holds across sandboxes"
        assert set(client.volumes.get("data").info.sandboxes) == {one.id, other.id}
        with pytest.raises(Conflict, match="in use by sandbox"):
            volume.delete()
    with Sandbox(volumes={"/data": "data"}, server=client) as later:
        assert later.run("cat /data/a").stdout == "first\nsecond\n"


def test_mounts_survive_every_transition(client: Client, volume: Volume) -> None:
    kept = {"nosuid", "nodev", "idmapped"}
    with Sandbox(name="moving", volumes={"/data": "data", "/ro": "data:ro"}, server=client) as sandbox:
        sandbox.run("echo kept > /data/note", check=True)

        def check(found: Sandbox) -> None:
            assert found.run("cat /data/note /ro/note").stdout == "kept\nkept\n"
            assert kept | {"rw"} <= options(found, "/data")
            assert kept | {"ro"} <= options(found, "/ro")

        check(sandbox)
        sandbox.pause()
        sandbox.resume()
        check(sandbox)
        sandbox.stop()
        check(sandbox)  # resumed by the call
        fork = sandbox.fork(1)[0]
        check(fork)
        fork.delete()
        snapshot = sandbox.snapshot()
        sandbox.run("echo changed > /data/note; echo lost > /workspace/note", check=True)
        sandbox.rollback(snapshot)
        assert out(sandbox, "cat /data/note; ls /workspace") == "changed\n"
        sandbox.delete()
        snapshot.delete()


def test_program_with_setuid_and_devices_in_a_volume_gain_nothing(client: Client, volume: Volume) -> None:
    with Sandbox(volumes={"/data": "data"}, server=client) as one:
        one.run("sudo cp /usr/bin/id /data/id; sudo chmod 6755 /data/id; sudo mkfifo /data/pipe", check=True)
        assert "not permitted" in out(one, "sudo mknod /data/disk b 7 0; sudo mknod /data/null c 1 3")
        one.run("sudo mount -o remount,suid,dev /data; sudo umount /data")
        assert {"nosuid", "nodev"} <= options(one, "/data")
    with Sandbox(volumes={"/data": "data"}, server=client) as other:
        assert out(other, "/data/id -u; stat -c %A /data/id") == "1000\n-rwsr-sr-x\n"


# A volume is the only btrfs file system that a sandbox sees: its roots are overlays. Any user may make subvolumes.
IOCTLS = """
import ctypes, fcntl, json, os, struct
def call(command, data):
    try:
        fcntl.ioctl(fd, command, bytearray(data))
    except OSError as error:
        return error.errno
    return 0
fd = os.open("/data", os.O_RDONLY)
name = lambda text: struct.pack("=qQQ32x", 0, 0, 0) + text.ljust(4040, b"\\0")
plain = struct.pack("=q", 0) + b"sub".ljust(4088, b"\\0")
snap = struct.pack("=qQQ32x", fd, 0, 0) + b"snap".ljust(4040, b"\\0")
found = {
    "create": call(0x5000940E, plain), "create_v2": call(0x50009418, name(b"sub")), "snapshot": call(0x50009417, snap),
    "sync": call(0x9408, b""), "flags": call(0x4008941A, struct.pack("=Q", 2)), "defrag": call(0x50009402, plain),
    "info": call(0x8400941F, bytearray(1024)), "subvolume": call(0x81F8943C, bytearray(504)),
    "quota": call(0x8030942B, bytearray(48)), "destroy": call(0x5000940F, plain),
}
libc = ctypes.CDLL(None, use_errno=True)  # the kernel ignores the upper half of a command
libc.syscall(16 if os.uname().machine == "x86_64" else 29, fd, ctypes.c_ulong(0x1_50009418), name(b"sub"))
found["upper_bits"] = ctypes.get_errno()
with open("/data/source", "wb") as file:
    file.write(b"x" * 8192)
with open("/data/source", "rb") as source, open("/data/copy", "wb") as copy:
    fcntl.ioctl(copy.fileno(), 0x40049409, source.fileno())
found["copied"] = os.path.getsize("/data/copy")
found["names"] = sorted(os.listdir("/data"))
print(json.dumps(found))
"""


def test_commands_of_the_file_system_are_denied(client: Client, volume: Volume) -> None:
    with Sandbox(volumes={"/data": "data"}, server=client) as sandbox:
        for sudo in ([], ["sudo"]):
            done = sandbox.run([*sudo, "python3", "-c", IOCTLS], check=True)
            found = json.loads(done.stdout)
            assert found.pop("copied") == 8192
            assert found.pop("names") == ["copy", "source"]
            assert set(found.values()) == {errno.ENOSYS}


def test_full_volume_refuses_writes_and_the_sandbox_goes_on(client: Client, volume: Volume) -> None:
    with Sandbox(volumes={"/data": "data"}, server=client) as sandbox:
        assert "quota" in out(sandbox, "dd if=/dev/zero of=/data/big bs=1M count=80 conv=fsync").lower()
        assert sandbox.run("echo usable > /workspace/note && cat /workspace/note").stdout == "usable\n"
        wait_until(lambda: (client.volumes.get("data").info.used or 0) > 48 * MiB, "the use to be measured")
        sandbox.run("rm /data/big", check=True)
        wait_until(lambda: sandbox.run("echo more > /data/more").ok, "there is room after deleting")


def test_link_in_place_of_the_mount_point_is_not_followed(client: Client, volume: Volume) -> None:
    with Sandbox(server=client) as sandbox:
        sandbox.run("sudo ln -s /etc /data; sudo mkdir /real; sudo ln -s /real /parent; sudo touch /file", check=True)
        sandbox.run("sudo ln -s /proc/self/root/etc /magic", check=True)
        snapshot = sandbox.snapshot()
    for path in ("/data", "/data/ssl", "/parent/data", "/file", "/file/data", "/magic", "/magic/ssl"):
        with pytest.raises(InvalidRequest, match="not a real directory"):
            Sandbox(image=snapshot, volumes={path: "data"}, server=client).start()
    snapshot.delete()
    with Sandbox(name="moved", volumes={"/srv/a/data": "data"}, server=client) as sandbox:
        assert "busy" in out(sandbox, "sudo rmdir /srv/a/data; sudo mv /srv/a/data /srv/x").lower()
        sandbox.run("sudo mv /srv/a /srv/b; sudo ln -s /etc /srv/a", check=True)
        sandbox.stop()
        with pytest.raises(SandboxUnavailable, match="not a real directory"):
            sandbox.run("true")
        sandbox.delete()
    assert Sandbox.list(server=client) == []


@pytest.mark.parametrize(
    ("volumes", "error"),
    [
        ({"/data": "../etc"}, "not the name of a volume"), ({"/data": "/etc"}, "not the name of a volume"),
        ({"/data": "a/b"}, "not the name of a volume"), ({"/data": ""}, "not the name of a volume"),
        ({"/data": "@/etc"}, "not the name of a volume"), ({"/data": "data:rw"}, "not the name of a volume"),
        ({"data": "data"}, "not an absolute path"), ({"/data/": "data"}, "not an absolute path"),
        ({"/a/../data": "data"}, "not an absolute path"), ({"//data": "data"}, "not an absolute path"),
        ({"/a": "data", "/a/b": "data"}, "is inside /a"), ({"/": "data"}, "reserved"), ({"/etc": "data"}, "reserved"),
        ({"/proc/x": "data"}, "reserved"), ({"/run/skerry/bin": "data"}, "reserved"),
        ({"/var/lib": "data"}, "reserved"),
        ({"/var/lib/skerry/x": "data"}, "reserved"), ({"/usr": "data"}, "reserved"), ({"/dev/shm": "data"}, "reserved"),
        ({f"/{n}": "data" for n in range(17)}, "more than 16"), ({"/a\n/b": "data"}, "not allowed"),
    ],
)  # fmt: skip
def test_malformed_mounts_are_refused(http: httpx2.Client, volumes: dict[str, str], error: str) -> None:
    answer = http.post("/v1/sandboxes", json={"volumes": volumes})
    assert answer.status_code == 400
    assert error in answer.json()["error"]["message"]


def test_requests_for_volumes_are_checked(client: Client, volume: Volume) -> None:
    for name in ("a/b", "../x", "", "-", "A", "x" * 64, "vl-aaaaaaaaaa"):
        with pytest.raises(InvalidRequest):
            client.volumes.create(name)
    for missing in ("nothing", "vl-aaaaaaaaaa"):
        with pytest.raises(NotFound):
            client.volumes.get(missing)
        with pytest.raises(NotFound, match=r"skerry volume create|not found"):
            Sandbox(volumes={"/data": missing}, server=client).start()
    with pytest.raises(NotFound, match="@nothing"):
        Sandbox(volumes={"/data": "@nothing"}, server=client).start()
    with pytest.raises(Conflict, match="already exists"):
        client.volumes.create("data")
    with pytest.raises(QuotaExceeded, match="1G"):
        client.volumes.create("large", "2G")
    with pytest.raises(InvalidRequest, match="too little"):
        client.volumes.create("small", 1000)


def test_snapshot_never_changes_and_a_clone_is_separate(client: Client, volume: Volume) -> None:
    with Sandbox(volumes={"/data": "data"}, server=client) as sandbox:
        sandbox.run("mkdir -p /data/var/lib/skerry; echo one | tee /data/note /data/var/lib/skerry/own", check=True)
        kept = volume.snapshot("kept")
        sandbox.run("echo two > /data/note", check=True)
        copy = kept.clone("copy", "32M")
        now = volume.clone("now")
    assert (kept.info.kind, kept.info.source, copy.info.size) == ("snapshot", volume.id, "32M")
    mounts: dict[str, str | Volume] = {"/kept": "kept", "/copy": copy, "/now": now}
    with Sandbox(volumes=mounts, server=client) as other:
        assert other.info().volumes["/kept"] == "kept:ro"
        assert out(other, "cat /kept/note /copy/note /now/note /copy/var/lib/skerry/own") == "one\none\ntwo\none\n"
        assert "Read-only" in out(other, "sudo touch /kept/more")
        other.run("echo three > /copy/note", check=True)
        assert other.run("cat /kept/note").stdout == "one\n"
        assert "quota" in out(other, "dd if=/dev/zero of=/copy/big bs=1M count=48 conv=fsync").lower()
    kept.delete()
    with Sandbox(volumes={"/copy": copy}, server=client) as other:
        assert other.run("cat /copy/note").stdout == "three\n"
    for one in (copy, now):
        one.delete()


def test_archive_of_a_volume_restores_it(client: Client, volume: Volume, tmp_path: Path) -> None:
    with Sandbox(volumes={"/data": "data"}, server=client) as sandbox:
        sandbox.run(
            "cd /data; mkdir -p a/var; echo x > a/file; ln a/file hard; ln -s /etc/passwd link; mkfifo pipe;"
            " truncate -s 1M hole; sudo cp /usr/bin/id id; sudo chmod 4755 id; sudo chown 33:44 a; chmod 700 ."
            " ; mkdir -p var/lib/skerry; echo kept > var/lib/skerry/note",
            check=True,
        )
        done = volume.export(tmp_path / "data.tar.gz")
        listing = out(sandbox, "cd /data; sudo find . -printf '%p %M %U:%G %s %l\\n' | sort")
        assert done.skipped == ()
        again = client.volumes.import_(tmp_path / "data.tar.gz", "again")
    with Sandbox(volumes={"/data": again}, server=client) as other:
        found = out(other, "cd /data; sudo find . -printf '%p %M %U:%G %s %l\\n' | sort")
        assert sizes_of_directories_aside(found) == sizes_of_directories_aside(listing)
        assert (
            out(other, "cat /data/var/lib/skerry/note; ls -i /data/a/file /data/hard | cut -d' ' -f1 | uniq | wc -l")
            == "kept\n1\n"
        )
    again.delete()


def sizes_of_directories_aside(listing: str) -> list[list[str]]:
    rows = [line.split(" ") for line in listing.splitlines()]
    return [row[:3] if row[1].startswith("d") else row for row in rows]


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    file.seek(0)
    return file


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


def file(name: str, content: bytes = b"evil") -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(name), content


def test_hostile_archive_stays_in_its_volume(client: Client, server: Server, tmp_path: Path) -> None:
    bait = tmp_path / "bait"
    bait.mkdir()
    attacks = (
        archive(file("../escaped")), archive(link("out", str(bait)), file("out/escaped")),
        archive(link("hard", "../../../../etc/passwd", tarfile.LNKTYPE)), io.BytesIO(b"not an archive"),
        archive(file("big", bytes(3 * MiB))),
    )  # fmt: skip
    full: list[bool] = []
    for number, attack in enumerate(attacks):
        try:
            client.volumes.import_(attack, f"attack-{number}", "2M").delete()
        except SkerryError as error:
            full.append(isinstance(error, QuotaExceeded))
    assert full[-2:] == [False, True]
    assert list(bait.iterdir()) == []
    assert not list((server.state_dir / "pool" / "u").rglob("escaped"))
    assert client.volumes.list() == []
    assert not [name for name in os.listdir(server.state_dir / "pool" / "u") if name.startswith("vl-")]


def test_listed_directory_of_the_host_is_read_only(client: Client, host: Path) -> None:
    datasets = host / "datasets"
    with Sandbox(volumes={"/data": "@datasets"}, server=client) as sandbox:
        assert sandbox.info().volumes == {"/data": "@datasets:ro"}
        assert sandbox.run("cat /data/note").stdout == "from the host\n"
        assert "Read-only" in out(sandbox, "sudo touch /data/more; sudo chmod 777 /data")
        assert {"ro", "nosuid", "nodev", "idmapped"} <= options(sandbox, "/data")
        subprocess.run(["mount", "-t", "tmpfs", "skerry-test", str(datasets)], check=True)
        try:
            (datasets / "late").touch()
            assert sandbox.run("ls /data").stdout == "note\n", "later mounts of the host do not appear"
        finally:
            subprocess.run(["umount", str(datasets)], check=True)


def test_writable_directory_of_the_host_has_one_user(client: Client, host: Path) -> None:
    """With the IDs of the image, root inside could make programs that run as the host's root."""
    work = host / "work"
    with Sandbox(volumes={"/work": "@work", "/ro": "@work:ro"}, server=client) as sandbox:
        sandbox.run("echo made > /work/file; chmod 4755 /work/file", check=True)
        assert (work / "file").stat().st_uid == (work / "file").stat().st_gid == HOST_USER
        assert sandbox.run("stat -c %u:%g /work/file /work/of-root").stdout == "1000:1000\n65534:65534\n"
        sandbox.run("sudo touch /work/evil; sudo cp /bin/id /work/evil; sudo chown 0:0 /work/file")
        sandbox.run("sudo chmod 4777 /work/of-root; sudo sh -c 'echo evil > /work/of-root'")
        assert sorted(os.listdir(work)) == ["file", "of-root"]
        assert (work / "file").stat().st_uid == HOST_USER
        assert ((work / "of-root").read_text(), (work / "of-root").stat().st_mode & 0o7777) == ("", 0o644)
        assert "Read-only" in out(sandbox, "touch /ro/more")


def test_directory_of_the_host_that_cannot_be_mounted_is_refused(client: Client, host: Path) -> None:
    for name, error in (("of-root", "belongs to root"), ("linked", "not available")):
        with pytest.raises(SandboxUnavailable, match=error):
            Sandbox(volumes={"/data": f"@{name}"}, server=client).start()
    with Sandbox(name="waiting", volumes={"/data": "@vanishing"}, server=client) as sandbox:
        sandbox.stop()
        (host / "vanishing").rename(host / "gone")
        with pytest.raises(SandboxUnavailable, match="not available"):
            sandbox.run("true")
        (host / "gone").rename(host / "vanishing")
        assert sandbox.run("ls /data").ok
        sandbox.delete()


def test_killed_server_leaves_each_volume_complete_or_absent(own_server: Server) -> None:
    """The server is killed after each step; then its database is lost."""
    server = own_server.start()
    client = Client(server.address)
    client.volumes.create("kept", "64M")
    with Sandbox(volumes={"/data": "kept"}, server=client) as sandbox:
        sandbox.run("echo kept > /data/note", check=True)
    live = Sandbox.create(name="live", volumes={"/data": "kept"}, server=client)
    live.spawn("exec 3>>/data/log; while sleep 0.01; do echo more >&3; done")
    for point in faults.VOLUME:
        server.end()
        server.start(SKERRY_FAULT=point)
        with server.http() as http, pytest.raises(httpx2.TransportError):
            clone_and_delete(http)
        assert server.process is not None
        assert server.process.wait(30) == -9, point
        server.start()
        check_volumes(server, client, {"kept", "copy"} if point == "volume.record" else {"kept"})
        for one in client.volumes.list():
            if one.name == "copy":
                one.delete()

    assert live.run("cat /data/note").stdout == "kept\n", "it was running all the time"
    rows = server.sql("SELECT id, body FROM volumes")
    wait_until(lambda: recorded(server, rows[0][0]), "the record file to be written")
    server.end()
    for file in server.state_dir.glob("state.db*"):
        file.unlink()
    server.start()
    check_volumes(server, client, {"kept"})
    assert live.run("cat /data/note").stdout == "kept\n"
    live.delete()


def clone_and_delete(http: httpx2.Client) -> None:
    http.post("/v1/volumes/kept/clone", json={"name": "copy"}).raise_for_status()
    http.delete("/v1/volumes/copy").raise_for_status()


def recorded(server: Server, volume: str) -> bool:
    return (server.state_dir / "pool" / "r" / f"{volume}.json").exists()


def check_volumes(server: Server, client: Client, names: set[str]) -> None:
    """Rows and data are the same volumes."""
    there = client.volumes.list()
    assert {one.name for one in there} == names
    data = {name for name in os.listdir(server.state_dir / "pool" / "u") if name.startswith("vl-")}
    assert data == {one.id for one in there}


def test_sandbox_that_could_write_does_not_start_during_a_copy_of_files(make_server: Callable[[], Server]) -> None:
    """With the driver `loop`, the files are copied one by one: later writes would be in half of a copy."""
    server = make_server().start(SKERRY_STORAGE_DRIVER="loop")
    with Client(server.address) as client, server.http() as http:
        volume = client.volumes.create("copied", "64M")
        with Sandbox(name="writer", volumes={"/data": volume}, server=client) as sandbox:
            sandbox.run("head -c 30M /dev/urandom > /data/large", check=True)
            with pytest.raises(Conflict, match="can't be copied while sandbox writer"):
                volume.clone("early")
            sandbox.stop()
            with http.stream("GET", "/v1/volumes/copied/export") as copying:
                assert copying.status_code == 200, "the copy waits for its reader"
                with pytest.raises(Conflict, match="is being copied"):
                    sandbox.run("true")
                with pytest.raises(Conflict, match="is being copied"):
                    Sandbox(volumes={"/data": volume}, server=client).start()
                with Sandbox(volumes={"/data": "copied:ro"}, server=client) as reader:
                    assert reader.run("ls /data").stdout == "large\n"
            wait_until(lambda: starts(sandbox), "the end of the copy")
    server.retire()


def starts(sandbox: Sandbox) -> bool:
    try:
        return sandbox.run("true").ok
    except Conflict:
        return False
