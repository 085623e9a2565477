"""The same for one table of a TOML text: its lines are replaced, all others stay. Pure.

Lines are told apart as far as that goes without a parser; whoever calls reads the result with one and compares."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_HEADER = re.compile(r"\s*\[")
_ASIDE = re.compile(r"\s*(#.*)?$")


def put(text: str, path: Sequence[str], value: Mapping[str, Any]) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    table = _table(path, value).replace("\n", newline)
    lines = text.splitlines(keepends=True)
    start, end = _span(lines, path)
    if start == end:
        between = "" if not text.strip() else newline if text.endswith("\n") else newline * 2
        return f"{text}{between}{table}"
    return "".join([*lines[:start], table, *lines[end:]])


def drop(text: str, path: Sequence[str]) -> str:
    lines = text.splitlines(keepends=True)
    start, end = _span(lines, path)
    if start == end:
        return text
    while start > 0 and end == len(lines) and not lines[start - 1].strip():
        start -= 1
    while end < len(lines) and start > 0 and not lines[start - 1].strip() and not lines[end].strip():
        end += 1
    return "".join(lines[:start] + lines[end:])


def _table(path: Sequence[str], value: Mapping[str, Any]) -> str:
    rows = [f"[{'.'.join(path)}]", *(f"{key} = {_written(one)}" for key, one in value.items())]
    return "\n".join(rows) + "\n"


def _written(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_written(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_written, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _span(lines: list[str], path: Sequence[str]) -> tuple[int, int]:
    """The lines of the table and of those below it, which stand together; comments before the next one are its own."""
    names = r"\s*\.\s*".join(rf"(?:{re.escape(name)}|\"{re.escape(name)}\"|'{re.escape(name)}')" for name in path)
    ours = re.compile(rf"\s*\[\s*{names}\s*(?:\.[^\]]*)?\]\s*(?:#.*)?$")
    start = next((number for number, line in enumerate(lines) if ours.match(line)), len(lines))
    end = start
    while end < len(lines) and (end == start or ours.match(lines[end]) or not _HEADER.match(lines[end])):
        end += 1
    while end > start + 1 and _ASIDE.match(lines[end - 1]):
        end -= 1
    return start, end
