"""/v1/languages: the supported languages, and an image with the tools of one; /v1/sandboxes/{ref}/languages: the
installed versions."""

from __future__ import annotations

from skerry.server.http.call import Call, Empty
from skerry.server.http.responses import NDJSON, StreamResponse
from skerry.server.routes.images import progress_lines
from skerry.types import LanguageList


async def list_(call: Call[Empty, Empty]) -> LanguageList:
    return LanguageList(languages=call.engine.languages.listed(), max_timeout=call.engine.processes.max_timeout)


async def install(call: Call[Empty, Empty]) -> StreamResponse:
    return StreamResponse(NDJSON, progress_lines(call.engine.languages.install(call.parameters["language"])))


async def there(call: Call[Empty, Empty]) -> LanguageList:
    found = await call.engine.languages.there(call.caller, call.ref)
    return LanguageList(languages=found, max_timeout=call.engine.processes.max_timeout)
