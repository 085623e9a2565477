"""Changes inside reach the SDK as they come, through broken connections and restarts, and idle ones cost nothing."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server import Server, wait_until

from skerry import AsyncSandbox, Lifecycle, Sandbox
from skerry.config import socket_path
from skerry.errors import InvalidRequest, QuotaExceeded, SandboxUnavailable
from skerry.results import FileEvent


def told(event: FileEvent) -> tuple[str, ...]:
    return (event.type, event.path, event.to) if event.to is not None else (event.type, event.path)


def until(watch: Iterator[FileEvent], name: str) -> list[tuple[str, ...]]:
    found = []
    for event in watch:
        if event.path.endswith(name):
            return found
        found.append(told(event))
    raise AssertionError("it ended")


def test_changes_are_reported_live(sandbox: Sandbox) -> None:
    sandbox.run("mkdir w; echo 1 > w/old", check=True)
    with sandbox.files.watch("w", exclude=["*.tmp"]) as watch:
        sandbox.run("cd w; mkdir d; echo 1 > d/f; mv old new; touch x.tmp; rm new; sleep 0.2; touch end", check=True)
        found = until(watch, "/end")
    assert sorted(found) == [
        ("created", "w/d"), ("created", "w/d/f"), ("moved", "w/old", "w/new"), ("removed", "w/new"),
    ]  # fmt: skip


def test_watch_limit_of_the_host_is_named(server: Server) -> None:
    """It is lowered for this sandbox's user namespace alone: others on this host watch too."""
    with Sandbox(server=server.address) as sandbox:
        sandbox.run("mkdir -p $(seq -f 'w/%.0f' 40)", check=True)
        ((pid,),) = server.sql("SELECT pid FROM sandboxes WHERE id = ?", sandbox.id)
        lower = "echo 20 > /proc/sys/user/max_inotify_watches"
        subprocess.run(["nsenter", "--user", "--target", str(pid), "sh", "-c", lower], check=True)
        with pytest.raises(QuotaExceeded, match="max_user_watches"):
            next(sandbox.files.watch("/workspace"))
        with sandbox.files.watch("/workspace", exclude=["w"]) as watch:
            sandbox.run("mkdir -p $(seq -f 'x/%.0f' 40); touch end", check=True)
            assert "overflow" in {found[0] for found in until(watch, "/end")}


async def test_watch_continues_after_a_cancelled_wait(server: Server) -> None:
    """Not with an end, which would look like the removal of the directory, and without a gap."""
    async with AsyncSandbox(server=server.address) as sandbox:
        await sandbox.run("mkdir w; touch w/over", check=True)
        watch = sandbox.files.watch("w")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(watch), 0.01)  # while it is established, or afterwards
        async with watch:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(watch), 0.2)
            await sandbox.files.write("w/over", "2")
            await sandbox.files.write("w/new", "1")
            async with asyncio.timeout(60):
                found = {told(await anext(watch)), told(await anext(watch))}
            assert found == {("modified", "w/over"), ("created", "w/new")}
        with pytest.raises(StopAsyncIteration):
            await anext(watch)


