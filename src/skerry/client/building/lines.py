"""A Dockerfile's text as instructions: comments gone, lines joined, here-documents gathered. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from skerry.client.building.words import Unreadable, split

_DIRECTIVE: Final = re.compile(r"#\s*([A-Za-z]+)\s*=\s*(.*?)\s*")
_WITH_HEREDOCS: Final = ("RUN", "COPY", "ADD")
_HEREDOC: Final = re.compile(r"\d*<<(-?)(['\"]?)([A-Za-z_][A-Za-z0-9_.-]*)\2")
_FLAG: Final = re.compile(r"--([a-z-]+)(?:=(\S*))?(?:\s+|$)")
_MOST: Final = 1 << 20


class BadLine(Unreadable):
    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line


@dataclass(frozen=True)
class Heredoc:
    """`literal`: its name stood in quotes, so that no variable is put in."""

    name: str
    text: str
    literal: bool


@dataclass(frozen=True)
class Instruction:
    """`text` is what follows the name and its flags; `raw` the same with the here-documents, for a shell."""

    line: int
    name: str
    text: str
    flags: tuple[tuple[str, str], ...] = ()
    heredocs: tuple[Heredoc, ...] = ()
    raw: str = ""
    escape: str = "\\"

    @property
    def title(self) -> str:
        flags = (f"--{name}={value}" if value else f"--{name}" for name, value in self.flags)
        shown = " ".join([self.name, *flags, *self.text.split()])
        return shown if len(shown) <= 100 else shown[:99] + "…"


def instructions(text: str) -> Iterator[Instruction]:
    """One after the other, each with the line that it begins on."""
    if len(text) > _MOST:
        raise BadLine(1, "it is larger than 1 MiB")
    lines = text.removeprefix("\ufeff").splitlines()
    escape = _escape(lines)
    at = 0
    while at < len(lines):
        if not lines[at].strip() or lines[at].lstrip().startswith("#"):
            at += 1
            continue
        first = at
        joined, at = _joined(lines, at, escape)
        try:
            found, at = _instruction(joined, lines, first, at, escape)
        except BadLine:
            raise
        except Unreadable as why:
            raise BadLine(first + 1, str(why)) from None
        yield found


def _escape(lines: list[str]) -> str:
    """A directive stands before all else."""
    for line in lines:
        match = _DIRECTIVE.fullmatch(line.strip())
        if match is None:
            break
        if match[1].lower() == "escape":
            if match[2] not in ("\\", "`"):
                raise BadLine(lines.index(line) + 1, f"escape={match[2]} is neither \\ nor `")
            return match[2]
    return "\\"


def _joined(lines: list[str], at: int, escape: str) -> tuple[str, int]:
    """A line with those that continue it; comments and empty lines between them don't count."""
    joined, goes_on = "", True
    while goes_on and at < len(lines):
        line = lines[at]
        at += 1
        if joined and (line.lstrip().startswith("#") or not line.strip()):
            continue
        stripped = line.rstrip()
        goes_on = stripped.endswith(escape)
        joined += stripped[:-1] if goes_on else line
    return joined, at


def _instruction(joined: str, lines: list[str], first: int, at: int, escape: str) -> tuple[Instruction, int]:
    name, _, text = re.sub(r"\s", " ", joined.strip(), count=1).partition(" ")
    name, text = name.upper(), text.strip()
    flags = []
    while match := _FLAG.match(text):
        flags.append((match[1], match[2] or ""))
        text = text[match.end() :]
    heredocs, raw = [], text
    if name in _WITH_HEREDOCS and "<<" in text:
        for dash, quote, word in _opened(text, escape):
            body, at = _body(lines, at, first, word, bool(dash))
            heredocs.append(Heredoc(word, "".join(body), bool(quote)))
            raw += "\n" + "".join(body) + word
        raw += "\n" if heredocs else ""
    return Instruction(first + 1, name, text, tuple(flags), tuple(heredocs), raw, escape), at


def _opened(text: str, escape: str) -> list[tuple[str, str, str]]:
    matches = (_HEREDOC.fullmatch(word) for word in split(text, escape=escape))
    return [(match[1], match[2], match[3]) for match in matches if match is not None]


def _body(lines: list[str], at: int, first: int, word: str, dash: bool) -> tuple[list[str], int]:
    body: list[str] = []
    while at < len(lines):
        line = lines[at].lstrip("\t") if dash else lines[at]
        at += 1
        if line == word:
            return body, at
        body.append(line + "\n")
    raise BadLine(first + 1, f"the here-document {word} does not end")
