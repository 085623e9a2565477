# Generated from client/_async/images.py by scripts/generate_sync.py. Do not edit.
"""`client.images`: the images of a server; archives of images and snapshots."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from skerry.client.host import progress
from skerry.client.host.archive_files import ArchiveFile, HostFile, Watcher, archive_source
from skerry.client.host.credentials import find_credentials
from skerry.client.host.pack import with_readable_paths
from skerry.client.transport import backend_sync as backend
from skerry.client.transport.requests import archives as archive_requests
from skerry.client.transport.requests import sandboxes
from skerry.client.transport.responses import decode, error_frame, to_error
from skerry.codecs.frames import ERROR, EXIT, STDOUT, FrameDecoder
from skerry.codecs.ndjson import LineDecoder
from skerry.errors import SkerryError
from skerry.types import (
    Credentials,
    ImageInfo,
    ImageLine,
    ImageList,
    ImportedImage,
    ImportedSnapshot,
    Progress,
    PruneResult,
    PullRequest,
    SnapshotInfo,
    TransferResult,
    VerifyResult,
    parse_reference,
)

if TYPE_CHECKING:
    from skerry.client._sync.client import Client
    from skerry.client.transport.requests.sandboxes import Request


class Images:
    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self) -> builtins.list[ImageInfo]:
        return (self._client.request_json(sandboxes.images(), ImageList)).images

    def get(self, name: str) -> ImageInfo:
        return self._client.request_json(sandboxes.image(name), ImageInfo)

    def remove(self, name: str) -> None:
        self._client.request(sandboxes.image(name, "DELETE"))

    def from_snapshot(self, snapshot: str, name: str) -> ImageInfo:
        """Make a snapshot, by ID or name, an image for all users of the server, replacing one of that name. The
        snapshot stays."""
        return self._client.request_json(sandboxes.image_from_snapshot(snapshot, name), ImageInfo)

    def export(self, name: str, target: HostFile, *, progress: Watcher | None = None) -> TransferResult:
        """Write an image as an archive: an OCI image layout with one layer, for `docker load`, skopeo and `import_`. A
        path that ends in .gz or .zst is compressed."""
        return export_archive(self._client, archive_requests.export_image(name), target, progress)

    def import_(
        self,
        source: HostFile,
        name: str,
        *,
        replace: bool = False,
        on_notice: Callable[[str], None] | None = None,
        progress: Watcher | None = None,
    ) -> ImageInfo:
        """Import an archive (from `export`, `docker save` or skopeo, or a root file system as a tar; also compressed)
        or a directory of this host. `on_notice` receives the omitted parts and the reasons."""
        return import_image(self._client, name, replace, source, on_notice, progress)

    def build(self, name: str = "base", *, rebuild: bool = False) -> ImageInfo:
        """Build an image, with progress on stderr. An existing one is returned, unless this version of Skerry builds it
        differently."""
        request = sandboxes.build_image(name, rebuild)
        return _image(self._watched(request, f"building image {name}", progress.show_progress))

    def install(self, language: str, *, on_progress: Watcher | None = None) -> ImageInfo:
        """Build the image that has the tools of a language, with progress on stderr, unless it is there: `go`, `rust`,
        `java`, `ruby`, `php`, `r`. `run_code` and `execute_code` do this by themselves. `on_progress` is called for
        each step instead."""
        request = sandboxes.install_language(language)
        show = progress.show_progress if on_progress is None else lambda _: progress.ProgressCalls(on_progress)
        return _image(self._watched(request, f"installing {language}", show))

    def pull(
        self,
        reference: str,
        *,
        name: str | None = None,
        platform: str | None = None,
        insecure: bool = False,
        credentials: Credentials | None = None,
    ) -> ImageInfo:
        """Pull an image from a registry, with progress on stderr: `python:3.12`, `ghcr.io/owner/app@sha256:…`.

        It is stored as `name`, by default the reference. Without `credentials`, the login in docker's or podman's files
        of this machine's user is used. `insecure`: allow plain HTTP and unverified certificates.
        """
        found = credentials or backend.in_thread(find_credentials, parse_reference(reference))
        request = PullRequest(
            reference=reference, name=name, platform=platform, insecure=insecure, credentials=found
        )  # fmt: skip
        title = f"pulling {name or reference}"
        return _image(self._watched(sandboxes.pull_image(request), title, progress.show_stages))

    def prune(self, *, all: bool = False) -> PruneResult:  # noqa: A002 - as the flag of the command is called
        """Remove unused data: layers without an image, interrupted downloads; with `all` also every image except `base`
        that no sandbox or snapshot needs, and cached build steps."""
        return self._client.request_json(sandboxes.prune_images(all), PruneResult)

    def verify(self, name: str | None = None) -> VerifyResult:
        """Read every byte of an image's layers, or of all images. Damaged layers are no longer used."""
        message = self._watched(sandboxes.verify_images(name), "verifying", progress.show_progress)
        if message.verified is None:
            raise SkerryError("the server did not return a result of the verification")
        return message.verified

    def _watched(
        self, request: sandboxes.Request, title: str, show: Callable[[str], progress.ProgressView]
    ) -> ImageLine:
        """Return the last line of a long operation; show the others as progress."""
        lines = LineDecoder()
        with ExitStack() as stack:
            shown: progress.ProgressView | None = None
            with self._client.stream(request) as chunks:
                for chunk in chunks:
                    for line in lines.feed(chunk):
                        message = decode(line, ImageLine)
                        if message.error is not None:
                            raise to_error(message.error)
                        if message.progress is None:
                            return message
                        shown = shown or stack.enter_context(show(title))
                        shown.update(message.progress)
        raise SkerryError(f"{title} ended without a result", hint="`skerry server logs`")


def _image(message: ImageLine) -> ImageInfo:
    if message.image is None:
        raise SkerryError("the server did not return the image")
    return message.image


def export_archive(
    client: Client, request: Request, target: HostFile, progress: Watcher | None = None
) -> TransferResult:
    frames, done = FrameDecoder(), 0
    with client.stream(request) as chunks:
        with ArchiveFile(target) as file:
            for chunk in chunks:
                for kind, payload in frames.feed(chunk):
                    if kind == STDOUT:
                        backend.in_thread(file.write, payload)
                        done += len(payload)
                        if progress is not None:
                            progress(Progress(stage="export", done=done))
                    elif kind == EXIT:
                        return with_readable_paths(decode(payload, TransferResult))
                    elif kind == ERROR:
                        raise error_frame(payload)
            raise SkerryError("the archive ended early", hint="`skerry server logs` may show the reason")


def import_image(
    client: Client,
    name: str,
    replace: bool,
    given: HostFile,
    on_notice: Callable[[str], None] | None,
    progress: Watcher | None,
) -> ImageInfo:
    with archive_source(given, progress) as pieces:
        request = archive_requests.import_image(name, replace, backend.chunks(pieces))
        answer = client.request_json(request, ImportedImage)
    notify(answer.notices, on_notice)
    return answer.image


def import_snapshot(
    client: Client,
    name: str | None,
    given: HostFile,
    on_notice: Callable[[str], None] | None,
    progress: Watcher | None,
) -> SnapshotInfo:
    with archive_source(given, progress) as pieces:
        request = archive_requests.import_snapshot(name, backend.chunks(pieces))
        answer = client.request_json(request, ImportedSnapshot)
    notify(answer.notices, on_notice)
    return answer.snapshot


def notify(notices: tuple[str, ...], on_notice: Callable[[str], None] | None) -> None:
    """Pass on the notices of an import."""
    if on_notice is not None:
        for notice in notices:
            on_notice(notice)
