"""Users of layers: services with objects that stand on layers of images.

Images must not remove a layer that a sandbox or a snapshot needs, and those services in turn need images. This Protocol
is the only place where the dependency goes backwards."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from skerry.types import ImageInfo


class LayerUser(Protocol):
    def layers(self) -> set[str]:
        """Return the layers that are in use."""
        return set()

    async def vacate(self, layers: Iterable[str]) -> None:
        """Remove objects that stand on these layers and that can be made again."""
        return

    def users_of(self, image: ImageInfo) -> list[str]:
        """Return descriptions of the objects that keep the image from being removed."""
        return []

    async def prune(self) -> int:
        """Remove objects that nothing stands on and that can be made again. Return how many bytes that freed."""
        return 0


class LayerUsers:
    """All users. They are added before anything is collected."""

    def __init__(self) -> None:
        self._users: list[LayerUser] = []

    def add(self, *users: LayerUser) -> None:
        self._users += users

    def layers(self) -> set[str]:
        return {layer for user in self._users for layer in user.layers()}

    async def vacate(self, layers: Iterable[str]) -> None:
        layers = list(layers)
        for user in self._users:
            await user.vacate(layers)

    def users_of(self, image: ImageInfo) -> list[str]:
        return [name for user in self._users for name in user.users_of(image)]

    async def prune(self) -> int:
        return sum([await user.prune() for user in self._users])
