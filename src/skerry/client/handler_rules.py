"""Handlers as text, for the command line and skerry.toml: `HOST set NAME: VALUE`, `HOST redirect OTHER`,
`HOST answer FILE`. Files are read here, on the machine of the command line."""

from __future__ import annotations

import mimetypes
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from skerry.errors import InvalidRequest
from skerry.types import Handler, HttpResponse, readable_size
from skerry.types.handlers import MAX_LOCAL_BODIES

_RULE: Final = re.compile(
    r"(?P<host>(?:[A-Za-z,]+ )?\S+) (?P<response>response )?(?P<verb>set|add|remove|redirect|answer) (?P<value>.+)"
)
_STATUS: Final = re.compile(r"([2-5][0-9]{2})(?: (.+))?")
_FORMS: Final = (
    '"HOST [response] set NAME: VALUE", "HOST [response] add NAME: VALUE", "HOST [response] remove NAME", '
    '"HOST redirect OTHER" or "HOST answer [STATUS] FILE"'
)


def parse_handlers(rules: Iterable[str], directory: Path, *, confined: bool = False) -> tuple[Handler, ...]:
    """Return the handlers that the rules describe, in the order of their hosts' first rules. Files are relative to
    `directory`; `confined`: a rule of a repository, which can name files below this directory only."""
    found: dict[str, dict[str, Any]] = {}
    for rule in rules:
        match = _RULE.fullmatch(rule)
        if match is None:
            raise InvalidRequest(f"network.handlers: {rule[:80]!r} is not a rule", hint=_FORMS)
        fields = found.setdefault(match["host"], {})
        _add(fields, match, rule, directory, confined)
    return tuple(Handler(host=host, **fields) for host, fields in found.items())


def _add(fields: dict[str, Any], match: re.Match[str], rule: str, directory: Path, confined: bool) -> None:
    verb, value, prefix = match["verb"], match["value"], "response_" if match["response"] else ""
    if verb in ("redirect", "answer"):
        if prefix or verb in fields:
            raise InvalidRequest(f"network.handlers: {rule[:80]!r}: {verb} is given twice, or for a response")
        fields[verb] = value if verb == "redirect" else _answer(value, directory, confined)
    elif verb == "remove":
        fields[f"{prefix}remove_headers"] = (*fields.get(f"{prefix}remove_headers", ()), value)
    else:
        name, colon, text = value.partition(":")
        headers = fields.setdefault(f"{prefix}{verb}_headers", {})
        if not colon or name in headers:
            problem = "is given twice" if colon else "has no colon"
            raise InvalidRequest(f"network.handlers: {rule[:80]!r}: the header {problem}", hint=_FORMS)
        headers[name] = text.strip()


def _answer(value: str, directory: Path, confined: bool) -> HttpResponse:
    match = _STATUS.fullmatch(value)
    status, name = (200, value) if match is None else (int(match[1]), match[2])
    if name is None:
        return HttpResponse(status=status)
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return HttpResponse(status=status, headers=(("Content-Type", kind),), body=_read(name, directory, confined))


def _read(name: str, directory: Path, confined: bool) -> bytes:
    path = directory / name
    try:
        inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(directory))
        if confined and not inside:
            raise InvalidRequest(
                f"network.handlers: {name[:80]!r} is outside of {directory}", hint="a project names only its own files"
            )
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidRequest(f"network.handlers: {name[:80]!r} is not a regular file")
            body = file.read(MAX_LOCAL_BODIES + 1)
    except InvalidRequest:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL byte
        raise InvalidRequest(f"network.handlers: {name[:80]!r}: {getattr(error, 'strerror', error)}") from error
    if len(body) > MAX_LOCAL_BODIES:
        raise InvalidRequest(
            f"network.handlers: {name[:80]!r} is larger than {readable_size(MAX_LOCAL_BODIES)}",
            hint="sandbox.network.handle(host, callable) answers with larger bodies",
        )
    return body
