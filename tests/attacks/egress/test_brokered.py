"""A guest after the secrets that it may use: the values are nowhere inside, and go to their hosts alone."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from support.egress_attack import Try, carry_in, tried
from support.server import Server
from world import places
from world.world import World

from skerry import Network, Sandbox, Secret

VALUE = "real-Value.of+the/tests=9f4c2a7e31"
HOST = "secret.example.test"
SEEK = """
import base64, glob, json, os, sys
wanted, found, looked = base64.b64decode(sys.argv[1]), [], 0
paths = [name for kind in ("environ", "cmdline", "mem") for name in glob.glob(f"/proc/[0-9]*/{kind}")]
for top in ("/run", "/etc", "/var", "/home", "/root", "/opt", "/tmp", "/dev/shm", "/work", "/srv"):
    paths += [os.path.join(where, name) for where, _, names in os.walk(top) for name in names]
for path in paths:
    try:
        if path.endswith("/mem"):
            pid = path.split("/")[2]
            if int(pid) == os.getpid():
                continue
            with open(f"/proc/{pid}/maps") as maps, open(path, "rb", 0) as memory:
                for line in maps:
                    start, end = (int(part, 16) for part in line.split()[0].split("-"))
                    if line.split()[1][0] == "r" and "[v" not in line and end - start < 1 << 28:
                        memory.seek(start)
                        if wanted in memory.read(end - start):
                            found.append(path)
        elif os.path.isfile(path):
            with open(path, "rb") as file:
                if wanted in file.read(64 << 20):
                    found.append(path)
        looked += 1
    except (OSError, ValueError):
        continue
