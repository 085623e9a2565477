"""The words of a Dockerfile: quotes, escapes, variables. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEEPEST: Final = 20


class ShellWordError(Exception):
    """Describes the error; the caller adds the line."""


def expand(text: str, variables: Mapping[str, str], *, escape: str = "\\") -> str:
    """Return one word with its variables expanded and its quotes removed. An unset variable is empty."""
    return _Expansion(text, variables, escape).all()


def substitute(text: str, variables: Mapping[str, str], *, escape: str = "\\") -> str:
    """Return the text of a here-document with its variables expanded and everything else unchanged."""
    return _Expansion(text, variables, escape, quotes=False).all()


class _Expansion:
    def __init__(
        self, text: str, variables: Mapping[str, str], escape: str, *, quotes: bool = True, depth: int = 0
    ) -> None:
        if depth > _DEEPEST:
            raise ShellWordError("variables are nested too deeply")
        self._text = text
        self._variables = variables
        self._escape = escape
        self._quotes = quotes
        self._depth = depth
        self._at = 0

    def all(self) -> str:
        out, quote = "", ""
        while self._at < len(self._text):
            char = self._text[self._at]
            if self._quotes and char == "'" and not quote:
                out += self._single()
            elif self._quotes and char == '"':
                quote = "" if quote else '"'
                self._at += 1
            elif char == self._escape and self._at + 1 < len(self._text):
                out += self._escaped(quote)
            elif char == "$":
                out += self._variable()
            else:
                out += char
                self._at += 1
        if quote:
            raise ShellWordError('a " is not closed')
        return out

    def _single(self) -> str:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            raise ShellWordError("a ' is not closed")
        found, self._at = self._text[self._at + 1 : end], end + 1
        return found

    def _escaped(self, quote: str) -> str:
        following = self._text[self._at + 1]
        self._at += 2
        if (quote or not self._quotes) and following not in ('"', "$", self._escape):
            return self._escape + following
        return following if self._quotes or following in ("$", self._escape) else self._escape + following

    def _variable(self) -> str:
        self._at += 1
        if match := _NAME.match(self._text, self._at):
            self._at = match.end()
            return self._variables.get(match[0], "")
        if self._text[self._at : self._at + 1] != "{":
            return "$"
        return self._braced(self._braces())

    def _braces(self) -> str:
        depth, start = 0, self._at + 1
        while self._at < len(self._text):
            char = self._text[self._at]
            self._at += 2 if char == self._escape else 1
            depth += {"{": 1, "}": -1}.get(char, 0)
            if depth == 0:
                return self._text[start : self._at - 1]
        raise ShellWordError("a ${ is not closed")

    def _braced(self, inside: str) -> str:
        match = _NAME.match(inside)
        if match is None:
            raise ShellWordError(f"${{{inside}}} is not a variable name")
        name, rest = match[0], inside[match.end() :]
        value = self._variables.get(name)
        if not rest:
            return value or ""
        form = re.fullmatch(r"(:?[-+?])(.*)", rest, re.DOTALL)
        if form is None:
            raise ShellWordError(f"${{{inside}}}: only :-, :+ and :? are supported")
        there = value is not None and (value != "" or not form[1].startswith(":"))
        word = _Expansion(form[2], self._variables, self._escape, quotes=self._quotes, depth=self._depth + 1).all
        if form[1].endswith("-"):
            return value or "" if there else word()
        if form[1].endswith("+"):
            return word() if there else ""
        if not there:
            raise ShellWordError(word() or f"{name} is not set")
        return value or ""


def split(text: str, *, escape: str = "\\") -> list[str]:
    """Return the words unchanged, with quotes and variables."""
    words: list[str] = []
    word, quote, at = "", "", 0
    while at < len(text):
        char = text[at]
        if char == escape and quote != "'" and at + 1 < len(text):
            word += text[at : at + 2]
            at += 2
            continue
        if char in "\"'" and quote in ("", char):
            quote = "" if quote else char
        if char.isspace() and not quote:
            if word:
                words.append(word)
            word = ""
        else:
            word += char
        at += 1
    if quote:
        raise ShellWordError(f"a {quote} is not closed")
    return [*words, word] if word else words


def pairs(text: str, *, escape: str = "\\") -> list[tuple[str, str]]:
    """Return NAME=VALUE words unchanged, or the old form: NAME, followed by its value up to the end."""
    words = split(text, escape=escape)
    if not words:
        raise ShellWordError("the variable name is missing")
    if "=" not in words[0]:
        name, _, value = re.sub(r"\s", " ", text.strip(), count=1).partition(" ")
        if not value.strip():
            raise ShellWordError(f"{name} has no value")
        return [(name, value.strip())]
    found = []
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise ShellWordError(f"{word!r} is not NAME=VALUE")
        found.append((name, value))
    return found
