"""The far side of the world: `python -m world.farside DIRECTORY`, in its own network and mount namespaces."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from world import places
from world.control import answer, end_with_the_parent
from world.nameserver import Datagrams, NameServer, serve_stream
from world.web import Web, context
from world.wire import Wire


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytes = b"") -> None:
    with contextlib.suppress(ConnectionError):
        writer.write(first)
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    writer.close()


async def _banner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A service that speaks first, like mail and ssh."""
    await _echo(reader, writer, b"220 the test world is ready\r\n")


async def _database(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A protocol of length-prefixed messages, like a database driver's; it answers `rows:` and the query."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            question = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            reply = b"rows:" + question
            writer.write(len(reply).to_bytes(4, "big") + reply)
    writer.close()


def _ssh(home: Path) -> subprocess.Popen[bytes]:
    """Any client with the tests' key may fetch and push, or gets a greeting; nothing else is run."""
    script = home / "ssh-command"
    script.write_text(
        "#!/bin/sh\n"
        'case "$SSH_ORIGINAL_COMMAND" in\n'
        f"  git-upload-pack*|git-receive-pack*) cd {home}/sites/git && "
        "GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*' "
        'exec git shell -c "$SSH_ORIGINAL_COMMAND" ;;\n'
        "  *) echo hello by ssh ;;\n"
        "esac\n"
    )
    script.chmod(0o755)
    keys = home / "ssh-home" / ".ssh"
    keys.parent.mkdir(mode=0o700)
    keys.mkdir(mode=0o700)
    (keys / "authorized_keys").write_text((home / "ssh-key.pub").read_text())
    # Root has another home here; the real one may hold these very programs.
    users = [line.split(":") for line in Path("/etc/passwd").read_text().splitlines()]
    users = [[*user[:5], str(keys.parent), *user[6:]] if user[0] == "root" else user for user in users]
    (home / "passwd").write_text("".join(":".join(user) + "\n" for user in users))
    subprocess.run(["mount", "--bind", str(home / "passwd"), "/etc/passwd"], check=True)
    argv = ["dropbear", "-F", "-E", "-s", "-j", "-k", "-m", "-P", str(home / "ssh.pid"), "-c", str(script)]
    return subprocess.Popen(
        [*argv, "-r", str(home / "ssh-host-key"), "-p", "22"],
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: end_with_the_parent(signal.SIGKILL),
    )


async def main(home: Path) -> None:
    names, web, wire = NameServer(places.NAMES), Web(home / "sites"), Wire("far")
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(lambda: Datagrams(names), (places.RESOLVER, 53))
    await asyncio.start_server(lambda r, w: serve_stream(names, r, w), places.RESOLVER, 53)
    for port in places.HTTP:
        await asyncio.start_server(web.serve, None, port, backlog=1024)
    for port in places.HTTPS:
        await asyncio.start_server(web.serve, None, port, ssl=context(home), backlog=1024)
    for port, service in ((places.ECHO, _echo), (places.BANNER, _banner), (places.DATABASE, _database)):
        await asyncio.start_server(service, None, port, backlog=1024)

    def reset() -> None:
        names.asked.clear()
        web.calls.clear()
        web.agents.reset()
        wire.seen.clear()

    ssh = _ssh(home)
    try:
        await answer(
            home / "far.sock",
            {
                "asked": lambda: [[name, kind, count] for (name, kind), count in names.asked.items()],
                "calls": web.told,
                "agents": web.agents.control,
                "wire": lambda: [[*what, count] for what, count in wire.seen.items()],
                "reset": reset,
                "teach": names.teach,
            },
        )
    finally:
        ssh.kill()
        ssh.wait()


if __name__ == "__main__":
    os.umask(0o077)
    end_with_the_parent(signal.SIGINT)
    asyncio.run(main(Path(sys.argv[1])))
