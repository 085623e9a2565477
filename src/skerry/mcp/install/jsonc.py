"""Change one member of an object in a JSON text and keep all other bytes, including comments, trailing commas and
indentation. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_BLANK = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"')
_ATOM = re.compile(r"[^\s,\[\]{}\":/]+")
_NOTE = re.compile(r"[ \t]*(?://[^\r\n]*|/\*[^\r\n]*?\*/)(?=[ \t]*\r?\n)")
_UNIT = re.compile(r"\n([ \t]+)\"")


class InvalidJson(ValueError):
    """The text is not valid JSON or has another structure; the message describes it."""


@dataclass(frozen=True)
class Member:
    """A member of an object: its key and positions in the text."""

    key: str
    start: int
    value: int
    end: int


@dataclass(frozen=True)
class Object:
    """The positions of `{` and `}`, and the members between them."""

    start: int
    end: int
    members: tuple[Member, ...]

    def get(self, key: str) -> Member | None:
        found = [member for member in self.members if member.key == key]
        if len(found) > 1:
            raise InvalidJson(f"{key!r} occurs twice")
        return found[0] if found else None


def read(text: str) -> Any:
    """Parse JSON with comments and trailing commas."""
    pieces: list[str] = []
    end = _value(text, _blank(text, 0), pieces)
    if _blank(text, end) != len(text):
        raise InvalidJson("text follows the end of the value")
    return json.loads("".join(pieces))


def put(text: str, path: Sequence[str], value: Any) -> str:
    """Return the text with a value at the path; create missing objects on the way."""
    if not text.strip("\ufeff \t\r\n"):
        return json.dumps(_nested(path, value), indent=2, ensure_ascii=False) + "\n"
    here, depth = _root(text), 0
    while depth < len(path) - 1 and (member := here.get(path[depth])) is not None:
        here, depth = _object(text, member.value, path[depth]), depth + 1
    key, made = path[depth], _nested(path[depth + 1 :], value)
    member = here.get(key)
    if member is not None:
        base = _line_indent(text, member.start)
        return text[: member.value] + _dumped(text, made, base) + text[member.end :]
    return _added(text, here, key, made)


def drop(text: str, path: Sequence[str]) -> str:
    """Return the text without the member at the path, or the unchanged text if it does not exist."""
    if not text.strip("\ufeff \t\r\n"):
        return text
    here = _root(text)
    for key in path[:-1]:
        member = here.get(key)
        if member is None:
            return text
        here = _object(text, member.value, key)
    member = here.get(path[-1])
    return text if member is None else _removed(text, here, member)


def _nested(path: Sequence[str], value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


def _added(text: str, here: Object, key: str, value: Any) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    if not here.members:
        return _first(text, here, key, value, newline)
    last = here.members[-1]
    indent = _line_indent(text, last.start) if "\n" in text[here.start : here.end] else None
    comma = _blank(text, last.end)
    trailing = text[comma] == ","
    at = comma + 1 if trailing else last.end
    if indent is None:
        more = f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
        return f"{text[:at]}{'' if trailing else ','}{more}{',' if trailing else ''}{text[at:]}"
    member = f"{newline}{indent}{json.dumps(key)}: {_dumped(text, value, indent)}{',' if trailing else ''}"
    note = _NOTE.match(text, at)  # a comment about the previous member
    note_end = note.end() if note else at
    return f"{text[:at]}{'' if trailing else ','}{text[at:note_end]}{member}{text[note_end:]}"


def _first(text: str, here: Object, key: str, value: Any, newline: str) -> str:
    outer = _line_indent(text, here.start)
    indent = outer + _unit(text)
    between = text[here.start + 1 : here.end].rstrip()
    member = f"{newline}{indent}{json.dumps(key)}: {_dumped(text, value, indent)}"
    return f"{text[: here.start + 1]}{between}{member}{newline}{outer}{text[here.end :]}"


def _removed(text: str, here: Object, member: Member) -> str:
    if len(here.members) == 1 and not text[here.start + 1 : member.start].strip():
        rest = text[member.end : here.end].strip(", \t\r\n")
        if not rest:
            return f"{text[: here.start]}{{}}{text[here.end + 1 :]}"
    start, end = member.start, member.end
    after = _blank(text, end)
    if text[after] == ",":
        end = after + 1
    elif (index := here.members.index(member)) > 0:
        before = here.members[index - 1]
        comma = _blank(text, before.end)
        text = text[:comma] + text[comma + 1 :]
        start, end = start - 1, end - 1
    line = text.rfind("\n", 0, start) + 1
    tail = re.compile(r"[ \t]*(\r?\n|\Z)").match(text, end)
    if not text[line:start].strip() and tail is not None:
        start, end = line, tail.end()
    elif text[start - 1] == " ":
        start -= 1
    return text[:start] + text[end:]


def _dumped(text: str, value: Any, indent: str) -> str:
    lines = json.dumps(value, indent=_unit(text), ensure_ascii=False).split("\n")
    return ("\r\n" if "\r\n" in text else "\n").join([lines[0], *(indent + line for line in lines[1:])])


def _unit(text: str) -> str:
    found = _UNIT.search(text)
    return found[1] if found else "  "


def _line_indent(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip())]


def _root(text: str) -> Object:
    found = _object(text, _blank(text, 0), "the file")
    if _blank(text, found.end + 1) != len(text):
        raise InvalidJson("text follows the end of the value")
    return found


def _object(text: str, at: int, name: str) -> Object:
    if text[at : at + 1] != "{":
        raise InvalidJson(f"{name} is not an object")
    members: list[Member] = []
    end = _members(text, at, [], members)
    return Object(at, end - 1, tuple(members))


def _blank(text: str, at: int) -> int:
    if at == 0 and text.startswith("\ufeff"):
        at = 1
    found = _BLANK.match(text, at)
    return found.end() if found else at


def _value(text: str, at: int, pieces: list[str]) -> int:
    """Return the end of the value at `at` and append the value to `pieces` as plain JSON."""
    if text[at : at + 1] == "{":
        return _members(text, at, pieces, [])
    if text[at : at + 1] == "[":
        return _elements(text, at, pieces)
    found = (_STRING if text[at : at + 1] == '"' else _ATOM).match(text, at)
    if found is None:
        raise InvalidJson(f"line {text.count(chr(10), 0, at) + 1} is not JSON")
    pieces.append(found[0])
    return found.end()


def _members(text: str, at: int, pieces: list[str], members: list[Member]) -> int:
    pieces.append("{")
    at = _blank(text, at + 1)
    while text[at : at + 1] != "}":
        key = _STRING.match(text, at)
        colon = _blank(text, key.end()) if key else at
        if key is None or text[colon : colon + 1] != ":":
            raise InvalidJson(f"line {text.count(chr(10), 0, at) + 1} is not JSON")
        pieces += [key[0], ":"]
        begin = _blank(text, colon + 1)
        end = _value(text, begin, pieces)
        members.append(Member(json.loads(key[0]), at, begin, end))
        at = _next(text, end, "}", pieces)
    pieces.append("}")
    return at + 1


def _elements(text: str, at: int, pieces: list[str]) -> int:
    pieces.append("[")
    at = _blank(text, at + 1)
    while text[at : at + 1] != "]":
        at = _next(text, _value(text, at, pieces), "]", pieces)
    pieces.append("]")
    return at + 1


def _next(text: str, end: int, close: str, pieces: list[str]) -> int:
    """Return the position of the next element or of the closing bracket."""
    at = _blank(text, end)
    if text[at : at + 1] == ",":
        at = _blank(text, at + 1)
        if text[at : at + 1] != close:
            pieces.append(",")
    elif text[at : at + 1] != close:
        raise InvalidJson(f"line {text.count(chr(10), 0, at) + 1} is not JSON")
    return at
