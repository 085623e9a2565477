# Generated from client/_async/files.py by scripts/generate_sync.py. Do not edit.
"""`sandbox.files`: the file system of a sandbox. Paths are absolute, or relative to the sandbox's working directory."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Callable, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from skerry.client._sync.client import ResumableStream
from skerry.client.host.content import check_source, cut, open_host_file, size_of, whole
from skerry.client.host.output_dir import SingleFile, TransferLimit
from skerry.client.host.pack import Packer, is_file, with_readable_paths
from skerry.client.host.patterns import Patterns
from skerry.client.host.unpack import DirectoryUnpacker
from skerry.client.results.file_info import (
    FileList,
    file_list,
    with_decoded_matches,
    with_decoded_patch,
    with_decoded_path,
)
from skerry.client.transport import backend_sync as backend
from skerry.client.transport.requests import files as requests
from skerry.client.transport.requests.files import InsidePath, octal, owner_text, path_text
from skerry.client.transport.requests.sandboxes import Body
from skerry.client.transport.responses import WatchLine, decode, error_frame, to_error
from skerry.codecs.frames import ERROR, EXIT, STDOUT, FrameDecoder
from skerry.codecs.ndjson import LineDecoder
from skerry.errors import FileNotDirectory, FileNotFound, InvalidRequest, SandboxUnavailable, ServerUnreachable
from skerry.types import (
    Checksum,
    Entries,
    FileContent,
    FileEvent,
    FileInfo,
    FileLines,
    PatchResult,
    Progress,
    ReplaceResult,
    SearchResult,
    TransferResult,
)

if TYPE_CHECKING:
    from skerry.client._sync.sandbox import Sandbox
    from skerry.client._sync.sessions import Session

HostPath = str | os.PathLike[str]


class Files:
    """The files of a sandbox. Each call has the permissions of `user` (by default the image's user); errors are also
    the matching builtins: FileNotFoundError, IsADirectoryError, PermissionError … A name that is not UTF-8 is a str in
    the form of `os.fsdecode`."""

    def __init__(self, sandbox: Sandbox, session: Session | None = None) -> None:
        """`session`: relative paths start at its directory, and its user is the default."""
        self._sandbox = sandbox
        self._session = session

    def _at(self, path: InsidePath) -> InsidePath:
        return path if self._session is None else os.path.join(self._session.cwd, path_text(path))

    def _as(self, user: str | None) -> str | None:
        return self._session.user if user is None and self._session is not None else user

    def read(self, path: InsidePath, *, user: str | None = None) -> FileContent:
        """Return the content of a file with its size, its media type (by its name) and its encoding."""
        return FileContent.of(os.fsdecode(path), self.read_bytes(path, user=user))

    def read_bytes(
        self, path: InsidePath, *, offset: int = 0, length: int | None = None, user: str | None = None
    ) -> bytes:
        """Return the content of a file, or the part from `offset` on, at most `length` bytes."""
        return b"".join([piece for piece in self.stream(path, offset=offset, length=length, user=user)])

    def read_text(
        self, path: InsidePath, *, encoding: str = "utf-8", errors: str = "strict", user: str | None = None
    ) -> str:
        return (self.read_bytes(path, user=user)).decode(encoding, errors)

    def stream(
        self, path: InsidePath, *, offset: int = 0, length: int | None = None, user: str | None = None
    ) -> Iterator[bytes]:
        """Yield the bytes of a file, or a part of them, in pieces: for files larger than memory."""
        sandbox = self._sandbox
        request = requests.read_file(sandbox.id, self._at(path), offset=offset, length=length, user=self._as(user))
        try:
            with sandbox.client.response(request) as response:
                # files in /proc report a size of 0 and are sent whole
                part = cut(offset, length) if response.status_code == 200 else cut(0, length)
                for piece in response.iter_raw():
                    if wanted := part(piece):
                        yield wanted
        except InvalidRequest as error:
            if not request.more_headers or "size" not in error.details:
                raise

    def read_lines(
        self, path: InsidePath, start: int = 1, end: int | None = None, *, user: str | None = None
    ) -> FileLines:
        """Return lines `start` to `end`, inclusive and counted from 1; at most 1 MiB. If `.more` is set, the file
        continues at line `.end + 1`."""
        sandbox = self._sandbox
        request = requests.query_file(sandbox.id, "lines", self._at(path), self._as(user), start=start, end=end)
        return sandbox.client.request_json(request, FileLines)

    def checksum(
        self,
        path: InsidePath,
        algorithm: Literal["sha256", "sha512", "sha1", "md5"] = "sha256",
        *,
        user: str | None = None,
    ) -> str:
        """Return a checksum of a file's content as hexadecimal digits."""
        sandbox = self._sandbox
        request = requests.query_file(sandbox.id, "checksum", self._at(path), self._as(user), algorithm=algorithm)
        return (sandbox.client.request_json(request, Checksum)).checksum

    def write(
        self,
        path: InsidePath,
        content: backend.AnySource,
        *,
        mode: int | None = None,
        owner: str | int | None = None,
        user: str | None = None,
        parents: bool = True,
    ) -> FileInfo:
        """Write a file atomically: readers see the old content or the new. File objects and iterables are streamed.

        An existing file keeps its mode and owner, unless others are given. `owner` is "user", "user:group" or an ID;
        only root may change it.
        """
        body, size = _body(content)
        request = requests.write_file(
            self._sandbox.id, self._at(path), body, size=size, mode=mode, owner=owner, user=self._as(user),
            parents=parents,
        )  # fmt: skip
        return with_decoded_path(self._sandbox.client.request_json(request, FileInfo))

    def append(
        self, path: InsidePath, content: backend.AnySource, *, user: str | None = None, parents: bool = True
    ) -> FileInfo:
        """Append to a file while the content arrives; a missing file is created."""
        body, size = _body(content)
        request = requests.append_file(
            self._sandbox.id, self._at(path), body, size=size, user=self._as(user), parents=parents
        )
        return with_decoded_path(self._sandbox.client.request_json(request, FileInfo))

    def list(
        self, path: InsidePath = ".", *, depth: int = 1, hidden: bool = True, user: str | None = None
    ) -> FileList:
        """List the entries below a directory, `depth` levels deep, sorted by name, a directory before its entries.

        At most 100,000 entries; `.more` is set if there are others. `hidden=False` omits names that begin with a dot.
        Links are listed, not followed.
        """
        sandbox = self._sandbox
        request = requests.query_file(sandbox.id, "list", self._at(path), self._as(user), depth=depth, hidden=hidden)
        return file_list(sandbox.client.request_json(request, Entries))

    def stat(self, path: InsidePath, *, follow: bool = False, user: str | None = None) -> FileInfo:
        """Return information about a path; of a link itself, unless `follow` is set."""
        sandbox = self._sandbox
        request = requests.query_file(sandbox.id, "stat", self._at(path), self._as(user), follow=follow)
        return with_decoded_path(sandbox.client.request_json(request, FileInfo))

    def exists(self, path: InsidePath, *, user: str | None = None) -> bool:
        """Return whether a path exists, also as a dangling link."""
        try:
            self.stat(path, user=user)
        except (FileNotFound, FileNotDirectory):
            return False
        return True

    def mkdir(
        self, path: InsidePath, *, parents: bool = True, mode: int | None = None, user: str | None = None
    ) -> FileInfo:
        """Create a directory; with `parents` also those above it, and an existing one is accepted."""
        return self._changed("mkdir", path, user, parents=parents, mode=octal(mode))

    def remove(self, path: InsidePath, *, recursive: bool = False, user: str | None = None) -> None:
        """Remove a file or an empty directory; with `recursive`, a directory and its content."""
        sandbox = self._sandbox
        sandbox.client.request(
            requests.remove_file(sandbox.id, self._at(path), recursive=recursive, user=self._as(user))
        )

    def move(
        self,
        source: InsidePath,
        target: InsidePath,
        *,
        overwrite: bool = False,
        parents: bool = True,
        user: str | None = None,
    ) -> FileInfo:
        """Rename a file or directory to `target` itself, not into a directory. An existing target is replaced only with
        `overwrite`, and never a directory that is not empty."""
        to = path_text(self._at(target), "target")
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
        """Copy a file, or with `recursive` a directory and its content, completely or not at all. Modes, times and
        links are kept, and as root the owners; the bytes are shared if the file system can."""
        to = path_text(self._at(target), "target")
        return self._changed(
            "copy", source, user, to=to, recursive=recursive, overwrite=overwrite, parents=parents
        )

    def chmod(self, path: InsidePath, mode: int, *, recursive: bool = False, user: str | None = None) -> None:
        """Change the mode; with `recursive` also of everything below, except links."""
        self._done("chmod", path, user, mode=octal(mode), recursive=recursive)

    def chown(
        self, path: InsidePath, owner: str | int, *, recursive: bool = False, user: str | None = None
    ) -> None:
        """Change the owner: "user" (with that user's group), "user:group", ":group", or IDs. Needs root."""
        self._done("chown", path, user, owner=owner_text(owner), recursive=recursive)

    def link(
        self, target: InsidePath, path: InsidePath, *, hard: bool = False, user: str | None = None
    ) -> FileInfo:
        """Create a symbolic link at `path` to `target`; with `hard`, a hard link."""
        to = path_text(self._at(target) if hard else target, "target")  # a symbolic link keeps its text
        return self._changed("link", path, user, target=to, hard=hard)

    def _changed(self, verb: str, path: InsidePath, user: str | None, **more: requests.Argument) -> FileInfo:
        sandbox = self._sandbox
        return with_decoded_path(
            sandbox.client.request_json(
                requests.change(sandbox.id, verb, self._at(path), self._as(user), **more), FileInfo
            )
        )

    def _done(self, verb: str, path: InsidePath, user: str | None, **more: requests.Argument) -> None:
        sandbox = self._sandbox
        sandbox.client.request(requests.change(sandbox.id, verb, self._at(path), self._as(user), **more))

    def glob(
        self,
        pattern: str,
        path: InsidePath = ".",
        *,
        hidden: bool = False,
        limit: int = 10_000,
        user: str | None = None,
    ) -> FileList:
        """Return the paths that match a pattern like `src/**/*.{ts,tsx}`, relative to `path` or absolute, at most
        `limit`.

        Names that begin with a dot match only a pattern that does so too, or with `hidden`.
        """
        sandbox = self._sandbox
        given = path_text(pattern, "pattern")
        request = requests.query_file(
            sandbox.id, "glob", self._at(path), self._as(user), pattern=given, hidden=hidden, limit=limit
        )
        return file_list(sandbox.client.request_json(request, Entries))

    def search(
        self,
        pattern: str,
        path: InsidePath = ".",
        *,
        glob: str | None = None,
        context: int = 0,
        limit: int = 1000,
        ignore_case: bool = False,
        literal: bool = False,
        hidden: bool = False,
        user: str | None = None,
    ) -> SearchResult:
        """Return the lines that match a regular expression (RE2: no look-around, linear time), or with `literal`
        contain a text, in a file or in all files below a directory.

        `glob` selects files: by name, or by path if it contains a slash. `context`: lines to include around each match.
        `.more` is set if there are more than `limit`; `.skipped` counts files that could not be searched, binary ones
        included.
        """
        sandbox = self._sandbox
        request = requests.query_file(
            sandbox.id, "search", self._at(path), self._as(user),
            pattern=pattern, glob=glob, context=context, limit=limit,
            ignore_case=ignore_case, literal=literal, hidden=hidden,
        )  # fmt: skip
        return with_decoded_matches(sandbox.client.request_json(request, SearchResult))

    def replace(
        self,
        path: InsidePath,
        old: str | bytes,
        new: str | bytes,
        count: int | None = 1,
        *,
        user: str | None = None,
    ) -> ReplaceResult:
        """Replace a text in a file. It must occur exactly `count` times (None: at least once); otherwise nothing
        changes and a `Conflict` reports how often and in which lines it occurs.

        A concurrent write is never lost: the edit is repeated on the new content, or fails.
        """
        sandbox = self._sandbox
        return sandbox.client.request_json(
            requests.replace(sandbox.id, self._at(path), old, new, count, self._as(user)), ReplaceResult
        )

    def patch(self, path: InsidePath, diff: str | bytes, *, user: str | None = None) -> PatchResult:
        """Apply a unified diff to a file, or to the files that it names below a directory: all of it or nothing.

        The context of a hunk must match exactly, at its line or at one place nearby; otherwise a `Conflict` reports the
        hunk and the difference. Files are created and deleted where the diff names /dev/null.
        """
        sandbox = self._sandbox
        return with_decoded_patch(
            sandbox.client.request_json(
                requests.patch(sandbox.id, self._at(path), diff, self._as(user)), PatchResult
            )
        )

    def watch(
        self,
        path: InsidePath = ".",
        *,
        recursive: bool = True,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        since: str | None = None,
        user: str | None = None,
    ) -> Watch:
        """Watch a directory for changes: created, modified, moved, removed.

        It is established when its `with` block is entered or its first event is requested. `include` and
        `exclude` are patterns like "*.py" or "node_modules". Each event has a `token`: a later watch with `since=token`
        first returns the events after it. An `overflow` event means that changes were missed: read the directory again.
        """
        options = requests.WatchOptions(
            self._at(path), recursive, Patterns(include, "include").texts, Patterns(exclude).texts, self._as(user)
        )
        return Watch(self._sandbox, options, since)

    def upload(
        self,
        local: HostPath,
        remote: InsidePath,
        *,
        gitignore: bool = False,
        exclude: Sequence[str] = (),
        user: str | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> TransferResult:
        """Upload a directory of this host: the content of `local` is added to `remote`, with modes, times and links.
        `remote` is created if missing; existing files stay, unless a file of the same name is uploaded.

        With `gitignore`, only files that git would add: tracked files, and others that no .gitignore names. `exclude`
        are patterns like "*.pyc" or "build/*.o". The result's `skipped` lists files that could not be uploaded. If
        `local` is a file, it becomes the file `remote`.
        """
        sandbox = self._sandbox
        if is_file(local):
            return self._upload_file(local, remote, user)
        packer = Packer(local, exclude=exclude, ignoring=gitignore, progress=progress)
        try:
            request = requests.upload_tree(sandbox.id, self._at(remote), backend.chunks(packer), self._as(user))
            return packer.with_skipped(sandbox.client.request_json(request, TransferResult))
        finally:
            packer.close()

    def _upload_file(self, local: HostPath, remote: InsidePath, user: str | None) -> TransferResult:
        sandbox = self._sandbox
        source, mode = open_host_file(local)
        with source:
            body = backend.chunks(source)
            request = requests.write_file(
                sandbox.id, self._at(remote), body, mode=mode, user=self._as(user), parents=True
            )
            info = sandbox.client.request_json(request, FileInfo)
        return TransferResult(files=1, directories=0, links=0, bytes=info.size)

    def download(
        self,
        remote: InsidePath,
        local: HostPath,
        *,
        exclude: Sequence[str] = (),
        outside_links: bool = False,
        limit: int | str | None = None,
        user: str | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> TransferResult:
        """Download a directory: the content of `remote` is added to `local`. Nothing is ever written outside of
        `local`, whatever the sandbox sends. Files of the same name are replaced atomically.

        Links that lead out of `remote` are omitted unless `outside_links` is set; set-id bits are dropped. Holes of
        sparse files stay holes. `limit`: the maximum size of all files, holes included; the default is the sandbox's
        disk limit for the data, and 8 GiB with the holes if that is more. The result's `skipped` lists files that were
        omitted. If `remote` is a file, it becomes the file `local`.
        """
        most = TransferLimit(self._sandbox.cached_info.limits.disk_bytes, limit)
        patterns = Patterns(exclude).texts
        try:
            return self._download(
                remote,
                patterns,
                user,
                lambda: DirectoryUnpacker(local, outside_links=outside_links, limit=most, progress=progress),
            )
        except FileNotDirectory:
            return self._download_file(remote, local, most, user)

    def _download(
        self, remote: InsidePath, exclude: Sequence[str], user: str | None, prepare: Callable[[], DirectoryUnpacker]
    ) -> TransferResult:
        sandbox, frames = self._sandbox, FrameDecoder()
        with sandbox.client.stream(
            requests.download_tree(sandbox.id, self._at(remote), exclude, self._as(user))
        ) as chunks:
            unpacker = prepare()  # only now that data will arrive
            try:
                for chunk in chunks:
                    for kind, payload in frames.feed(chunk):
                        if kind == STDOUT:
                            backend.in_thread(unpacker.feed, payload)
                        elif kind == EXIT:
                            return unpacker.finish(with_readable_paths(decode(payload, TransferResult)))
                        elif kind == ERROR:
                            raise error_frame(payload)
            finally:
                unpacker.close()
        raise SandboxUnavailable("the archive ended early", hint="`skerry show` shows the sandbox's state")

    def _download_file(
        self, remote: InsidePath, local: HostPath, most: TransferLimit, user: str | None
    ) -> TransferResult:
        sandbox = self._sandbox
        info = sandbox.client.request_json(
            requests.query_file(sandbox.id, "stat", self._at(remote), self._as(user)), FileInfo
        )
        with sandbox.client.stream(
            requests.read_file(sandbox.id, self._at(remote), user=self._as(user))
        ) as chunks:
            with SingleFile(local, info.mode if info.type == "file" else 0o644, most) as file:
                for chunk in chunks:
                    file.write(chunk)
        return TransferResult(files=1, directories=0, links=0, bytes=file.size)


def _body(content: backend.AnySource) -> tuple[Body, int | None]:
    """Return the body, and its size if known."""
    check_source(content)
    known = whole(content)
    return (known, None) if known is not None else (backend.chunks(content), size_of(content))


class Watch(ResumableStream[FileEvent]):
    """Iterate with `for event in watch`, until the directory itself is removed. `token` is the position: the
    sandbox keeps events for some minutes, and `watch(since=watch.token)` continues."""

    def __init__(self, sandbox: Sandbox, options: requests.WatchOptions, since: str | None) -> None:
        super().__init__()
        self.token = since
        self._sandbox = sandbox
        self._options = options

    def _once(self) -> Generator[FileEvent | None, None]:
        """Yield the events of one connection; None: the watch is established. A response without an end was
        interrupted."""
        sandbox, lines, root = self._sandbox, LineDecoder(), ""
        with sandbox.client.stream(requests.watch(sandbox.id, self._options, self.token)) as chunks:
            for chunk in chunks:
                for line in lines.feed(chunk):
                    head = decode(line, WatchLine)
                    if head.error is not None:
                        raise to_error(head.error)
                    self.token = head.token
                    if head.type == "ready":
                        root = head.path
                        yield None
                        continue
                    event = _with_host_paths(decode(line, FileEvent))
                    self._ended = event.type == "removed" and head.path == root
                    yield event
        if not self._ended:
            raise ServerUnreachable("the watch ended early", hint="`skerry server status`")


def _with_host_paths(event: FileEvent) -> FileEvent:
    """Return the event with paths that are not UTF-8 in Python's form."""
    path = os.fsdecode(event.raw_path) if event.raw_path is not None else event.path
    to = os.fsdecode(event.raw_to) if event.raw_to is not None else event.to
    return replace(event, path=path, to=to)
