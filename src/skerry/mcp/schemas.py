"""Schemas as short as they can be: every word of them is read by a model, in every conversation."""

from __future__ import annotations

from typing import Any


def plain(schema: Any) -> Any:
    """Without titles that only repeat a name, and without `null` where leaving a field out says the same."""
    if isinstance(schema, list):
        return [plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    short = {
        name: {field: plain(one) for field, one in value.items()} if name in ("properties", "$defs") else plain(value)
        for name, value in schema.items()
        if not (name == "title" and isinstance(value, str)) and not (name == "default" and value is None)
    }
    kinds = [one for one in short.get("anyOf", ()) if one != {"type": "null"}]
    if len(kinds) == 1:
        del short["anyOf"]
        return {**kinds[0], **short}
    return {**short, "anyOf": kinds} if kinds else short
