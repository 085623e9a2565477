# Generated from client/_async/images.py by scripts/generate_sync.py. Do not edit.
"""The images in a server's store."""

from __future__ import annotations

import builtins
from contextlib import ExitStack
from typing import TYPE_CHECKING

from skerry.client import archive_requests, progress, requests
from skerry.client._sync import archives
from skerry.client.archive_files import HostFile
from skerry.client.lines import LineDecoder
from skerry.client.responses import BuildLine, ImageList, decode, raised
from skerry.errors import SkerryError
from skerry.types import ImageInfo, Transfer

if TYPE_CHECKING:
    from skerry.client._sync.client import Client


class Images:
    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self) -> builtins.list[ImageInfo]:
        return (self._client.value(requests.images(), ImageList)).images

    def get(self, name: str) -> ImageInfo:
        return self._client.value(requests.image(name), ImageInfo)

    def remove(self, name: str) -> None:
        self._client.done(requests.image(name, "DELETE"))

    def export(self, name: str, target: HostFile) -> Transfer:
        """Write an image as an archive: an OCI image layout with one layer, which `docker load`, skopeo and `import_`
        read. A path that ends in .gz or .zst is compressed so."""
        return archives.export(self._client, archive_requests.export_image(name), target)

    def build(self, name: str = "base", *, rebuild: bool = False) -> ImageInfo:
        """Make an image, with its progress on stderr. One that is there already is given as it is, unless this version
        of Skerry makes it otherwise."""
        lines = LineDecoder()
        with ExitStack() as stack:
            shown: progress.Shown | None = None
            with self._client.stream(requests.build_image(name, rebuild)) as chunks:
                for chunk in chunks:
                    for line in lines.feed(chunk):
                        told = decode(line, BuildLine)
                        if told.image is not None:
                            return told.image
                        if told.error is not None:
                            raise raised(told.error)
                        if told.progress is not None:
                            shown = shown or stack.enter_context(progress.shown(f"building image {name}"))
                            shown.update(told.progress)
        raise SkerryError(f"the building of image {name!r} ended without a word", hint="`skerry server logs`")
