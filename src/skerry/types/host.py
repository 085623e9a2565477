"""The server itself: callers and tokens, images, progress."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from msgspec import Meta

from skerry.errors import InvalidRequest
from skerry.types.references import VerifyResult
from skerry.types.values import Answer, ErrorBody, Value, parse_span

Scope = Literal["metrics", "use", "review", "admin"]


class Caller(Value, frozen=True, kw_only=True):
    """The caller of a request: the owner of its sandboxes, the scope of its token, and the token's ID (None: a user of
    the unix socket). `actor`: as in the audit log, if the request has an effect."""

    owner: str
    scope: Scope
    token: str | None = None
    actor: str = ""

    @property
    def person(self) -> str:
        """The token's ID or `uid:N`: users of the unix socket have one owner, but decide for themselves."""
        return self.token or self.actor or self.owner


class ImageInfo(Answer, frozen=True, kw_only=True):
    """An image in the store. `size` is its disk space, of which `shared` is used by other images too. `recipe`: the
    digest of the build, for images that Skerry built. `source` and `platform`: origin and platform of a pulled image.
    `entrypoint` and `cmd`: the default command. `kit`: the descriptor of a pulled Docker sandbox kit."""

    name: str
    digest: str
    layers: tuple[str, ...]
    size: int
    created_at: float
    user: str = "root"
    cwd: str = "/"
    env: dict[str, str] = {}
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    recipe: str | None = None
    source: str | None = None
    platform: str | None = None
    shared: int = 0
    kit: str | None = None


class ImageList(Answer, frozen=True, kw_only=True):
    images: list[ImageInfo]


class Progress(Answer, frozen=True, kw_only=True):
    """One step of a long operation. `done` and `total` in bytes or steps; total 0: unknown."""

    stage: str
    message: str = ""
    done: int = 0
    total: int = 0
    eta_s: float | None = None


