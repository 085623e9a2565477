"""`AsyncImage`: an image described by steps, and what builds it."""

from __future__ import annotations

import builtins
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Unpack, overload

from skerry.client._async.building import AsyncBuilder
from skerry.client._async.client import AsyncClient
from skerry.client._async.sandbox import AsyncSandbox
from skerry.client._async.snapshots import AsyncSnapshot
from skerry.client.building.described import Description, text_of
from skerry.client.building.options import Building, BuildOptions
from skerry.client.building.recipe_file import read_recipe_file
from skerry.client.description import seconds
from skerry.types import Credentials, ImageInfo


class AsyncImage(Description):
    """Steps on a base, none of which is done before `.build()`, or before a sandbox starts from it:

        image = AsyncImage.base().apt("ffmpeg").pip("numpy").copy("src", "/app").workdir("/app")
        async with AsyncSandbox(image=image) as sandbox: ...

    Each step's result is kept by what the step goes by, so that only what changed runs again."""

    @classmethod
    def base(cls, name: str = "base") -> AsyncImage:
        """Begin with an image or snapshot that is there."""
        return cls.of(name)

    @classmethod
    async def pull(
        cls,
        reference: str,
        *,
        platform: str | None = None,
        insecure: bool = False,
        credentials: Credentials | None = None,
        server: str | AsyncClient | None = None,
    ) -> AsyncImage:
        """Fetch an image from a registry (an admin's to do), and begin with it."""
        async with _client(server) as client:
            found = await client.images.pull(reference, platform=platform, insecure=insecure, credentials=credentials)
        return cls.of(found.name)

    @classmethod
    def file(
        cls, path: str | os.PathLike[str] = "image.toml", *, context: str | os.PathLike[str] | None = None
    ) -> AsyncImage:
        """As an image.toml says it. Its files lie beside it, or in `context`, and nowhere else."""
        directory = os.path.abspath(context if context is not None else os.path.dirname(os.path.abspath(path)))
        return read_recipe_file(cls, text_of(path), os.fspath(path), directory)

    @classmethod
    async def list(cls, *, server: str | AsyncClient | None = None) -> builtins.list[ImageInfo]:
        """The images in the store."""
        async with _client(server) as client:
            return await client.images.list()

    @overload
    async def build(self, name: str, **how: Unpack[Building]) -> ImageInfo: ...
    @overload
    async def build(self, name: None = None, **how: Unpack[Building]) -> AsyncSnapshot: ...
    async def build(self, name: str | None = None, **how: Unpack[Building]) -> ImageInfo | AsyncSnapshot:
        """Run what has to be run. With a name, which needs an admin's token, it is an image from then on; without one,
        a snapshot of yours.

        `network` is what every step may reach; apt, pip and npm steps also reach what these programs are set up to
        reach on this machine. `timeout` is a step's (1800 s), `cache=False` runs every step. `on_step` is told of each
        step as it begins, `on_output` gets each piece of output. A step that fails raises CommandFailed, with its line
        and its output's end."""
        given: dict[str, Any] = dict(how)
        server = given.pop("server", None)
        seconds(given.get("timeout"))
        options = BuildOptions(**{"network": self.network, **given})
        async with _client(server) as client:
            info = await AsyncBuilder(client, AsyncSandbox, options).build(self.recipe)
            if name is None:
                return AsyncSnapshot(client, info)
            return await client.images.from_snapshot(info.id, name)


@asynccontextmanager
async def _client(server: str | AsyncClient | None) -> AsyncIterator[AsyncClient]:
    """One of our own lets go of its connections afterwards; what is made with it opens new ones."""
    client = server if isinstance(server, AsyncClient) else AsyncClient(server)
    try:
        yield client
    finally:
        if client is not server:
            await client.aclose()
