"""The broker of a sign-in: answers an agent's requests to its token endpoint, outside of the sandbox.

The tokens are in the user's store and, for the hosts of the service, the access token in a secret of the sandbox. The
agent gets the placeholder of that secret. Only this program talks to the token endpoint.
"""

from __future__ import annotations

import hmac
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from skerry.client.agents.descriptor import KitCredential, KitOauth
from skerry.client.agents.oauth import (
    ENDED,
    REFRESH,
    OauthRefused,
    SignIn,
    encode,
    error_answer,
    exchange_body,
    read_answer,
    read_error,
    read_request,
    refresh_body,
    refresh_sentinel,
    sentinel_answer,
)
from skerry.client.secret_store import NewSignIn, UserSecrets
from skerry.errors import InvalidRequest, SkerryError
from skerry.types import HttpRequest, HttpResponse

MAX_ANSWER: Final = 256 << 10
READ_TIMEOUT_S: Final = 10.0
TIMEOUT_S: Final = 25.0  # of one request to the token endpoint
HANDLER_TIMEOUT_S: Final = 90.0  # a request may wait for those of other programs with the same sign-in
_EXPECTED: Final = ("authorization_pending", "slow_down", "unsupported_grant_type")  # no news for the user
FRESH_S: Final = 60.0  # a sign-in of this age was just refreshed for another sandbox


@dataclass(frozen=True)
class SignInService:
    """A service that a kit lets the user sign in to."""

    name: str
    oauth: KitOauth
    endpoint: str
    hosts: tuple[str, ...]
    paths: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        """Return the variable inside that has the placeholder."""
        return f"SKERRY_SIGN_IN_{self.name.upper().replace('-', '_')}"

    @property
    def host(self) -> str:
        return self.oauth.token_endpoint.host if self.oauth.token_endpoint is not None else ""

    @property
    def rules(self) -> tuple[str, ...]:
        """Return the rules of the network policy that a sign-in needs."""
        own = self.oauth.token_endpoint.path if self.oauth.token_endpoint is not None else ""
        return tuple(f"POST {self.host}{path}" for path in (own, *self.paths))


def service_of(credential: KitCredential, paths: tuple[str, ...]) -> SignInService:
    """Return the service of a credential. Raise InvalidRequest if its sign-in is not supported."""
    oauth, name = credential.oauth, credential.service
    if oauth is None or oauth.token_endpoint is None:
        raise InvalidRequest(f"{name}: the kit names no token endpoint for a sign-in")
    if oauth.passthrough:
        raise InvalidRequest(f"{name}: the kit wants the tokens of the sign-in in the sandbox (passthrough)")
    if oauth.credential_file is not None and oauth.credential_file.format != "json":
        raise InvalidRequest(f"{name}: its credential file is not JSON: not supported")
    if not credential.resource_hosts:
        raise InvalidRequest(f"{name}: no host gets the access token of a sign-in")
    return SignInService(name, oauth, oauth.token_endpoint.url, credential.resource_hosts, paths)


def load_sign_in(service: SignInService) -> SignIn | None:
    """Return the stored sign-in. One of other places is an error: its tokens must not be sent to those of this kit."""
    return _decode(service, UserSecrets().sign_in(service.name))


def _decode(service: SignInService, text: str | None) -> SignIn | None:
    if text is None:
        return None
    try:
        found = msgspec.json.decode(text, type=SignIn)
    except msgspec.MsgspecError:
        raise InvalidRequest(
            f"the stored sign-in of {service.name} is damaged", hint=f"skerry secret rm {service.name}"
        ) from None
    if found.endpoint != service.endpoint or set(found.hosts) != set(service.hosts):
        raise InvalidRequest(
            f"the stored sign-in of {service.name} is for {found.endpoint} and {', '.join(found.hosts)}",
            hint=f"this agent names other hosts for {service.name}: it does not get that sign-in. "
            f"skerry secret rm {service.name} removes it",
        )
    return found


