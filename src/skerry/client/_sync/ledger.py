# Generated from client/_async/ledger.py by scripts/generate_sync.py. Do not edit.
"""`sandbox.review`, reading: what the ledger of a workspace tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skerry.client._sync.sandbox import Sandbox


class Ledger:
    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
