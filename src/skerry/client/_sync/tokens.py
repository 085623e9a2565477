# Generated from client/_async/tokens.py by scripts/generate_sync.py. Do not edit.
"""The tokens of a server on TCP. Making and removing them needs the scope `admin`."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from skerry.client import requests
from skerry.client.responses import TokenList
from skerry.types import TokenInfo

if TYPE_CHECKING:
    from skerry.client._sync.client import Client


class Tokens:
    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, scope: str = "use", *, owner: str | None = None, note: str | None = None) -> TokenInfo:
        """A new token; its `secret` is in this answer and never shown again."""
        return self._client.value(requests.create_token(scope, owner, note), TokenInfo)

    def list(self) -> builtins.list[TokenInfo]:
        return (self._client.value(requests.tokens(), TokenList)).tokens

    def remove(self, token: str) -> None:
        self._client.done(requests.remove_token(token))
