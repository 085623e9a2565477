"""How a keeper fails its host. Root inside shares the keeper's world, so both are expected and end one sandbox only."""

from __future__ import annotations

from skerry.errors import QuotaExceeded, SandboxUnavailable


class KeeperLied(SandboxUnavailable):
    """It said something that the protocol does not allow: too long, malformed, cut short, of another build."""


class KeeperSilent(SandboxUnavailable):
    """It did not answer in time, or can't be reached."""


class HostShort(QuotaExceeded):
    """This host has no descriptor or memory left to ask it: nobody's fault inside, and no sandbox ends for it."""
