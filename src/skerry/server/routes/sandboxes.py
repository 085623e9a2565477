"""/v1/sandboxes: create, list, get, update, stop, resume, delete."""

from __future__ import annotations

import re
from typing import Any

from skerry.errors import InvalidRequest
from skerry.server.http.call import Call, Empty
from skerry.types import (
    CreateRequest,
    RenameRequest,
    SandboxInfo,
    SandboxList,
    SandboxStatsList,
    State,
    UpdateRequest,
    Usage,
    Value,
    check_labels,
)

_KEY = re.compile(r"[\x21-\x7e]{1,200}")


class SandboxQuery(Value, frozen=True, kw_only=True):
    """`label` (repeatable): key=value; all labels must match."""

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


class StatsQuery(Value, frozen=True, kw_only=True):
    """`sandbox` (repeatable): an ID or a name; the default is all of the caller's."""

    sandbox: tuple[str, ...] = ()


async def create(call: Call[Empty, CreateRequest]) -> SandboxInfo:
    return await call.engine.sandboxes.create(call.caller, call.body, key_of(call))


def key_of(call: Call[Any, Any]) -> str | None:
    key = call.headers.get(b"idempotency-key")
    if key is not None and not _KEY.fullmatch(key):
        raise InvalidRequest("Idempotency-Key: 1 to 200 visible ASCII characters")
    return key


async def list_(call: Call[SandboxQuery, Empty]) -> SandboxList:
    return SandboxList(sandboxes=call.engine.sandboxes.list(call.caller, call.query.labels, call.query.state))


async def get(call: Call[Empty, Empty]) -> SandboxInfo:
    return call.engine.sandboxes.get(call.caller, call.ref)


async def update(call: Call[Empty, UpdateRequest]) -> SandboxInfo:
    return await call.engine.sandboxes.update(call.caller, call.ref, call.body)


async def rename(call: Call[Empty, RenameRequest]) -> SandboxInfo:
    return await call.engine.sandboxes.rename(call.caller, call.ref, call.body.name)


class DeleteQuery(Value, frozen=True, kw_only=True):
    """`force=true`: also delete a sandbox with accepted changes that were not applied. `purge=true`: do not keep its
    review and its trace."""

    force: bool = False
    purge: bool = False


async def delete(call: Call[DeleteQuery, Empty]) -> None:
    query = call.query
    await call.engine.sandboxes.delete(call.caller, call.ref, force=query.force, purge=query.purge)


async def stop(call: Call[Empty, Empty]) -> SandboxInfo:
    return await call.engine.sandboxes.stop(call.caller, call.ref)


async def resume(call: Call[Empty, Empty]) -> SandboxInfo:
    return await call.engine.sandboxes.resume(call.caller, call.ref)


async def pause(call: Call[Empty, Empty]) -> SandboxInfo:
    return await call.engine.sandboxes.pause(call.caller, call.ref)


async def usage(call: Call[Empty, Empty]) -> Usage:
    return await call.engine.meter.usage(call.caller, call.ref)


async def stats(call: Call[StatsQuery, Empty]) -> SandboxStatsList:
    return SandboxStatsList(sandboxes=await call.engine.sandboxes.stats(call.caller, call.query.sandbox))
