"""What may leave a sandbox, what was tried, and what of it is shown outside."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import force_setattr

from skerry.errors import InvalidRequest
from skerry.types.values import Answer, Value, check_env, check_name, check_text, parse_size, parse_span

RULES_MOST = 20_000
RULE_MOST = 2_048
SECRETS_MOST = 64
SECRET_LEAST = 8
SECRET_MOST = 16 << 10
PEM_MOST = 1 << 20
PEERS_MOST = 64
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}: ?[\x20-\x7e]*\{\}[\x20-\x7e]*")
# What frames a request, or says where it goes: HTTP mode writes these itself.
_FRAMING = frozenset((
    "accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "proxy-authorization",
    "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
))  # fmt: skip
_PEER = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
if TYPE_CHECKING:
    Peers = dict[str, Any]  # a Sandbox may stand there too; it is kept by its id
else:
    Peers = dict[str, str]


class Preset(Value, frozen=True, kw_only=True):
    """How the client's machine is set up to reach something (pip's index, npm's registry …), read there and sent along:
    the rules that it needs, the variables that carry the set-up inside, the certificates that it trusts, and the proxy
    that leads there. Passwords are never in it: they travel as secrets."""

    name: str
    allow: tuple[str, ...] = ()
    env: dict[str, str] = {}
    files: dict[str, str] = {}  # name below /run/skerry/presets → text; `env` points to it
    certificates: str = ""
    proxy: str | None = None  # http://host:port of an upstream proxy for these hosts

    def __post_init__(self) -> None:
        check_name(self.name, "network.presets")
        check_env(self.env)
        check_text("network.presets", self.certificates, *self.allow, *self.files, *self.files.values())
        if len(self.certificates) > PEM_MOST or sum(map(len, self.files.values())) > 64 << 10:
            raise InvalidRequest(f"network.presets: what {self.name} carries is too long")

    def __repr__(self) -> str:
        """Without pages of certificates."""
        return f"Preset(name={self.name!r}, allow={self.allow!r}, env={self.env!r}, …)"


if TYPE_CHECKING:  # a list may be given; it is kept as a tuple
    Rules = Sequence[str]
    Presets = Sequence[str | Preset]
else:
    Rules = tuple[str, ...]
    Presets = tuple[str | Preset, ...]


class Network(Value, frozen=True, kw_only=True):
    """What may leave a sandbox. Nothing, unless it is named here.

    A rule is `[METHODS ]HOST[:PORTS][/PATH][@ADDRESSES]`: a name, `*.name` for all below it, an address or a CIDR.
    Without ports: 80 and 443; `:*` is every port. `deny` wins. `inspect`: hosts whose TLS is opened, so that methods
    and paths can be seen. `@10.0.0.0/8`: that name may be at a private address, which no name alone opens.
    `presets`: names that the client looks up on its own machine. `peers`: other sandboxes by the name they get inside.
    `bandwidth` is bytes a second, `total` bytes in all, `connections` how many at once."""

    allow: Rules = ()
    deny: Rules = ()
    presets: Presets = ()
    peers: Peers = {}
    on_unknown: Literal["deny", "ask", "learn"] = "deny"
    inspect: Rules = ()
    ask_timeout: str | int | float | None = None
    bandwidth: str | int | None = None
    total: str | int | None = None
    connections: int | None = None

    def __post_init__(self) -> None:
        for name in ("allow", "deny", "presets", "inspect"):
            force_setattr(self, name, _tuple(f"network.{name}", getattr(self, name)))
        for what, rules in (("allow", self.allow), ("deny", self.deny), ("inspect", self.inspect)):
            if len(rules) > RULES_MOST:
                raise InvalidRequest(f"network.{what}: more than {RULES_MOST:,} rules")
            for rule in rules:
                if not isinstance(rule, str) or not 0 < len(rule) <= RULE_MOST:
                    shown = f"{rule!r}"[:60]
                    raise InvalidRequest(f"network.{what}: {shown} is no rule", hint='like "api.example.com"')
        if len(self.peers) > PEERS_MOST:
            raise InvalidRequest(f"network.peers: more than {PEERS_MOST}")
        for name in self.peers:
            if not _PEER.fullmatch(name) or name == "localhost":
                raise InvalidRequest(f"network.peers: {name[:60]!r} can't be a name", hint='like "db"')
        force_setattr(self, "peers", {name: _ref(name, peer) for name, peer in self.peers.items()})
        for what, size in (("bandwidth", self.bandwidth), ("total", self.total)):
            if size is not None:
                parse_size(size, f"network.{what}")
        if self.ask_timeout is not None:
            parse_span(self.ask_timeout, "network.ask_timeout")
        if self.connections is not None and not 1 <= self.connections <= 100_000:
            raise InvalidRequest(f"network.connections: {self.connections!r} is out of range")

    @classmethod
    def open(cls, **more: Any) -> Network:
        """Everything but loopback, link-local, metadata, private addresses and this host's own, unless named."""
        return cls(allow=("*", *more.pop("allow", ())), **more)

    @property
    def closed(self) -> bool:
        return not (self.allow or self.presets or self.peers or self.on_unknown != "deny")