class ImageLine(Value, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """One line of an operation on images: exactly one field is set."""

    progress: Progress | None = None
    image: ImageInfo | None = None
    verified: VerifyResult | None = None
    error: ErrorBody | None = None


class TokenInfo(Answer, frozen=True, kw_only=True):
    """A token without its secret. The token sees the sandboxes of `owner`."""

    id: str
    scope: Scope
    owner: str
    created_at: float
    note: str = ""
    secret: str | None = None  # only in the response that creates it


class TerminalTicket(Answer, frozen=True, kw_only=True):
    """A ticket that opens one terminal of a sandbox, once: a browser sends it as a WebSocket protocol."""

    ticket: str
    expires_at: float

    @property
    def protocols(self) -> tuple[str, str]:
        """The protocols for `new WebSocket(url, protocols)`."""
        return "skerry", f"skerry.ticket.{self.ticket}"


class TokenList(Answer, frozen=True, kw_only=True):
    tokens: list[TokenInfo]


class Check(Answer, frozen=True):
    """One line of `skerry doctor`. `ok` None: unknown, or a better alternative exists."""

    name: str
    ok: bool | None
    detail: str
    fix: str | None = None


class AuditResult(Answer, frozen=True, kw_only=True):
    """The result of an action. `status`: of HTTP. `code`: of the error. `details`: an exit code, an ID."""

    at: float
    status: int
    code: str | None = None
    details: dict[str, Any] = {}


class AuditRecord(Answer, frozen=True, kw_only=True):
    """A record of the audit log: an action of a caller, or an event in a sandbox. `actor`: a token's ID, `uid:N` for a
    user of the unix socket, or `sandbox`, `server`. `source`: the caller's address. `params` has no secret values.
    `result` None: the action has not ended, or the server was killed before its end."""

    seq: int
    at: float
    type: str
    owner: str | None = None
    actor: str | None = None
    source: str | None = None
    sandbox: str | None = None
    params: dict[str, Any] = {}
    result: AuditResult | None = None


class AuditPage(Answer, frozen=True, kw_only=True):
    """Records, newest first. `next`: pass it as `before` to get the page of older records; None: there are none. A page
    may be short, or empty, and still have a next one."""

    records: tuple[AuditRecord, ...]
    next: int | None = None


class AuditProblem(Answer, frozen=True, kw_only=True):
    """A place where the audit log is not as the server wrote it."""

    seq: int
    place: str
    problem: str


class AuditReport(Answer, frozen=True, kw_only=True):
    """The result of a verification. `first`, `last`: numbers of the records that were found; `sealed`: the last one
    under a valid signature."""

    ok: bool
    records: int
    first: int | None = None
    last: int | None = None
    sealed: int | None = None
    log: str | None = None
    problems: tuple[AuditProblem, ...] = ()


class AuditKey(Answer, frozen=True, kw_only=True):
    """A public key of the audit log: the raw Ed25519 key in base64."""

    id: str
    public: str
    current: bool = False


class AuditKeys(Answer, frozen=True, kw_only=True):
    """The public keys of the audit log, oldest first, and the newest checkpoint as a line of JSON."""

    keys: tuple[AuditKey, ...]
    checkpoint: str | None = None


_EVENT = re.compile(r"[a-z]{1,20}(?:\.[a-z][a-z0-9_]{0,29})?")
_ALERT_EVENTS = frozenset(
    f"{family}.{name}"
    for family, names in (
        ("sandbox", "created running ready paused stopped failed renamed deleted"), ("process", "started ended"),
        ("limit", "memory pids disk timeout"), ("network", "allowed denied"), ("budget", "warning exceeded"),
        ("review", "decided applied undone kept"),
    )
    for name in names.split()
)  # fmt: skip


def check_http_url(what: str, url: str) -> None:
    """Check the URL of a receiver of POSTs."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not host or len(url) > 2000 or not re.fullmatch("[!-~]+", url):
        raise InvalidRequest(f"{what}: {url[:80]!r} is not an address", hint="like https://hooks.example.com/skerry")
    if "@" in parts.netloc or parts.fragment:
        raise InvalidRequest(f"{what}: neither a user name nor a fragment is allowed in the address")


class WebhookForm(Value, frozen=True, kw_only=True):
    """A webhook of the operator's settings. `events`: types such as sandbox.failed, or the part before the dot.
    `secret_file`: a file with the key of the signature, `whsec_` and 24 to 64 bytes in base64; each further line is a
    key that signs too. `retry_delay`: the time before the second attempt; each further one is three times as long, up
    to six hours."""

    url: str
    secret_file: str
    events: tuple[str, ...] = ("sandbox", "limit", "budget", "review", "alert")
    timeout: str | int | float = "10s"
    retry_delay: str | int | float = "5s"
    max_attempts: Annotated[int, Meta(ge=1, le=100)] = 12

    def __post_init__(self) -> None:
        check_http_url("url", self.url)
        for name in ("timeout", "retry_delay"):
            parse_span(getattr(self, name), name)
        if not self.secret_file.startswith("/"):
            raise InvalidRequest("secret_file: not an absolute path")
        for event in self.events:
            if not _EVENT.fullmatch(event):
                raise InvalidRequest(f"events: {event[:40]!r} is not a type", hint="like sandbox.failed, or sandbox")


class AlertForm(Value, frozen=True, kw_only=True):
    """An alert rule of the operator's settings: an alert is raised when a sandbox, an owner or the server (`by`) has
    had `count` events of these types within the window. A rule that can never be met is invalid."""

    events: tuple[str, ...]
    count: Annotated[int, Meta(ge=1, le=1_000_000)]
    window: str | int | float = "10m"
    by: Literal["sandbox", "owner", "server"] = "sandbox"

    def __post_init__(self) -> None:
        parse_span(self.window, "window")
        families = {event.partition(".")[0] for event in _ALERT_EVENTS}
        if not self.events:
            raise InvalidRequest("events: none is given", hint='like ["network.denied"]')
        for event in self.events:
            if event not in _ALERT_EVENTS | families:
                raise InvalidRequest(
                    f"events: {event[:40]!r} cannot be counted", hint=f"one of {', '.join(sorted(_ALERT_EVENTS))}"
                )


class WebhookInfo(Answer, frozen=True, kw_only=True):
    """A webhook. `url` is shown without its query, which may be secret. `waiting` and `dead`: deliveries in the queue.
    `gone`: the receiver answered 410, so nothing is sent to it until `retry`, or a restart of the server. `sent`,
    `failed`: attempts since the server started."""

    name: str
    url: str
    events: tuple[str, ...]
    waiting: int
    dead: int
    sent: int = 0
    failed: int = 0
    gone: bool = False
    last_error: str | None = None
    last_sent_at: float | None = None


class WebhookList(Answer, frozen=True, kw_only=True):
    webhooks: tuple[WebhookInfo, ...]


class WebhookDelivery(Answer, frozen=True, kw_only=True):
    """An event for a webhook. `body`: the text that is posted. `status`: of the last response, if there was one."""

    id: str
    webhook: str
    type: str
    created_at: float
    attempts: int
    status: int | None = None
    error: str | None = None
    body: str = ""


class WebhookDeliveryList(Answer, frozen=True, kw_only=True):
    deliveries: tuple[WebhookDelivery, ...]


class WebhookTest(Answer, frozen=True, kw_only=True):
    """The result of a test event."""

    ok: bool
    id: str
    status: int | None = None
    error: str | None = None


class WebhookRetry(Answer, frozen=True, kw_only=True):
    """The number of dead deliveries that wait again."""

    retried: int
