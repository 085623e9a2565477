"""The messages of an OAuth sign-in: requests and answers of a token endpoint, and their form inside of a sandbox. Pure.

Everything is parsed strictly and built again from known fields: a request to the endpoint has no byte of the sandbox
beside those fields, and an answer to the sandbox has no token. What cannot be understood is refused.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

import msgspec

from skerry.client.agents.descriptor import KitOauth, KitResponseFields
from skerry.types import HttpResponse

MAX_REQUEST: Final = 64 << 10
MAX_TOKEN: Final = 10 << 10
MAX_FIELD: Final = 4 << 10
MAX_TEXT: Final = 256
CODE: Final = "authorization_code"
DEVICE: Final = "urn:ietf:params:oauth:grant-type:device_code"
REFRESH: Final = "refresh_token"
# The fields of a request that are sent on. All others are dropped.
_SENT: Final[Mapping[str, tuple[str, ...]]] = {
    CODE: ("grant_type", "code", "redirect_uri", "client_id", "code_verifier", "state"),
    DEVICE: ("grant_type", "device_code", "client_id"),
}
_ERRORS: Final = frozenset({
    "invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type",
    "invalid_scope", "access_denied", "authorization_pending", "slow_down", "expired_token", "server_error",
    "temporarily_unavailable", "refresh_token_expired", "refresh_token_reused", "refresh_token_invalidated",
})  # fmt: skip
ENDED: Final = frozenset({"invalid_grant", *(one for one in _ERRORS if one.startswith("refresh_token_"))})
_TOKEN: Final = re.compile(rf"[\x21-\x7e]{{8,{MAX_TOKEN}}}")
_TEXT: Final = re.compile(rf"[\x20-\x7e]{{1,{MAX_TEXT}}}")
_CODE: Final = re.compile(rf"[\x20-\x7e]{{1,{MAX_FIELD}}}")
# Of an identity token: names of the user, and nothing that is a credential or leads to one.
_CLAIMS: Final = frozenset({"iss", "sub", "aud", "exp", "iat", "email", "email_verified", "name"})
_NAMESPACED: Final = re.compile(r"https://[a-z0-9.-]{1,80}/[a-z]{1,20}")
_INNER_CLAIMS: Final = frozenset({
    "chatgpt_plan_type", "chatgpt_user_id", "chatgpt_account_id", "chatgpt_account_is_fedramp", "user_id", "email",
})  # fmt: skip
_SHOWN: Final = ("account", "organization")  # of an answer: names of the user
_PIECE: Final = 16  # characters of a token that no answer to a sandbox contains


class OauthRefused(Exception):
    """A message that is not passed on. `answer` is for the program in the sandbox."""

    def __init__(self, why: str, error: str = "invalid_request", status: int = 400) -> None:
        super().__init__(why)
        self.error, self.status = error, status

    @property
    def answer(self) -> HttpResponse:
        return error_answer(self.status, self.error, f"skerry: {self}")


class SignIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sign-in as the store has it. `endpoint` and `hosts`: the only places that its tokens may be sent to. `claims`:
    of the identity token, without its signature. `as_json`: the form of requests that the endpoint reads."""

    version: int = 1
    endpoint: str
    hosts: tuple[str, ...]
    client_id: str
    as_json: bool
    access: str
    refresh: str | None = None
    expires_at: float | None = None
    obtained_at: float = 0.0
    scope: str = ""
    claims: dict[str, Any] | None = None
    shown: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"SignIn(endpoint={self.endpoint!r})"

    @property
    def tokens(self) -> tuple[str, ...]:
        return (self.access,) if self.refresh is None else (self.access, self.refresh)

    @property
    def user(self) -> str | None:
        """Return the name of the user, as the endpoint gave it."""
        account = self.shown.get("account") or {}
        found = (self.claims or {}).get("email") or account.get("email_address") or account.get("email")
        return found if isinstance(found, str) else None


class TokenRequest(msgspec.Struct, frozen=True):
    """A request to a token endpoint, from inside."""

    grant: str
    fields: dict[str, str]
    as_json: bool

    def __repr__(self) -> str:
        return f"TokenRequest(grant={self.grant!r})"


# -- requests ---------------------------------------------------------------------------------------------------------


def read_request(content_type: str | None, encoding: str | None, body: bytes) -> TokenRequest:
    """Parse a request. Raise OauthRefused for one that is not understood."""
    if encoding is not None or len(body) > MAX_REQUEST:
        raise OauthRefused("the request is compressed or too long")
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind == "application/json":
        found = _json_object(body)
        fields = {name: str(value) for name, value in found.items() if isinstance(value, str | int)}
    elif kind == "application/x-www-form-urlencoded":
        fields = _form(body)
    else:
        raise OauthRefused("the request is neither a form nor JSON")
    grant = fields.get("grant_type", "")
    if grant not in (*_SENT, REFRESH):
        raise OauthRefused("this kind of request is not brokered", "unsupported_grant_type")
    return TokenRequest(grant, fields, kind == "application/json")


