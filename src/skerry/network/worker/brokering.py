"""Secrets in requests: inside stands a placeholder, and a named host gets the value. Pure: heads in, heads out.

A value goes only where its secret names the host, and only over TLS that the worker itself opened to that host. What
comes back has it starred out. A placeholder on its way to anywhere else stops the request."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from skerry.network.messages import Brokered
from skerry.network.rules import Ports, parse_secret_host
from skerry.network.tables import Table, make_entry
from skerry.network.worker.hooks import Blocked, Filter, Headers, Refusal, RequestHead, ResponseHead
from skerry.network.worker.masking import Mask, Patterns, Tripwire, aligned_base64, in_base64, spellings
from skerry.network.worker.websocket import FrameMask
from skerry.types.hosts import Host, parse_host

HTTPS: Final[Ports] = ((443, 443),)
HEAD_MOST: Final = 64 << 10  # a value stands wherever its placeholder does: a head must not grow without end
_BODILESS: Final = frozenset((204, 304))
_LOGINS_MOST: Final = 32
_LOGIN_MOST: Final = 16 << 10


class Broker:
    """One sandbox's secrets."""

    def __init__(self, secrets: Sequence[Brokered]) -> None:
        self._secrets = tuple(secrets)
        self._places = Table.of(
            make_entry(parse_secret_host(host), HTTPS, secret.name) for secret in self._secrets for host in secret.hosts
        )
        self._known = {secret.placeholder.encode(): secret for secret in self._secrets}
        self._patterns = Patterns(form for secret in self._secrets for form in _forms(secret))

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def named(self, host: str, port: int) -> tuple[Brokered, ...]:
        """Those whose value may go there."""
        about = {entry.text for entry in self._places.about(_host(host)) if entry.on(port)}
        return tuple(secret for secret in self._secrets if secret.name in about)

    def hooks(self, host: str, port: int, *, tls: bool) -> BrokeringHooks:
        """For one connection. Without TLS no value goes anywhere, and every placeholder stops the request."""
        return BrokeringHooks(self, host, self.named(host, port) if tls else ())

    def wire(self) -> WireFilter | None:
        """For a connection of which only the bytes are seen, and which is not encrypted."""
        return WireFilter(self._known) if self._known else None

    def foreign(self, mine: Sequence[Brokered]) -> dict[bytes, Brokered]:
        return {text: secret for text, secret in self._known.items() if secret not in mine}

    @property
    def patterns(self) -> Patterns:
        return self._patterns


def _host(text: str) -> Host:
    return parse_host(f"[{text}]" if ":" in text else text)


def _forms(secret: Brokered) -> set[bytes]:
    """Every way in which a server may show a value that it was sent."""
    forms = spellings(secret.value) | in_base64(secret.value) | aligned_base64(secret.value)
    if secret.basic is not None:
        forms |= in_base64(f"{secret.basic}:{secret.value}")
    return forms


def denied(secret: Brokered) -> Refusal:
    """What a placeholder says when it is found where it may not go."""
    return Refusal(
        why=f"it carries the placeholder of secret {secret.name}",
        hint=f"{secret.name} goes to {', '.join(secret.hosts)} only, over TLS",
    )


class WireFilter:
    """Lets a body, or a raw stream, pass until a placeholder stands in it."""

    same_length = True

    def __init__(self, known: dict[bytes, Brokered]) -> None:
        self._known = {secret.name: secret for secret in known.values()}
        self._wire = Tripwire({text: secret.name for text, secret in known.items()})

    def feed(self, data: bytes) -> bytes:
        found = self._wire.feed(data)
        if found is not None:
            raise Blocked(denied(self._known[found]))
        return data

    def end(self) -> bytes:
        return b""


class MaskFilter(Mask):
    same_length = True


@dataclass
class _Draft:
    """A head while it is being written."""

    target: bytes
    headers: list[tuple[bytes, bytes]]

    def set(self, name: bytes, value: bytes) -> None:
        self.headers = [(key, old) for key, old in self.headers if key != name]
        self.headers.append((name, value))


