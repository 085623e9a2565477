"""Steps under way: their inputs and outputs on the way into a trace, with the values of secrets masked."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import Future
from functools import cache
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from skerry.codecs.frames import HEADER_SIZE, STDERR, STDOUT
from skerry.codecs.output import HeadAndTail
from skerry.engine.records.trace.mask import MaskedStream
from skerry.engine.records.trace.store import BlobDraft, TraceStore
from skerry.errors import SkerryError
from skerry.types import (
    MAX_INLINE,
    MAX_TRACE_OUTPUT,
    CodeEnd,
    CodeOutput,
    RunResult,
    SecretValue,
    TraceContent,
    TraceEnd,
    TraceError,
    encode_path,
)

log = logging.getLogger("skerry.engine")
MAX_TEXT: Final = 200
MAX_PARAMS: Final = 16 << 10
MAX_MESSAGE: Final = 1000
MAX_RESULTS_KEPT: Final = 4 << 20
_BUFFER: Final = 1 << 20
_HASHED_AT_ONCE: Final = 128 << 10  # bytes that the event loop hashes itself
_FACTS: Final = ("exit_code", "signal", "timed_out", "oom_killed", "duration_s", "usage", "cwd")
_STREAMS: Final = {STDOUT: "stdout", STDERR: "stderr"}


class OutputCapture:
    """One output stream: its hash and size, and its first and last bytes."""

    def __init__(self, store: TraceStore) -> None:
        self._store = store
        self._hash = hashlib.sha256()
        self._unhashed = bytearray()
        self._job: Future[None] | None = None
        self._kept = HeadAndTail(MAX_TRACE_OUTPUT)
        self._size = 0
        self._stream = MaskedStream(store.mask) if store.mask else None

    def add(self, data: bytes) -> None:
        if self._stream is not None:
            data = self._stream.feed(data)
        self._take(data)

    def _take(self, data: bytes) -> None:
        self._size += len(data)
        self._kept.add(data)
        if self._unhashed or len(data) < _HASHED_AT_ONCE:
            self._unhashed += data
            data = b""
            if len(self._unhashed) >= _HASHED_AT_ONCE:
                data, self._unhashed = bytes(self._unhashed), bytearray()
        if data:
            self._job = self._store.threads.hash(self._hash, data)

    def content(self, cut: str | None = None) -> TraceContent:
        """Return the content. `cut`: why it is not all of the stream."""
        masked = 0
        if self._stream is not None:
            self._take(self._stream.end())
            masked = self._stream.masked
        if self._job is not None:
            self._job.result()
        self._hash.update(self._unhashed)
        head = self._kept.head
        kept = head + self._kept.tail
        first = len(head) if self._kept.omitted else None
        found = _content(self._store, kept, self._size, self._hash.hexdigest(), first, masked)
        return found if cut is None else replace(found, sha256=None, left_out=cut)


def _content(
    store: TraceStore, kept: bytes, size: int, sha256: str, head: int | None = None, masked: int = 0
) -> TraceContent:
    """Return a content with its kept bytes inline or as a blob."""
    if len(kept) <= MAX_INLINE:
        try:
            return TraceContent(size=size, sha256=sha256, text=kept.decode(), head=head, masked=masked)
        except UnicodeDecodeError:
            return TraceContent(size=size, sha256=sha256, data=kept, head=head, masked=masked)
    blob = sha256 if head is None else hashlib.sha256(kept).hexdigest()
    why = store.put(blob, kept)
    return TraceContent(
        size=size, sha256=sha256, blob=blob if why is None else None, head=head, masked=masked, left_out=why
    )


def whole_content(store: TraceStore, data: bytes) -> TraceContent:
    """Return an input that is complete already."""
    data, masked = store.mask.bytes(data)
    return _content(store, data, len(data), hashlib.sha256(data).hexdigest(), masked=masked)


class InputRecorder:
    """An input that arrives in pieces, such as an upload."""

    def __init__(self, store: TraceStore) -> None:
        self._store = store
        self._hash = hashlib.sha256()
        self._size = 0
        self._buffer = bytearray()
        self._stream = MaskedStream(store.mask) if store.mask else None
        self._draft: BlobDraft | None = None

    async def add(self, data: bytes) -> None:
        if self._stream is not None:
            data = self._stream.feed(data)
        await self._take(data)

    async def _take(self, data: bytes) -> None:
        self._hash.update(data)
        self._size += len(data)
        if self._draft is not None and self._draft.left_out is not None:
            return
        self._buffer += data
        if len(self._buffer) > _BUFFER:
            await self._spill()

    async def _spill(self) -> None:
        self._draft = self._draft or self._store.draft()
        data, self._buffer = bytes(self._buffer), bytearray()
        await self._draft.add(data)

    async def finish(self) -> TraceContent:
        masked = 0
        if self._stream is not None:
            await self._take(self._stream.end())
            masked = self._stream.masked
        sha256 = self._hash.hexdigest()
        if self._draft is None:
            return _content(self._store, bytes(self._buffer), self._size, sha256, masked=masked)
        await self._spill()
        why = await self._draft.finish(sha256)
        blob = sha256 if why is None else None
        return TraceContent(size=self._size, sha256=sha256, blob=blob, masked=masked, left_out=why)

    def received(self) -> TraceContent:
        """Return the content so far, as an input that ended here."""
        rest, masked, content = b"", 0, self._hash.copy()
        if self._stream is not None:
            rest, masked = self._stream.end(), self._stream.masked
            content.update(rest)
        size, sha256 = self._size + len(rest), content.hexdigest()
        if self._draft is None:
            return _content(self._store, bytes(self._buffer) + rest, size, sha256, masked=masked)
        return TraceContent(size=size, sha256=sha256, masked=masked, left_out="it was interrupted")

    async def discard(self) -> None:
        if self._draft is not None:
            await self._draft.discard()


class Step:
    """A step that has begun; `n` is 0 if the trace is full, and nothing is recorded then. Ended once."""

    def __init__(self, store: TraceStore | None, n: int) -> None:
        self.n = n
        self._store = store if n else None
        self._outputs: dict[str, OutputCapture] = {}
        self._inputs: dict[str, TraceContent] = {}
        self._arriving: dict[str, InputRecorder] = {}
        self._results: list[CodeOutput] = []
        self._results_size = 0
        self._began = time.monotonic()
        self._ended = False
        self._cut: str | None = None

    # -- while it runs ------------------------------------------------------------------------------------------------

    def output(self, stream: str, data: bytes) -> None:
        if self._store is not None:
            capture = self._outputs.get(stream)
            if capture is None:
                capture = self._outputs[stream] = OutputCapture(self._store)
            capture.add(data)

    def frames(self, data: bytes) -> None:
        """Take output as encoded frames: whole ones."""
        at = 0
        while self._store is not None and at + HEADER_SIZE <= len(data):
            start, size = at + HEADER_SIZE, int.from_bytes(data[at + 1 : at + HEADER_SIZE])
            if (stream := _STREAMS.get(data[at])) is not None:
                self.output(stream, data[start : start + size])
            at = start + size

    def value(self, piece: CodeOutput) -> None:
        """Take a value of code."""
        size = sum(map(len, piece.data.values()))
        self._results_size += size
        if self._store is not None and self._results_size <= MAX_RESULTS_KEPT:
            self._results.append(piece)

    def cut(self, why: str) -> None:
        """State that the output is not all of it."""
        self._cut = why

    async def tee(
        self, chunks: AsyncIterator[bytes], name: str = "body", *, partial: bool = False
    ) -> AsyncIterator[bytes]:
        """Yield the chunks and record them as an input of this step. `partial`: also if the step ends before the last
        one, such as the input of a terminal whose program exits."""
        if self._store is None:
            async for chunk in chunks:
                yield chunk
            return
        recorder = InputRecorder(self._store)
        if partial:
            self._arriving[name] = recorder
        try:
            async for chunk in chunks:
                await recorder.add(chunk)
                yield chunk
            self._inputs[name] = await recorder.finish()
            self._arriving.pop(name, None)
        finally:
            if name not in self._inputs:
                await recorder.discard()

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """End the step with the block, also if that fails."""
        try:
            yield
        except BaseException as error:
            self.end(error=error)
            raise
        self.end()

    # -- its end ------------------------------------------------------------------------------------------------------

    def end(
        self, outcome: RunResult | None = None, error: BaseException | None = None, result: Mapping[str, Any] = {}
    ) -> None:
        """Record the end: of a command with its outcome, or of a step that failed. A failure to record is logged."""
        if self._store is not None and not self._ended:
            self._ended = True
            try:
                self._store.end(self._line(self._store, outcome, error, result))
            except Exception:
                log.exception("failed to record the end of a step", extra={"sandbox": self._store.place.name})

    def _line(
        self, store: TraceStore, outcome: RunResult | None, error: BaseException | None, result: Mapping[str, Any]
    ) -> TraceEnd:
        facts: dict[str, Any] = {name: capture.content(self._cut) for name, capture in self._outputs.items()}
        if outcome is not None:
            facts |= {name: getattr(outcome, name) for name in _FACTS}
            facts["process"] = outcome.id
        else:
            facts["duration_s"] = round(time.monotonic() - self._began, 6)
        if isinstance(outcome, CodeEnd) and outcome.error is not None and error is None:
            facts["error"] = _error(outcome.error.name, outcome.error.message)
        elif error is not None:
            code = error.code if isinstance(error, SkerryError) else "interrupted"
            facts["error"] = _error(code, error.message if isinstance(error, SkerryError) else "")
        if self._results_size > MAX_RESULTS_KEPT:
            facts["results"] = TraceContent(size=self._results_size, left_out="the values are too large")
        elif self._results:
            facts["results"] = whole_content(store, msgspec.json.encode(self._results))
        inputs = {**self._inputs, **{name: recorder.received() for name, recorder in self._arriving.items()}}
        return TraceEnd(of=self.n, at=time.time(), inputs=inputs, result=dict(result), **facts)

    def interrupt(self) -> None:
        """End a step whose caller left before its end was known."""
        self.end(error=SkerryError("its caller disconnected before it ended"))


def _error(code: str, message: str) -> TraceError:
    return TraceError(code=code[:100], message=message[:MAX_MESSAGE])


def plain(value: Any) -> Any:
    """Return a value that JSON can hold: a path that is not UTF-8 becomes its text and its bytes. Secrets lose their
    values."""
    if isinstance(value, SecretValue):
        return plain(value.form)
    if isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        defaults = _defaults(type(value))
        return plain({name: item for name, item in fields.items() if item != defaults.get(name, msgspec.UNSET)})
    if isinstance(value, dict):
        found = {str(key): plain(item) for key, item in value.items()}
        for key, item in value.items():
            if isinstance(item, str) and not _is_unicode(item):
                found[f"{key}_base64"] = item.encode("utf-8", "surrogateescape")
        return found
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return encode_path(value)[0] if isinstance(value, str) and not _is_unicode(value) else value


@cache
def _defaults(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {
        field.name: field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        for field in msgspec.structs.fields(kind)
    }


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
