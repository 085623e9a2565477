"""A registry client over HTTP: manifests and blobs, with a login if required.

Built on httpx2: a pull needs four kinds of GET. Running `skopeo` instead would give no progress within a layer, keep
nothing of an interrupted layer, and put logins into a file or on its command line.
"""

from __future__ import annotations

import base64
import hashlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import httpx2
import msgspec

from skerry._version import __version__
from skerry.codecs import h11_headers
from skerry.errors import NotFound, PermissionDenied, RegistryError, SkerryError
from skerry.images.registry.host_config import RegistryEndpoint, trust
from skerry.images.registry.manifests import INDEXES, MANIFESTS, mismatch
from skerry.types import Credentials, Reference
from skerry.types.references import HUB, is_loopback

MAX_SMALL: Final = 8 << 20  # a manifest, a configuration, a token
_HUB_HOST: Final = f"registry-1.{HUB}"
_REDIRECTS: Final = 5
_TRIES: Final = 3
_PAUSE_S: Final = 0.5
_MAX_RETRY_AFTER_S: Final = 60.0
_ACCEPT: Final = ", ".join((*MANIFESTS, *INDEXES))

h11_headers.harden()


class Registry:
    """One repository of a registry, for one pull. Any number of threads may call."""

    def __init__(
        self,
        reference: Reference,
        credentials: Credentials | None = None,
        *,
        endpoint: RegistryEndpoint | None = None,
        insecure: bool = False,
        stall_s: float = 30.0,
        pause: Callable[[float], None] = lambda _: None,
    ) -> None:
        endpoint = endpoint or RegistryEndpoint(reference.registry, reference.repository)
        # `insecure` and the login are the caller's for that registry; a mirror has the operator's settings.
        own = endpoint.host == reference.registry
        insecure = endpoint.insecure or (insecure and own)
        self.reference = msgspec.structs.replace(reference, registry=endpoint.host, repository=endpoint.repository)
        self._credentials = credentials if own else None
        self._plain_allowed = insecure or self.reference.local
        self._host = _HUB_HOST if endpoint.host == HUB else endpoint.host
        self._scheme = "https"
        self._pause = pause
        self._authorization: str | None = None
        self._login = threading.Lock()
        self._streams: set[Any] = set()  # httpcore2's
        self._left = False
        self._http = httpx2.Client(
            verify=trust(endpoint.host, insecure), timeout=httpx2.Timeout(stall_s, connect=min(stall_s, 10.0)),
            headers={"User-Agent": f"skerry/{__version__}", "Accept-Encoding": "identity"},
            limits=httpx2.Limits(max_connections=16),
            trust_env=not self.reference.local,  # this machine needs no proxy, and a proxy could not reach it
        )  # fmt: skip

    def close(self) -> None:
        self._http.close()

    def hang_up(self) -> None:
        """Call from any thread: end all waiting reads from the registry."""
        self._left = True
        for stream in list(self._streams):
            with suppress(OSError):  # bypasses TLS, which belongs to another thread
                socket.socket.shutdown(stream.get_extra_info("socket"), socket.SHUT_RDWR)

    def _connected(self, event: str, info: dict[str, Any]) -> None:
        """httpcore2 reports each connection. Close a connection that is made after `hang_up`."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._streams.add(info["return_value"])
            if self._left:
                self.hang_up()

    def manifest(self, which: str) -> tuple[str, str, bytes]:
        """Return media type, digest and content. A manifest requested by digest is verified."""
        with self._asked(f"manifests/{which}", {"Accept": _ACCEPT}) as response:
            data = self._small(response)
            kind = response.headers.get("content-type", "")
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if which.startswith("sha256:") and digest != which:
            raise mismatch(self.reference.registry, "the manifest", which, digest)
        if kind.startswith("text/html") or data.lstrip()[:1] == b"<":
            raise self._failed("html", "returned an HTML page", hint="check that the address is a registry")
        return kind, digest, data

    def small_blob(self, digest: str) -> bytes:
        with self._asked(f"blobs/{digest}", {}) as response:
            data = self._small(response)
        if (found := f"sha256:{hashlib.sha256(data).hexdigest()}") != digest:
            raise mismatch(self.reference.registry, "the configuration", digest, found)
        return data

    @contextmanager
    def blob(self, digest: str, start: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Yield the start offset and the bytes of a blob from `start` on, or from 0 if the registry cannot resume.
        Unverified."""
        headers = {"Range": f"bytes={start}-"} if start else {}
        with self._asked(f"blobs/{digest}", headers) as response:
            came_from = response.headers.get("content-range", "").removeprefix("bytes ").partition("-")[0]
            resumed = response.status_code == httpx2.codes.PARTIAL_CONTENT and came_from == str(start)
            if response.headers.get("content-type", "").startswith("text/html"):
                raise self._failed("html", "returned an HTML page instead of a layer")
            yield (start if resumed else 0), self._pieces(response)

    # -- requests ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _asked(self, path: str, headers: dict[str, str]) -> Iterator[httpx2.Response]:
        response = self._answer(path, headers)
        try:
            yield response
        finally:
            response.close()

    def _answer(self, path: str, headers: dict[str, str]) -> httpx2.Response:
        """Return a success, or raise an error with the reason. Temporary failures are retried."""
        used: str | None = None
        for attempt in range(_TRIES + 1):
            used = self._authorization
            response = self._retried(partial(self._follow, self._url(path), headers))
            if response.status_code == httpx2.codes.UNAUTHORIZED and attempt < _TRIES:
                asked = response.headers.get("www-authenticate", "")
                response.close()
                self._log_in(asked, used)
                continue
            if response.status_code == httpx2.codes.RANGE_NOT_SATISFIABLE and "Range" in headers:
                response.close()
                headers = {name: value for name, value in headers.items() if name != "Range"}
                continue
            break
        if response.is_success:
            return response
        try:
            raise self._refusal(response, path)
        finally:
            response.close()

    def _retried(self, send: Callable[[], httpx2.Response]) -> httpx2.Response:
        """Send a few times while the registry is busy, and wait in between as long as it requests."""
        for attempt in range(_TRIES - 1):
            response = send()
            wait_s = max(_PAUSE_S * 2**attempt, retry_after(response.headers.get("retry-after", "")))
            if not _is_busy(response) or wait_s > _MAX_RETRY_AFTER_S:
                return response
            response.close()
            self._pause(wait_s)
        return send()

    def _follow(self, url: str, headers: dict[str, str]) -> httpx2.Response:
        """Follow redirects, which registries use to point to blobs; the login is sent only to the registry itself."""
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
                raise self._failed("malformed", "redirects to an invalid address") from None
            if not self._may_ask(url):
                raise self._failed("refused", "redirects to an address without TLS")
        raise self._failed("refused", "redirects in a loop")

    def _send(self, method: str, url: str, **rest: Any) -> httpx2.Response:
        if self._left:
            raise self._failed("unreachable", "is no longer in use")
        rest["extensions"] = {"trace": self._connected}
        try:
            try:
                return self._http.send(self._http.build_request(method, url, **rest), stream=True)
            except (httpx2.ConnectError, httpx2.ProxyError):
                # A registry on this machine, or one that the caller marks as insecure, may be used without TLS.
                if not (self._plain_allowed and url.startswith(f"https://{self._host}/")):
                    raise
                self._scheme = "http"
                url = "http" + url.removeprefix("https")
                return self._http.send(self._http.build_request(method, url, **rest), stream=True)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._broken(error) from None

    def _url(self, path: str) -> str:
        return f"{self._scheme}://{self._host}/v2/{self.reference.repository}/{path}"

    def _may_ask(self, url: str) -> bool:
        return url.startswith("https://") or (self._plain_allowed and url.startswith("http://"))

    def _may_tell(self, url: str) -> bool:
        """Return whether a login may be sent there: over TLS, or to the host that is allowed without it."""
        try:
            host = urlsplit(url).hostname or ""
            own = urlsplit(f"//{self._host}").hostname
        except ValueError:
            return False
        return url.startswith("https://") or host == own or (self.reference.local and is_loopback(host))

    def _pieces(self, response: httpx2.Response) -> Iterator[bytes]:
        try:
            yield from response.iter_raw()
        except httpx2.HTTPError as error:
            raise self._broken(error) from None

    def _small(self, response: httpx2.Response) -> bytes:
        data = b""
        for piece in self._pieces(response):
            data += piece
            if len(data) > MAX_SMALL:
                raise self._failed("malformed", f"sent more than {MAX_SMALL} bytes for a small document")
        return data

    # -- login ---------------------------------------------------------------------------------------------------------

    def _log_in(self, header: str, used: str | None) -> None:
        """Log in once for all threads: a second thread finds it done."""
        with self._login:
            if self._authorization != used:
                return
            challenge = parse_challenge(header)
            if challenge is None:
                raise self._needs_login("requires an unsupported kind of login")
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
            raise self._failed("refused", "requests the login at an address without TLS")
        scope = challenge.scope or f"repository:{self.reference.repository}:pull"
        form = {"service": challenge.service, "scope": scope}
        known = self._credentials
        if known is not None and known.identity_token:
            form |= {"grant_type": "refresh_token", "refresh_token": known.identity_token, "client_id": "skerry"}
            response = self._retried(partial(self._send, "POST", challenge.realm, data=form))
        else:
            headers = {"Authorization": self._basic(known)} if known is not None else {}
            response = self._retried(partial(self._send, "GET", challenge.realm, params=form, headers=headers))
        try:
            if response.status_code in (httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN, httpx2.codes.BAD_REQUEST):
                raise self._needs_login()
            if not response.is_success:
                raise self._failed("refused", f"returned no token: {response.status_code}")
            reply = msgspec.json.decode(self._small(response), type=_Token)
        except msgspec.MsgspecError:
            raise self._failed("malformed", "returned an invalid token") from None
        finally:
            response.close()
        token = reply.token or reply.access_token
        if not token or not token.isascii() or not token.isprintable():
            raise self._failed("malformed", "returned an invalid token")
        return token

    def _basic(self, known: Credentials) -> str:
        return "Basic " + base64.b64encode(f"{known.username}:{known.password}".encode()).decode()

    # -- errors --------------------------------------------------------------------------------------------------------

    def _refusal(self, response: httpx2.Response, path: str) -> SkerryError:
        status = response.status_code
        if status in (httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN):
            return self._needs_login()
        if status == httpx2.codes.NOT_FOUND:
            what = f"no {self.reference}" if path.startswith("manifests/") else f"not all of {self.reference}"
            return NotFound(f"{self.reference.registry} has {what}", details={"image": str(self.reference)})
        if _is_busy(response) and (wait_s := retry_after(response.headers.get("retry-after", ""))):
            return self._failed("limited", f"is busy ({status})", hint=f"it requests a pause of {wait_s:.0f} s")
        if status == httpx2.codes.TOO_MANY_REQUESTS:
            return self._failed("busy", "reports too many requests", hint="wait, or log in")
        if status >= httpx2.codes.INTERNAL_SERVER_ERROR:
            return self._failed("busy", f"failed ({status})", hint="try again later")
        return self._failed("refused", f"rejected the request ({status})")

    def _needs_login(self, why: str = "") -> PermissionDenied:
        said = why or ("rejects this login" if self._credentials is not None else "requires a login")
        return PermissionDenied(
            f"{self.reference.registry} {said} for {self.reference.repository}, or has no such image",
            hint=f"`docker login {self.reference.registry}`, or `skerry image pull --username NAME --password-stdin`",
            details={"registry": self.reference.registry},
        )

    def _broken(self, error: Exception) -> RegistryError:
        if isinstance(error, httpx2.TimeoutException) and not isinstance(error, httpx2.ConnectTimeout):
            return self._failed(
                "stalled", "sent no data for too long", hint="pull again: it continues where it stopped"
            )
        return self._failed("unreachable", f"is not reachable: {error or type(error).__name__}")

    def _failed(self, reason: str, what: str, hint: str | None = None) -> RegistryError:
        details = {"reason": reason, "registry": self.reference.registry}
        return RegistryError(f"{self.reference.registry} {what}", hint=hint, details=details)


