"""What a caller says of a sandbox to come."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypedDict, TypeVar

from msgspec import structs

from skerry.client.repository.source import AnyRepo
from skerry.errors import InvalidRequest
from skerry.types import CreateRequest, Lifecycle, Limits, Network, Options, Pty, RunRequest

V = TypeVar("V", str, str | None)
Words = str | Sequence[str | os.PathLike[str]]
UNSAID = Network()  # this very one, and not one that says the same: the operator's default applies, which may be more


class Startable(Protocol):
    """What a sandbox can start from besides an image by its name: a Snapshot."""

    @property
    def as_image(self) -> str: ...


class Buildable(Protocol):
    """What has to be built first: an Image."""

    @property
    def recipe(self) -> Any: ...


AnyImage = str | Startable | Buildable


class Creation(TypedDict, total=False):
    """The keyword arguments of `Sandbox(...)` but its name."""

    image: AnyImage
    repo: AnyRepo
    env: Mapping[str, str | None]
    labels: Mapping[str, str]
    limits: Limits
    network: Network
    secrets: Sequence[object]
    lifecycle: Lifecycle
    options: Options
    server: Any
    on_unknown: Any


def described(
    image: AnyImage,
    name: str | None,
    env: Mapping[str, str | None],
    labels: Mapping[str, str],
    limits: Limits,
    network: Network,
    lifecycle: Lifecycle,
    options: Options,
) -> CreateRequest:
    """The request, its values checked before anything is sent."""
    check_network(network)
    return CreateRequest(
        image=image_name(image), name=name, env=texts(env, "env"), labels=texts(labels, "labels"), limits=limits,
        network=None if network is UNSAID else network, lifecycle=lifecycle, options=options,
    )  # fmt: skip


def image_name(image: object) -> str:
    """As the server knows it; a Snapshot by its id, which stays the same whatever it is called."""
    if (recipe := recipe_of(image)) is not None:
        return str(recipe.base)  # until it is built
    name = image if isinstance(image, str) else getattr(image, "as_image", None)
    if not isinstance(name, str):
        raise InvalidRequest(
            f"image: a {type(image).__name__} is nothing to start from",
            hint="an image's name, an Image, a Snapshot or its name",
        )
    return name


def recipe_of(image: object) -> Any:
    """The recipe of an Image that is only described; None for what is there already."""
    return getattr(image, "recipe", None)


def check_network(network: object) -> None:
    """A list, a text or True in its place fails by name, not further down."""
    if network is not None and not isinstance(network, Network):
        raise InvalidRequest(
            f"network: a {type(network).__name__} is not a Network",
            hint='like network=Network(allow=["api.example.com"]); Network.open() for everything public',
        )


def asking(network: Network) -> Network:
    """A callback for what no rule names is asked about that."""
    check_network(network)
    if network.on_unknown == "learn":
        raise InvalidRequest("on_unknown: a network that learns asks nobody", hint='Network(on_unknown="ask")')
    return structs.replace(network, on_unknown="ask")


def texts(given: Mapping[str, V], what: str) -> dict[str, V]:
    """A mapping of texts; a number among them is refused by name, not by a failure further down."""
    for key, value in given.items():
        if not isinstance(key, str) or not (value is None or isinstance(value, str)):
            raise InvalidRequest(f"{what}: {key!r}: {value!r} is not text", hint="put it in quotes, or use str()")
    return dict(given)


def words(cmd: Words) -> str | list[str]:
    """A shell line as it is; an argv with its paths as texts."""
    if isinstance(cmd, str):
        return cmd
    if isinstance(cmd, (bytes, bytearray)) or not isinstance(cmd, Sequence):
        raise InvalidRequest(f"cmd: {cmd!r} is neither a text nor a list of texts")
    return [_word(word) for word in cmd]


def _word(word: object) -> str:
    text = os.fspath(word) if isinstance(word, os.PathLike) else word
    if not isinstance(text, str):
        raise InvalidRequest(f"cmd: {word!r} is not text", hint="put it in quotes, or use str()")
    return text


def seconds(timeout: float | None) -> float | None:
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float))):
        raise InvalidRequest(f"timeout: {timeout!r} is not a number of seconds", hint="like 300, or None for no limit")
    return timeout


def terminal(pty: bool | Pty | None) -> Pty | None:
    """The terminal of a process to come: True is one of the usual size."""
    if pty is None or isinstance(pty, Pty):
        return pty
    return Pty() if pty else None


def spawn_request(request: RunRequest, pty: bool | Pty | None, stdin: object, journal: str | int | None) -> RunRequest:
    """`stdin`: True is a pipe that stays open, False none; text or bytes are what it gets, and no more."""
    given: dict[str, Any] = {}
    if isinstance(stdin, str):
        given["stdin"] = stdin
    elif isinstance(stdin, (bytes, bytearray, memoryview)):
        given["stdin_base64"] = bytes(stdin)
    elif isinstance(stdin, bool):
        given["stdin_stream"] = stdin
    else:
        raise InvalidRequest(
            f"stdin: a {type(stdin).__name__} can't be sent with a spawn", hint="write it to process.stdin afterwards"
        )
    return structs.replace(request, pty=terminal(pty), journal=journal, **given)


def run_request(
    cmd: Words | None, env: Mapping[str, str | None], cwd: str | None, user: str | None, timeout: float | None
) -> RunRequest:
    given = words(cmd) if cmd is not None else None
    return RunRequest(cmd=given, env=texts(env, "env"), cwd=cwd, user=user, timeout=seconds(timeout))
