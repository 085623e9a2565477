"""Traces: the steps of a sandbox, with everything that a replay needs. `docs/design/traces.md` describes the format.

A stored trace is NDJSON. A line with `n` begins a step; a line with `of` ends the step with that number. `merge`
(`skerry.codecs.traces`) puts both into one `TraceStep`."""

from __future__ import annotations

from typing import Any

from skerry.types.usage import Usage
from skerry.types.values import Value

TRACE_FORMAT = 1
MAX_INLINE = 4 << 10  # bytes of a content that its line holds; larger ones are blobs
MAX_TRACE_OUTPUT = 64 << 10  # bytes that are kept of each output stream: half of it the head, half the tail


class TraceValue(Value, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A part of a trace: fields with their default are left out, and a reader ignores fields that it does not know."""


class TraceContent(TraceValue, frozen=True, kw_only=True):
    """Bytes: an input, or an output stream. `size` and `sha256` are those of the whole, after secret values were masked
    (`masked`: how many bytes).

    The kept bytes are in `text` (UTF-8), in `data` (base64), or in the blob with the SHA-256 hash `blob`. Of a content
    that is longer than its kept bytes, the first `head` kept bytes are its beginning, and the others its end.
    `left_out`: why nothing is kept, or why `sha256` is missing."""

    size: int
    sha256: str | None = None
    text: str | None = None
    data: bytes | None = None
    blob: str | None = None
    head: int | None = None
    masked: int = 0
    left_out: str | None = None

    @property
    def whole(self) -> bool:
        """Return whether all bytes are kept, and as they were."""
        return self.left_out is None and self.head is None and not self.masked


class TraceError(TraceValue, frozen=True, kw_only=True):
    """The error of a step that failed: `code` as in the API."""

    code: str
    message: str = ""


class TraceChange(TraceValue, frozen=True, kw_only=True):
    """A changed file. `path` is absolute; `raw_path`: its bytes, if they are not UTF-8. `mode`: as git has it (100644,
    100755, 120000 for a link). `sha256` and `size`: of the new content, or of a link's target; without `mode`, the file
    was removed."""

    path: str
    raw_path: bytes | None = None
    mode: str | None = None
    sha256: str | None = None
    size: int = 0


class TraceChanges(TraceValue, frozen=True, kw_only=True):
    """The files below `root` that changed since the last step of this kind. `commit`: the entry of the review's ledger.
    `processes`: the commands that can have made the changes; `running`: one of them had not ended.
    `omitted`: changed files above the maximum number; `sha256` covers them too: it is the hash of the JSON list of all
    changes, sorted by path."""

    root: str
    files: tuple[TraceChange, ...] = ()
    sha256: str = ""
    commit: str | None = None
    processes: tuple[str, ...] = ()
    running: bool = False
    omitted: int = 0


class TraceStart(TraceValue, frozen=True, kw_only=True):
    """The beginning of a trace. `spec`: the request as it was resolved, without values of secrets. `parent` and
    `parent_step`: for a fork, the sandbox that it was copied from, and the last step of that sandbox before it."""

    format: int
    sandbox: str
    owner: str
    image: str
    image_digest: str
    name: str | None = None
    created_at: float = 0.0
    spec: dict[str, Any] = {}
    parent: str | None = None
    parent_step: int | None = None


class TraceEnd(TraceValue, frozen=True, kw_only=True):
    """A line that ends the step `of`. `last`: the number of the newest step so far. `result`: details of other steps
    than commands. `results`: the values of code, as a JSON list."""

    of: int
    at: float
    last: int = 0
    process: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    timed_out: bool = False
    oom_killed: bool | None = False
    duration_s: float = 0.0
    stdout: TraceContent | None = None
    stderr: TraceContent | None = None
    inputs: dict[str, TraceContent] = {}
    results: TraceContent | None = None
    usage: Usage | None = None
    cwd: str | None = None
    error: TraceError | None = None
    result: dict[str, Any] = {}


class TraceStep(TraceValue, frozen=True, kw_only=True):
    """A step. `kind`: as in the audit log, like process.run. `text`: one line about it. `params`: the arguments of the
    call, as the HTTP API takes them. `inputs`: contents that came with the call: `stdin`, `code`, `body` (a file or an
    archive), `old` and `new`, or `params` if they are long. `process`: the ID of its process. `audit`: its number in
    the audit log. `omitted`: steps before this one that were not recorded. `event`: it
    happened at once and has no end. `end`: missing while it runs, or if it was not recorded."""

    n: int
    at: float
    kind: str
    text: str = ""
    process: str | None = None
    params: dict[str, Any] = {}
    inputs: dict[str, TraceContent] = {}
    start: TraceStart | None = None
    changes: TraceChanges | None = None
    audit: int | None = None
    omitted: int = 0
    event: bool = False
    end: TraceEnd | None = None

    def input(self, name: str) -> TraceContent | None:
        """Return an input, also one that was known only when the step ended, such as an upload."""
        return self.inputs.get(name) or (self.end.inputs.get(name) if self.end is not None else None)


class TraceManifest(TraceValue, frozen=True, kw_only=True):
    """The first entry of an exported trace. `blobs`: sizes by SHA-256 hash. `steps_sha256`: the hash of its second
    entry, the lines. `cassette`: the blob with the recorded network exchanges, if any."""

    format: int
    sandbox: str
    image: str
    image_digest: str
    exported_at: float
    steps_size: int
    steps_sha256: str
    blobs: dict[str, int] = {}
    name: str | None = None
    version: str = ""
    cassette: str | None = None
