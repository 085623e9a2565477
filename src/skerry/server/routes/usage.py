"""/v1/usage: the resources that sandboxes have used, by group."""

from __future__ import annotations

from skerry.engine.records.usage.store import UsageFilter
from skerry.errors import InvalidRequest, NotFound
from skerry.server.http.call import Call, Empty
from skerry.types import NAME, UsageReport, Value, check_day, check_text, check_usage_group


class UsageQuery(Value, frozen=True, kw_only=True):
    """`by`: sandbox, actor, image, owner, day or label:KEY. `since`, `until`: the first and the last day, like
    2026-11-30, in UTC. `sandbox`: an ID, also of a deleted sandbox, or a name. `label`: KEY=VALUE."""

    by: str = "sandbox"
    since: str | None = None
    until: str | None = None
    sandbox: str | None = None
    label: str | None = None
    owner: str | None = None

    def __post_init__(self) -> None:
        check_usage_group(self.by)
        for name, day in (("since", self.since), ("until", self.until)):
            if day is not None:
                check_day(day, name)
        if self.sandbox is not None and not NAME.fullmatch(self.sandbox):
            raise InvalidRequest(f"sandbox: {self.sandbox[:80]!r} is neither an id nor a name")
        if self.label is not None and "=" not in self.label:
            raise InvalidRequest(f"label: {self.label[:80]!r} is not KEY=VALUE")
        for name, value in (("label", self.label), ("owner", self.owner), ("by", self.by)):
            check_text(name, value or "")
            if len(value or "") > 2048:
                raise InvalidRequest(f"{name}: too long")


async def report(call: Call[UsageQuery, Empty]) -> UsageReport:
    query, meter = call.query, call.engine.meter
    sandbox = call.engine.registry.id_of(call.caller, query.sandbox) if query.sandbox is not None else None
    if sandbox is not None and not await meter.knows(call.caller, sandbox):
        raise NotFound(f"sandbox {sandbox!r} not found", details={"sandbox": sandbox})
    key, found, value = (query.label or "").partition("=")
    wanted = UsageFilter(query.owner, query.since, query.until, sandbox, (key, value) if found else None)
    return await meter.report(call.caller, query.by, wanted)
