"""Secrets from end to end: real clients inside, real TLS servers outside, and the value nowhere else."""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.server import Server, wait_until
from world.git import TOKEN as PUSH_TOKEN
from world.git import USER as PUSH_USER
from world.world import World

from skerry import Network, Sandbox, Secret

VALUE = "ghp_s3cr3t/+=value-0123456789abcdef"
OTHER = "ghp_0th3r-value-9876543210fedcba"
API, FILES, GIT = "api.example.test", "files.example.test", "git.example.test"
URLLIB = """
import os, sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + os.environ["TOKEN"]})
print(urllib.request.urlopen(request, timeout=20).read().decode())
"""
FETCH = """
fetch(process.argv[1], {headers: {Authorization: "Bearer " + process.env.TOKEN}})
    .then(a => a.text()).then(console.log, e => { console.error(e); process.exit(1) })
"""
NODE_HTTPS = """
require("https").get(process.argv[1], {headers: {Authorization: "Bearer " + process.env.TOKEN}},
    a => a.pipe(process.stdout)).on("error", e => { throw e })
"""
JAVA = """
import java.net.URI;
import java.net.http.*;
public class Ask {
    public static void main(String[] args) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(args[0]))
            .header("Authorization", "Bearer " + System.getenv("TOKEN")).build();
        System.out.println(HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body());
    }
}
"""
CLIENTS = {
    "curl": 'curl -sS -H "Authorization: Bearer $TOKEN" {url}',
    "curl by the proxy variables": 'curl -sS --proxy http://198.18.0.2:3128 -H "Authorization: Bearer $TOKEN" {url}',
    "wget": 'wget -qO- --header "Authorization: Bearer $TOKEN" {url}',
    "python": f"python3 -c {shlex.quote(URLLIB)} " + "{url}",
    "node's fetch": f"node -e {shlex.quote(FETCH)} " + "{url}",
    "node's https": f"node -e {shlex.quote(NODE_HTTPS)} " + "{url}",
}


def secret(value: str = VALUE, **form: Any) -> Secret:
    return Secret("TOKEN", hosts=[API], value=value, **form)


@pytest.fixture(scope="module")
def sandbox(world_server: Server) -> Iterator[Sandbox]:
    """With a secret that takes its placeholder's place wherever that stands."""
    network = Network(allow=[FILES, f"{API}:80", f"{API}:7"])
    with Sandbox(server=world_server.address, network=network, secrets=[secret()]) as sandbox:
        yield sandbox


@pytest.fixture(autouse=True)
def fresh(world: World) -> None:
    world.reset()


def outside(world: World) -> str:
    """All that the servers out there were sent."""
    return "\n".join(call["raw"] for call in world.calls())


def denied(sandbox: Sandbox, host: str) -> int:
    """How often a placeholder was blocked there; equal attempts may be merged."""
    why = "it carries the placeholder of secret TOKEN"
    return sum(a.count for a in sandbox.network.log(denied=True) if (a.host, a.why) == (host, why))


# -- clients ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", CLIENTS)
def test_http_client_uses_a_secret_that_is_not_inside(world: World, sandbox: Sandbox, client: str) -> None:
    result = sandbox.run(CLIENTS[client].replace("{url}", f"https://{API}/who"), timeout=60)
    assert result.ok, result.stderr
    assert f"Bearer {VALUE}" in outside(world)
    assert "skerry-secret" not in outside(world)
    assert f"Bearer {'*' * len(VALUE)}" in result.stdout, "an echo is masked"
    assert VALUE not in result.stdout + result.stderr


def test_use_of_a_secret_is_in_the_audit_log_by_its_name(sandbox: Sandbox) -> None:
    assert sandbox.run(f"curl -sS https://{API}/audited").ok

    def used() -> list[str]:
        found = sandbox.client.audit.records(sandbox=sandbox.id, type="network.allowed")
        return [one.params["host"] for one in found if one.params.get("secrets") == ["TOKEN"]]

    wait_until(lambda: API in used(), "the use to be recorded")
    with sandbox.client.audit.export() as pieces:
        exported = b"".join(pieces)
    assert VALUE.encode() not in exported


