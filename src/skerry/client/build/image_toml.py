"""image.toml: the same steps as in Python, as a file.

from = "base"

[[steps]]
apt = ["ffmpeg"]

[[steps]]
copy = ["src", "/app"]
owner = "user"
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from skerry.client.build.builder import ImageDescription
from skerry.client.build.steps import StepLocation
from skerry.errors import InvalidRequest
from skerry.types import Network

D = TypeVar("D", bound=ImageDescription)
_TOP: Final = ("from", "steps", "network")
_NETWORK: Final = ("allow", "deny", "presets")
_HEADER: Final = re.compile(r"\s*\[\[\s*steps\s*\]\]")
_LIKE: Final = 'like: [[steps]] run = "make"'


def read_recipe_file(kind: type[D], text: str, file: str, directory: str) -> D:
    """Return the image that the file describes. Its paths are relative to `directory`."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"{file}: {error}") from None
    for name in tree:
        if name not in _TOP:
            raise InvalidRequest(f"{file}: {name!r} is not a valid key here", hint=f"known: {', '.join(_TOP)}")
    image = kind.of(_text(tree.get("from", "base"), f"{file}: from"))
    steps = tree.get("steps", [])
    if not isinstance(steps, list):
        raise InvalidRequest(f"{file}: steps: not a list of tables", hint=_LIKE)
    lines = [number for number, line in enumerate(text.split("\n"), 1) if _HEADER.match(line)]
    for number, step in enumerate(steps):
        where = StepLocation(file, lines[number] if len(lines) == len(steps) else None)
        try:
            image = _taken(image.at(where, directory), step)
        except InvalidRequest as error:
            place = str(where) if where.line else f"{file}: step {number + 1}"
            details = {"file": file, "line": where.line}
            raise InvalidRequest(f"{place}: {error.message}", hint=error.hint, details=details) from None
    image.network = _network(tree.get("network"), file)
    return image


def _taken(image: D, step: object) -> D:
    if not isinstance(step, dict):
        raise InvalidRequest("a step is not a table", hint=_LIKE)
    kinds = [name for name in step if name in _KINDS]
    if len(kinds) != 1:
        said = f"{' and '.join(kinds)} in one step" if kinds else f"{', '.join(step) or 'nothing'}: not a step"
        raise InvalidRequest(said, hint=f"one of {', '.join(_KINDS)}; {_LIKE}")
    more = {name: value for name, value in step.items() if name != kinds[0]}
    known, take = _KINDS[kinds[0]]
    for name in more:
        if name not in known:
            raise InvalidRequest(f"{name!r} does not go with {kinds[0]}", hint=f"known: {', '.join(known) or 'none'}")
    taken: D = take(image, step[kinds[0]], more)
    return taken


def _list(value: object, what: str) -> list[str]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise InvalidRequest(f"{what}: {value!r} is not a list of strings")
    return [_text(one, what) for one in value]


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{what}: {value!r} is not a string")
    return value


def _copy(image: D, value: object, more: Mapping[str, Any]) -> D:
    words = _list(value, "copy")
    if len(words) < 2:
        raise InvalidRequest("copy: needs a source and a target", hint='copy = ["src", "/app"]')
    return image.copy(*words, **more)


def _env(image: D, value: object, _: Mapping[str, Any]) -> D:
    if not isinstance(value, dict):
        raise InvalidRequest(f"env: {value!r} is not a table of strings", hint='env = { A = "1" }')
    return image.env(**{name: _text(one, f"env.{name}") for name, one in value.items()})


def _run(image: D, value: object, _: Mapping[str, Any]) -> D:
    return image.run(value if isinstance(value, str) else _list(value, "run"))


_Taker = Callable[[Any, Any, Mapping[str, Any]], Any]
_KINDS: Final[Mapping[str, tuple[tuple[str, ...], _Taker]]] = {
    "apt": ((), lambda image, value, _: image.apt(*_list(value, "apt"))),
    "pip": (("requirements",), lambda image, value, more: image.pip(*_list(value, "pip"), **more)),
    "npm": ((), lambda image, value, _: image.npm(*_list(value, "npm"))),
    "run": ((), _run),
    "copy": (("owner", "mode"), _copy),
    "env": ((), _env),
    "user": ((), lambda image, value, _: image.user(_text(value, "user"))),
    "workdir": ((), lambda image, value, _: image.workdir(_text(value, "workdir"))),
    "entrypoint": ((), lambda image, value, _: image.entrypoint(*_list(value, "entrypoint"))),
    "cmd": ((), lambda image, value, _: image.cmd(*_list(value, "cmd"))),
}


def _network(tree: object, file: str) -> Network | None:
    if tree is None:
        return None
    if not isinstance(tree, dict) or (stray := tree.keys() - set(_NETWORK)):
        raise InvalidRequest(f"{file}: network: {'not a table' if not isinstance(tree, dict) else sorted(stray)[0]}",
                             hint=f"known: {', '.join(_NETWORK)}")  # fmt: skip
    words: dict[str, Any] = {name: tuple(_list(value, f"{file}: network.{name}")) for name, value in tree.items()}
    return Network(**words)
