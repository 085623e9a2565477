"""/v1/languages: those that code can be run in; /v1/sandboxes/{ref}/languages: with what is there of them."""

from __future__ import annotations

from skerry.server.call import Call, Nothing
from skerry.types import Answer, LanguageInfo


class Languages(Answer, frozen=True, kw_only=True):
    languages: list[LanguageInfo]


async def list_(call: Call[Nothing, Nothing]) -> Languages:
    return Languages(languages=call.engine.languages.listed())


async def there(call: Call[Nothing, Nothing]) -> Languages:
    return Languages(languages=await call.engine.languages.there(call.caller, call.ref))
