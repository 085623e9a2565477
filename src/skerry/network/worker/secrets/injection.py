"""Secret injection: a placeholder inside the sandbox, the value in requests to named hosts. Pure: heads in, heads out.

A value goes only to hosts that its secret names, and only over TLS that the worker itself opened to that host. It is
masked in responses. A placeholder on its way to any other host blocks the request.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from skerry.network.messages import InjectedSecret
from skerry.network.policy.rules import Ports, parse_secret_host
from skerry.network.policy.tables import RuleTable, make_entry
from skerry.network.worker.http.filters import (
    BlockedByFilter,
    BodyFilter,
    FilterDenial,
    Headers,
    RequestHead,
    ResponseHead,
)
from skerry.network.worker.secrets.masking import (
    FrameMask,
    SecretPatterns,
    StreamMask,
    TextDetector,
    aligned_base64,
    echoed_spellings,
    in_base64,
)
from skerry.types.hosts import Host, parse_host

HTTPS_PORTS: Final[Ports] = ((443, 443),)
MAX_HEAD: Final = 64 << 10  # each placeholder is replaced by a value: limit the growth of a head
_BODILESS: Final = frozenset((204, 304))
_MAX_LOGINS: Final = 32
_MAX_LOGIN: Final = 16 << 10


class SecretInjector:
    """The secrets of one sandbox."""

    def __init__(self, secrets: Sequence[InjectedSecret]) -> None:
        self._secrets = tuple(secrets)
        self._hosts = RuleTable.of(
            make_entry(parse_secret_host(host), HTTPS_PORTS, secret.name)
            for secret in self._secrets
            for host in secret.hosts
        )
        self._by_placeholder = {secret.placeholder.encode(): secret for secret in self._secrets}
        self._patterns = SecretPatterns(form for secret in self._secrets for form in _echoed_forms(secret))

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def allowed_for(self, host: str, port: int) -> tuple[InjectedSecret, ...]:
        """Return the secrets that may be sent there."""
        matching = {entry.text for entry in self._hosts.matching(_host(host)) if entry.covers_port(port)}
        return tuple(secret for secret in self._secrets if secret.name in matching)

    def filters(self, host: str, port: int, *, tls: bool) -> InjectionFilters:
        """Return the filters for one connection. Without TLS no value is injected, and every placeholder blocks the
        request."""
        return InjectionFilters(self, host, self.allowed_for(host, port) if tls else ())

    def raw_filter(self) -> PlaceholderFilter | None:
        """Return a filter for an unencrypted connection that is not HTTP."""
        return PlaceholderFilter(self._by_placeholder) if self._by_placeholder else None

    def foreign(self, allowed: Sequence[InjectedSecret]) -> dict[bytes, InjectedSecret]:
        return {text: secret for text, secret in self._by_placeholder.items() if secret not in allowed}

    @property
    def patterns(self) -> SecretPatterns:
        return self._patterns


def _host(text: str) -> Host:
    return parse_host(f"[{text}]" if ":" in text else text)


def _echoed_forms(secret: InjectedSecret) -> set[bytes]:
    """Return every form in which a server may echo a value."""
    forms = echoed_spellings(secret.value) | in_base64(secret.value) | aligned_base64(secret.value)
    if secret.basic is not None:
        forms |= in_base64(f"{secret.basic}:{secret.value}")
    return forms


def placeholder_denied(secret: InjectedSecret) -> FilterDenial:
    """Return the denial for a placeholder that is found where it may not go."""
    return FilterDenial(
        why=f"it carries the placeholder of secret {secret.name}",
        hint=f"{secret.name} goes to {', '.join(secret.hosts)} only, over TLS",
    )


class PlaceholderFilter:
    """Passes a body or a raw stream until it contains a placeholder."""

    same_length = True

    def __init__(self, by_placeholder: dict[bytes, InjectedSecret]) -> None:
        self._by_placeholder = {secret.name: secret for secret in by_placeholder.values()}
        self._detector = TextDetector({text: secret.name for text, secret in by_placeholder.items()})

    def feed(self, data: bytes) -> bytes:
        found = self._detector.feed(data)
        if found is not None:
            raise BlockedByFilter(placeholder_denied(self._by_placeholder[found]))
        return data

    def end(self) -> bytes:
        return b""


class MaskingFilter(StreamMask):
    same_length = True


@dataclass
class _RequestDraft:
    """A request head while it is being changed."""

    target: bytes
    headers: list[tuple[bytes, bytes]]

    def set(self, name: bytes, value: bytes) -> None:
        self.headers = [(key, old) for key, old in self.headers if key != name]
        self.headers.append((name, value))


class InjectionFilters:
    """The filters of one connection's requests and responses."""

    def __init__(self, injector: SecretInjector, host: str, allowed: tuple[InjectedSecret, ...]) -> None:
        self._host = host
        self._allowed = allowed
        self._foreign = injector.foreign(allowed)
        self._patterns = injector.patterns
        self._logins: dict[bytes, None] = {}  # the latest, in base64, as sent
        self._injected: tuple[str, ...] = ()

    def secrets(self) -> tuple[str, ...]:
        return self._injected

    # -- requests -----------------------------------------------------------------------------------------------------

    def on_request(self, head: RequestHead) -> RequestHead | FilterDenial:
        self._injected = ()
        foreign = self._find_foreign(head)
        if foreign is not None:
            return placeholder_denied(foreign)
        if not self._allowed:
            return head
        if head.method.upper() == b"TRACE":
            return FilterDenial(why="TRACE would make a host that receives secrets echo them", status=405)
        draft = _RequestDraft(head.target, list(head.headers))
        injected = [
            secret.name
            for secret in self._allowed
            if self._is_chosen(secret, head.headers) and self._inject(secret, draft)
        ]
        draft.set(b"accept-encoding", b"identity")
        draft.headers = [(name, value) for name, value in draft.headers if name != b"sec-websocket-extensions"]
        if len(draft.target) + sum(len(name) + len(value) for name, value in draft.headers) > MAX_HEAD:
            return FilterDenial(why="with its secrets the request's head is too long", status=431)
        self._injected = tuple(injected)
        return replace(head, target=draft.target, headers=tuple(draft.headers))

    def _find_foreign(self, head: RequestHead) -> InjectedSecret | None:
        """Return a secret of another host, if the request has its placeholder."""
        if not self._foreign:
            return None
        searched = [head.target, unquote_to_bytes(head.target), *(value for _, value in head.headers)]
        searched += [login for name, value in head.headers if (login := _basic_login(name, value)) is not None]
        names = b"\n".join(name for name, _ in head.headers)  # already in lower case
        return next(
            (s for text, s in self._foreign.items() if text.lower() in names or any(text in seen for seen in searched)),
            None,
        )

    def _is_chosen(self, secret: InjectedSecret, headers: Headers) -> bool:
        """Return whether the secret is chosen among several for one header: the client's placeholder decides, otherwise
        the first is used."""
        name = _injected_header(secret)
        if name is None:
            return True
        candidates = [other for other in self._allowed if _injected_header(other) == name]
        return secret is ([other for other in candidates if _has_placeholder(other, name, headers)] or candidates)[0]

    def _inject(self, secret: InjectedSecret, draft: _RequestDraft) -> bool:
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

    def _replace(self, secret: InjectedSecret, draft: _RequestDraft) -> bool:
        placeholder, value = secret.placeholder.encode(), secret.value.encode()
        path, mark, query = draft.target.partition(b"?")
        before = (draft.target, list(draft.headers))
        draft.target = path + mark + query.replace(placeholder, quote(secret.value, safe="").encode())
        draft.headers = [(name, self._replaced(name, text, placeholder, value)) for name, text in draft.headers]
        return before != (draft.target, draft.headers)

    def _replaced(self, name: bytes, text: bytes, placeholder: bytes, value: bytes) -> bytes:
        login = _basic_login(name, text)
        if login is not None and placeholder in login:
            encoded = base64.b64encode(login.replace(placeholder, value))
            self._logins[encoded.rstrip(b"=")] = None
            if len(self._logins) > _MAX_LOGINS:
                del self._logins[next(iter(self._logins))]
            return b"Basic " + encoded
        return text.replace(placeholder, value)

    def request_filter(self, head: RequestHead) -> BodyFilter | None:
        return PlaceholderFilter(self._foreign) if self._foreign and head.body else None

    # -- responses ----------------------------------------------------------------------------------------------------

    def on_response(self, request: RequestHead, head: ResponseHead) -> ResponseHead | FilterDenial:
        if not self._allowed:
            return head
        encoding = b", ".join(value for name, value in head.headers if name == b"content-encoding")
        has_body = request.method.upper() != b"HEAD" and head.status >= 200 and head.status not in _BODILESS
        if has_body and encoding.strip().lower() not in (b"", b"identity"):
            return FilterDenial(
                why=f"{self._host} answered in an encoding in which a secret could not be masked",
                hint="it was asked for identity; a host that receives secrets must respect that",
                status=502,
            )
        patterns = self._all_patterns()
        headers: Headers = tuple((patterns.mask_name(name), patterns.mask(value)) for name, value in head.headers)
        return replace(head, reason=patterns.mask(head.reason), headers=headers)

    def response_filter(self, request: RequestHead, head: ResponseHead) -> BodyFilter | None:
        if not self._allowed:
            return None
        if head.status == 101:
            return FrameMask(self._all_patterns())
        return MaskingFilter(self._all_patterns())

    def _all_patterns(self) -> SecretPatterns:
        return self._patterns.with_more(self._logins) if self._logins else self._patterns


