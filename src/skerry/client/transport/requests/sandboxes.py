"""Requests as values: method, path, query, body. Pure; nothing here opens a connection."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import msgspec

from skerry.codecs.frames import MEDIA_TYPE
from skerry.errors import InvalidRequest, NotFound
from skerry.types import (
    NAME,
    SANDBOX_ID,
    BudgetRequest,
    CreateRequest,
    PoolRequest,
    Pty,
    PullRequest,
    RenameRequest,
    ReportedCall,
    ReportedCalls,
    RunRequest,
    SessionRequest,
    UpdateRequest,
    check_http_path,
    check_port,
    check_text,
)

JSON = "application/json"
NDJSON = "application/x-ndjson"
TAR = "application/x-tar"
BYTES = "application/octet-stream"
RESPONSE_TIMEOUT = 120.0  # seconds of silence after which a server counts as gone
CLEAN_UP_TIMEOUT = 10.0
MAX_INLINE_STDIN = 256 << 10
_encode = msgspec.json.Encoder().encode
Body = bytes | Iterable[bytes] | AsyncIterable[bytes]


@dataclass(frozen=True)
class Request:
    """`repeatable`: sending it twice has the effect of sending it once, so it may be repeated after a broken
    connection."""

    method: str
    path: str
    params: tuple[tuple[str, str], ...] = ()
    content: Body | None = None
    content_type: str | None = None
    accept: str = JSON
    key: str | None = None
    read_timeout: float | None = RESPONSE_TIMEOUT
    more_headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def repeatable(self) -> bool:
        return self.key is not None

    def headers(self) -> dict[str, str]:
        headers = {"accept": self.accept, "accept-encoding": "identity"}  # frames are read as they arrive
        if self.content_type:
            headers["content-type"] = self.content_type
        if self.key:
            headers["idempotency-key"] = self.key
        return {**headers, **self.more_headers}


def for_clean_up(request: Request) -> Request:
    """Return a copy with a short timeout, for a clean-up that must not hang."""
    return replace(request, read_timeout=CLEAN_UP_TIMEOUT)


def as_upgrade(request: Request, headers: Mapping[str, str]) -> Request:
    """Return a copy that starts a WebSocket."""
    return replace(request, more_headers=headers)


def json_request(method: str, path: str, value: Any) -> Request:
    try:
        content = _encode(value)
    except UnicodeEncodeError:
        raise InvalidRequest("an argument is not valid Unicode", hint="it contains half of a surrogate pair") from None
    return Request(method, path, content=content, content_type=JSON)


def parameters(**values: str | bool | None) -> tuple[tuple[str, str], ...]:
    given = ((name, value) for name, value in values.items() if value is not None)
    return tuple((name, ("true" if value else "false") if isinstance(value, bool) else value) for name, value in given)


def _text(number: float | None) -> str | None:
    return None if number is None else str(number)


def sandbox_path(ref: str, *rest: str) -> str:
    """Return the path of a sandbox by ID or name. A text that can be neither is not sent: it is not found."""
    if not (NAME.fullmatch(ref) or SANDBOX_ID.fullmatch(ref)):
        raise NotFound(f"sandbox {ref[:80]!r} not found", hint="`skerry ls` lists sandboxes")
    return "/".join(("/v1/sandboxes", ref, *rest))


def create(value: CreateRequest) -> Request:
    # The `on_start` commands may take until `ready_timeout`.
    silence = None if value.lifecycle.starts_commands else RESPONSE_TIMEOUT
    return replace(json_request("POST", "/v1/sandboxes", value), key=str(uuid4()), read_timeout=silence)


def get(ref: str) -> Request:
    return Request("GET", sandbox_path(ref))


def list_all(labels: Mapping[str, str], state: str | None) -> Request:
    wanted = tuple(("label", f"{key}={value}") for key, value in labels.items())
    return Request("GET", "/v1/sandboxes", params=(*wanted, *parameters(state=state)))


def update(ref: str, change: UpdateRequest) -> Request:
    starts = change.lifecycle is not None and change.lifecycle.starts_commands
    request = json_request("PATCH", sandbox_path(ref), change)
    return replace(request, read_timeout=None) if starts else request


def delete(ref: str, *, force: bool = False, purge: bool = False) -> Request:
    return Request("DELETE", sandbox_path(ref), parameters(force=force or None, purge=purge or None))


def rename(ref: str, name: str) -> Request:
    return json_request("POST", sandbox_path(ref, "rename"), RenameRequest(name=name))


def stats(refs: Sequence[str]) -> Request:
    return Request("GET", "/v1/stats", tuple(("sandbox", ref) for ref in refs))


def act(ref: str, verb: str) -> Request:
    """Stop, resume or pause a sandbox."""
    # A resume waits for the `on_start` commands.
    return Request("POST", sandbox_path(ref, verb), read_timeout=None if verb == "resume" else RESPONSE_TIMEOUT)


def usage(ref: str) -> Request:
    return Request("GET", sandbox_path(ref, "usage"))


def run(ref: str, value: RunRequest) -> Request:
    # The server ends the command at its timeout: much longer silence means that the server is gone.
    # In a session it may first wait for its turn, for any length of time.
    silence = value.timeout + RESPONSE_TIMEOUT if value.timeout is not None and value.session is None else None
    request = json_request("POST", sandbox_path(ref, "processes"), value)
    return replace(request, params=(("wait", "true"),), accept=MEDIA_TYPE, read_timeout=silence)


def process_path(ref: str, process: str, *rest: str) -> str:
    if not process or not process.isascii() or quote(process, safe="") != process or process.strip(".") == "":
        raise NotFound(f"process {process[:80]!r} not found", hint="`skerry ps` lists processes")
    return sandbox_path(ref, "processes", process, *rest)


def processes(ref: str) -> Request:
    return Request("GET", sandbox_path(ref, "processes"))


def process(ref: str, process: str) -> Request:
    return Request("GET", process_path(ref, process))


def remove_process(ref: str, process: str) -> Request:
    return Request("DELETE", process_path(ref, process))


def signal(ref: str, process: str, name: str) -> Request:
    return json_request("POST", process_path(ref, process, "signal"), {"signal": name.upper().removeprefix("SIG")})


def tool_calls(ref: str, process: str, calls: Sequence[ReportedCall]) -> Request:
    return json_request("POST", process_path(ref, process, "tool-calls"), ReportedCalls(calls=tuple(calls)))


def stdin(ref: str, process: str, content: Body, *, close: bool) -> Request:
    """Send stdin; takes as long as the process takes to read it."""
    path = process_path(ref, process, "stdin")
    return Request("POST", path, parameters(close=close), content, "application/octet-stream", read_timeout=None)


def spawn(ref: str, value: RunRequest) -> Request:
    return json_request("POST", sandbox_path(ref, "processes"), value)


def output(ref: str, process: str, *, since: int, follow: bool, limit: int | None, timeout: float | None) -> Request:
    query = parameters(since=str(since), follow=follow, limit=_text(limit), timeout=_text(timeout))
    silence = None if follow and timeout is None else RESPONSE_TIMEOUT + (timeout or 0)
    return Request("GET", process_path(ref, process, "output"), query, accept=MEDIA_TYPE, read_timeout=silence)


def wait(ref: str, process: str, timeout: float) -> Request:
    path = process_path(ref, process, "wait")
    return Request("GET", path, parameters(timeout=_text(timeout)), read_timeout=RESPONSE_TIMEOUT + timeout)


def wait_for_port(ref: str, port: int, timeout: float, http_path: str | None, process: str | None = None) -> Request:
    check_port(port)
    check_http_path(http_path)
    path = sandbox_path(ref, "ports", str(port), "wait")
    query = parameters(timeout=_text(timeout), http_path=http_path, process=process)
    return Request("GET", path, query, read_timeout=RESPONSE_TIMEOUT + timeout)


def resize(ref: str, process: str, cols: int, rows: int) -> Request:
    Pty(cols=cols, rows=rows)  # rejects values out of range
    return json_request("POST", process_path(ref, process, "resize"), {"cols": cols, "rows": rows})


def terminal_ticket(ref: str) -> Request:
    return Request("POST", sandbox_path(ref, "terminal-ticket"))


def terminal(ref: str, process: str, *, replay: int, since: int | None) -> Request:
    where = parameters(replay=str(replay)) if since is None else parameters(since=str(since))
    return Request("GET", process_path(ref, process, "terminal"), where)


def open_session(ref: str, value: SessionRequest) -> Request:
    return json_request("POST", sandbox_path(ref, "sessions"), value)


def sessions(ref: str) -> Request:
    return Request("GET", sandbox_path(ref, "sessions"))


def session(ref: str, name: str, method: str = "GET") -> Request:
    if not NAME.fullmatch(name):
        raise NotFound(f"session {name[:80]!r} not found")
    return Request(method, sandbox_path(ref, "sessions", name))


def close_session(ref: str, name: str) -> Request:
    return session(ref, name, "DELETE")


def _name(name: str) -> str:
    if not name or not isinstance(name, str):
        raise InvalidRequest(f"name: {name!r} is not valid")
    check_text("name", name)
    return name


def images() -> Request:
    return Request("GET", "/v1/images")


def image(name: str, method: str = "GET") -> Request:
    return Request(method, f"/v1/images/{quote(_name(name), safe='')}")


def build_image(name: str, rebuild: bool) -> Request:
    request = json_request("POST", "/v1/images", {"name": name, "rebuild": rebuild})
    return replace(request, accept=NDJSON, read_timeout=None)


def install_language(name: str) -> Request:
    path = f"/v1/languages/{quote(name, safe='')}/install"
    return replace(Request("POST", path), accept=NDJSON, read_timeout=None)


def image_from_snapshot(snapshot: str, name: str) -> Request:
    return json_request("POST", "/v1/images", {"snapshot": snapshot, "name": name})


def pull_image(request: PullRequest) -> Request:
    return replace(json_request("POST", "/v1/images/pull", request), accept=NDJSON, read_timeout=None)


def prune_images(everything: bool) -> Request:
    return replace(json_request("POST", "/v1/images/prune", {"all": everything}), read_timeout=None)


def verify_images(name: str | None) -> Request:
    given = {} if name is None else {"name": _name(name)}
    return replace(json_request("POST", "/v1/images/verify", given), accept=NDJSON, read_timeout=None)


def pool(method: str = "GET") -> Request:
    return Request(method, "/v1/pool")


def set_pool(image: str, size: int) -> Request:
    return json_request("PUT", "/v1/pool", PoolRequest(image=_name(image), size=size))


def create_token(scope: str, owner: str | None, note: str | None) -> Request:
    given = {"scope": scope, "owner": owner, "note": note}
    return json_request("POST", "/v1/tokens", {name: value for name, value in given.items() if value is not None})


def tokens() -> Request:
    return Request("GET", "/v1/tokens")


def remove_token(token: str) -> Request:
    return Request("DELETE", f"/v1/tokens/{quote(_name(token), safe='')}")


def budgets(sandbox: str | None) -> Request:
    return Request("GET", "/v1/budgets", parameters(sandbox=sandbox))


def set_budget(request: BudgetRequest) -> Request:
    return json_request("PUT", "/v1/budgets", request)


def remove_budget(budget: str) -> Request:
    return Request("DELETE", f"/v1/budgets/{quote(_name(budget), safe='')}")


@dataclass(frozen=True)
class EventFilter:
    follow: bool = False
    since: int | None = None
    sandbox: str | None = None
    type: str | None = None


def events(query: EventFilter, since: int | None) -> Request:
    params = parameters(
        follow=query.follow, since=None if since is None else str(since), sandbox=query.sandbox, type=query.type
    )
    silence = None if query.follow else RESPONSE_TIMEOUT
    return Request("GET", "/v1/events", params, accept=NDJSON, read_timeout=silence)


def audit(before: int | None, limit: int | None, given: Mapping[str, str | float | None]) -> Request:
    texts = {name: None if value is None else str(value) for name, value in given.items()}
    counts = {"before": None if before is None else str(before), "limit": None if limit is None else str(limit)}
    return Request("GET", "/v1/audit", parameters(**texts, **counts))


def usage_report(by: str, since: str | None, until: str | None, given: Mapping[str, str | None]) -> Request:
    return Request("GET", "/v1/usage", parameters(by=by, since=since, until=until, **given))


def trace(ref: str, *, follow: bool) -> Request:
    query, timeout = parameters(follow="true" if follow else None), None if follow else RESPONSE_TIMEOUT
    return Request("GET", sandbox_path(ref, "trace"), query, accept=NDJSON, read_timeout=timeout)


def trace_blob(ref: str, sha256: str) -> Request:
    return Request("GET", sandbox_path(ref, "trace", "blobs", sha256), accept=BYTES)


def export_trace(ref: str) -> Request:
    return Request("GET", sandbox_path(ref, "trace", "export"), accept=TAR, read_timeout=None)


def verify_audit() -> Request:
    return Request("GET", "/v1/audit/verify", read_timeout=None)


def export_audit() -> Request:
    return Request("GET", "/v1/audit/export", accept=NDJSON, read_timeout=None)


def audit_keys(method: str = "GET") -> Request:
    return Request(method, "/v1/audit/keys")


def webhooks() -> Request:
    return Request("GET", "/v1/webhooks")


def test_webhook(name: str) -> Request:
    return Request("POST", f"/v1/webhooks/{quote(_name(name), safe='')}/test", read_timeout=None)


def dead_deliveries(webhook: str | None, limit: int | None) -> Request:
    return Request("GET", "/v1/webhooks/dead", parameters(webhook=webhook, limit=None if limit is None else str(limit)))


def retry_webhook(name: str, ids: Sequence[str]) -> Request:
    return json_request("POST", f"/v1/webhooks/{quote(_name(name), safe='')}/retry", {"ids": list(ids)})


def server() -> Request:
    return Request("GET", "/v1/server")


def stop_server() -> Request:
    return Request("POST", "/v1/server/stop")


def doctor() -> Request:
    return Request("GET", "/v1/doctor")


def with_stdin(request: RunRequest, data: bytes) -> RunRequest:
    return msgspec.structs.replace(request, stdin_base64=data)


def with_stdin_stream(request: RunRequest) -> RunRequest:
    return msgspec.structs.replace(request, stdin_stream=True)
