"""`skerry pool` against a real server, which keeps none by itself."""

from __future__ import annotations

import json
from typing import Any

from cli.calling import skerry
from serving import Server, wait_until


def shown(server: Server, *words: str) -> dict[str, object]:
    done = skerry("pool", *words, "--json", server=server.address)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_an_image_gets_ready_ones_and_all_go_when_asked_to(own_server: Server) -> None:
    server = own_server.start()
    assert shown(server, "show")["paused"] == shown(server)["paused"] == "off: pool.size is 0"
    assert shown(server, "set", "base", "1")["paused"] is None

    def ready() -> object:
        pool: Any = shown(server, "show")
        assert pool["paused"] is None, "none could be made"
        return pool["images"][0]["ready"]

    wait_until(ready, "a ready sandbox")
    assert b"base   1      1" in skerry("pool", server=server.address).stdout
    told = skerry("pool", "set", "base", "1000", server=server.address)
    assert (told.returncode, b"and not 1000" in told.stderr) == (0, True)
    assert shown(server, "drain") == {"size": 0, "images": [], "paused": "drained"}
    assert b"none is being made: drained" in skerry("pool", server=server.address).stderr


def test_what_can_not_be_is_refused(server: Server) -> None:
    assert b"there is no image" in skerry("pool", "set", "nothing", "1", server=server.address).stderr
    assert b"--json goes behind drain" in skerry("pool", "--json", "drain", server=server.address).stderr
    assert b"wanted: -1 is out of range" in skerry("pool", "set", "base", "--", "-1", server=server.address).stderr
