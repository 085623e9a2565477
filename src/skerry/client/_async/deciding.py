"""`sandbox.review`, deciding: hunks, accepted or rejected."""

from __future__ import annotations

from skerry.client._async.ledger import AsyncLedger


class AsyncDeciding(AsyncLedger):
    pass
