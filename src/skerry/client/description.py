"""What a caller says of a sandbox to come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from skerry.types import CreateRequest, Lifecycle, Limits, Network, Options


class Creation(TypedDict, total=False):
    """The keyword arguments of `Sandbox(...)` but its name."""

    image: str
    repo: object
    env: Mapping[str, str]
    labels: Mapping[str, str]
    limits: Limits
    network: Network
    secrets: Sequence[object]
    lifecycle: Lifecycle
    options: Options
    server: Any


def described(
    image: str,
    name: str | None,
    env: Mapping[str, str],
    labels: Mapping[str, str],
    limits: Limits,
    network: Network,
    lifecycle: Lifecycle,
    options: Options,
) -> CreateRequest:
    """The request, its values checked before anything is sent."""
    return CreateRequest(
        image=image, name=name, env=dict(env), labels=dict(labels), limits=limits,
        network=network, lifecycle=lifecycle, options=options,
    )  # fmt: skip
