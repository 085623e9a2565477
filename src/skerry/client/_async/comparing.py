"""`sandbox.review`, comparing: several attempts side by side."""

from __future__ import annotations

from skerry.client._async.applying import AsyncApplying


class AsyncComparing(AsyncApplying):
    pass
