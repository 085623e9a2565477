"""How a keeper fails its host. Root inside shares the keeper's world, so both are expected and end one sandbox only."""

from __future__ import annotations

from skerry.errors import SandboxUnavailable


class KeeperLied(SandboxUnavailable):
    """It said something that the protocol does not allow: too long, malformed, cut short, of another build."""


class KeeperSilent(SandboxUnavailable):
    """It did not answer in time, or can't be reached."""
