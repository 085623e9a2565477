"""`engine.traces`: records the steps of every sandbox, and keeps its trace for a while after its deletion."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import shlex
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from skerry._version import __version__
from skerry.codecs import tar
from skerry.codecs.traces import BLOBS, MANIFEST, MAX_LINE, STEPS, blobs_of, encode_manifest, entry_header, merge
from skerry.config import Settings
from skerry.engine.hooks import Hook
from skerry.engine.network.cassettes import CassetteStore
from skerry.engine.network.secrets import SecretStore
from skerry.engine.records.trace import store as files
from skerry.engine.records.trace.mask import SecretMask
from skerry.engine.records.trace.recorder import MAX_PARAMS, MAX_TEXT, Step, plain, whole_content
from skerry.engine.records.trace.store import TraceBounds, TraceStore, TraceThreads
from skerry.engine.sandboxes.record import POOL_OWNER, SandboxRecord
from skerry.engine.sandboxes.registry import SandboxRegistry
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.errors import NotFound
from skerry.types import (
    SANDBOX_ID,
    TRACE_FORMAT,
    Caller,
    TraceChanges,
    TraceManifest,
    TraceStart,
    TraceStep,
    parse_size,
    parse_span,
)

log = logging.getLogger("skerry.engine")
MAX_OPEN: Final = 256  # traces with an open file
MAX_EVENTS: Final = 20_000  # events of one kind that programs inside a sandbox cause; further ones are counted
MAX_BACKGROUND: Final = 4096
MAX_TEXT_READ: Final = 64 << 10
CHECK_INTERVAL_S: Final = 600.0
DIRECTORY: Final = "traces"
_SPEC: Final = (
    "user", "cwd", "image_env", "env", "labels", "limits", "lifecycle", "network", "options", "secrets", "entrypoint",
    "cmd", "volumes",
)  # fmt: skip
_DOWN: Final = ("sandbox.paused", "sandbox.stopped", "sandbox.failed")
_UP: Final = ("sandbox.start", "sandbox.resumed")


@contextlib.contextmanager
def _tolerated(sandbox_id: str) -> Iterator[None]:
    """Log any error: a failure to record must never fail the sandbox."""
    try:
        yield
    except Exception:
        log.exception("failed to record a step of a trace", extra={"sandbox": sandbox_id})


class _OpenTrace:
    """The trace of a sandbox that exists."""

    def __init__(self, store: TraceStore) -> None:
        self.store = store
        self.events = Counter[str]()  # by kind: a flood of one hides no other
        self.background: dict[str, Step] = {}  # by process
        self.last_before = store.last  # the newest step of an earlier server
        self.earlier: asyncio.Future[dict[str, int]] | None = None  # steps of background processes of earlier servers
        self.down = store.newest(_DOWN) > store.newest(_UP)  # also before this server started


class TraceService(Hook):
    """Used from the event loop's thread only; threads write blobs and read."""

    def __init__(self, settings: Settings, secrets: SecretStore, cassettes: CassetteStore) -> None:
        self._directory = settings.state_dir / DIRECTORY
        self._secrets, self._cassettes = secrets, cassettes
        self._keep = parse_span(settings["trace.keep"])
        self._max_total = parse_size(settings["trace.max_deleted_size"])
        self._bounds = TraceBounds(
            parse_size(settings["trace.max_size"]), parse_size(settings["storage.min_free_space"])
        )
        self._threads = TraceThreads()
        self._open: OrderedDict[str, _OpenTrace] = OrderedDict()

    async def close(self) -> None:
        for trace in self._open.values():
            trace.store.close()
        await asyncio.to_thread(self._threads.close)

    # -- recording ----------------------------------------------------------------------------------------------------

    def begin(
        self,
        sandbox: Sandbox,
        kind: str,
        params: Any = None,
        *,
        text: str = "",
        inputs: Mapping[str, bytes] = {},
        process: str | None = None,
        audit: int | None = None,
    ) -> Step:
        """Record the beginning of a step. `params`: the arguments, as a request or a dictionary."""
        with _tolerated(sandbox.record.id):
            trace = self._of(sandbox.record)
            if trace is not None:
                trace.store.mask.add(self._secrets.values(sandbox.record))
                step = TraceStep(n=0, at=time.time(), kind=kind, process=process, audit=audit)
                return Step(trace.store, self._begin(trace, step, params, text, inputs))
        return Step(None, 0)

    def _begin(self, trace: _OpenTrace, step: TraceStep, params: Any, text: str, inputs: Mapping[str, bytes]) -> int:
        given = plain(params) if params is not None else {}
        contents = {name: whole_content(trace.store, data) for name, data in inputs.items()}
        encoded = msgspec.json.encode(given)
        if len(encoded) > MAX_PARAMS:
            contents["params"], given = whole_content(trace.store, encoded), {}
        return self._write(trace, replace(step, text=_shown(trace.store.mask, text), params=given, inputs=contents))

    def mask(self, record: SandboxRecord) -> SecretMask:
        """Return the mask of a sandbox's secrets: the present ones, and earlier ones that its trace has seen."""
        trace = self._open.get(record.id)
        mask = trace.store.mask if trace is not None else SecretMask()
        mask.add(self._secrets.values(record))
        return mask

    def await_end(self, sandbox_id: str, process: str, step: Step) -> None:
        """Keep the step of a background process until `take_ended`."""
        trace = self._open.get(sandbox_id)
        if trace is not None and len(trace.background) < MAX_BACKGROUND:
            trace.background[process] = step

    def take_ended(self, sandbox_id: str, process: str) -> Step | None:
        """Return the step of a background process that has ended."""
        trace = self._open.get(sandbox_id)
        return trace.background.pop(process, None) if trace is not None else None

    def may_be_earlier(self, sandbox_id: str, process: str) -> bool:
        """Return whether this may be a background process that an earlier server started."""
        trace = self._existing(sandbox_id)
        if trace is None or not trace.last_before:
            return False
        known = trace.earlier
        return known is None or not known.done() or known.cancelled() or process in known.result()

    async def take_earlier(self, sandbox: Sandbox, process: str) -> Step | None:
        """Return the step of a background process that an earlier server started, and that has ended. Its trace is read
        once for each sandbox."""
        with _tolerated(sandbox.record.id):
            trace = self._existing(sandbox.record.id)
            if trace is None or not trace.last_before:
                return None
            if trace.earlier is None:
                place, last = self._directory / sandbox.record.id, trace.last_before
                trace.earlier = asyncio.get_running_loop().run_in_executor(
                    self._threads.files, lambda: files.read_unended(place, "process.spawn", last)
                )
            n = (await asyncio.shield(trace.earlier)).pop(process, None)
            if n is not None:
                trace.store.mask.add(self._secrets.values(sandbox.record))
                return Step(trace.store, n)
        return None

    def event(
        self, sandbox_id: str, kind: str, params: Mapping[str, Any], *, text: str = "", process: str | None = None
    ) -> None:
        """Record an event that a program inside caused. Events above the maximum are counted."""
        with _tolerated(sandbox_id):
            trace = self._existing(sandbox_id)
            if trace is None:
                return
            trace.events[kind] += 1
            if trace.events[kind] > MAX_EVENTS:
                trace.store.omitted += 1
                return
            given = plain({name: value for name, value in params.items() if value is not None})
            self._write(trace, _event(kind, text=text[:MAX_TEXT], params=given, process=process))

    def state(self, sandbox_id: str, kind: str, reason: str | None, name: str | None) -> None:
        """Record a change of the sandbox's state (sandbox.paused, .stopped, .failed, .renamed, .deleted), a
        budget that it has reached, or an alert about it."""
        if kind in ("sandbox.created", "sandbox.running", "sandbox.ready"):
            return
        with _tolerated(sandbox_id):
            trace = self._existing(sandbox_id)
            if trace is None:
                return
            trace.down = trace.down or kind in _DOWN
            params = {"reason": reason, "name": name if kind == "sandbox.renamed" else None}
            given = {key: value for key, value in params.items() if value is not None}
            self._write(trace, _event(kind, text=(reason or "")[:MAX_TEXT], params=given), spare=True)
            if kind == "sandbox.deleted":
                self._drop(sandbox_id)

    def changes(self, sandbox_id: str, changes: TraceChanges) -> None:
        """Record changed files: as many as fit into a line."""
        with _tolerated(sandbox_id):
            trace = self._existing(sandbox_id)
            if trace is None:
                return
            count = len(changes.files) + changes.omitted
            while len(msgspec.json.encode(changes)) > MAX_LINE // 2:
                files = changes.files[: len(changes.files) // 2]
                changes = replace(changes, files=files, omitted=count - len(files))
            text = f"{count} file{'s' if count != 1 else ''} changed"
            self._write(trace, _event("files.changed", text=text, changes=changes))

    def _write(self, trace: _OpenTrace, step: TraceStep, *, spare: bool = False) -> int:
        return trace.store.begin(step, spare=spare)

    # -- hooks --------------------------------------------------------------------------------------------------------

    def on_running(self, sandbox: Sandbox) -> None:
        with _tolerated(sandbox.record.id):
            trace = self._of(sandbox.record)
            if trace is not None and trace.down:
                trace.down = False
                self._write(trace, _event("sandbox.resumed"), spare=True)

    def forked(self, source: SandboxRecord, forks: Sequence[SandboxRecord]) -> None:
        """Begin the traces of forks: each refers to the steps of the sandbox that it was copied from."""
        with _tolerated(source.id):
            trace = self._of(source)
            step = trace.store.last if trace is not None else None
            for record in forks:
                self._start(record, parent=source.id, parent_step=step)

    async def before_delete(self, sandbox: Sandbox) -> None:
        place = self._directory / sandbox.record.id
        if self._keep > 0 and place.exists():
            await asyncio.to_thread(self._cassettes.keep, sandbox.record.id, place / files.CASSETTE)

    async def on_deleted(self, sandbox: Sandbox) -> None:
        if self._keep <= 0:
            await self.remove(sandbox.record.id)

    async def remove(self, sandbox_id: str) -> None:
        """Remove the trace of a deleted sandbox."""
        self._drop(sandbox_id)
        await asyncio.to_thread(files.remove, self._directory / sandbox_id)

    def _drop(self, sandbox_id: str) -> None:
        trace = self._open.pop(sandbox_id, None)
        if trace is not None:
            trace.store.close(over=True)

    def _of(self, record: SandboxRecord) -> _OpenTrace | None:
        """Return the trace of a sandbox; begin it if it has none. Pooled sandboxes have none."""
        if record.owner == POOL_OWNER:
            return None
        return self._existing(record.id) or self._start(record)

    def _existing(self, sandbox_id: str) -> _OpenTrace | None:
        trace = self._open.get(sandbox_id)
        if trace is not None:
            self._open.move_to_end(sandbox_id)
            return trace
        place = self._directory / sandbox_id
        return self._opened(sandbox_id) if (place / files.STEPS).exists() else None

    def _opened(self, sandbox_id: str) -> _OpenTrace | None:
        try:
            trace = _OpenTrace(TraceStore(self._directory / sandbox_id, self._bounds, self._threads))
        except OSError as error:
            log.error("failed to open a trace", extra={"sandbox": sandbox_id, "error": str(error)})
            return None
        self._open[sandbox_id] = trace
        for old in list(self._open.values())[:-MAX_OPEN]:
            old.store.close()
        return trace

    def _start(
        self, record: SandboxRecord, parent: str | None = None, parent_step: int | None = None
    ) -> _OpenTrace | None:
        trace = self._opened(record.id)
        if trace is None:
            return None
        trace.store.mask.add(self._secrets.values(record))
        spec = plain({name: getattr(record.spec, name) for name in _SPEC})
        start = TraceStart(
            format=TRACE_FORMAT, sandbox=record.id, owner=record.owner, name=record.name, image=record.spec.image,
            image_digest=record.spec.image_digest, created_at=record.created_at, spec=spec, parent=parent,
            parent_step=parent_step,
        )  # fmt: skip
        text = f"fork of {parent}" if parent is not None else f"from {record.spec.image}"
        self._write(trace, _event("sandbox.start", text=text, start=start), spare=True)
        return trace

    # -- reading ------------------------------------------------------------------------------------------------------

    def find(self, caller: Caller, sandbox_id: str) -> Path:
        """Return the place of a trace that the caller may read: also of a deleted sandbox, by its ID. Blocking."""
        place = self._directory / sandbox_id
        start = files.read_start(place) if SANDBOX_ID.fullmatch(sandbox_id) else None
        if start is None or not (caller.scope == "admin" or start.owner == caller.owner):
            raise NotFound(
                f"sandbox {sandbox_id!r} not found",
                hint="the trace of a deleted sandbox is found by its ID, for as long as trace.keep says",
                details={"sandbox": sandbox_id},
            )
        return place

    async def lines(self, caller: Caller, sandbox_id: str, *, follow: bool = False) -> AsyncGenerator[bytes, None]:
        """Return the lines of a trace in pieces; with `follow`, also those that come later."""
        place = await asyncio.to_thread(self.find, caller, sandbox_id)
        return self._lines(place, sandbox_id, follow)

    async def _lines(self, place: Path, sandbox_id: str, follow: bool) -> AsyncGenerator[bytes, None]:
        at = 0
        if follow:
            self._existing(sandbox_id)
        while True:
            trace = self._open.get(sandbox_id) if follow else None
            more = trace.store.more if trace is not None else None
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile: its time is over
                pieces = files.read_lines(place, at)
                while piece := await asyncio.to_thread(next, pieces, b""):
                    at += len(piece)
                    yield piece
            if more is None:
                return
            await more.wait()

    async def blob(self, caller: Caller, sandbox_id: str, sha256: str) -> bytes:
        """Return a blob of a trace."""
        place = await asyncio.to_thread(self.find, caller, sandbox_id)
        data = await asyncio.get_running_loop().run_in_executor(self._threads.files, files.read_blob, place, sha256)
        if data is None:
            raise NotFound(f"blob {sha256[:64]!r} not found in the trace")
        return data

    async def export(self, caller: Caller, sandbox_id: str) -> AsyncGenerator[bytes, None]:
        """Return an exported trace: everything that was recorded so far, in one archive."""
        place = await asyncio.to_thread(self.find, caller, sandbox_id)
        cassette = await asyncio.to_thread(self._cassettes.content, sandbox_id, place / files.CASSETTE)
        # behind the blobs that are being written
        parts = await asyncio.get_running_loop().run_in_executor(self._threads.files, lambda: _export(place, cassette))
        return _pieces(parts)

    # -- retention ----------------------------------------------------------------------------------------------------

    async def watch(self, registry: SandboxRegistry) -> None:
        """Remove traces of deleted sandboxes after their time, or if they take too much space."""
        while True:
            kept = registry.ids()
            for sandbox_id in await asyncio.to_thread(self.expired, kept):
                if registry.get(sandbox_id) is None:
                    await self.remove(sandbox_id)
            await asyncio.sleep(CHECK_INTERVAL_S)

    def expired(self, kept: set[str]) -> list[str]:
        """Return the deleted sandboxes whose traces are to be removed, the oldest first."""
        found = []
        with contextlib.suppress(FileNotFoundError):
            for name in set(os.listdir(self._directory)) - kept:
                place = self._directory / name
                try:
                    changed = (place / files.STEPS).stat().st_mtime
                except OSError:
                    changed = 0.0
                found.append((changed, name, files.size_of(place)))
        total, after, expired = 0, time.time() - self._keep, []
        for changed, name, size in sorted(found, reverse=True):
            total += size
            if changed < after or total > self._max_total:
                expired.append(name)
        return expired[::-1]


def _export(place: Path, cassette: bytes | None) -> Iterator[bytes]:
    lines = b"".join(files.read_lines(place))
    lines = lines[: lines.rfind(b"\n") + 1]
    trace = merge(lines.split(b"\n"))
    start = next((step.start for step in trace.steps if step.start is not None), None)
    if start is None:
        raise NotFound("the trace has no beginning")
    blobs = {name: size for name in blobs_of(trace.steps) if (size := _size(place / files.BLOBS / name)) is not None}
    recorded = {} if cassette is None else {hashlib.sha256(cassette).hexdigest(): cassette}
    blobs = dict(sorted({**blobs, **{name: len(data) for name, data in recorded.items()}}.items()))
    manifest = encode_manifest(
        TraceManifest(
            format=TRACE_FORMAT, sandbox=start.sandbox, name=start.name, image=start.image,
            image_digest=start.image_digest, exported_at=time.time(), steps_size=len(lines),
            steps_sha256=hashlib.sha256(lines).hexdigest(), blobs=blobs, version=__version__,
            cassette=next(iter(recorded), None),
        )
    )  # fmt: skip
    return _archive(place, manifest, lines, blobs, recorded)


def _archive(
    place: Path, manifest: bytes, lines: bytes, blobs: dict[str, int], more: dict[str, bytes]
) -> Iterator[bytes]:
    for name, data in ((MANIFEST, manifest), (STEPS, lines)):
        yield entry_header(name, len(data)) + data + tar.padding(len(data))
    for blob, size in blobs.items():
        content = more[blob] if blob in more else files.read_blob(place, blob)
        if content is None or len(content) != size:
            raise NotFound(f"blob {blob} was removed while the trace was exported")
        yield entry_header(BLOBS + blob.encode(), size) + content + tar.padding(size)
    yield tar.END


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


async def _pieces(parts: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
    while piece := await asyncio.to_thread(next, parts, b""):
        yield piece


def _event(kind: str, **fields: Any) -> TraceStep:
    return TraceStep(n=0, at=time.time(), kind=kind, event=True, **fields)


def _shown(mask: SecretMask, text: str) -> str:
    """Return the beginning of a text. It is masked before it is cut: a part of a value would not be found."""
    text = text[:MAX_TEXT_READ].encode("utf-8", "replace").decode()
    return mask.bytes(text.encode())[0].decode("utf-8", "replace")[:MAX_TEXT]


def command_text(cmd: str | Sequence[str] | None) -> str:
    """Return a command as one line of text."""
    return " ".join((cmd if isinstance(cmd, str) else shlex.join(cmd or ())).split("\n", 1)[:1])
