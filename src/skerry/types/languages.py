"""Languages by name and version: how one is written in the operator's file, and which one is meant by `py@3.12`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, Protocol, TypeVar

from skerry.errors import InvalidRequest
from skerry.types.values import Value, check_env, check_text

KernelName = Literal["python", "javascript", "typescript", "shell"]
LANGUAGE = re.compile(r"[a-z0-9](?:[a-z0-9+#._-]{0,30}[a-z0-9+#])?")
VERSION = re.compile(r"[0-9]+(?:\.[0-9a-z]+)*")
_PLACES = re.compile(r"\{[a-z]+\}")
_ARGV = ("version", "compile", "run", "context")


class ImageLanguage(Value, frozen=True, kw_only=True):
    """What of a language is otherwise, in general or in one image. None: as it was; an empty list: it has none.

    Words of an argv, and values of `env`, may hold `{file}` (the code), `{out}` (what is made of it) and `{dir}` (where
    both are: a directory of this run's own). `errors`: patterns that find in what is printed to stderr how
    the code failed, with the groups `name`, `message` and `line`."""

    file: str | None = None
    version: tuple[str, ...] | None = None
    compile: tuple[str, ...] | None = None
    run: tuple[str, ...] | None = None
    context: tuple[str, ...] | None = None
    env: dict[str, str] | None = None
    errors: tuple[str, ...] | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        for name in _ARGV:
            for word in getattr(self, name) or ():
                _check_word(name, word)
        check_env(self.env or {})
        for word in (self.env or {}).values():
            _check_word("env", word)
        if self.file is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", self.file):
            raise InvalidRequest(f"file: {self.file[:80]!r} is not the plain name of a file")
        if self.run == ():
            raise InvalidRequest("run: it is empty", hint='run = ["ruby", "{file}"]')
        check_text("note", self.note or "")
        for pattern in self.errors or ():
            _check_pattern(pattern)


class LanguageForm(ImageLanguage, frozen=True, kw_only=True):
    """A row of the setting `languages`. `packages`: those of the base image's distribution that bring it; `image`: one
    that has it; `versions`: which image has which."""

    aliases: tuple[str, ...] | None = None
    kernel: KernelName | None = None
    packages: tuple[str, ...] | None = None
    image: str | None = None
    versions: dict[str, str] | None = None
    images: dict[str, ImageLanguage] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for alias in self.aliases or ():
            check_known_by(alias, "aliases")
        for version in self.versions or {}:
            if not VERSION.fullmatch(version):
                raise InvalidRequest(f"versions: {version[:40]!r} is not a version", hint='like "3.12"')


class Listed(Protocol):
    """A language in a list of them."""

    @property
    def name(self) -> str: ...
    @property
    def aliases(self) -> tuple[str, ...]: ...
    @property
    def versions(self) -> Mapping[str, str]: ...


L = TypeVar("L", bound=Listed)


def find_language(known: Iterable[L], text: str) -> tuple[L, str | None]:
    """The one that is meant by a name or an alias, in any case of letters, and the version that is asked for."""
    known = list(known)
    name, at, version = text.strip().lower().partition("@")
    for language in known:
        if name in (language.name, *language.aliases):
            if at and not (len(version) <= 40 and VERSION.fullmatch(version)):
                raise InvalidRequest(
                    f"language: {version[:40]!r} is not a version of {language.name}", hint=_versions(language)
                )
            return language, version or None
    names = ", ".join(language.name for language in known)
    raise InvalidRequest(f"language: {name[:64]!r} is not known", hint=f"known: {names}")


def image_of(language: Listed, version: str) -> str:
    """The image that has a version: of several that it fits, the newest."""
    fitting = [known for known in language.versions if is_version(version, known)]
    if not fitting:
        raise InvalidRequest(f"language: no image is known for {language.name} {version}", hint=_versions(language))
    return language.versions[max(fitting, key=_order)]


def is_version(asked: str, found: str) -> bool:
    """3.12 is asked for by 3 and by 3.12, not by 3.1."""
    return f"{found}.".startswith(f"{asked}.")


def check_known_by(name: str, what: str = "language") -> None:
    if not LANGUAGE.fullmatch(name):
        raise InvalidRequest(f"{what}: {name[:40]!r} can't be a language's name", hint="lower-case letters and digits")


def _versions(language: Listed) -> str:
    known = ", ".join(language.versions)
    return f"{language.name}@ and one of: {known}" if known else f"{language.name} has no versions to choose from"


def _order(version: str) -> tuple[tuple[int, str], ...]:
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in version.split("."))


def _check_word(what: str, word: str) -> None:
    check_text(what, word)
    for place in _PLACES.findall(word):
        if place not in ("{file}", "{out}", "{dir}"):
            raise InvalidRequest(f"{what}: {place} stands for nothing", hint="{file}, {out} or {dir}")


def _check_pattern(pattern: str) -> None:
    try:
        groups = re.compile(pattern).groupindex
    except re.error as problem:
        raise InvalidRequest(f"errors: {problem}") from None
    if stray := groups.keys() - {"name", "message", "line"}:
        raise InvalidRequest(f"errors: the group {sorted(stray)[0]!r} means nothing", hint="name, message, line")
