"""The options for creating sandboxes and running commands."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypedDict, TypeVar

from msgspec import structs

from skerry.client.repository.source import AnyRepo, repo_of
from skerry.errors import InvalidRequest
from skerry.types import Budget, CreateRequest, Lifecycle, Limits, Network, Options, Pty, RunRequest

V = TypeVar("V", str, str | None)
Command = str | Sequence[str | os.PathLike[str]]
DEFAULT_NETWORK = Network()  # compared by identity: the operator's default applies, which may be larger


class Startable(Protocol):
    """A Snapshot: a sandbox can start from it, as from a named image."""

    @property
    def as_image(self) -> str: ...


class Buildable(Protocol):
    """An Image: it must be built first."""

    @property
    def recipe(self) -> Any: ...


class Mountable(Protocol):
    """A Volume."""

    @property
    def as_volume(self) -> str: ...


AnyImage = str | Startable | Buildable
AnyVolume = str | Mountable


class CreateTerms(TypedDict, total=False):
    """The keyword arguments of `Sandbox(...)` without `image` and `name`."""

    repo: AnyRepo
    env: Mapping[str, str | None]
    labels: Mapping[str, str]
    limits: Limits
    network: Network
    secrets: Sequence[object]
    lifecycle: Lifecycle
    budget: Budget | None
    options: Options
    volumes: Mapping[str, AnyVolume]
    server: Any
    on_unknown: Any


class CreateOptions(CreateTerms, total=False):
    """The keyword arguments of `Sandbox(...)` without `name`."""

    image: AnyImage


def create_request(
    image: AnyImage,
    name: str | None,
    env: Mapping[str, str | None],
    labels: Mapping[str, str],
    limits: Limits,
    network: Network,
    lifecycle: Lifecycle,
    options: Options,
    budget: Budget | None,
    volumes: Mapping[str, AnyVolume] = {},
) -> CreateRequest:
    """Return the request, with its values checked before anything is sent."""
    check_network(network)
    check_budget(budget)
    _check_kind("limits", limits, Limits, 'Limits(memory="512M")')
    _check_kind("lifecycle", lifecycle, Lifecycle, 'Lifecycle(idle_timeout="30m")')
    _check_kind("options", options, Options, "Options(sudo=False)")
    if not isinstance(volumes, Mapping) or not all(isinstance(path, str) for path in volumes):
        raise InvalidRequest("volumes: not a mapping of paths to volumes", hint='like volumes={"/data": "data"}')
    return CreateRequest(
        image=image_name(image), name=name, env=texts(env, "env"), labels=_labels(labels), limits=limits,
        network=None if network is DEFAULT_NETWORK else network, lifecycle=lifecycle, options=options,
        budget=budget, volumes={path: volume_name(volume) for path, volume in volumes.items()},
    )  # fmt: skip


def check_creation(options: CreateOptions) -> None:
    """Reject unknown arguments of `Sandbox(...)` and invalid values, before anything is created."""
    if unknown := sorted(map(str, options.keys() - CreateOptions.__optional_keys__)):
        known = ", ".join(sorted(CreateOptions.__optional_keys__))
        raise InvalidRequest(f"unknown argument {unknown[0][:80]!r}", hint=f"the arguments for a new sandbox: {known}")
    repo_of(options.get("repo"))
    _check_decider(options.get("on_unknown"))
    create_request(
        options.get("image", "base"), None, options.get("env", {}), options.get("labels", {}),
        options.get("limits", Limits()), options.get("network", DEFAULT_NETWORK),
        options.get("lifecycle", Lifecycle()), options.get("options", Options()), options.get("budget"),
        options.get("volumes", {}),
    )  # fmt: skip


def _check_decider(on_unknown: object) -> None:
    if on_unknown is not None and not callable(on_unknown):
        raise InvalidRequest("on_unknown: not a function", hint="it receives an approval request and decides")


def _check_kind(name: str, value: object, kind: type, like: str) -> None:
    """Reject a number or a dict with a clear error."""
    if not isinstance(value, kind):
        raise InvalidRequest(f"{name}: a {type(value).__name__} is not {kind.__name__}", hint=f"like {name}={like}")


def image_name(image: object) -> str:
    """Return the server's name of an image; for a Snapshot its ID, which does not change when it is renamed."""
    if (recipe := recipe_of(image)) is not None:
        return str(recipe.base)  # until it is built
    name = image if isinstance(image, str) else getattr(image, "as_image", None)
    if not isinstance(name, str):
        raise InvalidRequest(
            f"image: a {type(image).__name__} cannot be started from",
            hint="an image's name, an Image, a Snapshot or its name",
        )
    return name


