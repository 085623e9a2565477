"""`sandbox.review`, reading: what the ledger of a workspace tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skerry.client._async.sandbox import AsyncSandbox


class AsyncLedger:
    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox
