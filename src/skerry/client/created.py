"""`create`, callable on the class and on what it described."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any, Generic, Protocol, TypeVar, overload

from skerry.client.description import AnyImage
from skerry.client.repository.source import AnyRepo
from skerry.types import Lifecycle, Limits, Network, Options

S = TypeVar("S")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Create(Protocol[R_co]):
    """The constructor's own arguments."""

    def __call__(
        self,
        image: AnyImage = ...,
        *,
        name: str | None = ...,
        repo: AnyRepo = ...,
        env: Mapping[str, str | None] = ...,
        labels: Mapping[str, str] = ...,
        limits: Limits = ...,
        network: Network = ...,
        secrets: Sequence[object] = ...,
        lifecycle: Lifecycle = ...,
        options: Options = ...,
        server: Any = ...,
        on_unknown: Any = ...,
    ) -> R_co: ...


class CreatedEitherWay(Generic[S, R]):
    """`Sandbox(...).create()` makes what was described; `Sandbox.create(...)` describes and makes in one call."""

    def __init__(self, make: Callable[[S], R]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, described: None, cls: type[S]) -> Create[R]: ...
    @overload
    def __get__(self, described: S, cls: type[S]) -> Callable[[], R]: ...
    def __get__(self, described: S | None, cls: type[S]) -> Create[R] | Callable[[], R]:
        if described is not None:
            return partial(self._make, described)

        @wraps(cls.__init__, assigned=())
        def create(*args: Any, **kwargs: Any) -> R:
            return self._make(cls(*args, **kwargs))

        create.__name__, create.__doc__ = "create", self.__doc__
        return create
