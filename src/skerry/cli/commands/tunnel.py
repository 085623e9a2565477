"""tunnel: a port of a sandbox on an SSH server that the user has."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from skerry.cli import output
from skerry.cli.commands.previews import ErrorReporter
from skerry.cli.context import CliContext, pass_cli, sandbox_argument
from skerry.codecs.text import escape
from skerry.errors import CommandFailed, HostUnsupported, InvalidRequest, SkerryError
from skerry.types import check_port, parse_span, readable_span

if TYPE_CHECKING:
    import asyncio

    from skerry.types import SandboxInfo

MAX_DELAY: Final = 30.0
_LISTEN: Final = re.compile(r"(?:(\*|[0-9.]+|\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):)?([0-9]{1,5})")
_FORWARDED: Final = re.compile(rb"debug1: remote forward success for: listen ")
_ALLOCATED: Final = re.compile(rb"Allocated port ([0-9]{1,5}) for remote forward ")
_NOISE: Final = (b"debug", b"OpenSSH_", b"Authenticated to ", b"Transferred: ", b"Bytes per second")
# A dead connection is noticed within 45 s, a silent server within 30 s; a port that is taken is an error and not a
# warning. A connection that the user shares (ControlMaster) would report the port elsewhere and keep it at the end.
_OPTIONS: Final = (
    "ExitOnForwardFailure=yes", "ServerAliveInterval=15", "ServerAliveCountMax=3", "ForwardAgent=no",
    "ConnectTimeout=30", "ControlMaster=no", "ControlPath=none",
)  # fmt: skip


@dataclass(frozen=True)
class TunnelRequest:
    """`bind` and `listen`: the address on the SSH server; 0 is a port that the server chooses. `retry`: the time in
    seconds after which a broken connection is given up."""

    host: str
    bind: str
    listen: int
    options: tuple[str, ...]
    retry: float = 900.0

    def command(self, socket: Path) -> list[str]:
        """Return the command line of `ssh`. Its verbose messages report when the server listens."""
        where = f"{self.bind}:{self.listen}" if self.bind else str(self.listen)
        settings = [word for option in _OPTIONS for word in ("-o", option)]
        return ["ssh", "-N", "-T", "-v", *settings, "-R", f"{where}:{socket}", *self.options, "--", self.host]


@click.command()
@click.option(
    "--listen", metavar="[BIND:]PORT", default="0", help="Listen there on HOST. Default: a free port of its loopback."
)
@click.option(
    "--retry",
    metavar="TIME",
    default="15m",
    show_default=True,
    help="Give up a broken connection that cannot be made again for TIME.",
)
@sandbox_argument
@click.argument("port", type=int)
@click.argument("host", metavar="[USER@]HOST")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[-- SSH OPTIONS...]")
@pass_cli
def tunnel(
    cli: CliContext, sandbox: str, port: int, host: str, listen: str, retry: str, options: tuple[str, ...]
) -> None:
    """Make PORT of SANDBOX reachable on HOST, an SSH server of yours, with `ssh -R`.

    \b
    skerry tunnel dev 8000 me@server.example.com
    skerry tunnel --listen 9000 dev 8000 server.example.com
    skerry tunnel dev 8000 server.example.com -- -i ~/.ssh/work -p 2222

    The address is printed when HOST listens. By default only programs on HOST can connect; its `GatewayPorts` setting
    allows others. A broken connection is made again. Ctrl-C ends the tunnel.
    """
    from skerry.cli import asyncio_run

    check_port(port)
    request = replace(_request(host, listen, options), retry=parse_span(retry, "--retry"))
    if shutil.which("ssh") is None:
        raise HostUnsupported("ssh is not installed here", hint="install openssh-client")
    found = cli.sandbox(sandbox).cached_info
    with contextlib.suppress(KeyboardInterrupt):
        asyncio_run.run(_tunnel(cli, found, port, request))


def _request(host: str, listen: str, options: tuple[str, ...]) -> TunnelRequest:
    match = _LISTEN.fullmatch(listen)
    if match is None or int(match[2]) > 65535:
        raise InvalidRequest(f"--listen: {listen[:80]!r} is not an address", hint="like 9000 or 0.0.0.0:9000")
    if host.startswith("-") or not host.isprintable() or not host.strip():
        raise InvalidRequest(f"{host[:80]!r} is not the name of an SSH server", hint="like me@server.example.com")
    return TunnelRequest(host, match[1] or "", int(match[2]), options)


async def _tunnel(cli: CliContext, sandbox: SandboxInfo, port: int, request: TunnelRequest) -> None:
    import asyncio

    from skerry.client._async.client import AsyncClient
    from skerry.client._async.forward import AsyncForward
    from skerry.client._async.sandbox import AsyncSandbox
    from skerry.client.transport.backend_async import LocalConnection

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, SkerryError):
            await forward.serve(LocalConnection(reader, writer))

    # `ssh` connects to a socket in a private directory: no other user of this machine reaches the sandbox.
    with tempfile.TemporaryDirectory(prefix="skerry-") as directory:
        socket = Path(directory, "s")
        async with AsyncClient(cli.server) as client:
            inside = AsyncSandbox._of(sandbox, client, shared=True)
            forward = AsyncForward(inside, port, on_error=ErrorReporter(cli).report)
            async with await asyncio.start_unix_server(accepted, socket):
                await _keep(cli, f"{sandbox.name or sandbox.id}:{port}", request, socket)


async def _keep(cli: CliContext, target: str, request: TunnelRequest, socket: Path) -> None:
    """Run `ssh`, again after each broken connection. An `ssh` that never connected is an error, and so is one that does
    not connect again in time."""
    import asyncio

    delay, ended_at = 0.0, 0.0
    while True:
        connection = SshRun(target)
        code = await connection.run(request, socket)
        if not connection.port and not delay:
            raise CommandFailed(f"ssh to {request.host} ended with exit code {code}", hint="see its messages above")
        now = time.monotonic()
        ended_at = now if connection.port else ended_at
        if (left := ended_at + request.retry - now) <= 0:
            raise CommandFailed(
                f"the connection to {request.host} could not be made again for {readable_span(request.retry)}",
                hint="see its messages above; --retry changes the time",
            )
        delay = min(1.0 if connection.port else min(2 * delay, MAX_DELAY), left)
        # the same port again: people have its address
        request = replace(request, listen=request.listen or connection.port)
        if not cli.quiet:
            output.info(f"the connection to {request.host} ended; connecting again in {delay:.0f} s")
        await asyncio.sleep(delay)


class SshRun:
    """One run of `ssh`. `port`: the port on the server, once that listens."""

    def __init__(self, target: str) -> None:
        self.port = 0
        self._target = target

    async def run(self, request: TunnelRequest, socket: Path) -> int:
        """Run it to its end, print the address, and pass on its messages."""
        import asyncio

        process = await asyncio.create_subprocess_exec(*request.command(socket), stderr=asyncio.subprocess.PIPE)
        try:
            assert process.stderr is not None  # noqa: S101
            async for line in process.stderr:
                self._line(line.rstrip(b"\r\n"), request)
            return await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()

    def _line(self, line: bytes, request: TunnelRequest) -> None:
        if allocated := _ALLOCATED.match(line):
            self._listens(int(allocated[1]), request)
        elif request.listen and _FORWARDED.match(line):
            self._listens(request.listen, request)
        elif not line.startswith(_NOISE):
            output.info(escape(line.decode("utf-8", "replace")))

    def _listens(self, port: int, request: TunnelRequest) -> None:
        self.port = port
        output.line(f"{escape(request.host.rpartition('@')[2])}:{port} -> {self._target}")
