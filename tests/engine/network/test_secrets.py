"""Storage of secret values, access to them, and placeholders inside the sandbox."""

from __future__ import annotations

import signal
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from support.server import Server

from skerry.engine.network.secrets import SecretFile, SecretStore, inspects
from skerry.engine.sandboxes.record import SandboxRecord, SandboxSpec, _digest
from skerry.types import CreateRequest, Lifecycle, Limits, Network, Options, Preset, SecretValue

VALUE = "s3cr3t-value-of-a-token-0123456789"
BEGIN = "-----BEGIN CERTIFICATE-----"
CLOSED = Network()
OTHER = "an0ther-value-of-a-token-9876543210"


def secret(name: str = "TOKEN", value: str = VALUE, **form: str) -> SecretValue:
    return SecretValue(name=name, hosts=("api.example.com",), value=value, **form)


def record(*secrets: SecretValue, network: Network = CLOSED, life: str | None = "1h") -> SandboxRecord:
    spec = SandboxSpec(
        image="base", image_digest="x", layers=(), user="root", cwd="/", image_env={}, env={}, labels={},
        limits=Limits(), lifecycle=Lifecycle(max_lifetime=life), network=network, options=Options(),
        secrets=tuple(secret.form for secret in secrets),
    )  # fmt: skip
    return SandboxRecord(id="sb-aaaaaaaaaa", owner="local", name=None, state="running", spec=spec, created_at=0.0)


@pytest.fixture
def store(tmp_path: Path) -> SecretStore:
    return SecretStore(tmp_path / "secrets")


# -- the files --------------------------------------------------------------------------------------------------------


def test_only_the_server_can_read_values(store: SecretStore, tmp_path: Path) -> None:
    store.put("sb-aaaaaaaaaa", [secret()])
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    files = list((tmp_path / "secrets").iterdir())
    assert [(f.name, stat.S_IMODE(f.stat().st_mode)) for f in files] == [("sb-aaaaaaaaaa", 0o600)]


def test_sandbox_without_secrets_and_inspection_has_no_file_and_no_ca(store: SecretStore, tmp_path: Path) -> None:
    store.put("sb-aaaaaaaaaa", [])
    assert store.brokered(record()) == ((), None)
    assert store.placeholders(record()) == {}
    assert not (tmp_path / "secrets").exists()


def test_worker_receives_value_placeholder_and_ca(store: SecretStore) -> None:
    store.put("sb-aaaaaaaaaa", [secret(header="Authorization: Bearer {}")])
    (brokered,), ca = store.brokered(record(secret()))
    assert (brokered.name, brokered.value, brokered.header) == ("TOKEN", VALUE, "Authorization: Bearer {}")
    assert brokered.placeholder == store.placeholders(record(secret()))["TOKEN"]
    assert ca is not None
    assert "sb-aaaaaaaaaa" in x509.load_pem_x509_certificate(ca.certificate.encode()).subject.rfc4514_string()


def test_placeholder_is_stable_and_unique(store: SecretStore) -> None:
    store.put("sb-aaaaaaaaaa", [secret()])
    first = store.placeholders(record(secret()))["TOKEN"]
    assert first.startswith("skerry-secret-TOKEN-")
    assert len(first) >= len("skerry-secret-TOKEN-") + 32
    store.put("sb-aaaaaaaaaa", [])
    store.put("sb-aaaaaaaaaa", [secret(value=OTHER), secret("OTHER")])
    held = store.placeholders(record(secret(), secret("OTHER")))
    assert held["TOKEN"] == first
    assert held["OTHER"].rpartition("-")[2] != first.rpartition("-")[2]
    store.put("sb-bbbbbbbbbb", [secret()])
    assert store._read("sb-bbbbbbbbbb").placeholder("TOKEN") != first  # type: ignore[union-attr]


def test_ca_is_renewed_when_it_would_expire_during_the_next_lifetime(store: SecretStore) -> None:
    store.put("sb-aaaaaaaaaa", [secret()])
    first = store.authority(record(secret()))
    store.renew(record(secret(), life="2h"))
    assert store.authority(record(secret(), life="30d")) == first, "not in the middle of one"
    store.renew(record(secret(), life="30d"))
    assert store.authority(record(secret(), life="30d")) != first


def test_concurrent_callers_get_the_same_ca(store: SecretStore) -> None:
    store.put("sb-aaaaaaaaaa", [secret()])
    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(lambda _: store.authority(record(secret())), range(64)))) == 1


