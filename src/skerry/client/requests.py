"""What is asked of a server, as values: method, path, query, body. Pure; nothing here opens a connection."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import msgspec

from skerry.client.frames import MEDIA_TYPE
from skerry.errors import InvalidRequest, NotFound
from skerry.types import (
    NAME,
    SANDBOX_ID,
    CreateRequest,
    PoolRequest,
    Pty,
    PullRequest,
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
ANSWER_WITHIN = 120.0  # seconds of silence after which a server counts as gone
CLEAN_UP_WITHIN = 10.0
STDIN_INLINE = 256 << 10
_encode = msgspec.json.Encoder().encode
Body = bytes | Iterable[bytes] | AsyncIterable[bytes]


@dataclass(frozen=True)
class Request:
    """`repeatable`: sending it twice does what sending it once does, so a broken connection may be tried again."""

    method: str
    path: str
    params: tuple[tuple[str, str], ...] = ()
    content: Body | None = None
    content_type: str | None = None
    accept: str = JSON
    key: str | None = None
    read_timeout: float | None = ANSWER_WITHIN
    more_headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def repeatable(self) -> bool:
        return self.key is not None

    def headers(self) -> dict[str, str]:
        headers = {"accept": self.accept, "accept-encoding": "identity"}  # frames are read as they come
        if self.content_type:
            headers["content-type"] = self.content_type
        if self.key:
            headers["idempotency-key"] = self.key
        return {**headers, **self.more_headers}


def hurried(request: Request) -> Request:
    """The same for a clean-up, which must not hang."""
    return replace(request, read_timeout=CLEAN_UP_WITHIN)


def upgrading(request: Request, headers: Mapping[str, str]) -> Request:
    """The same as the beginning of a WebSocket."""
    return replace(request, more_headers=headers)


def json_request(method: str, path: str, value: Any) -> Request:
    return Request(method, path, content=_encode(value), content_type=JSON)


def parameters(**values: str | bool | None) -> tuple[tuple[str, str], ...]:
    given = ((name, value) for name, value in values.items() if value is not None)
    return tuple((name, ("true" if value else "false") if isinstance(value, bool) else value) for name, value in given)


def _text(number: float | None) -> str | None:
    return None if number is None else str(number)


def sandbox_path(ref: str, *rest: str) -> str:
    """The path of a sandbox by id or name. What can be neither is not sent: it is not found."""
    if not (NAME.fullmatch(ref) or SANDBOX_ID.fullmatch(ref)):
        raise NotFound(f"there is no sandbox {ref[:80]!r}", hint="`skerry ls` shows what there is")
    return "/".join(("/v1/sandboxes", ref, *rest))


def create(value: CreateRequest) -> Request:
    return replace(json_request("POST", "/v1/sandboxes", value), key=str(uuid4()))


def get(ref: str) -> Request:
    return Request("GET", sandbox_path(ref))


def list_all(labels: Mapping[str, str], state: str | None) -> Request:
    wanted = tuple(("label", f"{key}={value}") for key, value in labels.items())
    return Request("GET", "/v1/sandboxes", params=(*wanted, *parameters(state=state)))


def update(ref: str, change: UpdateRequest) -> Request:
    return json_request("PATCH", sandbox_path(ref), change)


def delete(ref: str) -> Request:
    return Request("DELETE", sandbox_path(ref))


def act(ref: str, verb: str) -> Request:
    """stop, resume, pause."""
    return Request("POST", sandbox_path(ref, verb))


def usage(ref: str) -> Request:
    return Request("GET", sandbox_path(ref, "usage"))


def run(ref: str, value: RunRequest) -> Request:
    # The server ends the command at its time-out: silence for much longer means that there is no server any more.
    # In a session it may first have to wait for its turn, however long that takes.
    patience = value.timeout + ANSWER_WITHIN if value.timeout is not None and value.session is None else None
    request = json_request("POST", sandbox_path(ref, "processes"), value)
    return replace(request, params=(("wait", "true"),), accept=MEDIA_TYPE, read_timeout=patience)


def process_path(ref: str, process: str, *rest: str) -> str:
    if not process or not process.isascii() or quote(process, safe="") != process or process.strip(".") == "":
        raise NotFound(f"there is no process {process[:80]!r}", hint="`skerry ps` shows what there is")
    return sandbox_path(ref, "processes", process, *rest)


def processes(ref: str) -> Request:
    return Request("GET", sandbox_path(ref, "processes"))


def process(ref: str, process: str) -> Request:
    return Request("GET", process_path(ref, process))


def remove_process(ref: str, process: str) -> Request:
    return Request("DELETE", process_path(ref, process))


def signal(ref: str, process: str, name: str) -> Request:
    return json_request("POST", process_path(ref, process, "signal"), {"signal": name.upper().removeprefix("SIG")})


def stdin(ref: str, process: str, content: Body, *, close: bool) -> Request:
    """Takes as long as the process takes to read it."""
    path = process_path(ref, process, "stdin")
    return Request("POST", path, parameters(close=close), content, "application/octet-stream", read_timeout=None)


def spawn(ref: str, value: RunRequest) -> Request:
    return json_request("POST", sandbox_path(ref, "processes"), value)


def output(ref: str, process: str, *, since: int, follow: bool, limit: int | None, timeout: float | None) -> Request:
    query = parameters(since=str(since), follow=follow, limit=_text(limit), timeout=_text(timeout))
    silence = None if follow and timeout is None else ANSWER_WITHIN + (timeout or 0)
    return Request("GET", process_path(ref, process, "output"), query, accept=MEDIA_TYPE, read_timeout=silence)


def wait(ref: str, process: str, timeout: float) -> Request:
    path = process_path(ref, process, "wait")
    return Request("GET", path, parameters(timeout=_text(timeout)), read_timeout=ANSWER_WITHIN + timeout)


def wait_for_port(ref: str, port: int, timeout: float, http_path: str | None) -> Request:
    check_port(port)
    check_http_path(http_path)
    path = sandbox_path(ref, "ports", str(port), "wait")
    query = parameters(timeout=_text(timeout), http_path=http_path)
    return Request("GET", path, query, read_timeout=ANSWER_WITHIN + timeout)


def resize(ref: str, process: str, cols: int, rows: int) -> Request:
    Pty(cols=cols, rows=rows)  # refuses what is out of range
    return json_request("POST", process_path(ref, process, "resize"), {"cols": cols, "rows": rows})


def terminal(ref: str, process: str, *, replay: int, since: int | None) -> Request:
    where = parameters(replay=str(replay)) if since is None else parameters(since=str(since))
    return Request("GET", process_path(ref, process, "terminal"), where)


def open_session(ref: str, value: SessionRequest) -> Request:
    return json_request("POST", sandbox_path(ref, "sessions"), value)


def sessions(ref: str) -> Request:
    return Request("GET", sandbox_path(ref, "sessions"))


def session(ref: str, name: str, method: str = "GET") -> Request:
    if not NAME.fullmatch(name):
        raise NotFound(f"there is no session {name[:80]!r}")
    return Request(method, sandbox_path(ref, "sessions", name))


def close_session(ref: str, name: str) -> Request:
    return session(ref, name, "DELETE")


def _name(name: str) -> str:
    if not name or not isinstance(name, str):
        raise InvalidRequest(f"name: {name!r} is none")
    check_text("name", name)
    return name


def images() -> Request:
    return Request("GET", "/v1/images")


def image(name: str, method: str = "GET") -> Request:
    return Request(method, f"/v1/images/{quote(_name(name), safe='')}")


def build_image(name: str, rebuild: bool) -> Request:
    request = json_request("POST", "/v1/images", {"name": name, "rebuild": rebuild})
    return replace(request, accept=NDJSON, read_timeout=None)


def image_from_snapshot(snapshot: str, name: str) -> Request:
    return json_request("POST", "/v1/images/from-snapshot", {"snapshot": snapshot, "name": name})


def pull_image(request: PullRequest) -> Request:
    return replace(json_request("POST", "/v1/images/pull", request), accept=NDJSON, read_timeout=None)


def prune_images(everything: bool) -> Request:
    return replace(json_request("POST", "/v1/images/prune", {"all": everything}), read_timeout=None)


def verify_images(name: str | None) -> Request:
    given = {} if name is None else {"name": _name(name)}
    return replace(json_request("POST", "/v1/images/verify", given), accept=NDJSON, read_timeout=None)


def pool(method: str = "GET") -> Request:
    return Request(method, "/v1/pool")


def set_pool(image: str, wanted: int) -> Request:
    return json_request("PUT", "/v1/pool", PoolRequest(image=_name(image), wanted=wanted))


def create_token(scope: str, owner: str | None, note: str | None) -> Request:
    given = {"scope": scope, "owner": owner, "note": note}
    return json_request("POST", "/v1/tokens", {name: value for name, value in given.items() if value is not None})


def tokens() -> Request:
    return Request("GET", "/v1/tokens")


def remove_token(token: str) -> Request:
    return Request("DELETE", f"/v1/tokens/{quote(_name(token), safe='')}")


@dataclass(frozen=True)
class EventWish:
    follow: bool = False
    since: int | None = None
    sandbox: str | None = None
    type: str | None = None


def events(wish: EventWish, since: int | None) -> Request:
    query = parameters(
        follow=wish.follow, since=None if since is None else str(since), sandbox=wish.sandbox, type=wish.type
    )
    silence = None if wish.follow else ANSWER_WITHIN
    return Request("GET", "/v1/events", query, accept=NDJSON, read_timeout=silence)


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
