"""The connection between a test and the processes of its world: one JSON line each way, over a unix socket."""

from __future__ import annotations

import asyncio
import ctypes
import json
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

_MAX_LINE = 64 << 20


def end_with_the_parent(by: signal.Signals) -> None:
    """However the parent ends."""
    ctypes.CDLL(None).prctl(1, by)  # PR_SET_PDEATHSIG


async def answer(path: Path, calls: dict[str, Callable[..., Any]]) -> None:
    """Serve until cancelled."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            name, arguments = json.loads(line)
            await asyncio.sleep(0.02)  # traffic that arrived before the query is processed before it is answered
            writer.write(json.dumps(calls[name](*arguments)).encode() + b"\n")
            await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(serve, path, limit=_MAX_LINE)
    async with server:
        await server.serve_forever()


class Remote:
    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(20)
        try:
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise
        self._lines = self._socket.makefile("rwb")

    def __call__(self, name: str, *arguments: object) -> Any:
        self._lines.write(json.dumps([name, arguments]).encode() + b"\n")
        self._lines.flush()
        return json.loads(self._lines.readline())

    def close(self) -> None:
        self._lines.close()
        self._socket.close()
