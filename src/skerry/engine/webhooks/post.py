"""Send a POST to a URL of the operator's settings."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from skerry.codecs import h11_headers


class PostError(Exception):
    """No valid response arrived in time."""


@dataclass(frozen=True)
class PostResponse:
    status: int
    body: bytes
    retry_after: str | None = None


def _load(url: str) -> ssl.SSLContext:
    """Load httpx2 and the authorities that the host trusts now. Both take 20 ms or more: run this in a thread."""
    import httpx2  # noqa: F401 -- a server without a webhook starts without it

    h11_headers.harden()
    return ssl.create_default_context() if url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


async def post(
    url: str, content: bytes, headers: Mapping[str, str], *, timeout_s: float, max_body: int | None
) -> PostResponse:
    """Return the response. Follow no redirect and use no proxy. `max_body`: the longest body of a response with the
    status 200; None: do not read it. Raise PostError without a response in time, or if it is too long."""
    trust = await asyncio.to_thread(_load, url)
    import httpx2

    try:
        async with (
            asyncio.timeout(timeout_s),
            httpx2.AsyncClient(follow_redirects=False, trust_env=False, timeout=timeout_s, verify=trust) as http,
            http.stream(
                "POST",
                url,
                content=content,
                headers={"content-type": "application/json", "accept-encoding": "identity", **headers},
            ) as response,
        ):
            body = bytearray()
            if max_body is not None and response.status_code == 200:
                async for piece in response.aiter_raw():
                    body += piece
                    if len(body) > max_body:
                        raise PostError(f"its answer is longer than {max_body} bytes")
            return PostResponse(response.status_code, bytes(body), response.headers.get("retry-after"))
    except TimeoutError:
        raise PostError(f"no answer within {timeout_s:g} s") from None
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
        raise PostError(str(error) or type(error).__name__) from error
