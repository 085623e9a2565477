"""`create`, callable on the class and on what it described."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar, overload

P = ParamSpec("P")
S = TypeVar("S")
R = TypeVar("R")


class CreatedEitherWay(Generic[S, R]):
    """`Sandbox(...).create()` makes what was described; `Sandbox.create(...)` describes and makes in one call."""

    def __init__(self, make: Callable[[S], R]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, described: None, cls: Callable[P, S]) -> Callable[P, R]: ...
    @overload
    def __get__(self, described: S, cls: Any) -> Callable[[], R]: ...
    def __get__(self, described: S | None, cls: Any) -> Callable[..., R]:
        if described is not None:
            return partial(self._make, described)

        def create(*args: Any, **kwargs: Any) -> R:
            return self._make(cls(*args, **kwargs))

        create.__doc__ = self.__doc__
        return create
