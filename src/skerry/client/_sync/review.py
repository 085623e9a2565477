# Generated from client/_async/review.py by scripts/generate_sync.py. Do not edit.
"""`sandbox.review`: what changed in its workspace, hunk by hunk, and what of it is to land here."""

from __future__ import annotations

from skerry.client._sync.comparing import Comparing


class Review(Comparing):
    """Of a sandbox that was made with `repo=`. Reading needs a token of scope `use`, deciding one of scope `review`."""