async def test_the_async_client_does_the_same(server: Server) -> None:
    async with AsyncSandbox(server=server.address) as sandbox:
        async with sandbox.files.watch("/workspace", include=["*.py"]) as watch:
            await sandbox.run("touch a.txt a.py", check=True)
            async with asyncio.timeout(20):
                event = await anext(watch)
        assert told(event) == ("created", "/workspace/a.py")
        task = asyncio.ensure_future(anext(sandbox.files.watch("/workspace")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_watch_without_a_block_starts_with_the_first_read(sandbox: Sandbox) -> None:
    sandbox.run("mkdir -p lazy", check=True)
    found: list[FileEvent] = []

    def read() -> None:
        for event in sandbox.files.watch("lazy"):
            found.append(event)
            break

    reader = threading.Thread(target=read)
    reader.start()
    wait_until(lambda: sandbox.run("touch lazy/$RANDOM").ok and not reader.is_alive(), "an event")
    reader.join()
    assert found[0].type == "created"


def test_non_utf8_names_are_surrogate_escaped(sandbox: Sandbox) -> None:
    sandbox.run("mkdir odd", check=True)
    with sandbox.files.watch("odd") as watch:
        sandbox.run("cd odd; touch $'a\\xff' $'b\\nc' -- -d; sleep 0.1; mv $'a\\xff' 'ü'; touch end", check=True)
        found = until(watch, "/end")
    assert {one[1] for one in found} == {"odd/a\udcff", "odd/b\nc", "odd/-d"}
    assert ("moved", "odd/a\udcff", "odd/ü") in found


def test_removed_directory_ends_the_watch(sandbox: Sandbox) -> None:
    sandbox.run("mkdir gone", check=True)
    with sandbox.files.watch("gone") as watch:
        sandbox.run("rmdir gone", check=True)
        assert [told(event) for event in watch] == [("removed", "gone")]


def test_unwatchable_path_raises_a_builtin_error(sandbox: Sandbox) -> None:
    with pytest.raises(FileNotFoundError):
        next(sandbox.files.watch("none"))
    with pytest.raises(NotADirectoryError), sandbox.files.watch("/etc/hostname"):
        pass
    with pytest.raises(PermissionError), sandbox.files.watch("/root"):
        pass
    with pytest.raises(InvalidRequest, match="token"), sandbox.files.watch("/etc", since="x"):
        pass
    with pytest.raises(InvalidRequest, match="include"):
        sandbox.files.watch("/etc", include="*.py")
    with sandbox.files.watch("/root", user="root"):
        pass


def test_returning_reader_gets_changes_since_its_token(sandbox: Sandbox) -> None:
    sandbox.run("mkdir since", check=True)
    with sandbox.files.watch("since") as watch:
        token = watch.token
    assert token is not None
    sandbox.run("touch since/a; sleep 0.2; rm since/a; touch since/end", check=True)
    with sandbox.files.watch("since", since=token) as watch:
        assert until(watch, "/end") == [("created", "since/a"), ("removed", "since/a")]
    sandbox.stop()
    with sandbox.files.watch("since", since=token) as watch:
        sandbox.run("touch since/b", check=True)
        assert [told(next(watch)), told(next(watch))] == [("overflow", "since"), ("created", "since/b")]


def test_server_crash_loses_no_event(own_server: Server) -> None:
    own = own_server.start()
    sandbox = Sandbox.create(name="kept", server=own.address)
    sandbox.run("mkdir w", check=True)
    with sandbox.files.watch("w") as watch:
        sandbox.run("touch w/a", check=True)
        assert told(next(watch)) == ("created", "w/a")
        process = sandbox.spawn("for i in $(seq 60); do touch w/f$i; sleep 0.04; done; touch w/end")
        assert told(next(watch)) == ("created", "w/f1")
        own.end(signal.SIGKILL)
        threading.Timer(0.5, own.start).start()
        found = until(watch, "/end")
    assert found == [("created", f"w/f{n}") for n in range(2, 61)], "nothing lost, nothing twice"
    process.wait()


def test_open_watch_keeps_a_sandbox_from_being_idle(server: Server) -> None:
    brief = Lifecycle(idle_timeout="1s", on_idle="stop")
    with Sandbox(lifecycle=brief, server=server.address) as sandbox:
        with sandbox.files.watch("/workspace") as watch, Sandbox(lifecycle=brief, server=server.address) as other:
            reader = threading.Thread(target=lambda: next(watch, None))
            reader.start()
            wait_until(lambda: other.info().state == "stopped", "the other one to be idle")
            assert sandbox.info().state == "running"
            sandbox.run("touch x")
            reader.join()
        wait_until(lambda: sandbox.info().state == "stopped", "it to be idle")


def test_stop_ends_a_watch_with_an_error(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox, sandbox.files.watch("/workspace") as watch:
        stop = threading.Thread(target=Sandbox.get(sandbox.id, server=server.address).stop)
        stop.start()
        with pytest.raises(SandboxUnavailable, match="ended"):
            next(watch)
        stop.join()


# The complete list of events would exceed the allowed growth of the server.
STORM = """
import os
names = [f"{n:0250}" for n in range(3000)]
for _ in range(6):
    for name in names: os.close(os.open(name, os.O_CREAT))
    for name in names: os.unlink(name)
"""


def test_stalled_reader_uses_no_memory(server: Server, sandbox: Sandbox) -> None:
    assert server.process is not None
    status = Path(f"/proc/{server.process.pid}/status")

    def memory() -> int:
        return int(status.read_text().partition("VmRSS:")[2].split()[0])

    sandbox.run("mkdir -p slow", check=True)
    before = memory()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(socket_path(server.state_dir)))
        request = f"GET /v1/sandboxes/{sandbox.id}/files/watch?path=slow HTTP/1.1\r\nHost: x\r\n\r\n"
        connection.sendall(request.encode())
        assert connection.recv(200).startswith(b"HTTP/1.1 200")
        sandbox.run(["python3", "-c", STORM], cwd="/workspace/slow", check=True, timeout=100)
        assert memory() - before < 8 << 10
    assert sandbox.run(["echo", "well"]).stdout == "well\n"


def test_http_watch_returns_ndjson(server: Server, sandbox: Sandbox) -> None:
    url = f"/v1/sandboxes/{sandbox.id}/files/watch"
    sandbox.run("mkdir -p http", check=True)
    with server.http() as http:
        with http.stream("GET", url, params={"path": "http", "recursive": "false"}) as answer:
            lines = answer.iter_lines()
            ready = json.loads(next(lines))
            assert (ready["type"], ready["path"]) == ("ready", "http")
            sandbox.run("touch http/x", check=True)
            event = json.loads(next(lines))
        assert event == {
            "type": "created", "path": "http/x", "token": event["token"], "to": None, "directory": False,
            "raw_path": None, "raw_to": None,
        }  # fmt: skip
        assert event["token"] > ready["token"]
        for params in ({"path": "http", "since": "junk"}, {"path": "http", "nonsense": "1"}):
            assert http.get(url, params=params).status_code == 400
        assert http.get(url, params={"path": "none"}).status_code == 404
        assert http.get(url, params={"path": "http"}, headers={"Accept": "text/plain"}).status_code == 406
