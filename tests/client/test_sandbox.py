"""The SDK against a real server: streams both ways, interrupts, files, and the life of a sandbox."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
from support.server import Server, wait_until

from skerry import AsyncSandbox, Client, Lifecycle, Output, Sandbox
from skerry.errors import Conflict, InvalidRequest, NotFound

MIB = 1 << 20


def running(sandbox: Sandbox) -> list[str]:
    return [process.id for process in sandbox.processes.list() if process.state == "running"]


def test_stdin_of_every_kind_arrives_completely(sandbox: Sandbox) -> None:
    big = bytes(range(256)) * 4 * 1024 * 3
    for source, wanted in (
        ("é\n", "é\n".encode()),
        (b"\x00\xff", b"\x00\xff"),
        (b"", b""),
        (io.BytesIO(big), big),
        (io.StringIO("text"), b"text"),
        (iter([b"a", b"", b"b"]), b"ab"),
        (big, big),
    ):
        result = sandbox.run(["sha256sum"], stdin=source)  # type: ignore[arg-type]
        expected = sandbox.run(["sh", "-c", "cat > /tmp/w; sha256sum < /tmp/w"], stdin=wanted)
        assert result.stdout == expected.stdout


def test_output_and_input_flow_at_the_same_time(sandbox: Sandbox) -> None:
    """Each line is sent only after the one before came back: neither side may wait for the other's end."""
    came = threading.Semaphore(0)

    def source() -> Iterator[bytes]:
        for number in range(5):
            yield b"%d\n" % number
            assert came.acquire(timeout=30)

    def on_output(output: Output) -> None:
        for _ in range(output.data.count(b"\n")):
            came.release()

    assert sandbox.run(["cat"], stdin=source(), on_output=on_output, timeout=60).stdout == "0\n1\n2\n3\n4\n"


def test_command_may_leave_its_stdin_unread(sandbox: Sandbox) -> None:
    endless = iter(lambda: b"x" * 65536, None)
    result = sandbox.run(["head", "-c", "3"], stdin=endless, timeout=60)  # type: ignore[arg-type]
    assert (result.stdout, result.exit_code) == ("xxx", 0)


def test_failed_input_source_ends_the_command(sandbox: Sandbox) -> None:
    def source() -> Iterator[bytes]:
        yield b"half"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sandbox.run(["sh", "-c", "cat; sleep 600"], stdin=source(), timeout=None)
    wait_until(lambda: not running(sandbox), "the command to be gone")


def test_on_output_receives_everything_although_the_result_is_truncated(sandbox: Sandbox) -> None:
    seen: list[int] = []
    result = sandbox.run("head -c 10485760 /dev/zero", on_output=lambda output: seen.append(len(output.data)))
    assert sum(seen) == 10 * MIB
    assert result.truncated
    assert len(result.stdout_bytes) < MIB + 100
    assert "bytes left out here" in result.stdout


def test_exception_in_on_output_ends_the_command(sandbox: Sandbox) -> None:
    def on_output(_: Output) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sandbox.run("echo x; sleep 600", on_output=on_output, timeout=None)
    wait_until(lambda: not running(sandbox), "the command to be gone")


async def test_cancelled_run_ends_the_command_with_its_tree(server: Server) -> None:
    started = asyncio.Event()
    async with AsyncSandbox(server=server.address) as sandbox:
        line = "setsid sleep 4242 & echo on; sleep 600"
        task = asyncio.create_task(sandbox.run(line, on_output=lambda _: started.set(), timeout=None))
        await asyncio.wait_for(started.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(300):
            if not (await sandbox.run(["pgrep", "-f", "sleep 4242"])).ok:
                break
            await asyncio.sleep(0.05)
        else:
            pytest.fail("the tree outlived its command")


async def test_async_sources_and_callbacks_work(server: Server) -> None:
    seen: list[bytes] = []

    async def source() -> AsyncIterator[bytes]:
        yield b"a"
        await asyncio.sleep(0)
        yield b"b"

    async def on_output(output: Output) -> None:
        await asyncio.sleep(0)
        seen.append(output.data)

    async with AsyncSandbox(server=server.address) as sandbox:
        assert (await sandbox.run(["cat"], stdin=source(), on_output=on_output)).stdout == "ab"
        assert (await sandbox.run(["cat"], stdin=io.BytesIO(b"x" * MIB))).ok
        await sandbox.files.write("/workspace/a", source())
        assert await sandbox.files.read_bytes("/workspace/a") == b"ab"
    assert b"".join(seen[:2]) in (b"ab", b"abx")


async def test_concurrent_runs_share_one_sandbox(server: Server) -> None:
    async with AsyncSandbox(server=server.address) as sandbox:
        results = await asyncio.gather(*(sandbox.run(["echo", str(number)]) for number in range(20)))
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(20)]