def _injected_header(secret: InjectedSecret) -> bytes | None:
    if secret.basic is not None:
        return b"authorization"
    return secret.header.partition(":")[0].lower().encode() if secret.header is not None else None


def _has_placeholder(secret: InjectedSecret, name: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    text = secret.placeholder.encode()
    return any(key == name and (text in value or text in (_basic_login(key, value) or b"")) for key, value in headers)


def _basic_login(name: bytes, value: bytes) -> bytes | None:
    """Return the decoded basic login: `user:password`."""
    scheme, _, encoded = value.strip().partition(b" ")
    if name not in (b"authorization", b"proxy-authorization") or scheme.lower() != b"basic":
        return None
    encoded = encoded.strip()
    if len(encoded) > _MAX_LOGIN:
        return None
    try:
        return base64.b64decode(encoded + b"=" * (-len(encoded) % 4), validate=True)
    except binascii.Error:
        return None


def _with_parameter(target: bytes, name: str, value: str) -> bytes:
    """Set the parameter, replacing all that the client sent under this name."""
    path, _, query = target.partition(b"?")
    kept = [part for part in query.split(b"&") if part and unquote_to_bytes(part.partition(b"=")[0]) != name.encode()]
    return path + b"?" + b"&".join([*kept, f"{name}={quote(value, safe='')}".encode()])
