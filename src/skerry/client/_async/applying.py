"""`sandbox.review`, landing: accepted hunks in a tree of this host."""

from __future__ import annotations

from skerry.client._async.deciding import AsyncDeciding


class AsyncApplying(AsyncDeciding):
    pass
