"""Tokens in the form of E2B's API keys, which its SDKs check: the same bits in hexadecimal digits."""

from __future__ import annotations

import base64
import re
from typing import Final

_TOKEN: Final = re.compile(r"skt_([a-z2-7]{40})")
_KEY: Final = re.compile(r"e2b_([0-9a-f]{50})")


def key_of(token: str) -> str:
    """Return the API key with the bits of a token."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise ValueError("not a token of Skerry")
    return f"e2b_{base64.b32decode(match[1].upper()).hex()}"


def token_of(key: str) -> str:
    """Return the token with the bits of an API key. Other text, such as a token itself, stays."""
    match = _KEY.fullmatch(key)
    return f"skt_{base64.b32encode(bytes.fromhex(match[1])).decode().lower()}" if match is not None else key