def _json_object(body: bytes) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError
        return dict(pairs)

    try:
        found = json.loads(body, object_pairs_hook=once)
    except (ValueError, RecursionError):
        raise OauthRefused("not JSON, or with a name twice") from None
    if not isinstance(found, dict):
        raise OauthRefused("not a JSON object")
    return found


def _form(body: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, strict_parsing=True, max_num_fields=40)
    except (ValueError, UnicodeDecodeError):
        raise OauthRefused("not a form") from None
    if len(dict(pairs)) != len(pairs):
        raise OauthRefused("a form with a name twice")
    return dict(pairs)


def exchange_body(request: TokenRequest) -> dict[str, str]:
    """Return the fields of a code's or a device's request that are sent on."""
    fields = {name: request.fields[name] for name in _SENT[request.grant] if name in request.fields}
    if not all(map(_CODE.fullmatch, fields.values())) or "client_id" not in fields:
        raise OauthRefused("a field is missing, too long or not plain text")
    return fields


def refresh_body(sign_in: SignIn) -> dict[str, str]:
    """Return the fields of a refresh. None of them comes from the sandbox; without a scope it stays the same."""
    return {"grant_type": REFRESH, REFRESH: sign_in.refresh or "", "client_id": sign_in.client_id}


def encode(fields: Mapping[str, str], *, as_json: bool) -> tuple[str, bytes]:
    """Return the Content-Type and the body of a request."""
    if as_json:
        return "application/json", json.dumps(fields).encode()
    return "application/x-www-form-urlencoded", urlencode(fields).encode()


# -- answers ----------------------------------------------------------------------------------------------------------


def read_answer(
    body: bytes, fields: KitResponseFields, *, endpoint: str, hosts: tuple[str, ...], client_id: str, as_json: bool,
    before: SignIn | None = None,
) -> SignIn:  # fmt: skip
    """Parse the answer to a successful request. `before`: the sign-in that is refreshed. Raise OauthRefused for an
    answer that is not understood."""
    try:
        found = _json_object(body)
    except OauthRefused as refused:
        raise _bad_answer(str(refused)) from None
    access, refresh = found.get(fields.access_token), found.get(fields.refresh_token)
    if not (isinstance(access, str) and _TOKEN.fullmatch(access)):
        raise _bad_answer("its access token is missing or not a token")
    if refresh is not None and not (isinstance(refresh, str) and _TOKEN.fullmatch(refresh)):
        raise _bad_answer("its refresh token is not a token")
    if str(found.get("token_type", "bearer")).lower() != "bearer":
        raise _bad_answer("it gives tokens of another type")
    lifetime, now = _number(found.get(fields.expires_in)), time.time()
    claims = _claims(found.get("id_token"))
    scope = found.get("scope")
    shown = {name: _plain(found[name]) for name in _SHOWN if isinstance(found.get(name), dict)}
    made = SignIn(
        endpoint=endpoint, hosts=hosts, client_id=client_id, as_json=as_json, access=access,
        refresh=refresh if refresh is not None else before.refresh if before is not None else None,
        expires_at=None if lifetime is None else now + lifetime, obtained_at=now,
        scope=scope if isinstance(scope, str) and _TEXT.fullmatch(scope) else before.scope if before else "",
        claims=claims if claims is not None else before.claims if before is not None else None,
        shown=shown or (before.shown if before is not None else {}),
    )  # fmt: skip
    _check_no_token((*made.tokens, *(before.tokens if before is not None else ())), made)
    return made


def _check_no_token(tokens: tuple[str, ...], sign_in: SignIn) -> None:
    """Raise if a text that the sandbox will see has a piece of a token: an endpoint may give one in another field."""
    text = json.dumps([sign_in.shown, sign_in.claims, sign_in.scope])
    for token in tokens:
        size = min(_PIECE, len(token))
        if any(token[at : at + size] in text for at in range(len(token) - size + 1)):
            raise _bad_answer("another field of it has a token")


def _bad_answer(why: str) -> OauthRefused:
    return OauthRefused(f"the answer of the token endpoint cannot be used: {why}", "server_error", 502)


def _number(value: Any) -> float | None:
    """Return a lifetime in seconds, of at most ten years."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 315_360_000:
        return None
    return float(value)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the short texts of an object."""
    kept = {name: one for name, one in values.items() if isinstance(one, str) and _TEXT.fullmatch(one)}
    return {name: one for name, one in list(kept.items())[:16] if re.fullmatch(r"[a-z_]{1,40}", name)}


