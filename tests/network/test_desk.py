"""The worker's side of the channel: what goes wrong with one sandbox is that one's."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest
from counting import descriptors, left_over

from skerry.network.messages import Change, Done, FromWorker, Open, Ready, Rules, Sync
from skerry.network.wire import Channel
from skerry.network.worker.desk import Desk, Outside, Sockets

GOOD, BAD = "sb-aaaaaaaaaa", "sb-bbbbbbbbbb"


class Way:
    def __init__(self, sockets: Sockets) -> None:
        self._sockets = sockets
        self.closed = False
        self.rules: list[Rules] = []

    def change(self, rules: Rules) -> None:
        if rules.deny:
            raise ValueError("not a rule")
        self.rules.append(rules)

    def flush(self) -> None:
        return

    def close(self) -> None:
        self.closed = True
        for one in (self._sockets.listener, self._sockets.names, self._sockets.diag):
            one.close()
        os.close(self._sockets.book)


async def test_rules_that_can_not_be_read_close_their_own_sandbox_and_no_other(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made: dict[str, Way] = {}

    def make(opened: Open, sockets: Sockets, outside: Outside) -> Way:
        if opened.sandbox == BAD:
            raise ValueError("not a rule")
        made[opened.sandbox] = Way(sockets)
        return made[opened.sandbox]

    ours, theirs = socket.socketpair()
    server: Channel[FromWorker] = Channel(ours, FromWorker)
    work = asyncio.create_task(Desk(theirs, make).run(Ready()))

    async def synced(number: int) -> None:
        server.send(Sync(number=number))
        while (await server.receive())[0] != Done(number=number):
            pass

    def open_one(sandbox: str) -> None:
        book = os.open(tmp_path / sandbox, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        sockets = [socket.socket() for _ in range(3)]
        server.send(Open(sandbox=sandbox, rules=Rules()), [*(one.fileno() for one in sockets), book])
        os.close(book)
        for one in sockets:
            one.close()

    async with asyncio.timeout(10):
        open_one(GOOD)
        await synced(1)
        before = descriptors()
        open_one(BAD)
        await synced(2)
        assert left_over(before) == 0, "what came with it is closed"
        server.send(Change(sandbox=GOOD, rules=Rules(allow=("a.example",)), number=3))
        await synced(4)
        assert made[GOOD].rules == [Rules(allow=("a.example",))]
        server.send(Change(sandbox=GOOD, rules=Rules(deny=("?",)), number=5))
        await synced(6)
        assert made[GOOD].closed, "what the old rules allowed does not go on"
        assert not work.done()
        server.close()
        await work
    assert "not a rule" in capfd.readouterr().err
