"""A server that is killed and starts again beside a thousand sandboxes: its first answer, and the last adoption."""

from __future__ import annotations

import os
import select
import signal
import time
from concurrent.futures import ThreadPoolExecutor

from bench.density import WORKERS, clear, create_many
from bench.measure import Figure, Part, row
from skerry import Client, Sandbox

MANY = 1_000
ENDED_WITHIN_S = 30.0


def restart(_: int) -> Part:
    with Client() as client:
        clear(client)
        sandboxes = create_many(client, MANY)[1]
        killed = int(client.info()["pid"])
    try:
        return measured(killed, [sandbox.id for sandbox in sandboxes])
    finally:
        with Client() as client:
            clear(client)


def measured(server: int, sandboxes: list[str]) -> Part:
    """A call on a sandbox waits for its adoption, so the last answer comes when all are adopted."""
    kill(server)
    start = time.perf_counter()
    with Client() as client, ThreadPoolExecutor(WORKERS) as pool:  # starts the server again
        client.info()
        answered = (time.perf_counter() - start) * 1000
        states = list(pool.map(lambda sandbox: Sandbox.get(sandbox, server=client).state, sandboxes))
        adopted = (time.perf_counter() - start) * 1000
    rows = [row(f"restart beside {MANY:,} sandboxes, first answer", [answered]), row("all adopted", [adopted])]
    return rows, [
        Figure(f"{MANY:,} sandboxes still running after kill -9 of the server", states.count("running"), least=MANY),
        Figure("kill -9 of the server, until the next one answers, ms", answered, most=3_000),
        Figure("kill -9 of the server, until all are adopted, ms", adopted, most=20_000),
    ]


def kill(server: int) -> None:
    """Wait until it is gone: otherwise the next client could still reach it."""
    process = os.pidfd_open(server)
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        assert select.select([process], [], [], ENDED_WITHIN_S)[0], "the server did not end"
    finally:
        os.close(process)