print(json.dumps({"found": found, "looked": looked}))
"""
DEEP = "a.b.example.test"  # the far side's certificate does not cover it


@pytest.fixture(scope="module")
def holder(world: World, world_server: Server) -> Iterator[Sandbox]:
    world.teach(DEEP, [places.API])
    network = Network(
        allow=("api.example.test", f"{HOST}:80", DEEP, "inspected.example.test"), inspect=("inspected.example.test",)
    )
    secrets = [
        Secret("TOKEN", hosts=[HOST], value=VALUE),
        Secret("DEEP", hosts=[DEEP, "loopback.example.test", "private.example.test"], value=VALUE),
    ]
    with Sandbox(server=world_server.address, network=network, secrets=secrets) as sandbox:
        carry_in(sandbox)
        yield sandbox


@pytest.fixture(scope="module")
def placeholder(holder: Sandbox) -> str:
    said = holder.run('printf %s "$TOKEN"', check=True).stdout
    assert len(said) > 16
    assert said != VALUE
    return said


def request(path: str = "/", host: str = HOST, method: str = "GET", more: str = "", body: str = "") -> str:
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}{length}Connection: close\r\n\r\n{body}"


def arrived(calls: list[dict[str, object]]) -> str:
    return " ".join(str(call["raw"]) for call in calls)


def test_host_gets_the_value_and_the_guest_never_sees_it(world: World, holder: Sandbox, placeholder: str) -> None:
    asked = {
        "header": request(more=f"Authorization: Bearer {placeholder}\r\n"),
        "another header": request(more=f"X-Key: {placeholder}\r\n"),
        "query": request(f"/?key={placeholder}"),
        "basic": request(more=f"Authorization: Basic {base64.b64encode(f'me:{placeholder}'.encode()).decode()}\r\n"),
    }
    seen = tried(world, holder, {name: Try("raw_tls", [HOST, 443, data, '"address"']) for name, data in asked.items()})
    for name, outcome in seen.outcomes.items():
        assert outcome.gained is not None, (name, outcome)
        for spelled in (VALUE, quote(VALUE, safe=""), base64.b64encode(f"me:{VALUE}".encode()).decode()):
            assert spelled not in outcome.gained, name
    came = arrived(seen.calls)
    assert placeholder not in came
    assert came.count(VALUE) + came.count(quote(VALUE, safe="")) >= 3
    assert base64.b64encode(f"me:{VALUE}".encode()).decode() in came
    assert "gzip" not in came


def test_value_is_nowhere_inside(holder: Sandbox, placeholder: str) -> None:
    """In no file, no environment, no memory that root inside can read; nor the key of the CA."""
    holder.run(["curl", "-sS", f"https://{HOST}/", "-H", f"Authorization: Bearer {placeholder}"], check=True)
    argv = ["python3", "-c", SEEK, base64.b64encode(VALUE.encode()).decode()]
    found = json.loads(holder.run(argv, user="root", timeout=60, check=True).stdout)
    assert found["looked"] > 100
    assert found["found"] == []
    # Brackets, so that the keeper's list of processes, which holds this very line, is no find.
    keys = holder.run("grep -rasl 'PRIVATE[ ]KEY' /run /etc /var /home /root /opt", user="root").stdout
    assert keys == ""


def test_placeholder_sent_to_another_host_is_blocked_and_recorded(
    world: World, holder: Sandbox, placeholder: str
) -> None:
    basic = base64.b64encode(f"me:{placeholder}".encode()).decode()
    api = "api.example.test"
    plain = {
        "header": request(host=api, more=f"X-Key: {placeholder}\r\n"),
        "query": request(f"/?key={placeholder}", api),
        "path": request(f"/{placeholder}", api),
        "basic": request(host=api, more=f"Authorization: Basic {basic}\r\n"),
        "body": request(host=api, method="POST", body=f"key={placeholder}"),
        "a name of a header": request(host=api, more=f"{placeholder}: x\r\n"),
        "chunks": request(host=api, method="POST", more="Transfer-Encoding: chunked\r\n")
        + f"8\r\n{placeholder[:8]}\r\n{len(placeholder) - 8:x}\r\n{placeholder[8:]}\r\n0\r\n\r\n",
    }
    batch = {name: Try("raw", [api, 80, data, '"address"']) for name, data in plain.items()}
    batch["its own host without TLS"] = Try("raw", [HOST, 80, request(more=f"X-Key: {placeholder}\r\n"), '"address"'])
    batch["its own host without TLS, by the proxy"] = Try(
        "absolute", [f"http://{HOST}/", HOST, "GET", f"X-Key: {placeholder}\r\n"]
    )
    batch["an inspected host"] = Try(
        "raw_tls",
        [
            "inspected.example.test",
            443,
            request(host="inspected.example.test", more=f"X-Key: {placeholder}\r\n"),
            '"address"',
        ],
    )
    seen = tried(world, holder, batch)
    assert {name: one.gained for name, one in seen.outcomes.items() if not one.repelled} == {}
    assert placeholder not in arrived(seen.calls)
    assert VALUE not in arrived(seen.calls)
    assert seen.result is not None
    assert any("TOKEN" in attempt.secrets or "TOKEN" in attempt.why for attempt in seen.result.denied), (
        seen.result.denied
    )


def test_value_is_not_sent_to_an_impostor_of_the_host(world: World, holder: Sandbox) -> None:
    """A certificate that does not cover the name; a name that leads to a closed address; names that disagree."""
    batch = {
        "certificate": Try("raw_tls", [DEEP, 443, request(host=DEEP, more="X-Key: $DEEP\r\n"), '"address"']),
        "loopback": Try("raw_tls", ["loopback.example.test", 443, request(host="loopback.example.test"), '"address"']),
        "private": Try("raw_tls", ["private.example.test", 443, request(host="private.example.test"), '"address"']),
    }
    deep = holder.run('printf %s "$DEEP"').stdout
    batch = {name: Try(one.way, [str(arg).replace("$DEEP", deep) if isinstance(arg, str) else arg for arg in one.args])
             for name, one in batch.items()}  # fmt: skip
    seen = tried(world, holder, batch)
    assert {name: one.gained for name, one in seen.outcomes.items() if not one.repelled} == {}
    assert VALUE not in arrived(seen.calls)
    assert seen.strays == []


@pytest.mark.parametrize("says", ["api.example.test", "evil.test", DEEP, f"{HOST}:8443", f"{HOST}.evil.test"])
def test_value_is_in_no_request_for_another_host(world: World, holder: Sandbox, placeholder: str, says: str) -> None:
    data = request(host=says, more=f"X-Key: {placeholder}\r\n")
    seen = tried(world, holder, {"other": Try("raw_tls", [HOST, 443, data, '"address"'])})
    assert seen.outcomes["other"].gained is None
    assert VALUE not in arrived(seen.calls)


def test_value_is_in_no_response_and_no_file_of_the_server(holder: Sandbox, world_server: Server) -> None:
    with world_server.http() as http:
        told = "".join(
            http.get(f"/v1/sandboxes/{holder.id}{path}").text for path in ("", "/network", "/network/log", "/processes")
        )
    assert "TOKEN" in told
    assert VALUE not in told
    assert VALUE not in world_server.log.read_text(errors="replace")
    assert VALUE.encode() not in (world_server.state_dir / "state.db").read_bytes()
    told = json.dumps([str(attempt) for attempt in holder.network.log()])
    assert VALUE not in told
