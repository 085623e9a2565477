"""The sandbox client of the OpenAI Agents SDK; the SDK has no suite for such clients."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents.sandbox.errors import ExecTimeoutError, WorkspaceReadNotFoundError
from agents.sandbox.manifest import Environment, Manifest
from agents.sandbox.snapshot import LocalSnapshotSpec

from skerry import AsyncSandbox, NotFound, UnappliedChanges
from skerry.integrations.openai_agents import SkerryClient, SkerryClientOptions


@pytest.fixture
async def session() -> AsyncIterator[Any]:
    client = SkerryClient(labels={"by": "suite"})
    manifest = Manifest(environment=Environment(value={"MODE": "test"}))
    made = await client.create(manifest=manifest, options=SkerryClientOptions(exposed_ports=(8123,)))
    await made.start()
    yield made
    await client.delete(made)


async def test_command_returns_its_streams_and_exit_code(session: Any) -> None:
    done = await session.exec("echo out-$MODE; echo err >&2; pwd; exit 3")
    assert (done.stdout, done.stderr, done.exit_code) == (b"out-test\n/workspace\n", b"err\n", 3)
    assert (await session.exec("whoami", user="root")).stdout == b"root\n"


async def test_output_above_a_mebibyte_is_complete(session: Any) -> None:
    assert len((await session.exec("head -c 3000000 /dev/zero | tr '\\0' x")).stdout) == 3_000_000


async def test_timeout_raises(session: Any) -> None:
    with pytest.raises(ExecTimeoutError):
        await session.exec("sleep 600", timeout=1)


async def test_files_are_read_and_written(session: Any) -> None:
    await session.write(Path("dir/a.bin"), io.BytesIO(b"\0\xff"))
    assert (await session.read(Path("dir/a.bin"))).read() == b"\0\xff"
    assert [Path(entry.path).name for entry in await session.ls("dir")] == ["a.bin"]
    with pytest.raises(WorkspaceReadNotFoundError):
        await session.read(Path("missing"))


async def test_terminal_keeps_running_between_calls(session: Any) -> None:
    update = await session.pty_exec_start("stty -echo; read line; echo got-$line; exit 4", tty=True, yield_time_s=0.3)
    assert update.exit_code is None
    output = b""
    update = await session.pty_write_stdin(session_id=update.process_id, chars="héllo\n", yield_time_s=5)
    while update.exit_code is None:
        output += update.output
        update = await session.pty_write_stdin(session_id=update.process_id, chars="", yield_time_s=5)
    assert "got-héllo" in (output + update.output).decode()
    assert (update.exit_code, update.process_id) == (4, None)


async def test_command_without_a_terminal_ends_at_the_shutdown(session: Any) -> None:
    update = await session.pty_exec_start("sleep 600", yield_time_s=0.3)
    assert update.process_id is not None
    await session.pty_terminate_all()
    assert (await session.exec("pgrep -x sleep")).exit_code == 1


async def test_exposed_port_is_reachable(session: Any) -> None:
    import urllib.request

    await session.write(Path("index.html"), io.BytesIO(b"served"))
    await session.pty_exec_start("python3 -m http.server 8123", yield_time_s=0.3)
    await session._inner.sandbox.wait_for_port(8123, timeout=60)
    url = (await session.resolve_exposed_port(8123)).url_for("http")
    import asyncio

    reply = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=60).read())
    assert reply == b"served"


async def test_session_resumes_in_the_same_sandbox(session: Any) -> None:
    client = SkerryClient()
    await session.write(Path("kept"), io.BytesIO(b"1"))
    payload = client.serialize_session_state(session.state)
    await session.stop()
    await session.shutdown()
    again = await client.resume(client.deserialize_session_state(dict(payload)))
    await again.start()
    assert again.state.sandbox_id == session.state.sandbox_id
    assert (await again.read(Path("kept"))).read() == b"1"


async def test_session_with_accepted_changes_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("one\n")
    client = SkerryClient(repo=str(tmp_path))
    session = await client.create()
    await session.start()
    await session.exec("echo two > /workspace/app.py")
    sandbox = await AsyncSandbox.get(session.state.sandbox_id)
    await sandbox.review.accept(*(await sandbox.review.changes("app.py")).hunks)
    with pytest.raises(UnappliedChanges):
        await sandbox.delete()
    await sandbox.aclose()
    await client.delete(session)
    with pytest.raises(NotFound):
        await AsyncSandbox.get(session.state.sandbox_id)


async def test_session_of_a_deleted_sandbox_is_restored_from_its_snapshot(tmp_path: Path) -> None:
    client = SkerryClient()
    first = await client.create(snapshot=LocalSnapshotSpec(base_path=tmp_path))
    await first.start()
    await first.write(Path("dir/kept"), io.BytesIO(b"1"))
    await first.exec("ln -s dir/kept link")
    await first.stop()
    await client.delete(first)
    with pytest.raises(NotFound):
        await AsyncSandbox.get(first.state.sandbox_id)
    await client.delete(first)  # again: no error
    second = await client.resume(first.state)
    await second.start()
    assert (await second.exec("cat link")).stdout == b"1"
    await client.delete(second)
