"""A registry, asked over HTTP: manifests and blobs, with a login where it wants one.

Written on httpx: of the protocol, a pull needs four kinds of GET. A program that runs `skopeo` hears of no progress
within a layer, nothing is kept of one that broke off, and logins go into a file or its command line.
"""

from __future__ import annotations

import base64
import hashlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import httpx
import msgspec

from skerry._version import __version__
from skerry.errors import Denied, NotFound, RegistryFailed, SkerryError
from skerry.images.challenge import Challenge, parse_challenge
from skerry.images.manifests import INDEXES, MANIFESTS, lied
from skerry.types import Credentials, Reference
from skerry.types.references import HUB, is_loopback

SMALL_MOST: Final = 8 << 20  # a manifest, a configuration, a token
_HUB_HOST: Final = f"registry-1.{HUB}"
_REDIRECTS: Final = 5
_TRIES: Final = 3
_PAUSE_S: Final = 0.5
_ACCEPT: Final = ", ".join((*MANIFESTS, *INDEXES))


class Registry:
    """One repository of a registry, for one pull. Any number of threads may ask at once."""

    def __init__(
        self,
        reference: Reference,
        credentials: Credentials | None = None,
        *,
        insecure: bool = False,
        stall_s: float = 30.0,
        pause: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.reference = reference
        self._credentials = credentials
        self._plain_allowed = insecure or reference.local
        self._host = _HUB_HOST if reference.registry == HUB else reference.registry
        self._scheme = "https"
        self._pause = pause
        self._authorization: str | None = None
        self._login = threading.Lock()
        self._streams: set[Any] = set()  # httpcore's
        self._left = False
        self._http = httpx.Client(
            verify=_trust(insecure), timeout=httpx.Timeout(stall_s, connect=min(stall_s, 10.0)),
            headers={"User-Agent": f"skerry/{__version__}", "Accept-Encoding": "identity"},
            limits=httpx.Limits(max_connections=16),
            trust_env=not reference.local,  # no proxy is needed to this machine, and none could reach it
        )  # fmt: skip

    def close(self) -> None:
        self._http.close()

    def hang_up(self) -> None:
        """From any thread: whoever waits for a registry's next bytes waits no longer."""
        self._left = True
        for stream in list(self._streams):
            with suppress(OSError):  # past the TLS of it, whose state is another thread's
                socket.socket.shutdown(stream.get_extra_info("socket"), socket.SHUT_RDWR)

    def _connected(self, event: str, told: dict[str, Any]) -> None:
        """httpcore tells of each connection. One that comes after `hang_up` is as useless as those before."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._streams.add(told["return_value"])
            if self._left:
                self.hang_up()

    def manifest(self, which: str) -> tuple[str, str, bytes]:
        """Its media type, its digest, itself. One that was asked for by digest is that one."""
        with self._asked(f"manifests/{which}", {"Accept": _ACCEPT}) as response:
            data = self._small(response)
            kind = response.headers.get("content-type", "")
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if which.startswith("sha256:") and digest != which:
            raise lied(self.reference.registry, "the manifest", which, digest)
        if kind.startswith("text/html") or data.lstrip()[:1] == b"<":
            raise self._failed("html", "answered with a page of HTML", hint="is there a registry at that address?")
        return kind, digest, data

    def small_blob(self, digest: str) -> bytes:
        with self._asked(f"blobs/{digest}", {}) as response:
            data = self._small(response)
        if (found := f"sha256:{hashlib.sha256(data).hexdigest()}") != digest:
            raise lied(self.reference.registry, "the configuration", digest, found)
        return data

    @contextmanager
    def blob(self, digest: str, start: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """A blob's bytes from `start` on, or from 0 if the registry does not know how: told first. Unverified."""
        headers = {"Range": f"bytes={start}-"} if start else {}
        with self._asked(f"blobs/{digest}", headers) as response:
            came_from = response.headers.get("content-range", "").removeprefix("bytes ").partition("-")[0]
            resumed = response.status_code == httpx.codes.PARTIAL_CONTENT and came_from == str(start)
            if response.headers.get("content-type", "").startswith("text/html"):
                raise self._failed("html", "answered with a page of HTML in a layer's place")
            yield (start if resumed else 0), self._pieces(response)

    # -- asking -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _asked(self, path: str, headers: dict[str, str]) -> Iterator[httpx.Response]:
        response = self._answer(path, headers)
        try:
            yield response
        finally:
            response.close()

    def _answer(self, path: str, headers: dict[str, str]) -> httpx.Response:
        """A success, or an error that says what is wrong. What may pass is tried again."""
        used: str | None = None
        for attempt in range(_TRIES + 1):
            used = self._authorization
            response = self._follow(self._url(path), headers)
            if response.status_code == httpx.codes.UNAUTHORIZED and attempt < _TRIES:
                asked = response.headers.get("www-authenticate", "")
                response.close()
                self._log_in(asked, used)
                continue
            if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR and attempt < _TRIES - 1:
                response.close()
                self._pause(_PAUSE_S * 2**attempt)
                continue
            break
        if response.is_success:
            return response
        try:
            raise self._refusal(response, path)
        finally:
            response.close()

    def _follow(self, url: str, headers: dict[str, str]) -> httpx.Response:
        """With redirects, which is how registries send one to where blobs are; the login goes no further than to the
        registry itself."""
        home = urlsplit(url)
        for _ in range(_REDIRECTS + 1):
            here = urlsplit(url)
            mine = (here.scheme, here.netloc) == (home.scheme, home.netloc)
            login = {"Authorization": self._authorization} if mine and self._authorization else {}
            response = self._send("GET", url, headers={**headers, **login})
            if not response.has_redirect_location:
                return response
            response.close()
            try:
                url = urljoin(url, response.headers["location"])
                urlsplit(url)
            except ValueError:
                raise self._failed("malformed", "sends one to what is no address") from None
            if not self._may_ask(url):
                raise self._failed("refused", "sends one to an address without TLS")
        raise self._failed("refused", "sends one round in circles")

    def _send(self, method: str, url: str, **rest: Any) -> httpx.Response:
        if self._left:
            raise self._failed("unreachable", "is not asked any more")
        rest["extensions"] = {"trace": self._connected}
        try:
            try:
                return self._http.send(self._http.build_request(method, url, **rest), stream=True)
            except (httpx.ConnectError, httpx.ProxyError):
                # A registry on this machine, or one that the caller vouches for, may speak without TLS.
                if not (self._plain_allowed and url.startswith(f"https://{self._host}/")):
                    raise
                self._scheme = "http"
                url = "http" + url.removeprefix("https")
                return self._http.send(self._http.build_request(method, url, **rest), stream=True)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._broken(error) from None

    def _url(self, path: str) -> str:
        return f"{self._scheme}://{self._host}/v2/{self.reference.repository}/{path}"

    def _may_ask(self, url: str) -> bool:
        return url.startswith("https://") or (self._plain_allowed and url.startswith("http://"))

    def _may_tell(self, url: str) -> bool:
        """Whether a login may go there: over TLS, or to the very host that may be asked without."""
        try:
            host = urlsplit(url).hostname or ""
            own = urlsplit(f"//{self._host}").hostname
        except ValueError:
            return False
        return url.startswith("https://") or host == own or (self.reference.local and is_loopback(host))

    def _pieces(self, response: httpx.Response) -> Iterator[bytes]:
        try:
            yield from response.iter_raw()
        except httpx.HTTPError as error:
            raise self._broken(error) from None

    def _small(self, response: httpx.Response) -> bytes:
        data = b""
        for piece in self._pieces(response):
            data += piece
            if len(data) > SMALL_MOST:
                raise self._failed("malformed", f"sent more than {SMALL_MOST} bytes where a few were due")
        return data

    # -- logging in ---------------------------------------------------------------------------------------------------

    def _log_in(self, header: str, used: str | None) -> None:
        """Once for all threads: whoever comes second finds that it was done."""
        with self._login:
            if self._authorization != used:
                return
            challenge = parse_challenge(header)
            if challenge is None:
                raise self._needs_login("wants a login of a kind that is not known here")
            if challenge.scheme == "basic":
                if self._credentials is None or used is not None:
                    raise self._needs_login()
                self._authorization = self._basic(self._credentials)
            else:
                if used is not None and not used.startswith("Bearer"):
                    raise self._needs_login()
                fresh = f"Bearer {self._token(challenge)}"
                if fresh == used:
                    raise self._needs_login()
                self._authorization = fresh

    def _token(self, challenge: Challenge) -> str:
        if not self._may_ask(challenge.realm) or (self._credentials and not self._may_tell(challenge.realm)):
            raise self._failed("refused", "wants the login at an address without TLS")
        scope = challenge.scope or f"repository:{self.reference.repository}:pull"
        form = {"service": challenge.service, "scope": scope}
        known = self._credentials
        if known is not None and known.identity_token:
            form |= {"grant_type": "refresh_token", "refresh_token": known.identity_token, "client_id": "skerry"}
            response = self._send("POST", challenge.realm, data=form)
        else:
            headers = {"Authorization": self._basic(known)} if known is not None else {}
            response = self._send("GET", challenge.realm, params=form, headers=headers)
        try:
            if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN, httpx.codes.BAD_REQUEST):
                raise self._needs_login()
            if not response.is_success:
                raise self._failed("refused", f"gave no token: {response.status_code}")
            told = msgspec.json.decode(self._small(response), type=_Token)
        except msgspec.MsgspecError:
            raise self._failed("malformed", "gave a token that can't be read") from None
        finally:
            response.close()
        token = told.token or told.access_token
        if not token or not token.isascii() or not token.isprintable():
            raise self._failed("malformed", "gave a token that can't be read")
        return token

    def _basic(self, known: Credentials) -> str:
        return "Basic " + base64.b64encode(f"{known.username}:{known.password}".encode()).decode()

    # -- what went wrong ----------------------------------------------------------------------------------------------

    def _refusal(self, response: httpx.Response, path: str) -> SkerryError:
        status = response.status_code
        if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            return self._needs_login()
        if status == httpx.codes.NOT_FOUND:
            what = f"no {self.reference}" if path.startswith("manifests/") else f"not all of {self.reference}"
            return NotFound(f"{self.reference.registry} has {what}", details={"image": str(self.reference)})
        if status == httpx.codes.TOO_MANY_REQUESTS:
            return self._failed("busy", "says that it was asked too often", hint="wait, or log in")
        if status >= httpx.codes.INTERNAL_SERVER_ERROR:
            return self._failed("busy", f"fails itself ({status})", hint="try again later")
        return self._failed("refused", f"refused ({status})")

    def _needs_login(self, why: str = "") -> Denied:
        said = why or ("takes not this login" if self._credentials is not None else "wants a login")
        return Denied(
            f"{self.reference.registry} {said} for {self.reference.repository}, or has no such image",
            hint=f"`docker login {self.reference.registry}`, or `skerry image pull --username NAME --password-stdin`",
            details={"registry": self.reference.registry},
        )

    def _broken(self, error: Exception) -> RegistryFailed:
        if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
            return self._failed("stalled", "sent nothing for too long", hint="pull again: it goes on where it was")
        return self._failed("unreachable", f"can't be reached: {error or type(error).__name__}")

    def _failed(self, reason: str, what: str, hint: str | None = None) -> RegistryFailed:
        details = {"reason": reason, "registry": self.reference.registry}
        return RegistryFailed(f"{self.reference.registry} {what}", hint=hint, details=details)


class _Token(msgspec.Struct, frozen=True):
    token: str = ""
    access_token: str = ""


def _trust(insecure: bool) -> ssl.SSLContext:
    """The host's own certificates, or those that SSL_CERT_FILE and SSL_CERT_DIR name."""
    context = ssl.create_default_context()
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
