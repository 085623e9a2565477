"""What the sync client does otherwise than the async one; `backend_async` has the same names."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import httpcore
import httpx

from skerry.client.address import Address
from skerry.client.connection import transport_options
from skerry.client.content import Source, pieces

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
AnySource = Source
Lock = threading.Lock
NetworkStream = httpcore.NetworkStream
Callback = Callable[[A], None]


def open_transport(address: Address) -> httpx.HTTPTransport:
    return httpx.HTTPTransport(**transport_options(address))


def chunks(source: AnySource) -> Iterator[bytes]:
    """The bytes of a file object or iterable, piece by piece."""
    return pieces(source)


def take_at_once(lock: threading.Lock) -> bool:
    """Acquire it if nobody has it."""
    return lock.acquire(blocking=False)


def deliver(callback: Callback[A], value: A) -> None:
    callback(value)


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return function(*args, **kwargs)


class Aside:
    """Work beside a stream that is being read: a thread here, a task in the async client."""

    def start(self, work: Callable[..., Any], *args: object) -> None:
        # A daemon, and not joined: it may stand in a read of the caller's own source, which nobody else can end.
        threading.Thread(target=work, args=args, name="skerry-stdin", daemon=True).start()

    def end(self) -> None:
        """Leave it. What it met is the worker's to keep."""
