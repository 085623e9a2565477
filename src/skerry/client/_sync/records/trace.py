# Generated from client/_async/records/trace.py by scripts/generate_sync.py. Do not edit.
"""Traces: the steps of a sandbox with their contents."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from skerry.client.create_options import seconds
from skerry.client.host.output_dir import SingleFile
from skerry.client.transport import backend_sync as backend
from skerry.client.transport.requests import sandboxes
from skerry.codecs.ndjson import LineDecoder
from skerry.codecs.traces import Trace, TraceMerger
from skerry.errors import InvalidRequest, NotFound
from skerry.types import TraceContent, TraceStep
from skerry.types.replays import ReplayReport

if TYPE_CHECKING:
    from skerry.client._sync.client import Client


class Records:
    """The records of one sandbox, also of a deleted one: `sandbox.records`, `client.records("sb-…")`."""

    def __init__(self, client: Client, ref: str) -> None:
        self._client, self._ref = client, ref

    def trace(self) -> Trace:
        """Return the trace: `.steps` in order. `.damaged` and `.omitted` count lines and steps that are missing."""
        merger, lines = TraceMerger(), LineDecoder()
        with self._client.stream(sandboxes.trace(self._ref, follow=False)) as chunks:
            for chunk in chunks:
                for line in lines.feed(chunk):
                    merger.feed(line)
        merger.feed(bytes(lines.rest))  # half a line, if the server was killed
        return merger.trace

    def follow(self) -> Iterator[TraceStep]:
        """Iterate over the steps, first the earlier ones, until the sandbox is deleted. A step comes when it begins and
        again when it ends; events come once."""
        merger, lines = TraceMerger(), LineDecoder()
        with self._client.stream(sandboxes.trace(self._ref, follow=True)) as chunks:
            for chunk in chunks:
                for line in lines.feed(chunk):
                    step = merger.feed(line)
                    if step is not None:
                        yield step

    def content(self, content: TraceContent) -> bytes:
        """Return the kept bytes of an input or output. Raise NotFound if none are kept."""
        if content.text is not None:
            return content.text.encode()
        if content.data is not None:
            return content.data
        if content.blob is None:
            raise NotFound(f"the content of {content.size} bytes is not in the trace: {content.left_out}")
        with self._client.response(sandboxes.trace_blob(self._ref, content.blob)) as response:
            return response.read()

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the trace with all its contents into one file, which `skerry replay` takes."""
        with self._client.stream(sandboxes.export_trace(self._ref)) as chunks:
            try:
                with SingleFile(path) as file:
                    for chunk in chunks:
                        backend.in_thread(file.write, chunk)
            except OSError as error:
                raise InvalidRequest(f"{os.fspath(path)}: {error.strerror}") from error

    def replay(
        self,
        *,
        until: int | None = None,
        keep: bool = False,
        network: bool = False,
        step_timeout: float | None = None,
        on_step: backend.Callback[TraceStep] | None = None,
    ) -> ReplayReport:
        """Run the trace again in a new sandbox from the same start, and compare each step, up to step `until`. The
        arguments are those of `client.replay`."""
        from skerry.client._sync.records.replay import ReplayOptions, replay_sandbox  # rarely needed

        options = ReplayOptions(until, keep, network, seconds(step_timeout), on_step)
        return replay_sandbox(self._client, self._ref, options)