class _Token(msgspec.Struct, frozen=True):
    token: str = ""
    access_token: str = ""


def _is_busy(response: httpx2.Response) -> bool:
    return (
        response.status_code == httpx2.codes.TOO_MANY_REQUESTS
        or response.status_code >= httpx2.codes.INTERNAL_SERVER_ERROR
    )


def retry_after(header: str) -> float:
    """Return the seconds of a Retry-After header, which has a number or a date; 0 if it is missing or invalid."""
    if re.fullmatch(r"[0-9]{1,9}", header):
        return float(header)
    try:
        when = parsedate_to_datetime(header)
    except (ValueError, TypeError):
        return 0.0
    return max(0.0, (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


# Parse a registry's login challenge: `WWW-Authenticate: Bearer realm="…",service="…",scope="…"`, or Basic. Pure.

_PARAMETER = re.compile(r'\s*([A-Za-z_]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))\s*(?:,|$)')
_MAX_CHALLENGE = 8192


@dataclass(frozen=True)
class Challenge:
    scheme: str
    realm: str = ""
    service: str = ""
    scope: str = ""


def parse_challenge(header: str) -> Challenge | None:
    """Return the first supported challenge, or None."""
    if len(header) > _MAX_CHALLENGE:
        return None
    for match in re.finditer(r"(?i)(?:^|,\s*)(basic|bearer)(?=\s|$)", header):
        found: dict[str, str] = {}
        at = match.end()
        while parameter := _PARAMETER.match(header, at):
            found[parameter[1].lower()] = re.sub(r"\\(.)", r"\1", parameter[2] or "") or parameter[3] or ""
            at = parameter.end()
        return Challenge(match[1].lower(), found.get("realm", ""), found.get("service", ""), found.get("scope", ""))
    return None
