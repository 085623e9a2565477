"""`AsyncSnapshot`: a sandbox's files as they were at one moment."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from skerry.client import archive_requests
from skerry.client import snapshot_requests as requests
from skerry.client._async import archives
from skerry.client._async.client import AsyncClient
from skerry.client.archive_files import HostFile, Watcher
from skerry.client.listing import real_changes
from skerry.client.snapshot_requests import SnapshotList
from skerry.types import Changes, SnapshotInfo, Transfer

if TYPE_CHECKING:
    from skerry.client._async.sandbox import AsyncSandbox


class AsyncSnapshot:
    """What `sandbox.snapshot("deps")` gives: `AsyncSandbox(image=snapshot)` starts from it, as often as you like, and
    `sandbox.rollback(snapshot)` goes back to it. It outlives its sandbox; `.info` has all that is known of it."""

    def __init__(self, client: AsyncClient, info: SnapshotInfo) -> None:
        self.client = client
        self.info = info

    def __repr__(self) -> str:
        return f"<AsyncSnapshot {self.name or self.id}>"

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
    def created_at(self) -> float:
        return self.info.created_at

    @classmethod
    async def get(cls, ref: str, *, server: str | AsyncClient | None = None) -> AsyncSnapshot:
        """One that exists, by id or name."""
        client = server if isinstance(server, AsyncClient) else AsyncClient(server)
        return cls(client, await client.value(requests.get(ref), SnapshotInfo))

    @classmethod
    async def list(
        cls,
        *,
        sandbox: str | AsyncSandbox | None = None,
        kind: Literal["kept", "auto", "build"] | None = None,
        key: str | None = None,
        server: str | AsyncClient | None = None,
    ) -> builtins.list[AsyncSnapshot]:
        """Yours, oldest first: those kept by hand, or of another `kind`; or all that were taken of one sandbox."""
        client = server if isinstance(server, AsyncClient) else AsyncClient(server)
        ref = sandbox if sandbox is None or isinstance(sandbox, str) else sandbox.id
        request = requests.list_all(kind, key) if ref is None else requests.of(ref)
        answer = await client.value(request, SnapshotList)
        return [cls(client, info) for info in answer.snapshots if kind in (None, info.kind)]

    @classmethod
    async def import_(
        cls,
        source: HostFile,
        name: str | None = None,
        *,
        on_notice: Callable[[str], None] | None = None,
        progress: Watcher | None = None,
        server: str | AsyncClient | None = None,
    ) -> AsyncSnapshot:
        """A new one of an archive (what `export`, `docker save` or skopeo wrote, or a root file system as a tar; all
        of them also compressed) or of a directory of this host. `on_notice` hears what was left out, and why."""
        client = server if isinstance(server, AsyncClient) else AsyncClient(server)
        return cls(client, await archives.import_snapshot(client, name, source, on_notice, progress))

    async def changes(self, to: str | AsyncSnapshot | AsyncSandbox | None = None) -> Changes:
        """The paths that were added, modified or deleted from this snapshot to another point: another snapshot, a
        sandbox as it is now, or an image; without `to`, the sandbox that it was taken of. Times alone don't count."""
        ref = to if to is None or isinstance(to, str) else to.id
        return real_changes(await self.client.value(requests.changes(self.id, ref), Changes))

    async def export(self, target: HostFile, *, progress: Watcher | None = None) -> Transfer:
        """Write it as an archive: an OCI image layout with one layer, which `docker load`, skopeo and
        `Snapshot.import_` read. A path that ends in .gz or .zst is compressed so. What no archive holds (sockets,
        devices) is in the answer's `skipped`."""
        return await archives.export(self.client, archive_requests.export_snapshot(self.id), target, progress)

    async def delete(self) -> None:
        """Refused (Conflict) while a sandbox, an image or another snapshot stands on it."""
        await self.client.done(requests.delete(self.id))

    async def aclose(self) -> None:
        """Close the connections of its client. The snapshot stays."""
        await self.client.aclose()
