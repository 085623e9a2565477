# Generated from client/_async/images.py by scripts/generate_sync.py. Do not edit.
"""The images in a server's store."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from skerry.client import archive_requests, progress, requests
from skerry.client import backend_sync as backend
from skerry.client._sync import archives
from skerry.client.archive_files import HostFile, Watcher
from skerry.client.credentials import find_credentials
from skerry.client.lines import LineDecoder
from skerry.client.responses import BuildLine, ImageList, decode, raised
from skerry.errors import SkerryError
from skerry.types import Credentials, ImageInfo, Pruned, PullRequest, Transfer, Verified, parse_reference

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

    def from_snapshot(self, snapshot: str, name: str) -> ImageInfo:
        """Make a snapshot, by id or name, an image for everyone on that server, in place of one of that name. The
        snapshot stays."""
        return self._client.value(requests.image_from_snapshot(snapshot, name), ImageInfo)

    def export(self, name: str, target: HostFile, *, progress: Watcher | None = None) -> Transfer:
        """Write an image as an archive: an OCI image layout with one layer, which `docker load`, skopeo and `import_`
        read. A path that ends in .gz or .zst is compressed so."""
        return archives.export(self._client, archive_requests.export_image(name), target, progress)

    def import_(
        self,
        source: HostFile,
        name: str,
        *,
        replace: bool = False,
        on_notice: Callable[[str], None] | None = None,
        progress: Watcher | None = None,
    ) -> ImageInfo:
        """A new one of an archive (what `export`, `docker save` or skopeo wrote, or a root file system as a tar; all
        of them also compressed) or of a directory of this host. `on_notice` hears what was left out, and why."""
        return archives.import_image(self._client, name, replace, source, on_notice, progress)

    def build(self, name: str = "base", *, rebuild: bool = False) -> ImageInfo:
        """Make an image, with its progress on stderr. One that is there already is given as it is, unless this version
        of Skerry makes it otherwise."""
        request = requests.build_image(name, rebuild)
        return _image(self._watched(request, f"building image {name}", progress.shown))

    def pull(
        self,
        reference: str,
        *,
        name: str | None = None,
        platform: str | None = None,
        insecure: bool = False,
        credentials: Credentials | None = None,
    ) -> ImageInfo:
        """Fetch an image from a registry, with its progress on stderr: `python:3.12`, `ghcr.io/owner/app@sha256:…`.

        It is kept under `name`, or as it was written here. Without `credentials`, what this machine's user has in
        docker's or podman's files is used. `insecure`: also without TLS, or with anybody's certificate."""
        found = credentials or backend.in_thread(find_credentials, parse_reference(reference))
        request = PullRequest(
            reference=reference, name=name, platform=platform, insecure=insecure, credentials=found
        )  # fmt: skip
        title = f"pulling {name or reference}"
        return _image(self._watched(requests.pull_image(request), title, progress.many_shown))

    def prune(self, *, all: bool = False) -> Pruned:  # noqa: A002 - as the flag of the command is called
        """Remove what nothing needs: layers without an image, downloads that broke off; with `all` also every image
        but `base` that no sandbox or snapshot stands on, and the kept steps of builds."""
        return self._client.value(requests.prune_images(all), Pruned)

    def verify(self, name: str | None = None) -> Verified:
        """Read every byte of an image's layers, or of all that there are. What is damaged is not served any more."""
        told = self._watched(requests.verify_images(name), "verifying", progress.shown)
        if told.verified is None:
            raise SkerryError("the server did not say how the verification went")
        return told.verified

    def _watched(self, request: requests.Request, title: str, show: Callable[[str], progress.Shown]) -> BuildLine:
        """The last line of long work; the others are shown."""
        lines = LineDecoder()
        with ExitStack() as stack:
            shown: progress.Shown | None = None
            with self._client.stream(request) as chunks:
                for chunk in chunks:
                    for line in lines.feed(chunk):
                        told = decode(line, BuildLine)
                        if told.error is not None:
                            raise raised(told.error)
                        if told.progress is None:
                            return told
                        shown = shown or stack.enter_context(show(title))
                        shown.update(told.progress)
        raise SkerryError(f"{title} ended without a word", hint="`skerry server logs`")


def _image(told: BuildLine) -> ImageInfo:
    if told.image is None:
        raise SkerryError("the server did not say which image it is")
    return told.image
