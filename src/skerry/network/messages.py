"""Messages between the server and its network worker, as frozen values. The server trusts no message of the worker,
because the worker parses hostile bytes. File descriptors accompany a message in the order that its docstring gives."""

from __future__ import annotations

from typing import Literal

import msgspec

from skerry.types import Handler, HandlerDecision, NetworkAttempt, SecretForm
from skerry.types.handlers import HttpHeaders

# These addresses are the same in every sandbox. Fake IPs are in FAKE_IP_RANGE, the proxy variables name PROXY_IP, and
# /etc/resolv.conf names RESOLVER_IP. The gateway redirects all of them to the worker's random port.
FAKE_IP_RANGE = "198.18.0.0/15"
RESOLVER_IP = "198.18.0.1"
PROXY_IP = "198.18.0.2"
PROXY_PORT = 3128
SANDBOX_IP = (
    "198.18.0.3"  # on every sandbox's lo: with loopback addresses only, getaddrinfo finds no names (AI_ADDRCONFIG)
)
MAX_MESSAGE_SIZE = 8 << 20
MAX_MESSAGE_FROM_WORKER = 64 << 10  # bytes of one message
CONNECTION_REFUSED = "refused"


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True, forbid_unknown_fields=True):
    pass


class InjectedSecret(SecretForm, frozen=True, kw_only=True):
    """A secret as the worker needs it: the placeholder inside the sandbox, and the value."""

    placeholder: str
    value: str

    def __repr__(self) -> str:
        return f"InjectedSecret(name={self.name!r})"


class CaKeyPair(msgspec.Struct, frozen=True, kw_only=True):
    """The key pair of a sandbox's CA, as PEM. `fixed_clock`: its leaves are valid as long as itself, because the clock
    inside is not that of the host."""

    certificate: str
    key: str
    fixed_clock: bool = False

    def __repr__(self) -> str:
        return "CaKeyPair()"


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of one sandbox as the worker applies it: presets are expanded to rules, peers to ids."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    ceiling: tuple[str, ...] = ("*",)  # the operator's limit: both must allow
    inspect: tuple[str, ...] = ()
    handlers: tuple[Handler, ...] = ()
    mirror: tuple[str, ...] = ()
    on_unknown: Literal["deny", "ask", "learn"] = "deny"
    approval_timeout_s: float = 30.0
    peers: dict[str, str] = {}
    proxies: tuple[tuple[tuple[str, ...], str], ...] = ()  # (rules, upstream proxy)
    certificates: str = ""  # trusted beside the system's for intercepted upstreams
    secrets: tuple[InjectedSecret, ...] = ()
    ca: CaKeyPair | None = None
    bytes_per_second: int | None = None
    max_bytes: int | None = None
    max_connections: int = 1024
    cassette: Literal["record", "replay"] | None = None


# -- from the server ------------------------------------------------------------------------------------------------


class OpenGateway(Message, frozen=True, kw_only=True):
    """Serve a sandbox's gateway. Fds: its TCP listener, its UDP socket for DNS, a sock_diag socket of its network
    namespace, the file in which the worker keeps its fake IPs (read at once, then appended to), and, if the rules
    record or replay, the file of the cassette."""

    sandbox: str
    rules: Rules
    hostname: str = ""  # the sandbox's host name: looking it up is not an attempt to get out
    sent: int = 0  # so far, for `max_bytes`
    received: int = 0


class ChangeRules(Message, frozen=True, kw_only=True):
    """Apply new rules and the sandbox's current host name ("": unchanged). Connections that they no longer allow are
    closed before the worker sends `Done`."""

    sandbox: str
    rules: Rules
    number: int
    hostname: str = ""


class CloseGateway(Message, frozen=True, kw_only=True):
    sandbox: str


class Sync(Message, frozen=True, kw_only=True):
    """Answer with `Done` after every earlier report, of one sandbox or of all. "" is no sandbox: a heartbeat."""

    number: int
    sandbox: str | None = None


class ApprovalMessage(Message, frozen=True, kw_only=True):
    """The answer to an `ApprovalNeeded`. `why` goes into the record of the attempt: the approver, or that no answer
    came in time."""

    approval_id: str
    allow: bool
    why: str = ""


class HandlerResult(Message, frozen=True, kw_only=True):
    """The answer to a `HandlerNeeded`. `error`: the request must fail, and the reason."""

    call_id: str
    decision: HandlerDecision = HandlerDecision()
    error: str | None = None


