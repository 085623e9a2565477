"""Buckets of object storage in sandboxes, with rclone and a server on the loopback interface."""

from __future__ import annotations

import contextlib
import http.server
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.debian_programs import program
from support.s3 import KEYS, S3Server, SignedBucket
from support.server import Server, wait_until

from skerry import Bucket, Client, InvalidRequest, NotFound, Process, Sandbox, SandboxUnavailable, Secret

SECRETS = [Secret("S3", hosts=["s3.example.com"], value=KEYS)]
DATA = Bucket("s3://data", endpoint="local", secret="S3")


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    made = S3Server(tmp_path_factory.mktemp("s3") / "log")
    made.put("/data")
    # Without versions, moto answers 400 to the version `null`, which it gives to uploads in parts itself.
    made.put("/data?versioning", b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>")
    made.put("/data/a.txt", b"from outside\n")
    made.put("/data/deep/b.txt", b"deep\n")
    yield made
    made.close()


@pytest.fixture(scope="module")
def silent() -> Iterator[int]:
    """The port of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture(scope="module")
def signed() -> Iterator[int]:
    """The port of a server that checks signatures."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), SignedBucket) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found.server_port
        found.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def operator(storage: S3Server, silent: int, signed: int, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a server that knows three servers of object storage."""
    settings = tmp_path_factory.mktemp("operator") / "config.toml"
    settings.write_text(
        f'[buckets.local]\nurl = "{storage.url}"\ntimeout = "3s"\n'
        f'[buckets.silent]\nurl = "http://127.0.0.1:{silent}"\ntimeout = "1s"\n'
        f'[buckets.signed]\nurl = "http://127.0.0.1:{signed}"\ntimeout = "3s"\n'
    )
    return {"SKERRY_CONFIG": str(settings), "PATH": f"{Path(program('rclone')).parent}:{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def server(make_server: Callable[[], Server], operator: dict[str, str]) -> Iterator[Server]:
    made = make_server().start(**operator)
    yield made
    made.retire()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client


@pytest.fixture(scope="module")
def sandbox(client: Client) -> Iterator[Sandbox]:
    with Sandbox(volumes={"/data": DATA}, secrets=SECRETS, server=client) as sandbox:
        yield sandbox


def daemons(verb: bytes = b"mount2") -> list[int]:
    """The processes of rclone on this host that serve a mount."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"rclone") and verb in words:
            found.append(int(entry))
    return found


def test_objects_are_files_in_both_directions(sandbox: Sandbox, storage: S3Server) -> None:
    assert sandbox.info().volumes == {"/data": "s3://data?endpoint=local&secret=S3"}
    assert sandbox.run("cat /data/a.txt /data/deep/b.txt").stdout == "from outside\ndeep\n"
    assert sandbox.run("stat -c '%u:%g %a' /data/a.txt").stdout == "1000:1000 644\n"
    sandbox.run("echo inside > /data/c.txt; sudo cp /data/c.txt /data/deep/root.txt; rm /data/a.txt", check=True)
    assert storage.get("/data/c.txt") == storage.get("/data/deep/root.txt") == b"inside\n"
    assert b"NoSuchKey" in storage.get("/data/a.txt")
    storage.put("/data/a.txt", b"from outside\n")
    size = 12 << 20
    sandbox.run(f"head -c {size} /dev/urandom > /tmp/large && cp /tmp/large /data/large", check=True)
    assert sandbox.run("cmp /tmp/large /data/large").ok
    assert len(storage.get("/data/large")) == size


def test_credentials_are_not_inside(sandbox: Sandbox) -> None:
    seen = sandbox.run("env; cat /proc/*/environ /proc/mounts; ps aux", user="root").stdout
    assert all(part not in seen for part in KEYS.split(":"))
    assert "rclone" not in seen
    (daemon,) = daemons()
    status = Path(f"/proc/{daemon}/status").read_text()
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert sandbox.id in Path(f"/proc/{daemon}/cgroup").read_text()
    assert all(part.encode() not in Path(f"/proc/{daemon}/cmdline").read_bytes() for part in KEYS.split(":"))


def test_prefix_and_read_only_limit_the_access(client: Client) -> None:
    bucket = Bucket("s3://data", prefix="deep", endpoint="local", secret="S3", read_only=True)
    with Sandbox(volumes={"/deep": bucket}, secrets=SECRETS, server=client) as sandbox:
        assert sandbox.run("cat /deep/b.txt; ls -a /deep/..").stdout.startswith("deep\n")
        assert "a.txt" not in sandbox.run("find /deep").stdout
        denied = sandbox.run("sudo touch /deep/x")
        assert "Read-only file system" in denied.stdout + denied.stderr
        options = set(sandbox.run(["findmnt", "-no", "OPTIONS", "/deep"]).stdout.strip().split(","))
        assert {"ro", "nosuid", "nodev"} <= options


def test_bucket_survives_a_stop_and_the_server(server: Server, client: Client, operator: dict[str, str]) -> None:
    with Sandbox(name="bucket-user", volumes={"/data": DATA}, secrets=SECRETS, server=client) as sandbox:
        sandbox.stop()
        wait_until(lambda: len(daemons()) <= 1, "its process to end")  # another sandbox of this module may have one
        assert sandbox.run("cat /data/deep/b.txt").stdout == "deep\n"
        server.end(signal.SIGKILL)
        server.start(**operator)
        assert sandbox.run("cat /data/deep/b.txt").stdout == "deep\n"
        (fork,) = sandbox.fork(1)
        assert fork.run("cat /data/deep/b.txt").stdout == "deep\n"
        fork.delete()
        sandbox.delete()


def test_silent_server_fails_reads_and_nothing_else(sandbox: Sandbox, storage: S3Server) -> None:
    storage.stop()
    try:
        reading = sandbox.spawn("cat /data/deep/b.txt")
        assert sandbox.run("echo fine").stdout == "fine\n"
        assert not reading.wait(timeout=90).ok
    finally:
        storage.go_on()
    wait_until(lambda: sandbox.run("cat /data/deep/b.txt").stdout == "deep\n", "the bucket to answer again")


def waits(sandbox: Sandbox) -> bool:
    """Return whether a program of the sandbox waits for the process of its bucket."""
    for place in Path("/proc").glob("[0-9]*/cgroup"):
        with contextlib.suppress(OSError):
            if sandbox.id in place.read_text() and "wait_answer" in place.with_name("wchan").read_text():
                return True
    return False


@contextlib.contextmanager
def hanging(client: Client, storage: S3Server, command: str) -> Iterator[tuple[Sandbox, Process]]:
    """A sandbox with a program that waits for the silent server."""
    with Sandbox(volumes={"/data": DATA}, secrets=SECRETS, server=client) as sandbox:
        storage.stop()
        try:
            program = sandbox.spawn(command)
            wait_until(lambda: waits(sandbox), "the program to wait for the bucket")
            yield sandbox, program
        finally:
            storage.go_on()


def test_silent_server_fails_writes_and_other_sandboxes_work(client: Client, storage: S3Server) -> None:
    volume = client.volumes.create("other", "64M")
    with (
        Sandbox(volumes={"/data": volume}, server=client) as other,
        hanging(client, storage, "echo x > /data/unwritten") as (_, writing),
    ):
        assert other.run("echo fine > /data/note; cat /data/note").stdout == "fine\n"
        with Sandbox(volumes={"/data": volume}, server=client) as new:
            assert new.run("cat /data/note").stdout == "fine\n"
        assert not writing.wait(timeout=90).ok
    volume.delete()


def test_sandbox_that_waits_for_a_silent_server_can_be_paused_copied_and_stopped(
    client: Client, storage: S3Server
) -> None:
    with hanging(client, storage, "cat /data/deep/b.txt") as (sandbox, _):
        sandbox.pause()
        sandbox.resume()
        sandbox.snapshot().delete()
        with pytest.raises(SandboxUnavailable, match="can't be listed"):  # its start lists the bucket
            sandbox.fork(1)
        assert sandbox.run("echo fine").stdout == "fine\n"
        sandbox.stop()
        assert sandbox.info().state == "stopped"
        with pytest.raises(SandboxUnavailable, match="can't be listed"):
            sandbox.run("true")
    with hanging(client, storage, "cat /data/deep/b.txt") as (sandbox, _):
        sandbox.delete()
        wait_until(lambda: len(daemons()) <= 1, "its process to end")  # another sandbox of this module may have one


@pytest.mark.parametrize(
    ("bucket", "words"),
    [
        (Bucket("s3://missing", endpoint="local", secret="S3"), "can't be listed"),
        (Bucket("s3://data", endpoint="silent", secret="S3"), "can't be listed"),
    ],
)
def test_bucket_that_cannot_be_listed_fails_the_create(client: Client, bucket: Bucket, words: str) -> None:
    before = daemons()
    with pytest.raises(SandboxUnavailable, match=words) as refused:
        Sandbox(volumes={"/data": bucket}, secrets=SECRETS, server=client).start()
    assert all(part not in str(refused.value) for part in KEYS.split(":"))
    assert daemons() == before


def test_requests_are_signed_with_the_key_of_the_secret(client: Client) -> None:
    bucket = Bucket("s3://data", endpoint="signed", secret="S3")
    with Sandbox(volumes={"/data": bucket}, secrets=SECRETS, server=client) as sandbox:
        assert sandbox.run("ls /data").stdout == ""
        sandbox.update(secrets=[Secret("S3", hosts=["s3.example.com"], value=f"{KEYS}-of-another")])
        sandbox.stop()
        with pytest.raises(SandboxUnavailable, match="can't be listed"):  # the new value counts from the next start
            sandbox.run("true")
    wrong = [Secret("S3", hosts=["s3.example.com"], value=f"{KEYS}-of-another")]
    with pytest.raises(SandboxUnavailable, match="can't be listed") as refused:
        Sandbox(volumes={"/data": bucket}, secrets=wrong, server=client).start()
    assert KEYS.partition(":")[2] not in str(refused.value)


def test_list_of_a_bucket_counts_towards_the_limits_of_its_sandbox(client: Client) -> None:
    """The names of millions of objects must not fill the memory of the host."""
    places: list[str] = []

    def listing() -> bool:
        for pid in daemons(b"lsf"):
            with contextlib.suppress(OSError):
                places.append(Path(f"/proc/{pid}/cgroup").read_text())
        return any("sb-" in place for place in places)

    bucket = Bucket("s3://data", endpoint="silent", secret="S3")
    with ThreadPoolExecutor(1) as pool:
        creating = pool.submit(Sandbox(volumes={"/data": bucket}, secrets=SECRETS, server=client).start)
        wait_until(listing, "the list to run in the cgroup of the sandbox")
        assert isinstance(creating.exception(60), SandboxUnavailable)
    assert daemons(b"lsf") == []


def test_unknown_servers_and_secrets_are_refused(client: Client) -> None:
    with pytest.raises(NotFound, match="server of bucket data"):
        Sandbox(volumes={"/data": Bucket("s3://data", endpoint="other")}, server=client).start()
    with pytest.raises(NotFound, match="server of bucket data"):
        Sandbox(volumes={"/data": "s3://data"}, server=client).start()  # there are several
    with pytest.raises(InvalidRequest, match="no secret S3"):
        Sandbox(volumes={"/data": DATA}, server=client).start()


@pytest.mark.parametrize(
    "url",
    [
        "s3://", "s3://UPPER", "s3://a..b", "s3://data/../other", "s3://data/a/./b", "s3://user:pw@data", "s3://data#x",
        "s3://data?endpoint=http://127.0.0.1:1", "s3://data?endpoint=a&endpoint=b", "s3://data?url=x", "s3://data?x",
        "s3://data?secret=A-B", "s3://data/\n", "s3://data/a:b", "s3://data,env_auth=true:",
    ],
)  # fmt: skip
def test_attack_url_of_a_bucket_sets_no_option_of_the_program(server: Server, url: str) -> None:
    with server.http() as http:
        answer = http.post("/v1/sandboxes", json={"volumes": {"/data": url}})
    assert answer.status_code == 400, answer.text


def test_processes_of_buckets_end_with_their_sandboxes(client: Client, sandbox: Sandbox) -> None:
    sandbox.delete()
    wait_until(lambda: daemons() == [], "the processes to end")