@pytest.mark.parametrize(
    ("form", "sent"),
    [
        ({"header": "X-Key: key {}"}, f"X-Key: key {VALUE}"),
        ({"query": "key"}, "GET /who?a=1&key=ghp_s3cr3t%2F%2B%3Dvalue-0123456789abcdef "),
        ({"basic": "me"}, "Authorization: Basic bWU6Z2hwX3MzY3IzdC8rPXZhbHVlLTAxMjM0NTY3ODlhYmNkZWY="),
    ],
    ids=["header", "query", "basic"],
)
def test_form_adds_the_secret_to_requests(world: World, world_server: Server, form: dict[str, str], sent: str) -> None:
    with Sandbox(server=world_server.address, secrets=[secret(**form)]) as sandbox:
        result = sandbox.run(f"curl -sS 'https://{API}/who?a=1'")
        assert result.ok, result.stderr
        assert sent in outside(world)
        for shape in (VALUE, "ghp_s3cr3t", "bWU6Z2hwX3M"):
            assert shape not in result.stdout
        used = [attempt for attempt in sandbox.network.log() if attempt.kind == "request"]
        assert [attempt.secrets for attempt in used] == [("TOKEN",)] * len(used)
        assert used
        assert VALUE not in repr(used)


def test_git_pushes_with_a_token_that_is_not_inside(world: World, world_server: Server) -> None:
    push = Secret("GIT_TOKEN", hosts=[GIT], value=PUSH_TOKEN, basic=PUSH_USER)
    with Sandbox(server=world_server.address, secrets=[push]) as sandbox:
        result = sandbox.run(
            f"""set -e
            git clone -q https://{GIT}/tiny.git /tmp/tiny && cd /tmp/tiny
            git config user.name t && git config user.email t@example.test
            echo more >> README && git commit -qam 'Add a line' && git push -q origin HEAD:from-inside
            git ls-remote origin from-inside; grep -ra {PUSH_TOKEN} /tmp/tiny || echo clean"""
        )
        assert result.ok, result.stderr
        assert "refs/heads/from-inside" in result.stdout
        assert result.stdout.endswith("clean\n")


def test_git_pushes_with_the_placeholder_as_its_password(world: World, world_server: Server) -> None:
    push = Secret("GIT_TOKEN", hosts=[GIT], value=PUSH_TOKEN)
    with Sandbox(server=world_server.address, secrets=[push]) as sandbox:
        result = sandbox.run(
            f"""set -e
            git clone -q https://{PUSH_USER}:$GIT_TOKEN@{GIT}/tiny.git /tmp/tiny && cd /tmp/tiny
            git config user.name t && git config user.email t@example.test
            echo more >> README && git commit -qam 'Add a line' && git push -q origin HEAD:by-login
            git ls-remote origin by-login; grep -ra {PUSH_TOKEN} /tmp/tiny || echo clean"""
        )
        assert result.ok, result.stderr
        assert "refs/heads/by-login" in result.stdout
        assert result.stdout.endswith("clean\n")


def test_pip_installs_from_an_index_with_a_login(world: World, world_server: Server) -> None:
    index = Secret("INDEX_TOKEN", hosts=["index.example.test"], value=VALUE)
    with Sandbox(server=world_server.address, secrets=[index]) as sandbox:
        result = sandbox.run(
            "pip install -q --no-input --target /tmp/wheels --index-url "
            "https://reader:$INDEX_TOKEN@index.example.test/simple tinylib && "
            "PYTHONPATH=/tmp/wheels python3 -c 'import tinylib; print(tinylib.ANSWER)'",
            timeout=120,
        )
        assert (result.ok, result.stdout) == (True, "42\n"), result.stderr
        assert "Basic cmVhZGVyOmdocF9zM2NyM3QvKz12YWx1ZS0wMTIzNDU2Nzg5YWJjZGVm" in outside(world)


@pytest.mark.skipif(shutil.which("jlink") is None, reason="this host has no JDK (jlink, javac)")
def test_java_uses_a_secret_that_is_not_inside(world: World, sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "Ask.java").write_text(JAVA)
    jre = tmp_path / "jre"
    modules = ["jlink", "--add-modules", "java.base,java.net.http,jdk.crypto.ec", "--no-man-pages"]
    subprocess.run([*modules, "--no-header-files", "--output", str(jre)], check=True, timeout=60)
    subprocess.run(["javac", "-d", str(jre), str(tmp_path / "Ask.java")], check=True, timeout=60)
    sandbox.files.upload(jre, "/tmp/jre")
    result = sandbox.run(["/tmp/jre/bin/java", "-cp", "/tmp/jre", "Ask", f"https://{API}/who"], timeout=60)
    assert result.ok, result.stderr
    assert f"Bearer {VALUE}" in outside(world)
    assert f"Bearer {'*' * len(VALUE)}" in result.stdout


