"""The broker of an agent's sign-in, against an authorization server over TLS on this machine: requests and answers that
are refused, and two programs that refresh at once. tests/agents/test_sign_in.py has whole sandboxes."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import keyring
import keyring.backends.fail
import pytest
from world import certificates, oauth
from world.web import context

from skerry.client.agents.credentials import find_value
from skerry.client.agents.descriptor import KitOauth, convert
from skerry.client.agents.kits import load_kit
from skerry.client.agents.oauth import OauthRefused, SignIn, credential_file
from skerry.client.agents.sign_in import MAX_ANSWER, SignInBroker, SignInService, load_sign_in, post, service_of
from skerry.client.secret_store import UserSecrets
from skerry.errors import InvalidRequest
from skerry.types import HttpRequest, HttpResponse

SENTINEL = "skerry-secret-SKERRY_SIGN_IN_TOY-" + "a" * 32
VERIFIER = "v" * 50
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).decode().rstrip("=")


class LoginServer(oauth.OauthServer):
    """The server with a socket. `chunked`: it sends its answers in pieces, without their length."""

    chunked = False
    gate: threading.Event | None = None  # the token endpoint waits for it

    def __init__(self, home: Path) -> None:
        super().__init__()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if server.gate is not None:
                    server.gate.wait(30)
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, found, content = server.answer(oauth.LOGIN, "POST", self.path, headers, body)
                self.send_response(status)
                for name, value in found:
                    self.send_header(name, value)
                if server.chunked:
                    self.send_header("transfer-encoding", "chunked")
                    pieces = [content[at : at + 100] for at in range(0, len(content), 100)]
                    content = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""])
                else:
                    self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                return

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.socket = context(home).wrap_socket(self._http.socket, server_side=True)
        self.host = f"localhost:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def code(self, client: str = "c1") -> str:
        query = urlencode({
            "client_id": client, "code_challenge": CHALLENGE, "state": "s", "redirect_uri": "http://localhost/",
        })  # fmt: skip
        _, headers, _ = self.answer(oauth.LOGIN, "GET", f"/authorize?{query}", {}, b"")
        return dict(headers)["location"].partition("code=")[2].partition("&")[0]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("authority")
    certificates.make(home, ["localhost"], ["127.0.0.1"])
    return home


@pytest.fixture
def login(authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoginServer]:
    made = LoginServer(authority)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority / "ca.pem"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    before = keyring.get_keyring()
    keyring.set_keyring(keyring.backends.fail.Keyring())  # the library would find the one of another test
    yield made
    keyring.set_keyring(before)
    made.close()


class Side:
    """A broker, with the values that its sandbox got and the messages for its user."""

    def __init__(self, login: LoginServer, *, may_sign_in: bool = False, paths: tuple[str, ...] = ()) -> None:
        self.pushed: list[str] = []
        self.notes: list[str] = []
        self.service = service(login, paths)
        self.broker = SignInBroker(
            self.service, SENTINEL, self.pushed.append, self.notes.append, may_sign_in=may_sign_in
        )  # fmt: skip

    def send(self, fields: Any, *, kind: str = "application/x-www-form-urlencoded", **more: Any) -> HttpResponse | None:
        body = fields if isinstance(fields, bytes) else urlencode(fields).encode()
        headers = (("Content-Type", kind), *more.pop("headers", ()))
        given = {"method": "POST", "url": self.service.endpoint, **more}
        return self.broker.handle(HttpRequest(headers=headers, body=body, **given))

    def answered(self, fields: Any, **more: Any) -> tuple[int, dict[str, Any]]:
        found = self.send(fields, **more)
        assert found is not None
        return found.status, json.loads(found.body or b"")

    def refresh(self) -> tuple[int, dict[str, Any]]:
        return self.answered({"grant_type": "refresh_token", "refresh_token": f"{SENTINEL}-refresh"})


def service(login: LoginServer, paths: tuple[str, ...] = (), **more: Any) -> SignInService:
    endpoint = {"host": login.host, "path": "/oauth/token"}
    found = convert({"tokenEndpoint": endpoint, "resourceHosts": ["api.example.com"], **more}, KitOauth, "kit")
    return SignInService("toy", found, f"https://{login.host}/oauth/token", ("api.example.com",), paths)


def code_fields(login: LoginServer, client: str = "c1") -> dict[str, str]:
    code = login.code(client)
    return {"grant_type": "authorization_code", "code": code, "client_id": client, "code_verifier": VERIFIER}


def sign_in(login: LoginServer) -> Side:
    side = Side(login, may_sign_in=True)
    status, found = side.answered(code_fields(login))
    assert status == 200, found
    return side


def stored(login: LoginServer) -> SignIn:
    found = load_sign_in(service(login))
    assert found is not None
    return found


def age(login: LoginServer) -> None:
    """Make the stored sign-in an older one."""
    path = UserSecrets()._path
    file = json.loads(path.read_text())
    value = json.loads(file["services"]["toy"]["value"])
    file["services"]["toy"]["value"] = json.dumps({**value, "obtained_at": 1.0})
    path.write_text(json.dumps(file))


def test_sign_in_gives_placeholders_and_stores_the_tokens(login: LoginServer) -> None:
    side = sign_in(login)
    assert side.pushed == [login.issued[0]]
    assert side.notes == ["toy: signed in as ada@example.test; the tokens are outside of the sandbox, in your store"]
    assert (stored(login).access, stored(login).refresh) == (login.issued[0], login.issued[1])
    assert repr(stored(login)).count(login.issued[1]) == 0
    listed = UserSecrets().services()["toy"]
    assert (listed.sign_in, listed.hosts) == (True, ("api.example.com",))
    assert listed.expires_at is not None
    assert find_value("toy", ()) is None
    with pytest.raises(InvalidRequest, match="is a sign-in"):
        UserSecrets().value("toy")


def test_second_sign_in_of_a_run_is_refused(login: LoginServer) -> None:
    side = sign_in(login)
    assert side.answered(code_fields(login, "thief"))[0] == 403
    assert stored(login).client_id == "c1"
    assert "did not ask for" in side.notes[-1]


def test_failed_sign_in_can_be_repeated(login: LoginServer) -> None:
    side = Side(login, may_sign_in=True)
    status, found = side.answered({**code_fields(login), "code_verifier": "another"})
    assert (status, found["error"]) == (400, "invalid_grant")
    assert side.answered(code_fields(login))[0] == 200


@pytest.mark.parametrize("mode", oauth.HOSTILE)
def test_hostile_answer_gives_no_token_and_stores_nothing(login: LoginServer, mode: str) -> None:
    for chunked in (False, True):
        login.mode, login.chunked = mode, chunked
        side = Side(login, may_sign_in=True)
        found = side.send(code_fields(login))
        assert found is not None
        assert found.status in (400, 502)
        assert login.issued
        text = (found.body or b"").decode() + str(found.headers) + "".join(side.notes)
        assert not [token for token in login.issued if token in text or token[-30:] in text]
        assert (side.pushed, UserSecrets().services()) == ([], {})


@pytest.mark.parametrize("mode", oauth.HOSTILE)
def test_hostile_answer_to_a_refresh_keeps_the_earlier_sign_in(login: LoginServer, mode: str) -> None:
    before = (sign_in(login), stored(login))[1]
    age(login)
    login.mode = mode
    side = Side(login)
    found = side.send({"grant_type": "refresh_token", "refresh_token": f"{SENTINEL}-refresh"})
    assert found is not None
    assert found.status in (400, 502)
    assert not [token for token in login.issued if token[-30:] in str(found.body) + "".join(side.notes)]
    assert (stored(login).access, stored(login).refresh, side.pushed) == (before.access, before.refresh, [])


def test_chunked_answer_and_one_with_few_fields_are_used(login: LoginServer) -> None:
    login.chunked = True
    sign_in(login)
    assert stored(login).access == login.issued[0]


def test_refresh_token_that_does_not_rotate_is_kept(login: LoginServer, monkeypatch: pytest.MonkeyPatch) -> None:
    sign_in(login)
    age(login)
    monkeypatch.setitem(
        oauth._HOSTILE, "plain", lambda found: oauth._json(200, {"access_token": found["access_token"]})
    )
    login.mode = "plain"
    status, found = Side(login).refresh()
    assert (status, found["access_token"], found["refresh_token"]) == (200, SENTINEL, f"{SENTINEL}-refresh")
    assert "expires_in" not in found
    assert stored(login).refresh == login.issued[1]
    assert stored(login).access == login.issued[3]
    assert stored(login).claims is not None  # of the sign-in


def test_refreshes_of_two_sandboxes_at_once_use_the_token_once(login: LoginServer) -> None:
    first, second = sign_in(login), Side(login)
    second.broker.refreshed(at_least_s=0)
    age(login)
    login.gate = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(side.refresh) for side in (first, second)]
        login.gate.set()
        assert [answer.result(60)[0] for answer in answers] == [200, 200]
    assert [one["grant_type"] for one in login.requests].count("refresh_token") == 1
    assert (first.pushed[-1], second.pushed[-1]) == (login.issued[3], login.issued[3])


def test_flood_of_refreshes_is_one_request(login: LoginServer) -> None:
    side = sign_in(login)
    age(login)
    for _ in range(5):
        assert side.refresh()[0] == 200
    assert [one["grant_type"] for one in login.requests].count("refresh_token") == 1


def test_refresh_sends_nothing_from_the_sandbox(login: LoginServer) -> None:
    side = sign_in(login)
    age(login)
    more = {"client_id": "thief", "scope": "everything", "audience": "other"}
    fields = {"grant_type": "refresh_token", "refresh_token": f"{SENTINEL}-refresh", **more}
    assert side.answered(json.dumps(fields).encode(), kind="application/json")[0] == 200
    assert login.requests[-1] == {
        "grant_type": "refresh_token", "refresh_token": login.issued[1], "client_id": "c1",
    }  # fmt: skip


REFUSED: dict[str, Callable[[Side], HttpResponse | None]] = {
    "another grant": lambda side: side.send({"grant_type": "password", "username": "a", "password": "b"}),
    "token exchange": lambda side: side.send({
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "subject_token": SENTINEL,
        "requested_token": "openai-api-key",
    }),
    "two grants": lambda side: side.send(b"grant_type=refresh_token&grant_type=password"),
    "two keys": lambda side: side.send(b'{"grant_type": "x", "grant_type": "y"}', kind="application/json"),
    "no JSON": lambda side: side.send(b"[" * 100_000, kind="application/json"),
    "text": lambda side: side.send(b"grant_type=password", kind="text/plain"),
    "compressed": lambda side: side.send(b"", headers=(("Content-Encoding", "gzip"),)),
    "long": lambda side: side.send(b"grant_type=refresh_token&x=" + b"y" * (65 << 10)),
    "other sentinel": lambda side: side.send({"grant_type": "refresh_token", "refresh_token": f"{SENTINEL}-refreshX"}),
    "not ASCII": lambda side: side.send("grant_type=refresh_token&refresh_token=\xe9".encode()),
    "GET": lambda side: side.send(b"", method="GET"),
    "no client": lambda side: side.send({"grant_type": "authorization_code", "code": "x"}),
    "lines": lambda side: side.send({"grant_type": "authorization_code", "code": "x\ny", "client_id": "c"}),
    "other path": lambda side: side.send(b"", url=side.service.endpoint + "/"),
    "query": lambda side: side.send(b"", url=side.service.endpoint + "?x"),
    "plain HTTP": lambda side: side.send(b"", url=side.service.endpoint.replace("https", "http")),
    "path with a query": lambda side: side.send(b"", url=f"https://{side.service.host}/device/code?x"),
    "GET of a path": lambda side: side.send(b"", method="GET", url=f"https://{side.service.host}/device/code"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_request_that_is_not_understood_does_not_leave(login: LoginServer, name: str) -> None:
    side = Side(login, may_sign_in=True, paths=("/device/code",))
    found = REFUSED[name](side)
    assert found is not None
    assert 400 <= found.status < 500
    assert (login.requests, side.pushed) == ([], [])


def test_named_path_passes(login: LoginServer) -> None:
    side = Side(login, paths=("/device/code",))
    assert side.send(b"", url=f"https://{side.service.host}/device/code") is None


def test_sign_in_of_other_places_is_not_used(login: LoginServer) -> None:
    sign_in(login)
    other = service(login, resourceHosts=["api.example.com"])
    for endpoint, hosts in (
        (other.endpoint + "2", other.hosts), (other.endpoint, (*other.hosts, "evil.example")), (other.endpoint, ()),
    ):  # fmt: skip
        changed = SignInService("toy", other.oauth, endpoint, hosts)
        with pytest.raises(InvalidRequest, match="stored sign-in of toy is for"):
            load_sign_in(changed)
        notes: list[str] = []
        broker = SignInBroker(changed, SENTINEL, notes.append, notes.append, may_sign_in=False)
        with pytest.raises(InvalidRequest, match="stored sign-in of toy is for"):
            broker.refreshed()
    assert len(login.requests) == 1


def test_endpoint_without_a_trusted_certificate_gets_nothing(
    login: LoginServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (empty := tmp_path / "none.pem").write_text("")
    monkeypatch.setenv("SSL_CERT_FILE", str(empty))
    side = Side(login, may_sign_in=True)
    assert side.answered(code_fields(login))[0] == 503
    assert login.requests == []


def test_answer_is_bounded(login: LoginServer) -> None:
    login.mode = "huge"
    with pytest.raises(OauthRefused, match="too long or too slow"):
        post(f"https://{login.host}/oauth/token", code_fields(login), as_json=False)
    assert MAX_ANSWER < 1 << 20


def test_failed_push_is_an_error_for_the_agent(login: LoginServer) -> None:
    def push(_: str) -> None:
        raise InvalidRequest("the sandbox has other secrets too")

    notes: list[str] = []
    broker = SignInBroker(service(login), SENTINEL, push, notes.append, may_sign_in=True)
    body = urlencode(code_fields(login)).encode()
    headers = (("Content-Type", "application/x-www-form-urlencoded"),)
    found = broker.handle(HttpRequest(method="POST", url=service(login).endpoint, headers=headers, body=body))
    assert found is not None
    assert (found.status, notes) == (503, ["toy: the sandbox has other secrets too"])


def test_credential_files_of_the_agents_have_placeholders_only(login: LoginServer) -> None:
    sign_in(login)
    kept = stored(login)
    expected = {
        "claude-code": "https://platform.claude.com/v1/oauth/token",
        "codex": "https://auth.openai.com/oauth/token",
    }
    for name, endpoint in expected.items():
        (one,) = (one for one in load_kit(name).credentials if one.oauth is not None)
        assert service_of(one, ()).endpoint == endpoint
        assert one.oauth is not None
        assert one.oauth.credential_file is not None
        text = credential_file(one.oauth.credential_file.structure, kept, SENTINEL)
        assert not [token for token in login.issued if token in text or token[-30:] in text]
        found = json.loads(text)
        if name == "claude-code":
            made = found["claudeAiOauth"]
            assert (made["accessToken"], made["refreshToken"]) == (SENTINEL, f"{SENTINEL}-refresh")
            assert made["scopes"] == ["user:inference", "user:profile"]
            assert made["expiresAt"] > time.time() * 1000
        else:
            assert (found["auth_mode"], found["OPENAI_API_KEY"]) == ("chatgpt", None)
            assert found["tokens"]["account_id"] == "acc-1"
            assert len(found["tokens"]["id_token"].split(".")) == 3


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"tokenEndpoint": {"host": "a.b"}}, "path"),
        ({"tokenEndpoint": {"host": "a.b", "path": "x"}}, "plain absolute path"),
        ({"tokenEndpoint": {"host": "a.b", "path": "/a/../b"}}, "plain absolute path"),
        ({"tokenEndpoint": {"host": "a.b", "path": "/a?b"}}, "plain absolute path"),
        ({"tokenEndpoint": {"host": "a.b/c", "path": "/a"}}, "name of a host"),
        ({"tokenEndpoint": {"host": "u@a.b", "path": "/a"}}, "name of a host"),
        ({"tokenEndpoint": {"host": "a.b", "path": "/a"}, "resourceHosts": ["a.b"]}, "gets no access token"),
        ({"tokenEndpoints": {}}, "unknown field"),
        ({"credentialFile": {"path": "/etc/passwd"}}, "below the home directory"),
        ({"credentialFile": {"path": "~/../x"}}, "below the home directory"),
        ({"credentialFile": {"path": "~/x", "structure": {"a": ["{{.Password}}"]}}}, "not a placeholder"),
        ({"credentialFile": {"path": "~/x", "format": "ini"}}, "ini"),
        ({"responseFields": {"accessToken": "a.b"}}, "names of fields"),
        ({"sentinels": {"idToken": "x"}}, "unknown field"),
        ({"passthrough": "yes"}, "passthrough"),
    ],
)
def test_block_of_a_kit_is_read_strictly(data: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        convert(data, KitOauth, "kit")
