"""envd's /files, /health, /metrics and /envs: content over plain HTTP."""

from __future__ import annotations

import contextlib
import errno
import posixpath
import re
from collections import deque
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from skerry.engine.files.service import FileStep
from skerry.errors import FileError, FileIsDirectory, InvalidRequest
from skerry.server.http.call import Call, Empty
from skerry.server.http.responses import StreamResponse, WrongMediaType
from skerry.server.routes.files import PathQuery
from skerry.server.routes.files import read as read_content
from skerry.server.wire.e2b.connect import gunzip
from skerry.server.wire.e2b.errors import DiskFull, SandboxGone
from skerry.server.wire.e2b.routes.filesystem import ensure_directory, inside
from skerry.server.wire.e2b.users import Account, UserTable, absolute
from skerry.server.wire.e2b.values import json_response
from skerry.types import PathText, Value

METADATA: Final = "x-metadata-"
MAX_METADATA: Final = 4096  # bytes of names and values
_PRINTABLE: Final = re.compile(r"[\x20-\x7e]+")
MAX_FILES: Final = 1000  # of one upload
MAX_FILE_HEAD: Final = 16 << 10  # of a part: its headers


class FileQuery(Value, frozen=True, kw_only=True):
    """`path`: relative to the home of `username`. A signature was checked with the caller."""

    path: PathText = ""
    username: str | None = None
    signature: str | None = None
    signature_expiration: Annotated[int, Meta(ge=0)] | None = None


class ComposeRequest(Struct, frozen=True, kw_only=True):
    """POST /files/compose: join files into one, and remove them."""

    source_paths: list[str]
    destination: str
    username: str | None = None


class WrittenFile(Struct, frozen=True, kw_only=True):
    path: str
    name: str
    type: str = "file"
    metadata: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class FileRoutes:
    """Handlers of envd's plain HTTP."""

    def __init__(self, users: UserTable) -> None:
        self._users = users

    async def read(self, call: Call[FileQuery, Empty]) -> StreamResponse:
        user = await self._users.user(call, call.query.username)
        path = absolute(call.query.path, user)
        found = await inside(call, lambda files: files.stat(path, "root", follow=True))
        if found.type == "directory":
            raise FileIsDirectory(f"path '{path}' is a directory")
        asked: Any = call
        asked.query = PathQuery(path=path, user="root")
        return await read_content(asked)

    async def write(self, call: Call[FileQuery, Empty]) -> StreamResponse:
        user = await self._users.user(call, call.query.username)
        kind, options = parse_options_header(call.headers.get(b"content-type"))
        chunks = _decoded(call)
        if kind == b"application/octet-stream":
            if not call.query.path:
                raise InvalidRequest("path: it is required for a raw body")
            size = call.headers.body_size if call.headers.get(b"content-encoding") is None else None
            return _written([await _write(call, user, call.query.path, chunks, size)])
        if kind != b"multipart/form-data" or b"boundary" not in options:
            raise WrongMediaType("the content type is not multipart/form-data or application/octet-stream")
        done: dict[str, WrittenFile] = {}
        try:
            async with contextlib.aclosing(Parts(chunks, options[b"boundary"])) as parts:
                while (name := await parts.next_file()) is not None:
                    if len(done) >= MAX_FILES:
                        raise InvalidRequest(f"more than {MAX_FILES} files in one upload")
                    path = absolute(call.query.path or name, user)
                    if path in done:
                        raise InvalidRequest(f"you cannot upload multiple files to the same path {path!r}")
                    done[path] = await _write(call, user, path, parts.content(), None)
        except FormParserError as error:
            raise InvalidRequest(f"the multipart body is malformed: {str(error)[:200]}") from error
        return _written([*done.values()])

    async def compose(self, call: Call[Empty, ComposeRequest]) -> StreamResponse:
        user = await self._users.user(call, call.body.username)
        if not call.body.source_paths or len(call.body.source_paths) > MAX_FILES:
            raise InvalidRequest(f"source_paths: one to {MAX_FILES} are required")
        sources = [absolute(path, user) for path in call.body.source_paths]
        files = call.engine.files.of(call.caller, call.ref)

        async def joined() -> AsyncIterator[bytes]:
            for path in sources:
                reader = await files.read(path, user="root")
                try:
                    async for chunk in reader:
                        yield chunk
                finally:
                    await reader.aclose()

        written = await _write(call, user, call.body.destination, joined(), None)
        for path in sources:
            if path != written.path:
                step = FileStep("file.remove", {"path": path}, path)
                await inside(call, lambda files, path=path: files.remove(path, False, "root"), step)  # type: ignore[misc]
        return json_response(written)