def test_only_http_1_is_offered_to_inspected_clients(sandbox: Sandbox) -> None:
    assert sandbox.run(f"curl -sS --http2 -o /dev/null -w '%{{http_version}}' https://{API}/").stdout == "1.1"


# -- where it does not go ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        f'curl -sS -H "Authorization: Bearer $TOKEN" http://{FILES}/',
        f'curl -sS "http://{FILES}/?x=$TOKEN"',
        f'curl -sS -u "me:$TOKEN" http://{FILES}/',
        f'curl -sS -d "x=$TOKEN" http://{FILES}/',
        f'curl -sS -x http://198.18.0.2:3128 -H "X: $TOKEN" http://{FILES}/',
    ],
)
def test_placeholder_sent_to_another_host_is_blocked_and_recorded(world: World, sandbox: Sandbox, command: str) -> None:
    before = denied(sandbox, FILES)
    result = sandbox.run(command)
    wait_until(lambda: denied(sandbox, FILES) == before + 1, "a record of it")
    assert [attempt.host for attempt in result.denied] == [FILES]
    assert "skerry-secret" not in outside(world)


def test_placeholder_in_plain_http_is_blocked(world: World, sandbox: Sandbox) -> None:
    result = sandbox.run(f'curl -sS -H "X: $TOKEN" http://{API}/')
    assert "placeholder of secret TOKEN" in result.stdout
    assert outside(world) == ""


def test_placeholder_in_a_raw_stream_is_blocked(world: World, sandbox: Sandbox) -> None:
    raw = f"import os, socket; s = socket.create_connection(('{API}', 7), 10); s.settimeout(10); "
    before = denied(sandbox, API)
    hello = sandbox.run(["python3", "-c", raw + "s.sendall(b'hello'); print(s.recv(100))"])
    assert "hello" in hello.stdout, hello.stderr
    cut = sandbox.run(["python3", "-c", raw + "s.sendall(os.environ['TOKEN'].encode()); print(s.recv(100))"])
    assert "skerry-secret" not in cut.stdout
    wait_until(lambda: denied(sandbox, API) == before + 1, "a record of it")


@pytest.mark.parametrize(
    "request_line",
    ["GET http://x:{token}@{api}/ HTTP/1.1", "GET http://{api}/{token} HTTP/1.1", "{token} http://{api}/ HTTP/1.1"],
    ids=["user of a whole address", "path", "method"],
)
def test_placeholder_in_a_proxy_request_line_is_blocked(world: World, sandbox: Sandbox, request_line: str) -> None:
    line = request_line.format(token="' + os.environ['TOKEN'] + '", api=API)
    script = (
        "import os, socket; s = socket.create_connection(('198.18.0.2', 3128), 10); s.settimeout(10); "
        f"s.sendall(('{line}\\r\\nHost: {API}\\r\\n\\r\\n').encode()); print(s.recv(9999).decode())"
    )
    result = sandbox.run(["python3", "-c", script])
    assert result.stdout.startswith(("HTTP/1.1 403", "HTTP/1.1 400")), result.stdout + result.stderr
    assert outside(world) == ""


def test_trace_is_not_sent_to_a_host_that_gets_secrets(world: World, sandbox: Sandbox) -> None:
    result = sandbox.run(f'curl -sS -X TRACE -H "X: $TOKEN" -w "%{{http_code}}" https://{API}/')
    assert result.stdout.endswith("405")
    assert outside(world) == ""


def test_redirect_to_another_host_does_not_carry_the_secret(world: World, world_server: Server) -> None:
    network = Network(allow=[f"{FILES}:80"])
    with Sandbox(
        server=world_server.address, network=network, secrets=[secret(header="Authorization: Bearer {}")]
    ) as sandbox:
        result = sandbox.run(f"curl -sS -L 'https://{API}/redirect?to=http://{FILES}/there'")
        assert '"/there"' in result.stdout
    there = [call["raw"] for call in world.calls("198.51.100.20")]
    assert there
    assert VALUE not in "".join(there)


