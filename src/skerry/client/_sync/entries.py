# Generated from client/_async/entries.py by scripts/generate_sync.py. Do not edit.
"""What lies where in a sandbox: looked at, listed, made, moved, removed."""

from __future__ import annotations

from skerry.client import file_requests as requests
from skerry.client._sync.writing import FileWriting
from skerry.client.file_requests import InsidePath, octal, owner_text, path_text
from skerry.client.listing import FileList, file_list, real
from skerry.errors import FileMissing, FileNotDirectory
from skerry.types import Entries, FileInfo


class FileEntries(FileWriting):
    def list(
        self, path: InsidePath = ".", *, depth: int = 1, hidden: bool = True, user: str | None = None
    ) -> FileList:
        """What lies below a directory, `depth` levels of it, by name and a directory before what is in it.

        At most 100,000 entries: `.more` says that there are others. `hidden=False` leaves out names that begin with a
        dot. Links are listed, not followed."""
        sandbox = self._sandbox
        request = requests.look(sandbox.id, "list", path, user, depth=depth, hidden=hidden)
        return file_list(sandbox.client.value(request, Entries))

    def stat(self, path: InsidePath, *, follow: bool = False, user: str | None = None) -> FileInfo:
        """One path; a link is described itself, unless it is to be followed."""
        sandbox = self._sandbox
        request = requests.look(sandbox.id, "stat", path, user, follow=follow)
        return real(sandbox.client.value(request, FileInfo))

    def exists(self, path: InsidePath, *, user: str | None = None) -> bool:
        """Whether something is there, be it a link that leads nowhere."""
        try:
            self.stat(path, user=user)
        except (FileMissing, FileNotDirectory):
            return False
        return True

    def mkdir(
        self, path: InsidePath, *, parents: bool = True, mode: int | None = None, user: str | None = None
    ) -> FileInfo:
        """Make a directory; with `parents` also those above it, and one that is there already is fine."""
        return self._changed("mkdir", path, user, parents=parents, mode=octal(mode))

    def remove(self, path: InsidePath, *, recursive: bool = False, user: str | None = None) -> None:
        """Remove a file or an empty directory; with `recursive`, a directory and all that is in it."""
        sandbox = self._sandbox
        sandbox.client.done(requests.remove_file(sandbox.id, path, recursive=recursive, user=user))

    def move(
        self,
        source: InsidePath,
        target: InsidePath,
        *,
        overwrite: bool = False,
        parents: bool = True,
        user: str | None = None,
    ) -> FileInfo:
        """Give a file or directory another path: `target` itself, not a directory to put it into. What is there is
        replaced only with `overwrite`, and never a directory that has something in it."""
        to = path_text(target, "target")
        return self._changed("move", source, user, to=to, overwrite=overwrite, parents=parents)

    def copy(
        self,
        source: InsidePath,
        target: InsidePath,
        *,
        recursive: bool = False,
        overwrite: bool = False,
        parents: bool = True,
        user: str | None = None,
    ) -> FileInfo:
        """Copy a file, or with `recursive` a directory and all that is in it, whole or not at all. Modes, times and
        links are kept, and with root's rights owners; a file system that can share the bytes does."""
        to = path_text(target, "target")
        return self._changed(
            "copy", source, user, to=to, recursive=recursive, overwrite=overwrite, parents=parents
        )

    def chmod(self, path: InsidePath, mode: int, *, recursive: bool = False, user: str | None = None) -> None:
        """Change a mode; with `recursive`, of all that is below too, but of no link."""
        self._done("chmod", path, user, mode=octal(mode), recursive=recursive)

    def chown(
        self, path: InsidePath, owner: str | int, *, recursive: bool = False, user: str | None = None
    ) -> None:
        """Change the owner: "user" (with that user's group), "user:group", ":group", or ids. Root's to do."""
        self._done("chown", path, user, owner=owner_text(owner), recursive=recursive)

    def link(
        self, target: InsidePath, path: InsidePath, *, hard: bool = False, user: str | None = None
    ) -> FileInfo:
        """Make a link at `path` that says `target`; `hard`: another name of the same file."""
        return self._changed("link", path, user, target=path_text(target, "target"), hard=hard)

    def _changed(self, verb: str, path: InsidePath, user: str | None, **more: requests.Argument) -> FileInfo:
        sandbox = self._sandbox
        return real(sandbox.client.value(requests.change(sandbox.id, verb, path, user, **more), FileInfo))

    def _done(self, verb: str, path: InsidePath, user: str | None, **more: requests.Argument) -> None:
        sandbox = self._sandbox
        sandbox.client.done(requests.change(sandbox.id, verb, path, user, **more))