class BrokeringHooks:
    """What one connection's requests and responses go through."""

    def __init__(self, broker: Broker, host: str, mine: tuple[Brokered, ...]) -> None:
        self._host = host
        self._mine = mine
        self._foreign = broker.foreign(mine)
        self._patterns = broker.patterns
        self._logins: dict[bytes, None] = {}  # the latest, in base64, as they were sent
        self._used: tuple[str, ...] = ()

    def secrets(self) -> tuple[str, ...]:
        return self._used

    # -- out ----------------------------------------------------------------------------------------------------------

    def on_request(self, head: RequestHead) -> RequestHead | Refusal:
        self._used = ()
        stray = self._stray(head)
        if stray is not None:
            return denied(stray)
        if not self._mine:
            return head
        if head.method.upper() == b"TRACE":
            return Refusal(why="TRACE asks a host that gets secrets to show them", status=405)
        draft = _Draft(head.target, list(head.headers))
        used = [secret.name for secret in self._mine if self._wins(secret, head.headers) and self._put(secret, draft)]
        draft.set(b"accept-encoding", b"identity")
        draft.headers = [(name, value) for name, value in draft.headers if name != b"sec-websocket-extensions"]
        if len(draft.target) + sum(len(name) + len(value) for name, value in draft.headers) > HEAD_MOST:
            return Refusal(why="with its secrets the request's head is too long", status=431)
        self._used = tuple(used)
        return replace(head, target=draft.target, headers=tuple(draft.headers))

    def _stray(self, head: RequestHead) -> Brokered | None:
        """A secret whose placeholder is on its way to a host that it does not name."""
        if not self._foreign:
            return None
        texts = [head.target, unquote_to_bytes(head.target), *(value for _, value in head.headers)]
        texts += [login for name, value in head.headers if (login := _login(name, value)) is not None]
        names = b"\n".join(name for name, _ in head.headers)  # in small letters by now
        return next(
            (s for text, s in self._foreign.items() if text.lower() in names or any(text in seen for seen in texts)),
            None,
        )

    def _wins(self, secret: Brokered, headers: Headers) -> bool:
        """Of several secrets for one header, that whose placeholder the client sent; else the first of them."""
        name = _header_of(secret)
        if name is None:
            return True
        rivals = [other for other in self._mine if _header_of(other) == name]
        return secret is ([other for other in rivals if _carries(other, name, headers)] or rivals)[0]

    def _put(self, secret: Brokered, draft: _Draft) -> bool:
        if secret.header is not None:
            name, _, template = secret.header.partition(":")
            draft.set(name.lower().encode(), template.strip(" ").replace("{}", secret.value).encode())
        elif secret.basic is not None:
            draft.set(b"authorization", b"Basic " + base64.b64encode(f"{secret.basic}:{secret.value}".encode()))
        elif secret.query is not None:
            if not draft.target.startswith(b"/"):
                return False
            draft.target = _with_parameter(draft.target, secret.query, secret.value)
        else:
            return self._replace(secret, draft)
        return True

    def _replace(self, secret: Brokered, draft: _Draft) -> bool:
        placeholder, value = secret.placeholder.encode(), secret.value.encode()
        path, mark, query = draft.target.partition(b"?")
        before = (draft.target, list(draft.headers))
        draft.target = path + mark + query.replace(placeholder, quote(secret.value, safe="").encode())
        draft.headers = [(name, self._replaced(name, text, placeholder, value)) for name, text in draft.headers]
        return before != (draft.target, draft.headers)

    def _replaced(self, name: bytes, text: bytes, placeholder: bytes, value: bytes) -> bytes:
        login = _login(name, text)
        if login is not None and placeholder in login:
            encoded = base64.b64encode(login.replace(placeholder, value))
            self._logins[encoded.rstrip(b"=")] = None
            if len(self._logins) > _LOGINS_MOST:
                del self._logins[next(iter(self._logins))]
            return b"Basic " + encoded
        return text.replace(placeholder, value)

    def request_filter(self, head: RequestHead) -> Filter | None:
        return WireFilter(self._foreign) if self._foreign and head.body else None

    # -- back ---------------------------------------------------------------------------------------------------------

    def on_response(self, request: RequestHead, head: ResponseHead) -> ResponseHead | Refusal:
        if not self._mine:
            return head
        encoding = b", ".join(value for name, value in head.headers if name == b"content-encoding")
        has_body = request.method.upper() != b"HEAD" and head.status >= 200 and head.status not in _BODILESS
        if has_body and encoding.strip().lower() not in (b"", b"identity"):
            return Refusal(
                why=f"{self._host} answered in an encoding in which a secret could not be masked",
                hint="it was asked for identity; a host that gets secrets has to heed that",
                status=502,
            )
        patterns = self._all_patterns()
        headers: Headers = tuple((patterns.mask_name(name), patterns.mask(value)) for name, value in head.headers)
        return replace(head, reason=patterns.mask(head.reason), headers=headers)

    def response_filter(self, request: RequestHead, head: ResponseHead) -> Filter | None:
        if not self._mine:
            return None
        if head.status == 101:
            return FrameMask(self._all_patterns())
        return MaskFilter(self._all_patterns())

    def _all_patterns(self) -> Patterns:
        return self._patterns.with_more(self._logins) if self._logins else self._patterns


def _header_of(secret: Brokered) -> bytes | None:
    if secret.basic is not None:
        return b"authorization"
    return secret.header.partition(":")[0].lower().encode() if secret.header is not None else None


def _carries(secret: Brokered, name: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    text = secret.placeholder.encode()
    return any(key == name and (text in value or text in (_login(key, value) or b"")) for key, value in headers)


def _login(name: bytes, value: bytes) -> bytes | None:
    """What a basic login says: `user:password`."""
    scheme, _, encoded = value.strip().partition(b" ")
    if name not in (b"authorization", b"proxy-authorization") or scheme.lower() != b"basic":
        return None
    encoded = encoded.strip()
    if len(encoded) > _LOGIN_MOST:
        return None
    try:
        return base64.b64decode(encoded + b"=" * (-len(encoded) % 4), validate=True)
    except binascii.Error:
        return None


def _with_parameter(target: bytes, name: str, value: str) -> bytes:
    """The one parameter of that name, in place of whatever the client sent under it."""
    path, _, query = target.partition(b"?")
    kept = [part for part in query.split(b"&") if part and unquote_to_bytes(part.partition(b"=")[0]) != name.encode()]
    return path + b"?" + b"&".join([*kept, f"{name}={quote(value, safe='')}".encode()])