def _claims(token: Any) -> dict[str, Any] | None:
    """Return the harmless claims of an identity token."""
    parts = token.split(".") if isinstance(token, str) and len(token) <= 4 * MAX_TOKEN else []
    if len(parts) != 3:
        return None
    try:
        found = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError, binascii.Error):
        return None
    if not isinstance(found, dict):
        return None
    kept = {name: one for name, one in found.items() if name in _CLAIMS and _is_scalar(one)}
    for name, inner in list(found.items())[:64]:
        if isinstance(inner, dict) and _NAMESPACED.fullmatch(name):
            kept[name] = {key: one for key, one in inner.items() if key in _INNER_CLAIMS and _is_scalar(one)}
    return kept


def _is_scalar(value: Any) -> bool:
    if isinstance(value, str):
        return _TEXT.fullmatch(value) is not None
    return isinstance(value, bool | int) and abs(value) < 2**53


def read_error(status: int, body: bytes) -> OauthRefused:
    """Return the error that an endpoint answered, reduced to a known word."""
    try:
        found: Any = _json_object(body).get("error")
    except OauthRefused:
        found = None
    if isinstance(found, dict):
        found = found.get("code") or found.get("type")
    word = found if isinstance(found, str) and found in _ERRORS else None
    if word is None:
        word = "invalid_grant" if status in (400, 401, 403) else "temporarily_unavailable"
        return OauthRefused(f"the token endpoint answered {status}", word, status if status in (400, 401, 403) else 502)
    return OauthRefused(f"the token endpoint answered {word}", word, status if 400 <= status < 500 else 502)


# -- for the sandbox --------------------------------------------------------------------------------------------------


def refresh_sentinel(sentinel: str) -> str:
    """Return the text in place of a refresh token. It contains the placeholder, and is stopped where that one is."""
    return f"{sentinel}-refresh"


def sentinel_answer(sign_in: SignIn, sentinel: str, oauth: KitOauth) -> HttpResponse:
    """Return the answer for the program in the sandbox: as the endpoint's, with placeholders for tokens."""
    names = oauth.response_fields
    answer: dict[str, Any] = {"token_type": "Bearer", **sign_in.shown}
    if sign_in.expires_at is not None:
        answer[names.expires_in] = max(0, int(sign_in.expires_at - time.time()))
    if sign_in.scope:
        answer["scope"] = sign_in.scope
    if sign_in.claims is not None:
        answer["id_token"] = identity_sentinel(sign_in.claims)
    if sign_in.refresh is not None:
        answer[names.refresh_token] = refresh_sentinel(sentinel)
    answer[names.access_token] = sentinel
    return json_answer(200, answer)


def identity_sentinel(claims: Mapping[str, Any]) -> str:
    """Return a text of the shape of an identity token: these claims, without a valid signature."""
    parts = ({"alg": "RS256", "typ": "JWT"}, claims)
    encoded = [json.dumps(part, separators=(",", ":")).encode() for part in parts]
    return ".".join(base64.urlsafe_b64encode(one).decode().rstrip("=") for one in (*encoded, b"skerry-no-signature"))


def credential_fields(sign_in: SignIn, sentinel: str) -> dict[str, Any]:
    """Return the values of a credential file's placeholders."""
    claims = sign_in.claims or {}
    inner = [one for one in claims.values() if isinstance(one, dict)]
    ends = sign_in.expires_at
    obtained = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(sign_in.obtained_at))
    return {
        "{{.AccessToken}}": sentinel,
        "{{.RefreshToken}}": refresh_sentinel(sentinel) if sign_in.refresh is not None else None,
        "{{.ExpiresAt}}": None if ends is None else int(ends * 1000),
        "{{.Scopes}}": sign_in.scope.split() or None,
        "{{.PrimaryApiKey}}": None,
        "{{.IDToken}}": identity_sentinel(claims) if sign_in.claims is not None else None,
        "{{.AccountID}}": next((one["chatgpt_account_id"] for one in inner if "chatgpt_account_id" in one), None),
        "{{.RefreshedAt}}": obtained,
    }


def credential_file(structure: Mapping[str, Any], sign_in: SignIn, sentinel: str) -> str:
    """Return the content of a credential file, as JSON."""
    values = credential_fields(sign_in, sentinel)

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            pairs = {key: filled(one) for key, one in value.items()}
            return {key: one for key, one in pairs.items() if one is not None or value[key] is None}
        if isinstance(value, list):
            return [filled(one) for one in value]
        return values.get(value, value) if isinstance(value, str) else value

    return json.dumps(filled(structure), indent=2) + "\n"


def json_answer(status: int, content: Mapping[str, Any]) -> HttpResponse:
    headers = (("Content-Type", "application/json"), ("Cache-Control", "no-store"))
    return HttpResponse(status=status, headers=headers, body=json.dumps(content).encode())


def error_answer(status: int, error: str, why: str) -> HttpResponse:
    return json_answer(status, {"error": error, "error_description": why})
