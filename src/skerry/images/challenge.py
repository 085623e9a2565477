"""How a registry asks for a login: `WWW-Authenticate: Bearer realm="…",service="…",scope="…"`, or Basic. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PARAMETER = re.compile(r'\s*([A-Za-z_]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))\s*(?:,|$)')
_LONGEST = 8192


@dataclass(frozen=True)
class Challenge:
    scheme: str
    realm: str = ""
    service: str = ""
    scope: str = ""


def parse_challenge(header: str) -> Challenge | None:
    """The first way that we know; None: there is none."""
    if len(header) > _LONGEST:
        return None
    for match in re.finditer(r"(?i)(?:^|,\s*)(basic|bearer)(?=\s|$)", header):
        found: dict[str, str] = {}
        at = match.end()
        while parameter := _PARAMETER.match(header, at):
            found[parameter[1].lower()] = re.sub(r"\\(.)", r"\1", parameter[2] or "") or parameter[3] or ""
            at = parameter.end()
        return Challenge(match[1].lower(), found.get("realm", ""), found.get("service", ""), found.get("scope", ""))
    return None
