"""What the server and its network worker say to each other, as frozen values. The server trusts no word of the worker,
which parses hostile bytes all day. File descriptors travel beside a message, in the order that its comment gives."""

from __future__ import annotations

from typing import Literal

import msgspec

from skerry.types import Attempt, SecretForm

# Every sandbox sees these addresses alike. The made-up addresses of names are below NAMES; PROXY is the one that the
# proxy variables name, RESOLVER the one in /etc/resolv.conf. All of them are redirected to the worker's fresh port.
NAMES = "198.18.0.0/15"
RESOLVER = "198.18.0.1"
PROXY = "198.18.0.2"
PROXY_PORT = 3128
OWN = "198.18.0.3"  # on every sandbox's lo: without any but loopback's, getaddrinfo finds no names (AI_ADDRCONFIG)
MESSAGE_MOST = 8 << 20
REFUSED = "refused"


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True, forbid_unknown_fields=True):
    pass


class Brokered(SecretForm, frozen=True, kw_only=True):
    """A secret as the worker needs it: what stands inside instead of it, and what it is."""

    placeholder: str
    value: str

    def __repr__(self) -> str:
        return f"Brokered(name={self.name!r})"


class Authority(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox's own CA, PEM."""

    certificate: str
    key: str

    def __repr__(self) -> str:
        return "Authority()"


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """All that the worker goes by for one sandbox: presets are rules by now, peers are ids."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    ceiling: tuple[str, ...] = ("*",)  # the operator's: both must allow
    inspect: tuple[str, ...] = ()
    on_unknown: Literal["deny", "ask", "learn"] = "deny"
    ask_s: float = 30.0
    peers: dict[str, str] = {}
    proxies: tuple[tuple[tuple[str, ...], str], ...] = ()  # (rules, upstream proxy)
    certificates: str = ""  # trusted beside the system's for inspected upstreams
    secrets: tuple[Brokered, ...] = ()
    authority: Authority | None = None
    bandwidth: int | None = None
    total: int | None = None
    connections: int = 1024


# -- the server says ------------------------------------------------------------------------------------------------


class Open(Message, frozen=True, kw_only=True):
    """A sandbox's door. Fds: its TCP listener, its UDP socket for names, a sock_diag socket of its network namespace,
    and the file in which the worker keeps the names that it gave addresses to (read at once, then appended to)."""

    sandbox: str
    rules: Rules
    hostname: str = ""  # what it calls itself: a look-up of that is no attempt to get out
    sent: int = 0  # so far, for `total`
    received: int = 0


class Change(Message, frozen=True, kw_only=True):
    """New rules. What they no longer allow is closed before `Done` comes back."""

    sandbox: str
    rules: Rules
    number: int


class Close(Message, frozen=True, kw_only=True):
    sandbox: str


class Sync(Message, frozen=True, kw_only=True):
    """Answered by `Done` after everything that was told before; of one sandbox, or of all."""

    number: int
    sandbox: str | None = None


class Told(Message, frozen=True, kw_only=True):
    """The answer to an `Ask`. `why` goes into the record of the attempt: who said so, or that nobody did in time."""

    question: str
    allow: bool
    why: str = ""


class Dialled(Message, frozen=True, kw_only=True):
    """The answer to a `Dial`. Fd: the connected socket, unless there is an error: REFUSED (nothing listens there, which
    may pass), or why it can't be."""

    number: int
    error: str | None = None


class Share(Message, frozen=True, kw_only=True):
    """A preview exists, or its terms are new. `token_hash`: SHA-256 in hex; None: public. `expires`: a Unix time."""

    sandbox: str
    port: int
    token_hash: str | None
    expires: float | None = None


class Unshare(Message, frozen=True, kw_only=True):
    sandbox: str
    port: int


class PutOut(Message, frozen=True, kw_only=True):
    """Whoever is in by its previews is put out; the previews stay."""

    sandbox: str


class Listen(Message, frozen=True, kw_only=True):
    """Where previews are asked for. Fd: a TCP listener. `domains`: below which `{port}-{sandbox}` is looked for;
    `secure`: those of them that people reach by https, through somebody's TLS proxy."""

    domains: tuple[str, ...]
    secure: tuple[str, ...] = ()


FromServer = Open | Change | Close | Sync | Told | Dialled | Share | Unshare | PutOut | Listen

# -- the worker says ------------------------------------------------------------------------------------------------


class Ready(Message, frozen=True, kw_only=True):
    """It can take doors."""


class Done(Message, frozen=True, kw_only=True):
    number: int


class Tried(Message, frozen=True, kw_only=True):
    """`cgroup`: the cgroup id of who tried, as the kernel tells it of the socket; the server knows whose that is."""

    sandbox: str
    attempt: Attempt
    cgroup: int | None = None


class Counted(Message, frozen=True, kw_only=True):
    """Bytes since the last time, and the connections that are open now. Sent at most once a second for a sandbox that
    has traffic: it is also what keeps it from being idle."""

    sandbox: str
    sent: int
    received: int
    open: int


class Ask(Message, frozen=True, kw_only=True):
    question: str
    sandbox: str
    host: str
    port: int | None
    cgroup: int | None = None


class Dial(Message, frozen=True, kw_only=True):
    """Connect to a port inside `sandbox`: for a preview, or for `peer_of`, whose policy names it as a peer."""

    number: int
    sandbox: str
    port: int
    peer_of: str | None = None


class Used(Message, frozen=True, kw_only=True):
    """Somebody uses a preview of it; sent at most once a second. It is not idle, and one that is paused is woken: a
    connection that was made before can't tell."""

    sandbox: str


FromWorker = Ready | Done | Tried | Counted | Ask | Dial | Used
