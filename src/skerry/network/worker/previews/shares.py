"""The previews that the server told of: who may see them, until when, and who is looking."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Callable

from skerry.network.messages import Share
from skerry.network.worker.previews.exchange import Exchange
from skerry.network.worker.previews.upstream import Dial, Upstreams

_NOBODYS = "0" * 64


class Shared:
    """One preview. `open`: the exchanges that are under way."""

    def __init__(self, share: Share, dial: Dial) -> None:
        self.terms = share
        self.upstreams = Upstreams(dial, share.sandbox, share.port)
        self.open: set[Exchange] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def over(self) -> bool:
        return self.terms.expires is not None and time.time() >= self.terms.expires

    def renew(self, share: Share) -> None:
        """Who came in by a token that is no longer the one is put out."""
        if share.token_hash is not None and share.token_hash != self.terms.token_hash:
            self.put_out()
        self.terms = share

    def opened_by(self, token: str) -> bool:
        given = hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
        return self.terms.token_hash is not None and hmac.compare_digest(given, self.terms.token_hash)

    def watch(self, expired: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self.terms.expires is not None:
            left = max(0.0, self.terms.expires - time.time())
            again = (lambda: self.watch(expired)) if left > 3600 else expired
            self._timer = asyncio.get_running_loop().call_later(min(left, 3600.0), again)

    def put_out(self) -> None:
        for exchange in list(self.open):
            exchange.end()
        self.upstreams.drop()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.put_out()


class Shares:
    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._shared: dict[tuple[str, int], Shared] = {}

    def put(self, share: Share) -> None:
        key = (share.sandbox, share.port)
        shared = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = Shared(share, self._dial)
        else:
            shared.renew(share)
        shared.watch(lambda: self.remove(*key))

    def remove(self, sandbox: str, port: int) -> None:
        shared = self._shared.pop((sandbox, port), None)
        if shared is not None:
            shared.close()

    def put_out(self, sandbox: str) -> None:
        for key, shared in self._shared.items():
            if key[0] == sandbox:
                shared.put_out()

    def remove_all(self) -> None:
        for key in list(self._shared):
            self.remove(*key)

    def sweep(self) -> None:
        for shared in self._shared.values():
            shared.upstreams.sweep()
            for exchange in [one for one in shared.open if one.abandoned]:
                exchange.end()

    def admit(self, key: tuple[str, int] | None, tokens: list[str]) -> Shared | None:
        """The preview, if one of these tokens opens it, or it needs none. It takes as long for one that is not there:
        who has no token learns nothing of what exists."""
        shared = self._shared.get(key) if key is not None else None
        if shared is not None and shared.over:
            shared = None
        wanted = _NOBODYS if shared is None else shared.terms.token_hash
        if wanted is None:
            return shared
        given = [hashlib.sha256(token.encode("utf-8", "replace")).hexdigest() for token in (tokens or [""])[:8]]
        right = [hmac.compare_digest(one, wanted) for one in given]
        return shared if shared is not None and any(right) else None
