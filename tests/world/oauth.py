"""An authorization server and an API that takes its tokens: codes with PKCE, devices, refreshes with rotation, and
answers that no honest server gives. Pure: requests in, answers out. Each test has its own client ID."""

from __future__ import annotations

import base64
import gzip
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from world import model_apis

LOGIN, CLOUD = "login.example.test", "cloud.example.test"
AGENTS = ("platform.claude.com",)  # its access token is the key of the models
HOSTS = (LOGIN, CLOUD, *AGENTS)
STORED = "real-refresh-of-a-stored-sign-in"  # valid once, for any client
Reply = tuple[int, list[tuple[str, str]], bytes]


def jwt(claims: Mapping[str, Any]) -> str:
    parts = (json.dumps({"alg": "RS256", "kid": "k1", "typ": "JWT"}), json.dumps(claims), secrets.token_hex(32))
    return ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)


class OauthServer:
    def __init__(self) -> None:
        self.issued: list[str] = []  # every token ever
        self.requests: list[dict[str, str]] = []  # of the token endpoint
        self.mode = ""
        self._codes: dict[str, tuple[str, str]] = {}  # to the client and the challenge
        self._devices: dict[str, bool] = {}  # whether the user has agreed
        self._refreshes: dict[str, str] = {}  # to the client
        self._accesses: dict[str, str] = {}

    def answer(self, host: str, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Reply:
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if host.startswith(CLOUD):
            return self._api(parts.path, headers)
        match method, parts.path:
            case "GET", "/authorize":
                code = secrets.token_hex(20)
                self._codes[code] = (query["client_id"], query["code_challenge"])
                where = query["redirect_uri"] + "?" + urlencode({"code": code, "state": query["state"]})
                return 302, [("location", where)], b""
            case "POST", "/device/code":
                code = secrets.token_hex(20)
                self._devices[code] = False
                return _json(200, {"device_code": code, "user_code": code[:8], "interval": 0})
            case "POST", "/oauth/token" | "/v1/oauth/token":
                return self._token(headers, body, key=host in AGENTS)
            case "POST", "/mode":  # for the test, which is not inside
                self.mode = query.get("mode", "")
                return _json(200, {})
            case "POST", "/agree":
                self._devices = dict.fromkeys(self._devices, True)
                return _json(200, {})
            case "POST", "/revoke":
                self._refreshes.clear()
                self._accesses.clear()
                return _json(200, {})
            case "POST", "/expire":
                self._accesses.clear()
                return _json(200, {})
            case "GET", "/issued":
                return _json(200, {"tokens": self.issued, "requests": self.requests, "valid": list(self._accesses)})
        return _json(404, {"error": "not here"})

    def _api(self, path: str, headers: Mapping[str, str]) -> Reply:
        given = headers.get("authorization", "").removeprefix("Bearer ")
        if path == "/echo":
            return _json(200, {"authorization": headers.get("authorization", "")})
        if given not in self._accesses:
            return _json(401, {"error": "not a valid token"})
        return _json(200, {"user": "ada", "client": self._accesses[given]})

    def _token(self, headers: Mapping[str, str], body: bytes, *, key: bool) -> Reply:
        if headers.get("content-type", "").startswith("application/json"):
            given = json.loads(body)
        else:
            given = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        self.requests.append(given)
        client, grant = given.get("client_id", ""), given.get("grant_type")
        if grant == "authorization_code":
            owner, challenge = self._codes.pop(given["code"], ("nobody", ""))
            digest = base64.urlsafe_b64encode(hashlib.sha256(given.get("code_verifier", "").encode()).digest())
            if owner != client or not hmac.compare_digest(digest.decode().rstrip("="), challenge):
                return _json(400, {"error": "invalid_grant"})
        elif grant == "urn:ietf:params:oauth:grant-type:device_code":
            if not self._devices.get(given["device_code"]):
                return _json(400, {"error": "authorization_pending"})
            del self._devices[given["device_code"]]
        elif grant == "refresh_token":
            if self._refreshes.pop(given["refresh_token"], None) != client and given["refresh_token"] != STORED:
                return _json(400, {"error": "invalid_grant"})
        else:
            return _json(400, {"error": "unsupported_grant_type"})
        return self._issue(client, key=key)

    def _issue(self, client: str, *, key: bool) -> Reply:
        """Return new tokens."""
        access = jwt({"sub": "ada", "client": client, "n": len(self.issued), "exp": int(time.time()) + 3600})
        access = model_apis.KEY if key else access
        refresh = f"real-refresh-{secrets.token_hex(24)}"
        identity = jwt({
            "email": "ada@example.test", "sub": "ada", "nonce": "n-0S6_WzA2Mj", "at_hash": "MTIzNDU2Nzg5MDEyMzQ1Ng",
            "https://api.openai.com/auth": {"chatgpt_account_id": "acc-1", "session_key": "a-session-key-0123456"},
        })  # fmt: skip
        self._accesses[access], self._refreshes[refresh] = client, client
        self.issued += [access, refresh, identity.rpartition(".")[2]]
        content = {
            "access_token": access, "refresh_token": refresh, "id_token": identity, "token_type": "Bearer",
            "expires_in": 3600, "scope": "user:inference user:profile",
            "account": {"uuid": "u-1", "email_address": "ada@example.test"},
            "session_key": access, "nested": {"refresh": refresh},
        }  # fmt: skip
        if self.mode == "plain":  # an honest answer without the optional fields
            return _json(200, {"access_token": access})
        hostile = _HOSTILE.get(self.mode)
        return hostile(content) if hostile is not None else _json(200, content)


def _json(status: int, content: Any) -> Reply:
    return status, [("content-type", "application/json")], json.dumps(content).encode()


def _with(**more: Any) -> Callable[[dict[str, Any]], Reply]:
    return lambda content: _json(200, {**content, **more})


# The answers of an endpoint that is broken or hostile, by the name of the mode. Each is refused as a whole.
_HOSTILE: dict[str, Callable[[dict[str, Any]], Reply]] = {
    "huge": _with(padding="x" * (1 << 20)),
    "malformed": lambda content: (200, [("content-type", "application/json")], json.dumps(content).encode()[:-7]),
    "twice": lambda content: (200, [], json.dumps(content).encode()[:-1] + b', "access_token": "another-token-123"}'),
    "list": lambda content: _json(200, [content]),
    "deep": lambda content: (200, [], b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "no-token": _with(access_token=None),
    "object-token": _with(access_token={"value": "x"}),
    "line-token": _with(access_token="first-line\nsecond-line"),
    "long-token": _with(access_token="x" * 20_000),
    "mac-token": _with(token_type="mac"),
    "in-scope": lambda content: _json(200, {**content, "scope": f"a {content['refresh_token']}"}),
    "in-account": lambda content: _json(200, {**content, "account": {"uuid": content["access_token"][-60:]}}),
    "in-claims": lambda content: _json(200, {**content, "id_token": jwt({"email": content["refresh_token"]})}),
    "gzip": lambda content: (200, [("content-encoding", "gzip")], gzip.compress(json.dumps(content).encode())),
    "redirect": lambda content: (307, [("location", f"https://{CLOUD}/echo")], b""),
    "error": lambda content: _json(400, {"error": f"{content['refresh_token']}", "error_description": str(content)}),
    "server-error": lambda content: _json(500, content),
    "created": lambda content: _json(201, content),
}
HOSTILE = tuple(_HOSTILE)