async def _write(
    call: Call[Any, Any], user: Account, path: str, content: AsyncIterator[bytes], size: int | None
) -> WrittenFile:
    """Write a file for a user, with its missing directories."""
    path = absolute(path, user)
    await ensure_directory(call, posixpath.dirname(path), user)
    step = FileStep("file.write", {"path": path}, path)
    owner, metadata = f"{user.uid}:{user.gid}", _metadata(call)
    try:
        await inside(
            call,
            lambda files: files.write(path, step.tee(content), None, "root", False, owner, size, metadata),
            step,
        )  # fmt: skip
    except FileError as error:
        if error.details.get("errno") in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(error.message, hint=error.hint) from error
        raise
    call.outcome |= {"path": path}
    shown = metadata or msgspec.UNSET
    return WrittenFile(path=path, name=posixpath.basename(path), metadata=shown)


def _metadata(call: Call[Any, Any]) -> dict[str, str]:
    """Return the metadata of an upload, from the headers `X-Metadata-NAME`."""
    found = {name[len(METADATA) :]: value for name, value in call.headers.starting(METADATA)}
    for name, value in found.items():
        if not (_PRINTABLE.fullmatch(name) and _PRINTABLE.fullmatch(value or " ")):
            raise InvalidRequest(f"metadata: {name[:80]!r} is not printable ASCII")
    if any(len(name) > 246 for name in found) or sum(len(k) + len(v) + 9 for k, v in found.items()) > MAX_METADATA:
        raise InvalidRequest(f"metadata: more than {MAX_METADATA} bytes, or a name longer than 246")
    return found


def _written(files: list[WrittenFile]) -> StreamResponse:
    return json_response(files)


def _decoded(call: Call[Any, Any]) -> AsyncIterator[bytes]:
    encoding = call.headers.get(b"content-encoding") or "identity"
    if encoding not in ("identity", "gzip"):
        raise WrongMediaType(f"the content encoding {encoding[:40]!r} is not supported", hint="gzip, or none")
    return gunzip(call.chunks()) if encoding == "gzip" else call.chunks()


class Parts:
    """The files of a multipart body, read as they arrive."""

    def __init__(self, chunks: AsyncIterator[bytes], boundary: bytes) -> None:
        self._chunks = chunks
        self._events: deque[tuple[str, bytes]] = deque()
        self._field = self._value = b""
        self._headers: dict[bytes, bytes] = {}
        self._ended = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._headers.clear,
                "on_header_field": self._on_field,
                "on_header_value": self._on_value,
                "on_header_end": self._on_header,
                "on_headers_finished": self._on_headers,
                "on_part_data": self._on_data,
                "on_part_end": self._on_part_end,
                "on_end": self._on_end,
            },
            max_header_size=MAX_FILE_HEAD,
        )

    def _on_part_end(self) -> None:
        self._events.append(("end", b""))

    def _on_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header(self) -> None:
        self._headers[self._field.lower()] = self._value
        self._field = self._value = b""

    def _on_headers(self) -> None:
        kind, options = parse_options_header(self._headers.get(b"content-disposition"))
        is_file = kind == b"form-data" and options.get(b"name") == b"file" and b"filename" in options
        self._events.append(("file", options[b"filename"]) if is_file else ("other", b""))

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        self._events.append(("data", data[start:end]))

    def _on_end(self) -> None:
        self._ended = True

    async def _next(self) -> tuple[str, bytes] | None:
        while not self._events:
            chunk = await anext(self._chunks, None)
            if chunk is None:
                if not self._ended:
                    raise InvalidRequest("the multipart body is cut off")
                return None
            self._parser.write(chunk)
        return self._events.popleft()

    async def next_file(self) -> str | None:
        """Return the name of the next file; None at the end. Other fields, and the rest of a file, are skipped."""
        while (event := await self._next()) is not None:
            if event[0] == "file":
                return event[1].decode("utf-8", "surrogateescape")
        return None

    async def content(self) -> AsyncIterator[bytes]:
        while (event := await self._next()) is not None and event[0] == "data":
            yield event[1]

    async def aclose(self) -> None:
        close = getattr(self._chunks, "aclose", None)
        if close is not None:
            await close()


# -- state ------------------------------------------------------------------------------------------------------------


async def health(call: Call[Empty, Empty]) -> None:
    """Answer for a running sandbox only; a question about a paused one does not resume it."""
    record = call.engine.registry.find(call.caller, call.ref).record
    if record.state not in ("running", "creating"):
        raise SandboxGone(f"sandbox {record.id} is {record.info().state}")


async def envs(call: Call[Empty, Empty]) -> StreamResponse:
    return json_response(call.engine.registry.find(call.caller, call.ref).record.spec.environment)
