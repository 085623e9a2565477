"""`skerry pool` against a real server with an empty pool."""

from __future__ import annotations

import json
from typing import Any

from support.cli import skerry
from support.server import Server, wait_until


def shown(server: Server, *words: str) -> dict[str, object]:
    done = skerry("pool", *words, "--json", server=server.address)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_pool_set_and_drain(own_server: Server) -> None:
    server = own_server.start()
    assert shown(server, "show")["paused"] == shown(server)["paused"] == "off: pool.per_image is 0"
    assert shown(server, "set", "base", "1")["paused"] is None

    def ready() -> object:
        pool: Any = shown(server, "show")
        assert pool["paused"] is None, "none could be made"
        return pool["images"][0]["ready"]

    wait_until(ready, "a ready sandbox")
    assert b"base   1      1" in skerry("pool", server=server.address).stdout
    told = skerry("pool", "set", "base", "1000", server=server.address)
    assert (told.returncode, b"instead of 1000" in told.stderr) == (0, True)
    assert shown(server, "drain") == {"size": 0, "images": [], "paused": "drained"}
    assert b"the pool is paused: drained" in skerry("pool", server=server.address).stderr


def test_invalid_pool_requests_are_rejected(server: Server) -> None:
    assert b"not found" in skerry("pool", "set", "nothing", "1", server=server.address).stderr
    assert b"write --json after drain" in skerry("pool", "--json", "drain", server=server.address).stderr
    assert b"size: -1 is out of range" in skerry("pool", "set", "base", "--", "-1", server=server.address).stderr