async def test_cancelled_create_leaves_nothing(server: Server) -> None:
    for delay in (0.0, 0.005, 0.02, 0.05):
        task = asyncio.create_task(AsyncSandbox.create(server=server.address, labels={"test": "cancelled"}))
        await asyncio.sleep(delay)
        task.cancel()
        try:
            sandbox = await task
        except asyncio.CancelledError:
            continue
        await sandbox.delete()
    assert Sandbox.list(labels={"test": "cancelled"}, server=server.address) == []


def test_files_are_written_read_listed_and_removed(sandbox: Sandbox) -> None:
    files = sandbox.files
    info = files.write("/workspace/d/e/f.bin", iter([b"ab", b"cd"]), mode=0o600)
    assert (info.size, info.mode & 0o777, info.type) == (4, 0o600, "file")
    assert files.read_bytes("d/e/f.bin") == b"abcd"
    assert b"".join(files.stream("/workspace/d/e/f.bin")) == b"abcd"
    assert [entry.name for entry in files.list("/workspace/d")] == ["e"]
    assert files.exists("/workspace/d")
    assert not files.exists("/workspace/d/e/f.bin/x")
    files.mkdir("/workspace/new/deep")
    assert files.stat("/workspace/new/deep").type == "directory"
    with pytest.raises(FileNotFoundError):
        files.read_text("/workspace/none")
    with pytest.raises(IsADirectoryError):
        files.read_text("/workspace/d")
    with pytest.raises(PermissionError):
        files.write("/etc/x", "y")
    with pytest.raises(OSError, match=r"."):
        files.remove("/workspace/d")
    files.remove("/workspace/d", recursive=True)
    assert not files.exists("/workspace/d")


def test_failed_upload_source_keeps_the_old_file(sandbox: Sandbox) -> None:
    def source() -> Iterator[bytes]:
        yield b"half"
        raise ZeroDivisionError

    sandbox.files.write("/workspace/kept", "old")
    with pytest.raises(ZeroDivisionError):
        sandbox.files.write("/workspace/kept", source())
    assert sandbox.files.read_text("/workspace/kept") == "old"


def test_named_sandbox_lifecycle_works(server: Server) -> None:
    with Client(server.address) as client:
        with Sandbox(name="life", labels={"a": "b"}, server=client) as sandbox:
            sandbox.files.write("/workspace/kept", "yes")
        again = Sandbox.get_or_create("life", server=client)
        assert again.id == sandbox.id
        with pytest.raises(Conflict):
            Sandbox.create(name="life", server=client)
        again.update(env={"X": "1"}, labels={"c": "d"}, lifecycle=Lifecycle(idle_timeout="1h"))
        assert again.run("echo $X").stdout == "1\n"
        assert again.labels == {"c": "d"}
        assert [s.id for s in Sandbox.list(labels={"c": "d"}, server=client)] == [again.id]
        again.stop()
        assert again.state == "stopped"
        assert again.files.read_text("/workspace/kept") == "yes", "a call wakes it"
        assert again.info().state == "running"
        assert again.isolation is not None
        assert again.usage().disk is not None
        again.delete()
        with pytest.raises(NotFound):
            again.info()


def test_interrupting_python_ends_the_command_and_deletes_the_sandbox(server: Server) -> None:
    def interrupt(_: Output) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Sandbox(server=server.address) as sandbox:
        sandbox.run("echo x; sleep 600", on_output=interrupt, timeout=None)
    with pytest.raises(NotFound):
        sandbox.info()


def test_described_sandbox_can_be_created_later(server: Server) -> None:
    sandbox = Sandbox(server=server.address)
    with pytest.raises(InvalidRequest):
        _ = sandbox.id
    assert sandbox.start() is sandbox
    with pytest.raises(Conflict):
        sandbox.start()
    sandbox.delete()
