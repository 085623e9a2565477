"""Network policies, attempts, approvals, secrets and previews."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import force_setattr

from skerry.errors import InvalidRequest
from skerry.types.handlers import Handler, check_handlers
from skerry.types.values import VARIABLE, Answer, Value, check_env, check_name, check_text, parse_size, parse_span

MAX_RULES = 20_000  # of a policy, with those of its presets
MAX_DETAILED_RULES = 2_000  # of them, rules with more than a name: parsing takes a hundred times as long
MAX_PRESETS = 64
MAX_PRESET_FILES = 64
MAX_SECRET_HOSTS = 256
_PLAIN_RULE = re.compile(r"(?:[a-z0-9-]+\.)*[a-z][a-z0-9-]*")
MAX_RULE = 2_048
MAX_SECRETS = 64
MIN_SECRET = 8
MAX_SECRET = 16 << 10
MAX_PEM = 1 << 20
MAX_PEERS = 64
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}: ?[\x20-\x7e]*\{\}[\x20-\x7e]*")
# Headers that frame or route a request: HTTP mode writes these itself.
_FRAMING = frozenset((
    "accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "proxy-authorization",
    "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
))  # fmt: skip
_PEER = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
if TYPE_CHECKING:
    Peers = dict[str, Any]  # a Sandbox is accepted too, and stored by its id
else:
    Peers = dict[str, str]


class Preset(Value, frozen=True, kw_only=True):
    """The client machine's setup to reach a service (pip's index, npm's registry …), read there and sent with the
    request: the necessary rules, the variables that carry the setup inside, the trusted certificates, and the proxy. It
    never has passwords: they travel as secrets."""

    name: str
    allow: tuple[str, ...] = ()
    env: dict[str, str] = {}
    files: dict[str, str] = {}  # name below /run/skerry/presets → text; `env` points to it
    certificates: str = ""
    proxy: str | None = None  # http://host:port of an upstream proxy for these hosts

    def __post_init__(self) -> None:
        check_name(self.name, "network.presets")
        if len(self.files) > MAX_PRESET_FILES or len(self.allow) > MAX_RULES:
            raise InvalidRequest(f"network.presets: {self.name} has too many files or rules")
        check_env(self.env)
        check_text("network.presets", self.certificates, *self.allow, *self.files, *self.files.values())
        if len(self.certificates) > MAX_PEM or sum(map(len, self.files.values())) > 64 << 10:
            raise InvalidRequest(f"network.presets: {self.name} is too long")

    def __repr__(self) -> str:
        """Omit certificates."""
        return f"Preset(name={self.name!r}, allow={self.allow!r}, env={self.env!r}, …)"


if TYPE_CHECKING:  # a list is accepted, and stored as a tuple
    Rules = Sequence[str]
    Presets = Sequence[str | Preset]
    Handlers = Sequence[Handler]
else:
    Rules = tuple[str, ...]
    Presets = tuple[str | Preset, ...]
    Handlers = tuple[Handler, ...]


class Network(Value, frozen=True, kw_only=True):
    """The destinations that a sandbox may reach; all others are denied.

    A rule is `[METHODS ]HOST[:PORTS][/PATH][@ADDRESSES]`: a name, `*.name` for all names below it, an address or a
    CIDR. Without ports: 80 and 443; `:*` is every port. `deny` wins. `inspect`: hosts for which TLS is intercepted, so
    that methods and paths are visible. `@10.0.0.0/8`: the name may resolve to a private address, which a name alone
    does not permit; addresses of the server's machine also need the operator's `max.network`. `presets`: names that
    the client resolves on its own machine. `peers`: other sandboxes by their
    name inside. `bytes_per_second`, `max_bytes` in total and `max_connections` at once bound its traffic.
    `cassette="record"`: record the HTTP exchanges, and for that intercept TLS to every host; `"replay"`: serve the
    sandbox's cassette, and let nothing out. Without rules, a replay looks up every host in the cassette. `handlers`
    change, redirect or answer requests. `mirror`: hosts whose exchanges are written to the trace; for both, TLS is
    intercepted."""

    allow: Rules = ()
    deny: Rules = ()
    presets: Presets = ()
    peers: Peers = {}
    on_unknown: Literal["deny", "ask", "learn"] = "deny"
    inspect: Rules = ()
    handlers: Handlers = ()
    mirror: Rules = ()
    approval_timeout: str | int | float | None = None
    bytes_per_second: str | int | None = None
    max_bytes: str | int | None = None
    max_connections: int | None = None
    cassette: Literal["record", "replay"] | None = None

    def __post_init__(self) -> None:
        for name in ("allow", "deny", "presets", "inspect", "handlers", "mirror"):
            force_setattr(self, name, _tuple(f"network.{name}", getattr(self, name)))
        check_handlers(self.handlers)  # type: ignore[arg-type]
        lists = {"allow": self.allow, "deny": self.deny, "inspect": self.inspect, "mirror": self.mirror}
        _check_counts(self.presets, (*lists.values(), *(p.allow for p in self.presets if isinstance(p, Preset))))
        for what, rules in lists.items():
            for rule in rules:
                if not isinstance(rule, str) or not 0 < len(rule) <= MAX_RULE:
                    shown = f"{rule!r}"[:60]
                    raise InvalidRequest(f"network.{what}: {shown} is not a rule", hint='like "api.example.com"')
        if len(self.peers) > MAX_PEERS:
            raise InvalidRequest(f"network.peers: more than {MAX_PEERS}")
        for name in self.peers:
            if not _PEER.fullmatch(name) or name == "localhost":
                raise InvalidRequest(f"network.peers: {name[:60]!r} is not a name", hint='like "db"')
        force_setattr(self, "peers", {name: _ref(name, peer) for name, peer in self.peers.items()})
        for what, size in (("bytes_per_second", self.bytes_per_second), ("max_bytes", self.max_bytes)):
            if size is not None:
                parse_size(size, f"network.{what}")
        if self.approval_timeout is not None:
            parse_span(self.approval_timeout, "network.approval_timeout")
        if self.max_connections is not None and not 1 <= self.max_connections <= 100_000:
            raise InvalidRequest(f"network.max_connections: {self.max_connections!r} is out of range")

    @classmethod
    def open(cls, **more: Any) -> Network:
        """Allow everything except loopback, link-local, metadata, private addresses and this host's own, unless a rule
        names them."""
        return cls(allow=("*", *more.pop("allow", ())), **more)

    @property
    def closed(self) -> bool:
        return self.without_rules and self.cassette != "replay"

    @property
    def without_rules(self) -> bool:
        return not (self.allow or self.presets or self.peers or self.on_unknown != "deny")


def _check_counts(presets: Sequence[str | Preset], lists: Sequence[Sequence[str]]) -> None:
    """Check the number of rules before any is parsed: a policy is parsed several times in the server's event loop."""
    if len(presets) > MAX_PRESETS:
        raise InvalidRequest(f"network.presets: more than {MAX_PRESETS}")
    if sum(map(len, lists)) > MAX_RULES:
        raise InvalidRequest(f"network: more than {MAX_RULES:,} rules in all", hint="use rules like *.example.com")
    detailed = sum(isinstance(rule, str) and not _PLAIN_RULE.fullmatch(rule) for rules in lists for rule in rules)
    if detailed > MAX_DETAILED_RULES:
        raise InvalidRequest(
            f"network: more than {MAX_DETAILED_RULES:,} rules with more than a name",
            hint="ports, paths, methods, ranges and patterns count; plain names do not",
        )