def volume_name(volume: object) -> str:
    """Return the server's name of a volume; for a Volume its ID."""
    name = volume if isinstance(volume, str) else getattr(volume, "as_volume", None)
    if not isinstance(name, str):
        raise InvalidRequest(
            f"volumes: a {type(volume).__name__} is not a volume",
            hint='like volumes={"/data": "data"}; "data:ro" cannot be written to',
        )
    return name


def recipe_of(image: object) -> Any:
    """Return the recipe of an Image that is not built yet; None for anything else."""
    return getattr(image, "recipe", None)


def check_network(network: object) -> None:
    """Reject a list, a string or True with a clear error."""
    if network is not None and not isinstance(network, Network):
        raise InvalidRequest(
            f"network: a {type(network).__name__} is not a Network",
            hint='like network=Network(allow=["api.example.com"]); Network.open() for everything public',
        )


def check_budget(budget: object) -> None:
    """Reject a number or a dict with a clear error."""
    if budget is not None and not isinstance(budget, Budget):
        raise InvalidRequest(
            f"budget: a {type(budget).__name__} is not a Budget", hint='like budget=Budget(cpu="1h", cost=5)'
        )


def with_approvals(network: Network) -> Network:
    """Return the network with `on_unknown="ask"`, for a callback that decides about unknown hosts."""
    check_network(network)
    if network.on_unknown == "learn":
        raise InvalidRequest("on_unknown: a network that learns asks no questions", hint='Network(on_unknown="ask")')
    return structs.replace(network, on_unknown="ask")


def texts(given: Mapping[str, V], what: str) -> dict[str, V]:
    """Return a mapping of strings; reject other values with a clear error."""
    if not isinstance(given, Mapping):
        raise InvalidRequest(
            f"{what}: a {type(given).__name__} is not a mapping", hint=f'like {what}={{"NAME": "value"}}'
        )
    for key, value in given.items():
        if not isinstance(key, str) or not (value is None or isinstance(value, str)):
            raise InvalidRequest(f"{what}: {key!r}: {value!r} is not a string", hint="put it in quotes, or use str()")
    return dict(given)


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    if any(value is None for value in texts(labels, "labels").values()):
        raise InvalidRequest("labels: None cannot be a value", hint="leave the label out")
    return dict(labels)


def check_command(cmd: Command) -> str | list[str]:
    """Return a shell line unchanged; an argv with its paths as strings."""
    if isinstance(cmd, str):
        return cmd
    if isinstance(cmd, (bytes, bytearray)) or not isinstance(cmd, Sequence):
        raise InvalidRequest(f"cmd: {cmd!r} is neither a string nor a list of strings")
    return [_word(word) for word in cmd]


def _word(word: object) -> str:
    text = os.fspath(word) if isinstance(word, os.PathLike) else word
    if not isinstance(text, str):
        raise InvalidRequest(f"cmd: {word!r} is not a string", hint="put it in quotes, or use str()")
    return text


def seconds(timeout: float | None) -> float | None:
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float))):
        raise InvalidRequest(f"timeout: {timeout!r} is not a number of seconds", hint="like 300, or None for no limit")
    return timeout


def terminal(pty: bool | Pty | None) -> Pty | None:
    """Return the terminal of a new process: True is one of the default size."""
    if pty is None or isinstance(pty, Pty):
        return pty
    return Pty() if pty else None


def spawn_request(
    request: RunRequest,
    pty: bool | Pty | None,
    stdin: object,
    journal: str | int | None,
    name: str | None = None,
    auto_remove: bool = False,
) -> RunRequest:
    """Return the request of a spawn. `stdin`: True is an open pipe, False none; str or bytes are its whole input."""
    given: dict[str, Any] = {}
    if isinstance(stdin, str):
        given["stdin"] = stdin
    elif isinstance(stdin, (bytes, bytearray, memoryview)):
        given["stdin_base64"] = bytes(stdin)
    elif isinstance(stdin, bool):
        given["stdin_stream"] = stdin
    else:
        raise InvalidRequest(
            f"stdin: a {type(stdin).__name__} cannot be sent with a spawn", hint="write it to process.stdin afterwards"
        )
    return structs.replace(request, id=name, pty=terminal(pty), journal=journal, auto_remove=auto_remove, **given)


def run_request(
    cmd: Command | None, env: Mapping[str, str | None], cwd: str | None, user: str | None, timeout: float | None
) -> RunRequest:
    given = check_command(cmd) if cmd is not None else None
    return RunRequest(cmd=given, env=texts(env, "env"), cwd=cwd, user=user, timeout=seconds(timeout))
