"""The worker's side of the channel: a failure of one sandbox affects only that one."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest
from support.descriptors import descriptors, left_over

from skerry.network.channel import WorkerChannel
from skerry.network.messages import ChangeRules, Done, FromWorker, HandlerNeeded, OpenGateway, Ready, Rules, Sync
from skerry.network.worker.control import GatewaySockets, ServerLink, WorkerControl, fits
from skerry.network.worker.http.handling import MAX_CALL_HEAD
from skerry.types.handlers import HttpHeaders

GOOD, BAD = "sb-aaaaaaaaaa", "sb-bbbbbbbbbb"


class RecordingHandler:
    def __init__(self, sockets: GatewaySockets) -> None:
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
        for one in (self._sockets.listener, self._sockets.dns, self._sockets.diag):
            one.close()
        os.close(self._sockets.fake_ip_file)


async def test_invalid_rules_close_only_their_own_sandbox(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made: dict[str, RecordingHandler] = {}

    def make(opened: OpenGateway, sockets: GatewaySockets, server_link: ServerLink) -> RecordingHandler:
        if opened.sandbox == BAD:
            raise ValueError("not a rule")
        made[opened.sandbox] = RecordingHandler(sockets)
        return made[opened.sandbox]

    ours, theirs = socket.socketpair()
    server: WorkerChannel[FromWorker] = WorkerChannel(ours, FromWorker)
    work = asyncio.create_task(WorkerControl(theirs, make).run(Ready()))

    async def synced(number: int) -> None:
        server.send(Sync(number=number))
        while (await server.receive())[0] != Done(number=number):
            pass

    def open_one(sandbox: str) -> None:
        fake_ip_file = os.open(tmp_path / sandbox, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        sockets = [socket.socket() for _ in range(3)]
        server.send(OpenGateway(sandbox=sandbox, rules=Rules()), [*(one.fileno() for one in sockets), fake_ip_file])
        os.close(fake_ip_file)
        for one in sockets:
            one.close()

    async with asyncio.timeout(10):
        open_one(GOOD)
        await synced(1)
        before = descriptors()
        open_one(BAD)
        await synced(2)
        assert left_over(before) == 0, "what came with it is closed"
        server.send(ChangeRules(sandbox=GOOD, rules=Rules(allow=("a.example",)), number=3))
        await synced(4)
        assert made[GOOD].rules == [Rules(allow=("a.example",))]
        server.send(ChangeRules(sandbox=GOOD, rules=Rules(deny=("?",)), number=5))
        await synced(6)
        assert made[GOOD].closed, "what the old rules allowed does not go on"
        assert not work.done()
        server.close()
        await work
    assert "not a rule" in capfd.readouterr().err


def test_attack_host_cannot_end_the_worker_with_a_head_that_grows_in_json() -> None:
    """The server ends a worker that sends more than 64 KiB: the connections of all sandboxes would be reset."""
    worst = "\x01" * 200
    headers = tuple((f"x{number}", worst) for number in range(100))
    assert not fits(needed(headers, "/"))
    quotes = tuple((f"x{number}", '"' * 40) for number in range(250))
    assert sum(len(name) + len(value) for name, value in (*quotes, *quotes)) + 2000 < MAX_CALL_HEAD
    assert fits(needed(quotes, "/" + '"' * 2000, response=(200, quotes)))


def needed(headers: HttpHeaders, url: str, response: tuple[int, HttpHeaders] | None = None) -> HandlerNeeded:
    return HandlerNeeded(
        call_id="c" * 16, sandbox=GOOD, host="h" * 300, method="M" * 32, url=url, headers=headers, response=response
    )