def _tuple(what: str, given: Any) -> tuple[Any, ...]:
    if isinstance(given, (str, bytes)):
        raise InvalidRequest(f"{what}: {given[:60]!r} is not a list", hint=f"put it in brackets: [{given[:60]!r}]")
    return given if isinstance(given, tuple) else tuple(given)


def _ref(name: str, peer: Any) -> str:
    """Store a sandbox by its id."""
    ref = peer if isinstance(peer, str) else getattr(peer, "id", None)
    if not isinstance(ref, str) or not ref:
        raise InvalidRequest(f"network.peers.{name}: not a sandbox", hint="a Sandbox, its id or its name")
    return ref


class SecretForm(Value, frozen=True, kw_only=True):
    """A secret without its value: its variable inside, its permitted hosts, and its position in a request. `header`:
    like "Authorization: Bearer {}"; `query`: the name of a parameter; `basic`: the user of an HTTP basic login. With
    none of them: every occurrence of the placeholder in a header, the query or a basic login."""

    name: str
    hosts: tuple[str, ...]
    header: str | None = None
    query: str | None = None
    basic: str | None = None

    def __post_init__(self) -> None:
        if not VARIABLE.fullmatch(self.name):
            raise InvalidRequest(f"secrets: {self.name[:60]!r} is not a variable's name")
        if len(self.hosts) > MAX_SECRET_HOSTS:
            raise InvalidRequest(f"secrets: {self.name} has more than {MAX_SECRET_HOSTS} hosts")
        if not self.hosts:
            raise InvalidRequest(f"secrets: {self.name} names no host", hint='hosts=["api.example.com"]')
        if self.header is not None and (
            not _HEADER.fullmatch(self.header) or self.header.partition(":")[0].lower() in _FRAMING
        ):
            raise InvalidRequest(
                f"secrets: {self.name}: its header is invalid",  # the header may contain the value itself by mistake
                hint='like "Authorization: Bearer {}"; {} is where the value goes',
            )
        if self.query is not None and not re.fullmatch(r"[A-Za-z0-9._~-]{1,64}", self.query):
            raise InvalidRequest(f"secrets: {self.name}: its query is not a parameter's name")
        if self.basic is not None and not re.fullmatch(r"[^\x00-\x1f\x7f:]{1,256}", self.basic):
            raise InvalidRequest(f"secrets: {self.name}: its basic is not a user's name")
        if sum(form is not None for form in (self.header, self.query, self.basic)) > 1:
            raise InvalidRequest(f"secrets: {self.name}: header, query and basic exclude each other")