class DialResult(Message, frozen=True, kw_only=True):
    """The answer to a `DialRequest`. Fd: the connected socket, unless `error` is set: CONNECTION_REFUSED (nothing
    listens there, which may be temporary) or the reason."""

    number: int
    error: str | None = None


class SharePreview(Message, frozen=True, kw_only=True):
    """Add a preview or change its settings. `token_hash`: SHA-256 in hex; None: public. `expires`: a Unix time. `name`:
    another address of it, beside the port."""

    sandbox: str
    port: int
    token_hash: str | None
    expires: float | None = None
    name: str | None = None


class UnsharePreview(Message, frozen=True, kw_only=True):
    sandbox: str
    port: int


class DisconnectPreviews(Message, frozen=True, kw_only=True):
    """Close the open connections of a sandbox's previews; the previews stay."""

    sandbox: str


class ListenPreviews(Message, frozen=True, kw_only=True):
    """Serve previews. Fd: a TCP listener. `domains`: the parents of `{port}-{sandbox}` names; `secure`: those of them
    that a TLS proxy in front serves as https. `max_per_address`: open connections of a client's address."""

    domains: tuple[str, ...]
    secure: tuple[str, ...] = ()
    max_per_address: int = 1024


FromServer = (
    OpenGateway
    | ChangeRules
    | CloseGateway
    | Sync
    | ApprovalMessage
    | HandlerResult
    | DialResult
    | SharePreview
    | UnsharePreview
    | DisconnectPreviews
    | ListenPreviews
)

# -- from the worker ------------------------------------------------------------------------------------------------


class Ready(Message, frozen=True, kw_only=True):
    """The worker accepts messages."""


class Done(Message, frozen=True, kw_only=True):
    number: int


class AttemptMessage(Message, frozen=True, kw_only=True):
    """Report an attempt. `cgroup`: the cgroup id of the socket, as the kernel reports it; the server maps it to a
    process."""

    sandbox: str
    attempt: NetworkAttempt
    cgroup: int | None = None


class TrafficMessage(Message, frozen=True, kw_only=True):
    """Report bytes since the last report, and the connections that are open now. Sent at most once a second per sandbox
    with traffic; it also keeps the sandbox from being idle."""

    sandbox: str
    sent: int
    received: int
    open: int


class ApprovalNeeded(Message, frozen=True, kw_only=True):
    approval_id: str
    sandbox: str
    host: str
    port: int | None
    cgroup: int | None = None


class HandlerBody(Message, frozen=True, kw_only=True):
    """A piece of the body of a message that a `HandlerNeeded` with the same id will describe."""

    call_id: str
    sandbox: str
    data: bytes


class HandlerNeeded(Message, frozen=True, kw_only=True):
    """Ask the client that registered a handler. `host`: the handler's. `response`: the status and headers of the
    response, if it is about one. `body`: whether its body came before, in pieces."""

    call_id: str
    sandbox: str
    host: str
    method: str
    url: str
    headers: HttpHeaders
    response: tuple[int, HttpHeaders] | None = None
    body: bool = False
    cgroup: int | None = None


class HandlerDone(Message, frozen=True, kw_only=True):
    """The worker no longer waits for the answer to a `HandlerNeeded`."""

    call_id: str
    sandbox: str


class ExchangeMessage(Message, frozen=True, kw_only=True):
    """Report a mirrored exchange, for the trace. Secrets are masked. Bodies: their beginnings, and their sizes."""

    sandbox: str
    method: str
    url: str
    status: int
    request_headers: HttpHeaders = ()
    response_headers: HttpHeaders = ()
    request_body: bytes = b""
    response_body: bytes = b""
    request_size: int = 0
    response_size: int = 0
    note: str | None = None
    cgroup: int | None = None


class DialRequest(Message, frozen=True, kw_only=True):
    """Connect to a port inside `sandbox`: for a preview, or for `peer_of`, whose policy names it as a peer."""

    number: int
    sandbox: str
    port: int
    peer_of: str | None = None


class PreviewUsed(Message, frozen=True, kw_only=True):
    """Report that a preview has traffic, at most once a second, with the bytes since the last report, as its sandbox
    sent and received them. The sandbox is then not idle, and a paused sandbox resumes: a connection that is already
    open cannot resume it otherwise."""

    sandbox: str
    sent: int = 0
    received: int = 0


FromWorker = (
    Ready
    | Done
    | AttemptMessage
    | TrafficMessage
    | ApprovalNeeded
    | HandlerBody
    | HandlerNeeded
    | HandlerDone
    | ExchangeMessage
    | DialRequest
    | PreviewUsed
)
