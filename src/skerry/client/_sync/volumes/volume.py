# Generated from client/_async/volumes/volume.py by scripts/generate_sync.py. Do not edit.
"""`Volume`: a directory that outlives sandboxes."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import TYPE_CHECKING

from skerry.client._sync.images import export_archive, notify
from skerry.client.host.archive_files import HostFile, Watcher, archive_source
from skerry.client.transport import backend_sync as backend
from skerry.client.transport.requests import archives as archive_requests
from skerry.client.transport.requests import snapshots as requests
from skerry.types import ImportedVolume, TransferResult, VolumeInfo, VolumeList, VolumeRequest

if TYPE_CHECKING:
    from skerry.client._sync.client import Client


class Volume:
    """A volume on a server. `Sandbox(volumes={"/data": volume})` mounts it, `{"/data": volume.read_only}` without
    the right to write; `.info` has its properties as of the last call."""

    def __init__(self, client: Client, info: VolumeInfo) -> None:
        self.client = client
        self.info = info

    def __repr__(self) -> str:
        return f"<Volume {self.name}>"

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def as_volume(self) -> str:
        return self.info.id

    @property
    def read_only(self) -> str:
        """The volume as a mount that cannot be written to."""
        return f"{self.info.id}:ro"

    @classmethod
    def create(
        cls, name: str, size: str | int | None = None, *, server: str | Client | None = None
    ) -> Volume:
        """Create an empty volume that can hold `size` bytes, like "10G"."""
        return _client(server).volumes.create(name, size)

    @classmethod
    def get(cls, ref: str, *, server: str | Client | None = None) -> Volume:
        """Return an existing volume by ID or name."""
        return _client(server).volumes.get(ref)

    @classmethod
    def list(cls, *, server: str | Client | None = None) -> builtins.list[Volume]:
        """Return your volumes and their snapshots, oldest first."""
        return _client(server).volumes.list()

    def snapshot(self, name: str) -> Volume:
        """Make a copy of the current files that never changes. It takes milliseconds and shares all blocks."""
        request = requests.snapshot_volume(self.id, name)
        return Volume(self.client, self.client.request_json(request, VolumeInfo))

    def clone(self, name: str, size: str | int | None = None) -> Volume:
        """Create a volume that starts with the current files of this volume or snapshot. Without `size`, it has the
        same."""
        request = requests.clone_volume(self.id, VolumeRequest(name=name, size=size))
        return Volume(self.client, self.client.request_json(request, VolumeInfo))

    def export(self, target: HostFile, *, progress: Watcher | None = None) -> TransferResult:
        """Write the current files as a tar archive. A path that ends in .gz or .zst is compressed. The result's
        `skipped` lists files that no archive can hold (sockets, devices)."""
        return export_archive(self.client, archive_requests.export_volume(self.id), target, progress)

    def delete(self) -> None:
        """Delete it with all files. Raise Conflict while a sandbox mounts it."""
        self.client.request(requests.volume(self.id, "DELETE"))

    def close(self) -> None:
        """Close the connections of its client. The volume stays."""
        self.client.close()


class Volumes:
    """`client.volumes`: the volumes of a server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, name: str, size: str | int | None = None) -> Volume:
        """Create an empty volume that can hold `size` bytes, like "10G"."""
        request = requests.create_volume(VolumeRequest(name=name, size=size))
        return Volume(self._client, self._client.request_json(request, VolumeInfo))

    def get(self, ref: str) -> Volume:
        """Return an existing volume by ID or name."""
        return Volume(self._client, self._client.request_json(requests.volume(ref), VolumeInfo))

    def list(self) -> builtins.list[Volume]:
        """Return your volumes and their snapshots, oldest first."""
        answer = self._client.request_json(requests.volumes(), VolumeList)
        return [Volume(self._client, info) for info in answer.volumes]

    def import_(
        self,
        source: HostFile,
        name: str,
        size: str | None = None,
        *,
        on_notice: Callable[[str], None] | None = None,
        progress: Watcher | None = None,
    ) -> Volume:
        """Create a volume with the files of a tar archive (also compressed) or of a directory of this host. `on_notice`
        receives the omitted parts and the reasons."""
        with archive_source(source, progress) as pieces:
            request = archive_requests.import_volume(name, size, backend.chunks(pieces))
            answer = self._client.request_json(request, ImportedVolume)
        notify(answer.notices, on_notice)
        return Volume(self._client, answer.volume)


def _client(server: str | Client | None) -> Client:
    from skerry.client._sync.client import Client  # which imports this module

    return server if isinstance(server, Client) else Client(server)