def _tuple(what: str, given: Any) -> tuple[Any, ...]:
    if isinstance(given, (str, bytes)):
        raise InvalidRequest(f"{what}: {given[:60]!r} is not a list", hint=f"put it in brackets: [{given[:60]!r}]")
    return given if isinstance(given, tuple) else tuple(given)


def _ref(name: str, peer: Any) -> str:
    """A sandbox is kept by its id."""
    ref = peer if isinstance(peer, str) else getattr(peer, "id", None)
    if not isinstance(ref, str) or not ref:
        raise InvalidRequest(f"network.peers.{name}: that is no sandbox", hint="a Sandbox, its id or its name")
    return ref


class SecretForm(Value, frozen=True, kw_only=True):
    """A secret without its value: its variable inside, where it may go, and how it gets there. `header`: like
    "Authorization: Bearer {}"; `query`: the name of a parameter; `basic`: the user of an HTTP basic login. With none of
    them: wherever the placeholder stands in a header, the query or a basic login."""

    name: str
    hosts: tuple[str, ...]
    header: str | None = None
    query: str | None = None
    basic: str | None = None

    def __post_init__(self) -> None:
        if not _VARIABLE.fullmatch(self.name):
            raise InvalidRequest(f"secrets: {self.name[:60]!r} can't be a variable's name")
        if not self.hosts:
            raise InvalidRequest(f"secrets: {self.name} names no host", hint='hosts=["api.example.com"]')
        if self.header is not None and (
            not _HEADER.fullmatch(self.header) or self.header.partition(":")[0].lower() in _FRAMING
        ):
            raise InvalidRequest(
                f"secrets: {self.name}: its header can't be used",  # which may hold the value itself, by mistake
                hint='like "Authorization: Bearer {}"; {} is where the value goes',
            )
        if self.query is not None and not re.fullmatch(r"[A-Za-z0-9._~-]{1,64}", self.query):
            raise InvalidRequest(f"secrets: {self.name}: its query can't be a parameter's name")
        if self.basic is not None and not re.fullmatch(r"[^\x00-\x1f\x7f:]{1,256}", self.basic):
            raise InvalidRequest(f"secrets: {self.name}: its basic can't be a user's name")
        if sum(form is not None for form in (self.header, self.query, self.basic)) > 1:
            raise InvalidRequest(f"secrets: {self.name}: header, query and basic exclude each other")


class SecretValue(SecretForm, frozen=True, kw_only=True):
    """A secret on its way to the server: the one request in which its value stands. `repr` does not tell it."""

    value: str

    def __post_init__(self) -> None:
        super().__post_init__()
        # A short one would be met by chance in what comes back, and the stars in its place would tell what it is.
        fits = SECRET_LEAST <= len(self.value) <= SECRET_MOST
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


class Attempt(Answer, frozen=True, kw_only=True):
    """One try to get out. `kind`: what was tried: a look-up of a name, a connection, or a request seen inside one.
    `why` and `hint`: which rule decided, and what would decide otherwise; of an allowed one, that it could not be
    reached. `count`: so many like it were taken together. An allowed one is told when it begins, and again, under the
    same `id`, when it has ended."""

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
    """The policy as it stands, and what went through since the sandbox was made."""

    network: Network
    secrets: tuple[SecretForm, ...] = ()
    ready: bool = True
    open_connections: int = 0
    sent: int = 0
    received: int = 0


class NetworkChange(Value, frozen=True, kw_only=True):
    """PATCH …/network: rules to add to `allow` or `deny`, and presets to add. A rule that is allowed leaves `deny`, and
    the other way; a preset takes the place of one of its name."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    presets: tuple[Preset, ...] = ()


class Question(Answer, frozen=True, kw_only=True):
    """Something inside wants to reach what no rule names, and somebody is asked. No answer in time means no."""

    id: str
    sandbox: str
    host: str
    port: int | None
    at: float
    ends_at: float
    process: str | None = None


class Reply(Value, frozen=True, kw_only=True):
    """POST …/network/questions/{id}. `remember`: as a rule from now on."""

    allow: bool
    remember: bool = False


class PreviewRequest(Value, frozen=True, kw_only=True):
    """POST …/previews."""

    port: int
    public: bool = False
    expires: str | int | float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.port <= 65535:
            raise InvalidRequest(f"port: {self.port} is out of range", hint="1 to 65535")
        if self.expires is not None:
            parse_span(self.expires, "expires")


class PreviewInfo(Answer, frozen=True, kw_only=True):
    """A port inside that can be reached by URL. `path_url` is for clients without names below localhost. `token` is
    None if it is public; it is shown to the owner only."""

    id: str
    port: int
    url: str
    path_url: str
    public: bool
    created_at: float
    expires: float | None = None
    token: str | None = None
