# Generated from client/_async/snapshots.py by scripts/generate_sync.py. Do not edit.
"""`Snapshot`: a sandbox's files at one moment."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from skerry.client._sync.client import Client
from skerry.client._sync.images import export_archive, import_snapshot
from skerry.client.host.archive_files import HostFile, Watcher
from skerry.client.results.file_info import with_decoded_changes
from skerry.client.transport.requests import archives as archive_requests
from skerry.client.transport.requests import snapshots as requests
from skerry.types import SnapshotDiff, SnapshotInfo, SnapshotList, TransferResult

if TYPE_CHECKING:
    from skerry.client._sync.sandbox import Sandbox


class Snapshot:
    """The result of `sandbox.snapshot("deps")`: `Sandbox(image=snapshot)` starts from it, any number of times, and
    `sandbox.rollback(snapshot)` restores it. It outlives its sandbox; `.info` has all its properties."""

    def __init__(self, client: Client, info: SnapshotInfo) -> None:
        self.client = client
        self.info = info

    def __repr__(self) -> str:
        return f"<Snapshot {self.name or self.id}>"

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def as_image(self) -> str:
        return self.info.id

    @property
    def name(self) -> str | None:
        return self.info.name

    @property
    def digest(self) -> str:
        return self.info.digest

    @property
    def path(self) -> str | None:
        """The directory that it holds; None: all files."""
        return self.info.path

    @property
    def expires_at(self) -> float | None:
        """The time of its automatic removal."""
        return self.info.expires_at

    @property
    def created_at(self) -> float:
        return self.info.created_at

    @classmethod
    def get(cls, ref: str, *, server: str | Client | None = None) -> Snapshot:
        """Return an existing snapshot by ID or name."""
        client = server if isinstance(server, Client) else Client(server)
        return cls(client, client.request_json(requests.get(ref), SnapshotInfo))

    @classmethod
    def list(
        cls,
        *,
        sandbox: str | Sandbox | None = None,
        kind: Literal["kept", "auto", "build"] | None = None,
        key: str | None = None,
        server: str | Client | None = None,
    ) -> builtins.list[Snapshot]:
        """Return your snapshots, oldest first: those kept by hand, or of another `kind`; or all of one sandbox."""
        client = server if isinstance(server, Client) else Client(server)
        ref = sandbox if sandbox is None or isinstance(sandbox, str) else sandbox.id
        request = requests.list_all(kind, key) if ref is None else requests.of(ref)
        answer = client.request_json(request, SnapshotList)
        return [cls(client, info) for info in answer.snapshots if kind in (None, info.kind)]

    @classmethod
    def import_(
        cls,
        source: HostFile,
        name: str | None = None,
        *,
        on_notice: Callable[[str], None] | None = None,
        progress: Watcher | None = None,
        server: str | Client | None = None,
    ) -> Snapshot:
        """Import an archive (from `export`, `docker save` or skopeo, or a root file system as a tar; also compressed)
        or a directory of this host. `on_notice` receives the omitted parts and the reasons."""
        client = server if isinstance(server, Client) else Client(server)
        return cls(client, import_snapshot(client, name, source, on_notice, progress))

    def changes(self, to: str | Snapshot | Sandbox | None = None) -> SnapshotDiff:
        """Return the paths that were added, modified or deleted from this snapshot to another snapshot, the current
        state of a sandbox, or an image; by default to its own sandbox. Times alone are ignored."""
        ref = to if to is None or isinstance(to, str) else to.id
        return with_decoded_changes(self.client.request_json(requests.changes(self.id, ref), SnapshotDiff))

    def export(self, target: HostFile, *, progress: Watcher | None = None) -> TransferResult:
        """Write it as an archive: an OCI image layout with one layer, for `docker load`, skopeo and `Snapshot.import_`.
        A path that ends in .gz or .zst is compressed. The result's `skipped` lists files that no archive can hold
        (sockets, devices)."""
        return export_archive(self.client, archive_requests.export_snapshot(self.id), target, progress)

    def delete(self) -> None:
        """Delete it. Raise Conflict while a sandbox, an image or another snapshot needs it."""
        self.client.request(requests.delete(self.id))

    def close(self) -> None:
        """Close the connections of its client. The snapshot stays."""
        self.client.close()
