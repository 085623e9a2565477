# Generated from client/_async/deciding.py by scripts/generate_sync.py. Do not edit.
"""`sandbox.review`, deciding: hunks, accepted or rejected."""

from __future__ import annotations

from skerry.client._sync.ledger import Ledger


class Deciding(Ledger):
    pass
