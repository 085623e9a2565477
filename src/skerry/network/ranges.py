"""Which addresses stay closed unless they are named: ranges that are never the Internet, and this host's own."""

from __future__ import annotations

from skerry.types.hosts import closed, closed_range, is_own

__all__ = ["closed", "closed_range", "is_own"]
