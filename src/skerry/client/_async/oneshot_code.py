"""`run_code`: a sandbox for one piece of code. Files in, events as they come, what it made and drew back."""

from __future__ import annotations

import os
import warnings
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Unpack

from msgspec import structs

from skerry.client import backend_async as backend
from skerry.client._async.client import AsyncClient
from skerry.client._async.code import AsyncCodeEvent, AsyncCodeResult, events
from skerry.client._async.executing import choose_image, made_of
from skerry.client._async.oneshot import WORKSPACE, Content, check_once, once
from skerry.client.code_outcome import hint_alone, pictures, place_of
from skerry.client.code_requests import Input, code_request
from skerry.client.description import Creation
from skerry.client.landing import Landing, Refused
from skerry.errors import FileFailure, SandboxUnavailable

Deliver = backend.Callback[AsyncCodeEvent]
Tell = Callable[[str], None]


async def run_code(
    code: str,
    language: str = "python",
    *,
    files: Mapping[str, Content] = {},
    out: str | os.PathLike[str] | None = None,
    cwd: str | None = None,
    user: str | None = None,
    stdin: Input | None = None,
    timeout: float | None = 300,
    on_event: Deliver | None = None,
    setup: Sequence[str] = (),
    tell: Tell = warnings.warn,
    saved: Tell = lambda _: None,
    **creation: Unpack[Creation],
) -> AsyncCodeResult:
    """Run code in a new sandbox that is gone afterwards; the same as `skerry run -l`.

    `out` is a new or empty directory that receives the files that the code made, and the pictures that it drew; `saved`
    is told of each. The rest is as with `run` and `sandbox.code.stream`."""
    # What is wrong is said before a sandbox is made.
    fresh = cwd is not None or user is not None  # a default context has its own
    wish = code_request(code, language, stdin, timeout, cwd=cwd, user=user, fresh=fresh)
    check_once(files, creation)
    given = creation.get("server")
    client = given if isinstance(given, AsyncClient) else AsyncClient(given)
    creation["server"] = client
    landing = Landing(out) if out is not None else None
    try:
        await choose_image(client, language, creation)
        async with once(files, setup, tell, creation) as (sandbox, brought):
            result = await followed(events(sandbox, wish), on_event)
            result = structs.replace(result, files=made_of(result.files, brought), hint=hint_alone(result))
            if landing is not None:
                await keep(result, landing, cwd or WORKSPACE, tell, saved)
            return result
    finally:
        if landing is not None:
            landing.close()
        if client is not given:
            await client.aclose()


async def followed(coming: AsyncIterator[AsyncCodeEvent], on_event: Deliver | None) -> AsyncCodeResult:
    """To the end, with each event told as it comes."""
    result: AsyncCodeResult | None = None
    async for event in coming:
        result = event.end
        if on_event is not None:
            await backend.deliver(on_event, event)
    if result is None:
        raise SandboxUnavailable("the output ended before the code did", hint="`skerry show` tells its state")
    return result


async def keep(result: AsyncCodeResult, landing: Landing, cwd: str, tell: Tell, saved: Tell) -> None:
    """Bring back the files that the code made and the pictures that it drew. Names from inside are hostile."""
    for file in result.files:
        place = place_of(file.path, cwd)
        try:
            with landing.file(place, file) as target:
                async for piece in file.stream():
                    target.write(piece)
        except (Refused, FileFailure) as why:
            tell(f"{place!r} is not brought back: {why}")
        else:
            saved(place)
    for place, picture in pictures(result):
        try:
            with landing.file(place) as target:
                target.write(picture)
        except Refused as why:
            tell(f"{place!r} is not saved: {why}")
        else:
            saved(place)
    if result.files_cut:
        tell(f"the code made more files than the {len(result.files)} that were brought back")