class SecretValue(SecretForm, frozen=True, kw_only=True):
    """A secret with its value, in the only request that carries it. `repr` hides the value."""

    value: str

    def __post_init__(self) -> None:
        super().__post_init__()
        # A short value could occur in a response by chance, and the asterisks in its place would reveal it.
        fits = MIN_SECRET <= len(self.value) <= MAX_SECRET
        if not fits or not re.fullmatch(r"[\x21-\x7e][\x20-\x7e]*[\x21-\x7e]", self.value):
            raise InvalidRequest(
                f"secrets: the value of {self.name} can't be used",
                hint="printable ASCII on one line, of 8 bytes to 16 KiB, and no blank at either end",
            )

    def __repr__(self) -> str:
        return f"SecretValue(name={self.name!r}, hosts={self.hosts!r})"

    @property
    def form(self) -> SecretForm:
        return SecretForm(name=self.name, hosts=self.hosts, header=self.header, query=self.query, basic=self.basic)


class NetworkAttempt(Answer, frozen=True, kw_only=True):
    """One attempt to reach a destination. `kind`: a name look-up, a connection, or a request inside a connection. `why`
    and `hint`: the rule that decided, and the change that would decide otherwise; for an allowed attempt, that the
    destination was unreachable. `count`: the number of merged attempts. An allowed attempt is reported at its start and
    again, with the same `id`, at its end."""

    id: str
    at: float
    kind: Literal["name", "connection", "request", "datagram"]
    host: str
    decision: Literal["allowed", "denied"]
    why: str
    port: int | None = None
    address: str | None = None
    method: str | None = None
    path: str | None = None
    process: str | None = None
    rule: str | None = None
    hint: str | None = None
    secrets: tuple[str, ...] = ()
    sent: int = 0
    received: int = 0
    duration_s: float | None = None
    ended: bool = True
    count: int = 1
    seq: int = 0


