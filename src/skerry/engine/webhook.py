"""The operator's webhook: asked, by POST, about what no rule names. Whatever it does wrong is a no."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from skerry.errors import InvalidRequest
from skerry.types import Question, Reply

log = logging.getLogger("skerry.engine")
ANSWER_MOST = 4096


async def ask_webhook(url: str, question: Question, within: float) -> Reply | None:
    """Its answer; None: it gave none in time, or none that can be read. No redirect is followed, no proxy asked."""
    import httpx  # a server without a webhook starts without it

    try:
        async with (
            asyncio.timeout(within),
            httpx.AsyncClient(follow_redirects=False, trust_env=False, timeout=within) as http,
            http.stream(
                "POST",
                url,
                content=msgspec.json.encode({"question": question}),
                headers={"content-type": "application/json", "accept-encoding": "identity"},
            ) as response,
        ):
            if response.status_code != 200:
                raise ValueError(f"it answered {response.status_code}")
            body = bytearray()
            async for piece in response.aiter_raw():
                body += piece
                if len(body) > ANSWER_MOST:
                    raise ValueError(f"its answer is longer than {ANSWER_MOST} bytes")
        return msgspec.json.decode(bytes(body), type=Reply)
    except (httpx.HTTPError, httpx.InvalidURL, msgspec.MsgspecError, InvalidRequest, OSError, ValueError) as error:
        why = str(error) or type(error).__name__
        log.warning("the webhook gave no answer", extra={"sandbox": question.sandbox, "error": why[:300]})
        return None
