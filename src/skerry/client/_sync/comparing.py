# Generated from client/_async/comparing.py by scripts/generate_sync.py. Do not edit.
"""`sandbox.review`, comparing: several attempts side by side."""

from __future__ import annotations

from skerry.client._sync.applying import Applying


class Comparing(Applying):
    pass
