# Generated from client/_async/applying.py by scripts/generate_sync.py. Do not edit.
"""`sandbox.review`, landing: accepted hunks in a tree of this host."""

from __future__ import annotations

from skerry.client._sync.deciding import Deciding


class Applying(Deciding):
    pass
