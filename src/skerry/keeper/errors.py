"""Failures of a keeper. Root inside shares the keeper's world, so both kinds are expected; each fails one sandbox."""

from __future__ import annotations

from skerry.errors import QuotaExceeded, SandboxUnavailable


class KeeperProtocolError(SandboxUnavailable):
    """The keeper violated the protocol: a value too long, malformed, cut short, or from another build."""


class KeeperTimeout(SandboxUnavailable):
    """The keeper did not answer in time, or cannot be reached."""


class HostResourceError(QuotaExceeded):
    """The host has no descriptor or memory left for a connection. The sandbox is not at fault and is not failed."""