def test_host_with_an_invalid_certificate_gets_nothing(world: World, world_server: Server) -> None:
    world.teach("wrong.test", ["198.51.100.10"])
    wrong = Secret("TOKEN", hosts=["wrong.test"], value=VALUE, header="Authorization: Bearer {}")
    with Sandbox(server=world_server.address, secrets=[wrong]) as sandbox:
        result = sandbox.run("curl -sS -w '%{http_code}' https://wrong.test/")
        assert result.stdout.endswith("502")
        assert "no certificate that is trusted by the server's machine" in result.stdout
    assert VALUE not in outside(world)


# -- live -------------------------------------------------------------------------------------------------------------


def test_secret_can_be_changed_and_removed_while_the_sandbox_runs(world: World, world_server: Server) -> None:
    ask = f'curl -sS -H "Authorization: Bearer $TOKEN" https://{API}/'
    with Sandbox(server=world_server.address, network=Network(allow=[API]), secrets=[secret()]) as sandbox:
        sandbox.run(ask, check=True)
        sandbox.update(secrets=[secret(OTHER)])
        sandbox.run(ask, check=True)
        told = outside(world)
        assert VALUE in told
        assert OTHER in told
        world.reset()
        sandbox.update(secrets=[])
        assert sandbox.run("echo ${TOKEN-gone}").stdout == "gone\n"
        assert OTHER not in outside(world)


def test_newly_inspected_host_is_trusted_at_once(world: World, world_server: Server) -> None:
    with Sandbox(server=world_server.address, network=Network(allow=[API])) as sandbox:
        assert sandbox.run(f"curl -sS https://{API}/").exit_code == 60, "the image does not know the world's CA"
        sandbox.network.set(Network(allow=[f"GET {API}/open"]))
        assert '"/open/x"' in sandbox.run(f"curl -sS https://{API}/open/x", check=True).stdout
        assert "403" in sandbox.run(f"curl -sS -o /dev/null -w '%{{http_code}}' https://{API}/closed").stdout
        sandbox.network.set(Network(allow=[API]))
        assert sandbox.run(f"curl -sS https://{API}/").exit_code == 60


def test_secrets_work_after_a_server_crash(world: World, own_world_server: Server) -> None:
    own_world_server.start()
    with Sandbox(server=own_world_server.address, secrets=[secret()]) as sandbox:
        ask = f'curl -sS -H "Authorization: Bearer $TOKEN" https://{API}/ --retry 5 --retry-all-errors --retry-delay 1'
        sandbox.run(ask, check=True)
        own_world_server.end(signal.SIGKILL)
        own_world_server.start()
        world.reset()
        sandbox.run(ask, check=True)
        assert f"Bearer {VALUE}" in outside(world)


def test_value_reaches_only_its_host(world: World, world_server: Server, sandbox: Sandbox) -> None:
    sandbox.run(
        f'curl -sS -H "Authorization: Bearer $TOKEN" https://{API}/ > /tmp/answer; curl -sS http://{FILES}/', check=True
    )
    sandbox.run(f'curl -sS "https://{API}/?q=$TOKEN" -u "x:$TOKEN" -D /tmp/head > /tmp/answer2', check=True)
    assert VALUE in outside(world)
    places = "/tmp /run /home /root /etc /var /workspace"
    search = sandbox.run(  # the pattern does not match itself in its own command line
        f"sudo grep -ra 'ghp_s3[c]r3t' {places} 2>/dev/null; "
        "sudo sh -c 'cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline' 2>/dev/null | grep -ac 'ghp_s3[c]r3t'"
    )
    assert search.stdout == "0\n"
    log = list(sandbox.network.log())
    assert any(attempt.secrets == ("TOKEN",) for attempt in log)
    assert "ghp_s3cr3t" not in repr(log)
    assert "ghp_s3cr3t" not in world_server.log.read_text(errors="replace")
    for file in world_server.state_dir.glob("state.db*"):
        assert b"ghp_s3cr3t" not in file.read_bytes()
    assert "ghp_s3cr3t" not in repr(sandbox.info())
    assert "ghp_s3cr3t" not in repr(sandbox.network.show())