def test_create_digest_reveals_no_values() -> None:
    """It is kept with a digest of the request, on which guesses could be tried."""
    digests = {_digest(CreateRequest(secrets=(secret(value=value),))) for value in (VALUE, OTHER)}
    assert len(digests) == 1
    assert _digest(CreateRequest(secrets=(secret("ELSE"),))) not in digests
    assert _digest(CreateRequest()) not in digests


def test_damaged_or_missing_file_means_no_secrets_and_no_crash(
    store: SecretStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.put("sb-aaaaaaaaaa", [secret()])
    path = tmp_path / "secrets" / "sb-aaaaaaaaaa"
    path.write_bytes(path.read_bytes()[:-40])
    assert store.brokered(record(secret()))[0] == ()
    store.remove("sb-aaaaaaaaaa")
    assert store.brokered(record(secret()))[0] == ()
    assert VALUE not in caplog.text


def test_sweep_removes_orphaned_and_partial_files(store: SecretStore, tmp_path: Path) -> None:
    store.put("sb-aaaaaaaaaa", [secret()])
    store.put("sb-bbbbbbbbbb", [secret()])
    (tmp_path / "secrets" / "sb-aaaaaaaaaa.new").write_text(VALUE)
    store.sweep(["sb-aaaaaaaaaa"])
    assert [f.name for f in (tmp_path / "secrets").iterdir()] == ["sb-aaaaaaaaaa"]


def test_repr_never_shows_a_value(store: SecretStore) -> None:
    store.put("sb-aaaaaaaaaa", [secret()])
    (brokered,), ca = store.brokered(record(secret()))
    request = CreateRequest(secrets=(secret(),))
    for holder in (secret(), brokered, ca, SecretFile(seed=b"", secrets=(secret(),)), request):
        assert VALUE not in f"{holder} {holder!r}"
        assert "PRIVATE" not in f"{holder} {holder!r}"


@pytest.mark.parametrize(
    ("network", "opened"),
    [
        (Network(), False),
        (Network(allow=("a.example", "10.0.0.0/8", "10.0.0.0/8:5432", "*.b.example:*"), deny=("c.example",)), False),
        (Network(inspect=("a.example",)), True),
        (Network(allow=("GET a.example",)), True),
        (Network(allow=("a.example/v1",)), True),
        (Network(deny=("DELETE a.example",)), True),
        (Network(presets=(Preset(name="pip", allow=("GET a.example",)),)), True),
    ],
)
def test_ca_is_created_for_policies_that_inspect_requests(network: Network, opened: bool) -> None:
    assert inspects(network) is opened


# -- in a server ------------------------------------------------------------------------------------------------------


def create(server: Server, *secrets: dict[str, Any], **more: Any) -> Any:
    with server.http() as http:
        answer = http.post("/v1/sandboxes", json={"secrets": secrets, **more})
        assert answer.status_code == 201, answer.text
        return answer.json()


def run(server: Server, sandbox: str, cmd: str) -> str:
    with server.http() as http:
        answer = http.post(f"/v1/sandboxes/{sandbox}/processes", params={"wait": "true"}, json={"cmd": cmd})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["stdout"])


def form(name: str = "TOKEN", value: str = VALUE, **more: str) -> dict[str, Any]:
    return {"name": name, "hosts": ["api.example.com"], "value": value, **more}


@pytest.fixture(scope="module")
def made(server: Server) -> Iterator[Any]:
    sandbox = create(server, form())
    yield sandbox
    with server.http() as http:
        http.delete(f"/v1/sandboxes/{sandbox['id']}").raise_for_status()


def test_sandbox_sees_a_placeholder(server: Server, made: Any) -> None:
    assert run(server, made["id"], "echo $TOKEN").startswith("skerry-secret-TOKEN-")
    assert VALUE not in run(server, made["id"], "env; cat /proc/*/environ 2>/dev/null; cat -r /run/skerry 2>/dev/null")


