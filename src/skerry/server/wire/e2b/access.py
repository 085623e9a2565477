"""The target and the caller of a request: an API key for the control plane; an access token, or a signature of a file's
URL, for one sandbox."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from skerry.codecs.api_keys import token_of
from skerry.engine.tokens import Tokens
from skerry.errors import InvalidRequest
from skerry.server.http.call import Headers
from skerry.server.http.decode import MAX_PARAMETERS
from skerry.server.http.responses import Unauthenticated
from skerry.server.wire.e2b.errors import BadAccessToken
from skerry.types import NAME, Caller

if TYPE_CHECKING:
    from skerry.engine.sandboxes.registry import SandboxRegistry

ENVD_PORT: Final = 49983
CODE_PORT: Final = 49999
MAX_SIGNERS: Final = 500  # compared for one request that is not authenticated yet: some milliseconds
_HOST: Final = re.compile(r"([0-9]{1,5})-([a-z0-9][a-z0-9-]{0,62})\.(.+)")
_USE: Final = "e2b.envd"
_TRAFFIC: Final = "e2b.traffic"
_VOLUME: Final = "e2b.volume"


@dataclass(frozen=True)
class SandboxPort:
    """A port of a sandbox. The signature of a URL without a host name finds its `sandbox`."""

    sandbox: str | None
    port: int


def target_of(headers: Headers, path: str, query: bytes, domain: str | None) -> SandboxPort | None:
    """Return the port of a sandbox that a request is for; None: the control plane."""
    named = named_by_host(headers, domain)
    if (sandbox := headers.get(b"e2b-sandbox-id")) is not None:
        port = headers.get(b"e2b-sandbox-port") or str(named.port if named is not None else ENVD_PORT)
        if not NAME.fullmatch(sandbox) or not re.fullmatch(r"[0-9]{1,5}", port):
            raise InvalidRequest("E2b-Sandbox-Id, E2b-Sandbox-Port: not a sandbox and a port")
        if named is not None and named.sandbox != sandbox:  # a proxy in front may trust the host name
            raise InvalidRequest("E2b-Sandbox-Id and the host name are of different sandboxes")
        if named is not None and named.port != _port(port):
            raise InvalidRequest("E2b-Sandbox-Port and the host name are of different ports")
        return SandboxPort(sandbox, _port(port))
    if named is not None:
        return named
    if (token := headers.get(b"x-access-token")) is not None and NAME.fullmatch(token.partition(".")[0]):
        return SandboxPort(token.partition(".")[0], ENVD_PORT)  # old SDKs leave the headers out after `connect`
    if path == "/files" and b"signature=" in query:
        return SandboxPort(None, ENVD_PORT)
    return None


def named_by_host(headers: Headers, domain: str | None) -> SandboxPort | None:
    """Return the target of a host name `PORT-SANDBOX.DOMAIN`."""
    host = (headers.get(b"host") or "").lower().partition(":")[0]
    match = _HOST.fullmatch(host) if domain is not None else None
    return SandboxPort(match[2], _port(match[1])) if match is not None and match[3] == domain else None


def _port(text: str) -> int:
    port = int(text)
    if not 1 <= port <= 65535:
        raise InvalidRequest(f"{port} is not a port")
    return port


def api_caller(tokens: Tokens, headers: Headers) -> Caller:
    """Return the caller of the control plane. An API key of E2B is a token of this server, in either form."""
    key = headers.get(b"x-api-key")
    if key is None:
        kind, _, key = (headers.get(b"authorization") or "").partition(" ")
        key = key if kind.lower() == "bearer" else None
    caller = tokens.authenticate(token_of(key.strip())) if key is not None else None
    if caller is None:
        raise Unauthenticated(
            "unknown API key" if key else "an API key is required",
            hint="E2B_API_KEY is a token of this server: `skerry token create --e2b`",
        )
    return caller


def upload_caller(tokens: Tokens, use: str, query: bytes) -> Caller:
    """Return the caller of a URL that an archive is sent to. Its token is valid for this URL only."""
    values = _values(query)
    caller = tokens.redeem_derived(values.get("token", ""), use)
    if caller is None:
        raise BadAccessToken("invalid token of an upload")
    return caller


def access_tokens(tokens: Tokens, caller: Caller, sandbox: str) -> tuple[str, str]:
    """Return the access tokens of a sandbox for a caller: for envd, and for its other ports."""
    envd, traffic = (tokens.derive(caller, f"{use}:{sandbox}") for use in (_USE, _TRAFFIC))
    return f"{sandbox}.{envd}", f"{sandbox}.{traffic}"


def volume_token(tokens: Tokens, caller: Caller, volume: str) -> str:
    """Return the token for the files of a volume."""
    return f"{volume}.{tokens.derive(caller, f'{_VOLUME}:{volume}')}"


def volume_caller(tokens: Tokens, headers: Headers, volume: str) -> Caller:
    """Return the caller of a request for the files of a volume."""
    kind, _, token = (headers.get(b"authorization") or "").partition(" ")
    named, _, secret = token.strip().partition(".")
    caller = None
    if kind.lower() == "bearer" and named == volume:
        caller = tokens.redeem_derived(secret, f"{_VOLUME}:{volume}")
    if caller is None:
        raise BadAccessToken("invalid token of a volume")
    return caller


def sandbox_caller(tokens: Tokens, headers: Headers, target: SandboxPort) -> Caller | None:
    """Return the caller of a request for a sandbox; None: it has no access token."""
    given = headers.get(b"x-access-token")
    uses = [_USE]
    if target.port != ENVD_PORT:
        uses.append(_TRAFFIC)
        given = headers.get(b"e2b-traffic-access-token") or given
    if given is None or target.sandbox is None:
        return None
    sandbox, _, secret = given.partition(".")
    for use in uses:
        caller = tokens.redeem_derived(secret, f"{use}:{sandbox}") if sandbox == target.sandbox else None
        if caller is not None:
            return caller
    raise BadAccessToken("unauthorized access, please provide a valid access token or method signing if supported")


def signed(
    tokens: Tokens, registry: SandboxRegistry, sandbox: str | None, method: str, query: bytes
) -> tuple[Caller, str]:
    """Return the caller and the sandbox of a signed file URL. The signature names neither, so it is compared with that
    of every token that sees the sandbox, or any sandbox."""
    values = _values(query)
    signature, expires = values.get("signature", ""), values.get("signature_expiration")
    if expires is not None and not re.fullmatch(r"[0-9]{1,12}", expires):
        raise BadAccessToken("invalid signature expiration")
    operation = "read" if method in ("GET", "HEAD") else "write"
    found = registry.get(sandbox) if sandbox is not None else None
    searched = (found,) if found is not None else registry if sandbox is None else ()
    signers = ((one, caller) for one in searched for caller in tokens.callers() if one.record.is_seen_by(caller))
    for number, (one, caller) in enumerate(signers):
        if sandbox is None and number == MAX_SIGNERS:
            raise BadAccessToken("too many tokens to find the sandbox of a signature: name it by E2b-Sandbox-Id")
        token, _ = access_tokens(tokens, caller, one.record.id)
        words = [values.get("path", ""), operation, values.get("username", ""), token]
        if hmac.compare_digest(_signature([*words, *([expires] if expires else [])]), signature.encode()):
            if expires is not None and int(expires) < time.time():
                raise BadAccessToken("signature is already expired")
            return caller, one.record.id
    raise BadAccessToken("invalid signature")


def _values(query: bytes) -> dict[str, str]:
    """Return the parameters of a URL. The handler decodes the same bytes, so a parameter may occur once only, and
    bytes that are not UTF-8 stay the same."""
    try:
        pairs = parse_qsl(query.decode("ascii"), errors="surrogateescape", max_num_fields=MAX_PARAMETERS)
    except ValueError as error:
        raise BadAccessToken("the query string cannot be read") from error
    values = dict(pairs)
    if len(values) != len(pairs):
        raise BadAccessToken("a parameter of the URL is given twice")
    return values


def _signature(words: list[str]) -> bytes:
    digest = hashlib.sha256(":".join(words).encode("utf-8", "surrogateescape")).digest()
    return b"v1_" + base64.b64encode(digest).rstrip(b"=")
