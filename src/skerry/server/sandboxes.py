"""/v1/sandboxes: create, list, look, change, stop, wake, delete."""

from __future__ import annotations

import re
from typing import Any

from skerry.errors import InvalidRequest
from skerry.server.call import Call, Nothing
from skerry.types import Answer, CreateRequest, SandboxInfo, State, UpdateRequest, Usage, Value, check_labels

_KEY = re.compile(r"[\x21-\x7e]{1,200}")


class SandboxQuery(Value, frozen=True, kw_only=True):
    """`label` is key=value, and may be repeated: all of them must fit."""

    label: tuple[str, ...] = ()
    state: State | None = None

    @property
    def labels(self) -> dict[str, str]:
        pairs = [pair.partition("=") for pair in self.label]
        if any(not separator for _, separator, _ in pairs):
            raise InvalidRequest("label: a label is key=value", hint="like ?label=team=red")
        if len({key for key, _, _ in pairs}) < len(pairs):
            raise InvalidRequest("label: a key is given twice")
        labels = {key: value for key, _, value in pairs}
        check_labels(labels)
        return labels


class Sandboxes(Answer, frozen=True, kw_only=True):
    sandboxes: list[SandboxInfo]


async def create(call: Call[Nothing, CreateRequest]) -> SandboxInfo:
    return await call.engine.create(call.caller, call.body, key_of(call))


def key_of(call: Call[Any, Any]) -> str | None:
    key = call.headers.get(b"idempotency-key")
    if key is not None and not _KEY.fullmatch(key):
        raise InvalidRequest("Idempotency-Key: 1 to 200 visible ASCII characters")
    return key


async def list_(call: Call[SandboxQuery, Nothing]) -> Sandboxes:
    return Sandboxes(sandboxes=call.engine.list(call.caller, call.query.labels, call.query.state))


async def get(call: Call[Nothing, Nothing]) -> SandboxInfo:
    return call.engine.get(call.caller, call.ref)


async def update(call: Call[Nothing, UpdateRequest]) -> SandboxInfo:
    return await call.engine.update(call.caller, call.ref, call.body)


async def delete(call: Call[Nothing, Nothing]) -> None:
    await call.engine.delete(call.caller, call.ref)


async def stop(call: Call[Nothing, Nothing]) -> SandboxInfo:
    return await call.engine.stop(call.caller, call.ref)


async def resume(call: Call[Nothing, Nothing]) -> SandboxInfo:
    return await call.engine.resume(call.caller, call.ref)


async def pause(call: Call[Nothing, Nothing]) -> SandboxInfo:
    return await call.engine.pause(call.caller, call.ref)


async def usage(call: Call[Nothing, Nothing]) -> Usage:
    return await call.engine.usage(call.caller, call.ref)
