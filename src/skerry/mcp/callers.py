"""Whose calls these are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from skerry.client._async.client import AsyncClient
from skerry.client._async.sandbox import AsyncSandbox
from skerry.errors import NotFound, SkerryError

KNOWN_MOST = 256
Terms = Callable[[], Mapping[str, Any]]


class Caller:
    """A client that acts with the caller's rights, and the sandbox that is meant when none is named.

    That one is made when it is first needed. With a `name` it is the one of that name, made if there is none, and
    stays; without one it goes with `aclose`, as all do that were made without a name, unless they are to be kept.
    `terms`: how sandboxes are made (keyword arguments of `AsyncSandbox`), asked for in a thread and once: no model
    chooses what a person has to decide, like the network, secrets, or which of the host's directories is copied.
    """

    def __init__(
        self, client: AsyncClient, *, name: str | None = None, keep: bool = False, terms: Terms = dict
    ) -> None:
        self.client = client
        self.name = name
        self.keep = keep
        self._ask = terms
        self._terms: Mapping[str, Any] | None = None
        self._default: AsyncSandbox | None = None
        self._making = asyncio.Lock()
        self._asking = asyncio.Lock()
        self._made: set[str] = set()
        self._known: dict[str, AsyncSandbox] = {}

    async def sandbox(self, ref: str | None) -> AsyncSandbox:
        """The one that is named, else the default one. An id stays whose it is, so it is looked up once."""
        if ref is None:
            return await self.default()
        found = self._known.get(ref) or await AsyncSandbox.get(ref, server=self.client)
        if found.id == ref:
            self._known[ref] = found
            if len(self._known) > KNOWN_MOST:
                del self._known[next(iter(self._known))]
        return found

    async def default(self) -> AsyncSandbox:
        async with self._making:
            if self._default is None:
                self._default = await self._make_default()
            return self._default

    async def _make_default(self) -> AsyncSandbox:
        if self.name is None:
            return await self.create()
        return await AsyncSandbox.get_or_create(self.name, server=self.client, **await self.terms())

    async def create(self, name: str | None = None, **wishes: Any) -> AsyncSandbox:
        """One by the terms; `wishes` are said over them."""
        made = await AsyncSandbox(name=name, server=self.client, **{**await self.terms(), **wishes}).create()
        self.take(made)
        return made

    async def terms(self) -> Mapping[str, Any]:
        async with self._asking:
            if self._terms is None:
                self._terms = await asyncio.to_thread(self._ask)
            return self._terms

    def take(self, sandbox: AsyncSandbox) -> None:
        """It was made for this caller; without a name it goes with them."""
        if sandbox.name is None:
            self._made.add(sandbox.id)

    @property
    def known_default(self) -> str | None:
        """Its id, if it is made already."""
        return None if self._default is None else self._default.id

    def forget(self, sandbox: str) -> None:
        """It is gone."""
        self._made.discard(sandbox)
        self._known.pop(sandbox, None)
        if self.known_default == sandbox:
            self._default = None

    async def aclose(self) -> None:
        """Delete what goes with the caller, and close the connections."""
        made, self._made = (set() if self.keep else self._made), set()
        try:
            ends = await asyncio.gather(*map(self._delete, made), return_exceptions=True)
        finally:
            await self.client.aclose()
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    async def _delete(self, sandbox: str) -> None:
        with contextlib.suppress(NotFound):
            await (await AsyncSandbox.get(sandbox, server=self.client)).delete()


async def still_there(caller: Caller, sandbox: str) -> bool:
    """Whether a sandbox that something was not found in is itself there."""
    try:
        await AsyncSandbox.get(sandbox, server=caller.client)
    except NotFound:
        return False
    except SkerryError:
        return True
    return True