class SignInBroker:
    """Answers the requests of one sandbox. `sentinel`: the placeholder inside. `push`: gives the sandbox's secret a new
    value. `note`: shows the user a message. `may_sign_in`: the user has asked for a sign-in, so that one is accepted;
    otherwise a program inside could replace the user's sign-in by another one."""

    def __init__(
        self, service: SignInService, sentinel: str, push: Callable[[str], None], note: Callable[[str], None],
        *, may_sign_in: bool, pushed: str | None = None,
    ) -> None:  # fmt: skip
        self._service, self._sentinel, self._push, self._note = service, sentinel, push, note
        self._may_sign_in, self._pushed = may_sign_in, pushed
        self._turn = threading.Lock()

    def handle(self, request: HttpRequest) -> HttpResponse | None:
        """Return the answer to a request to the host of the token endpoint; None: it passes unchanged."""
        with self._turn:
            try:
                return self._handle(request)
            except OauthRefused as refused:
                if refused.error not in _EXPECTED:
                    self._note(f"{self._service.name}: {refused}")
                return refused.answer
            except SkerryError as error:
                self._note(f"{self._service.name}: {error.message}")
            except Exception as error:  # its words may have a token
                self._note(f"{self._service.name}: the request of the agent failed: {type(error).__name__}")
            return error_answer(503, "temporarily_unavailable", "skerry: the request failed outside")

    def _handle(self, request: HttpRequest) -> HttpResponse | None:
        service = self._service
        root = service.endpoint[: service.endpoint.index("/", len("https://"))]
        if request.url != service.endpoint:
            passes = request.method == "POST" and request.url in [f"{root}{path}" for path in service.paths]
            return None if passes else error_answer(403, "access_denied", "skerry: only a sign-in passes to this host")
        if request.method != "POST":
            return error_answer(405, "invalid_request", "skerry: a token request is a POST")
        given = read_request(request.header("Content-Type"), request.header("Content-Encoding"), request.body or b"")
        if given.grant == REFRESH:
            sentinel = refresh_sentinel(self._sentinel)
            if not hmac.compare_digest(given.fields.get(REFRESH, "").encode(), sentinel.encode()):
                raise OauthRefused("the refresh token is not the placeholder of this sandbox", "invalid_grant")
            return sentinel_answer(self.refreshed(), self._sentinel, service.oauth)
        if not self._may_sign_in:
            raise OauthRefused(
                "a program in the sandbox began a sign-in that you did not ask for; skerry agent --sign-in allows one",
                "access_denied", 403,
            )  # fmt: skip
        fields = exchange_body(given)
        body = post(service.endpoint, fields, as_json=given.as_json)
        found = self._read(body, fields["client_id"], as_json=given.as_json)
        answer = sentinel_answer(found, self._sentinel, service.oauth)
        UserSecrets().change_sign_in(service.name, lambda _: _stored(found))
        self._may_sign_in = False
        self._give(found)
        named = f" as {found.user}" if found.user is not None else ""
        self._note(f"{service.name}: signed in{named}; the tokens are outside of the sandbox, in your store")
        return answer

    def refreshed(self, *, at_least_s: float | None = None) -> SignIn:
        """Refresh the sign-in, unless another sandbox has done so, and give its access token to this sandbox.
        `at_least_s`: only if it ends within this time. Raise OauthRefused without one that is valid."""
        found: list[SignIn] = []

        def change(text: str | None) -> NewSignIn | None:
            before = _decode(self._service, text)
            if before is None:
                raise OauthRefused(f"no sign-in of {self._service.name} is stored", "invalid_grant")
            if self._is_current(before, at_least_s):
                found.append(before)
                return None
            if before.refresh is None:
                raise OauthRefused("the sign-in has ended, and cannot be refreshed", "invalid_grant")
            body = post(self._service.endpoint, refresh_body(before), as_json=before.as_json)
            after = self._read(body, before.client_id, as_json=before.as_json, before=before)
            found.append(after)
            return _stored(after)

        try:
            UserSecrets().change_sign_in(self._service.name, change)
        except OauthRefused as refused:
            if refused.error in ENDED:
                again = f"sign in again: skerry agent AGENT --sign-in, or skerry secret rm {self._service.name}"
                raise OauthRefused(f"{refused}; {again}", refused.error, refused.status) from None
            raise
        self._give(found[0])
        return found[0]

    def _is_current(self, sign_in: SignIn, at_least_s: float | None) -> bool:
        now, ends = time.time(), sign_in.expires_at
        if at_least_s is not None:
            return ends is None or ends > now + at_least_s
        if ends is not None and ends <= now:
            return False
        elsewhere = self._pushed is not None and sign_in.access != self._pushed
        return elsewhere or 0 <= now - sign_in.obtained_at < FRESH_S

    def _read(self, body: bytes, client_id: str, *, as_json: bool, before: SignIn | None = None) -> SignIn:
        service = self._service
        return read_answer(
            body, service.oauth.response_fields, endpoint=service.endpoint, hosts=service.hosts, client_id=client_id,
            as_json=as_json, before=before,
        )  # fmt: skip

    def _give(self, sign_in: SignIn) -> None:
        if sign_in.access != self._pushed:
            self._push(sign_in.access)
            self._pushed = sign_in.access


def _stored(sign_in: SignIn) -> NewSignIn:
    return NewSignIn(sign_in.hosts, msgspec.json.encode(sign_in).decode("ascii"), sign_in.expires_at)


def post(url: str, fields: Mapping[str, str], *, as_json: bool) -> bytes:
    """Send a request to a token endpoint; return the body of its answer. Redirects are not followed. Raise
    OauthRefused without a whole answer of a bounded size and time."""
    import httpx2

    kind, body = encode(fields, as_json=as_json)
    headers = {"Content-Type": kind, "Accept": "application/json", "Accept-Encoding": "identity"}
    ends_at, data = time.monotonic() + TIMEOUT_S, bytearray()
    try:
        with (
            httpx2.Client(
                verify=ssl.create_default_context(), timeout=READ_TIMEOUT_S, follow_redirects=False
            ) as client,
            client.stream("POST", url, content=body, headers=headers) as response,
        ):
            if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
                raise OauthRefused("the answer of the token endpoint is compressed", "server_error", 502)
            for piece in response.iter_raw():
                data += piece
                if len(data) > MAX_ANSWER or time.monotonic() > ends_at:
                    raise OauthRefused("the answer of the token endpoint is too long or too slow", "server_error", 502)
            status = response.status_code
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        raise OauthRefused(
            f"the token endpoint could not be reached: {type(error).__name__}", "temporarily_unavailable", 503
        ) from None
    if status != 200:
        raise read_error(status, bytes(data))
    return bytes(data)
