# Generated from client/_async/events.py by scripts/generate_sync.py. Do not edit.
"""`client.events()`: what happened to sandboxes and processes, and what happens now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from skerry.client import backend_sync as backend
from skerry.client import requests
from skerry.client.lines import LineDecoder
from skerry.client.patience import Patience
from skerry.client.responses import decode
from skerry.errors import ServerUnreachable
from skerry.types import Event

if TYPE_CHECKING:
    from skerry.client._sync.client import Client


def listen(client: Client, wish: requests.EventWish) -> Iterator[Event]:
    """A followed stream is taken up again where it broke: nothing is lost, nothing comes twice."""
    if not wish.follow:
        for event in _once(client, wish, wish.since):
            yield event
        return
    since, patience = wish.since, Patience()
    while True:
        try:
            for event in _once(client, wish, since):
                since = event.seq
                patience.renew()
                if event.type != "hello":
                    yield event
            raise ServerUnreachable("the stream of events ended", hint="`skerry server status`")
        except ServerUnreachable as error:
            backend.sleep(patience.pause(error))


def _once(client: Client, wish: requests.EventWish, since: int | None) -> Iterator[Event]:
    lines = LineDecoder()
    with client.stream(requests.events(wish, since)) as chunks:
        for chunk in chunks:
            for line in lines.feed(chunk):
                yield decode(line, Event)