class NetworkInfo(Answer, frozen=True, kw_only=True):
    """The current policy, and the traffic since the sandbox was created."""

    network: Network
    secrets: tuple[SecretForm, ...] = ()
    ready: bool = True
    open_connections: int = 0
    sent: int = 0
    received: int = 0


class CassetteInfo(Answer, frozen=True, kw_only=True):
    """The recorded exchanges of a sandbox. `size`: bytes of their bodies. `omitted`: exchanges that were not recorded.
    `full`: the reason why the recording ended early."""

    exchanges: int = 0
    size: int = 0
    omitted: int = 0
    full: str | None = None


class NetworkChange(Value, frozen=True, kw_only=True):
    """PATCH …/network: rules to add to `allow` or `deny`, and presets to add. An allowed rule is removed from `deny`,
    and the reverse; a preset replaces one of the same name. `handlers` to add: a handler replaces one of the same
    `host`; `remove_handlers`: the hosts of handlers to remove. `mirror`: the new list of mirrored hosts."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    presets: tuple[Preset, ...] = ()
    handlers: tuple[Handler, ...] = ()
    remove_handlers: tuple[str, ...] = ()
    mirror: tuple[str, ...] | None = None


class ApprovalRequest(Answer, frozen=True, kw_only=True):
    """A request for approval of a destination that no rule names. No answer in time means denied."""

    id: str
    sandbox: str
    host: str
    port: int | None
    at: float
    ends_at: float
    process: str | None = None


class Approval(Value, frozen=True, kw_only=True):
    """POST …/network/approvals/{id}. `remember`: add a rule."""

    allow: bool
    remember: bool = False


PREVIEW_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,30}[a-z0-9])?")  # with the sandbox's ID, one label of a host name
_PREVIEW_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,128}")  # safe in a URL and in a cookie


class PreviewRequest(Value, frozen=True, kw_only=True):
    """POST …/previews. `name` takes the place of the port in the host name. `token`: one that the caller chose. Without
    them, an existing preview keeps its name and token."""

    port: int
    public: bool = False
    expires: str | int | float | None = None
    name: str | None = None
    token: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.port <= 65535:
            raise InvalidRequest(f"port: {self.port} is out of range", hint="1 to 65535")
        if self.name is not None and not PREVIEW_NAME.fullmatch(self.name):
            raise InvalidRequest(
                f"name: {self.name[:80]!r} is not a name of a preview",
                hint="lower-case letters, digits and `-`, at most 32, a letter first",
            )
        if self.token is not None:
            _check_preview_token(self.token, self.public)
        if self.expires is not None:
            parse_span(self.expires, "expires")


def _check_preview_token(token: str, public: bool) -> None:
    if public:
        raise InvalidRequest("token: a public preview has no token")
    if not _PREVIEW_TOKEN.fullmatch(token) or token.startswith("skt_"):
        raise InvalidRequest(  # without the value, which may be a secret
            "token: it cannot be used", hint="16 to 128 letters, digits, `_` and `-`, and not a token of the API"
        )


class PreviewInfo(Answer, frozen=True, kw_only=True):
    """A port inside that has a URL. `path_url` is for clients that cannot resolve names below localhost. `token` is
    None for a public preview; only the owner sees it."""

    id: str
    port: int
    url: str
    path_url: str
    public: bool
    created_at: float
    expires: float | None = None
    token: str | None = None
    name: str | None = None


class PreviewList(Answer, frozen=True, kw_only=True):
    previews: list[PreviewInfo]
