"""A way out that leads nowhere: every connection is told and reset, no name is known."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import struct
import time

from skerry.network.messages import Open, Rules, Tried
from skerry.network.worker.desk import Outside, Sockets
from skerry.types import Attempt


class Refusing:
    def __init__(self, opened: Open, sockets: Sockets, outside: Outside) -> None:
        self._sandbox, self._sockets, self._outside = opened.sandbox, sockets, outside
        asyncio.get_running_loop().add_reader(sockets.listener.fileno(), self._accept)

    def change(self, rules: Rules) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._sockets.listener.fileno())
        for one in (self._sockets.listener, self._sockets.names, self._sockets.diag):
            one.close()
        os.close(self._sockets.book)

    def _accept(self) -> None:
        try:
            taken, peer = self._sockets.listener.accept()
        except OSError:
            return
        with taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            attempt = Attempt(
                id=secrets.token_hex(8), at=time.time(), kind="connection", host=peer[0].removeprefix("::ffff:"),
                decision="denied", why="nothing is allowed",
            )  # fmt: skip
            self._outside.report(Tried(sandbox=self._sandbox, attempt=attempt))