def test_sandbox_ca_is_added_to_the_certificates_of_the_image(server: Server, made: Any) -> None:
    assert (
        run(server, made["id"], "printenv SSL_CERT_FILE GIT_SSL_CAINFO NODE_EXTRA_CA_CERTS").split()
        == ["/run/skerry/ca.pem"] * 3
    )
    inside, image = (
        run(server, made["id"], f"cat {path}").split(BEGIN)
        for path in ("/run/skerry/ca.pem", "/etc/ssl/certs/ca-certificates.crt")
    )
    assert [block.strip() for block in inside[:-1]] == [block.strip() for block in image]
    own = x509.load_pem_x509_certificate((BEGIN + inside[-1]).encode())
    assert made["id"] in own.subject.rfc4514_string()
    assert run(server, made["id"], "stat -c %s /run/skerry/truststore.p12; printenv JAVA_TOOL_OPTIONS").count("\n") == 2
    assert "PRIVATE" not in run(server, made["id"], "grep -r PRIVATE /run/skerry 2>/dev/null")


def test_value_is_in_no_response_no_record_and_no_log(server: Server, made: Any) -> None:
    with server.http() as http:
        told = [http.get(f"/v1/sandboxes/{made['id']}").text, http.get("/v1/sandboxes").text]
        told.append(http.post("/v1/sandboxes", json={"secrets": [form(), form()]}).text)
        told.append(http.post("/v1/sandboxes", json={"secrets": [form(header=VALUE)]}).text)
        told.append(http.post("/v1/sandboxes", json={"secrets": [form(value=VALUE + "\n")]}).text)
        told.append(http.post("/v1/sandboxes", json={"secrets": [form()], "env": {"TOKEN": "x"}}).text)
    for text in told:
        assert VALUE not in text
    assert VALUE not in server.log.read_text(errors="replace")
    for file in server.state_dir.glob("state.db*"):
        assert VALUE.encode() not in file.read_bytes()


def test_secrets_can_be_changed_while_a_sandbox_runs(server: Server) -> None:
    sandbox = create(server)["id"]
    with server.http() as http:
        assert run(server, sandbox, "echo ${TOKEN-none}; ls /run/skerry") == "none\nbin\nsudo.sock\n"
        changed = http.patch(f"/v1/sandboxes/{sandbox}", json={"secrets": [form()]}).json()
        assert [held["name"] for held in changed["secrets"]] == ["TOKEN"]
        placeholder = run(server, sandbox, "echo $TOKEN; test -s /run/skerry/ca.pem && echo trusts")
        assert placeholder.endswith("\ntrusts\n")
        assert http.patch(f"/v1/sandboxes/{sandbox}", json={"env": {"TOKEN": "x"}}).status_code == 400
        http.patch(f"/v1/sandboxes/{sandbox}", json={"secrets": []}).raise_for_status()
        assert run(server, sandbox, "echo ${TOKEN-none}; ls /run/skerry") == "none\nbin\nsudo.sock\n"
        http.patch(f"/v1/sandboxes/{sandbox}", json={"secrets": [form(value=OTHER)]}).raise_for_status()
        assert run(server, sandbox, "echo $TOKEN; test -s /run/skerry/ca.pem && echo trusts") == placeholder
        http.delete(f"/v1/sandboxes/{sandbox}").raise_for_status()
    assert not (server.state_dir / "secrets" / sandbox).exists()


def test_placeholder_and_ca_survive_a_stop_and_a_server_crash(server: Server) -> None:
    sandbox = create(server, form())["id"]
    look = "echo $TOKEN; sha256sum < /run/skerry/ca.pem"
    before = run(server, sandbox, look)
    server.end(signal.SIGKILL)
    (server.state_dir / "secrets" / "sb-zzzzzzzzzz").write_text("left behind")
    server.start()
    assert not (server.state_dir / "secrets" / "sb-zzzzzzzzzz").exists()
    assert run(server, sandbox, look) == before
    with server.http() as http:
        http.post(f"/v1/sandboxes/{sandbox}/stop").raise_for_status()
        assert run(server, sandbox, look) == before
        http.delete(f"/v1/sandboxes/{sandbox}").raise_for_status()


def test_root_inside_can_damage_only_its_sandboxs_certificates(server: Server) -> None:
    sandbox = create(server, form())["id"]
    run(server, sandbox, "sudo rm -f /run/skerry/ca.pem && sudo mkdir -p /run/skerry/ca.pem/x")
    with server.http() as http:
        assert http.patch(f"/v1/sandboxes/{sandbox}", json={"secrets": [form(value=OTHER)]}).status_code == 200
        assert run(server, sandbox, "echo alive") == "alive\n"
        http.delete(f"/v1/sandboxes/{sandbox}").raise_for_status()
