"""Logins for registries are found where docker and podman keep them, on the client's machine."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from skerry.client.host.credentials import find_credentials
from skerry.errors import SkerryError
from skerry.types import Credentials, parse_reference

AUTH = base64.b64encode(b"ann:se:cret").decode()
ANN = Credentials(username="ann", password="se:cret")


def found(home: Path, name: str = "reg.test:5000/team/app", **env: str) -> Credentials | None:
    return find_credentials(parse_reference(name), {"HOME": str(home), **env})


def docker(home: Path, **content: object) -> None:
    (home / ".docker").mkdir(exist_ok=True)
    (home / ".docker/config.json").write_text(json.dumps(content))


def helper(home: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = home / "bin/docker-credential-vault"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")


def test_host_without_logins_has_none(tmp_path: Path) -> None:
    assert found(tmp_path) is None
    docker(tmp_path, auths={"other.test": {"auth": AUTH}}, unknown={"a": 1})
    assert found(tmp_path) is None


@pytest.mark.parametrize(
    "key", ["reg.test:5000", "https://reg.test:5000", "https://reg.test:5000/v1/", "reg.test:5000/team"]
)
def test_docker_config_is_read_for_every_spelling_of_a_registry(tmp_path: Path, key: str) -> None:
    docker(tmp_path, auths={key: {"auth": AUTH}})
    assert found(tmp_path) == ANN


def test_docker_hub_has_a_special_key(tmp_path: Path) -> None:
    docker(tmp_path, auths={"https://index.docker.io/v1/": {"auth": AUTH}})
    assert found(tmp_path, "python:3.12") == ANN
    assert found(tmp_path) is None


def test_token_replaces_a_password(tmp_path: Path) -> None:
    docker(tmp_path, auths={"reg.test:5000": {"auth": AUTH, "identitytoken": "long"}})
    assert found(tmp_path) == Credentials(identity_token="long")


def test_more_specific_entry_and_named_file_have_priority(tmp_path: Path) -> None:
    other = base64.b64encode(b"bob:1").decode()
    docker(tmp_path, auths={"reg.test:5000": {"auth": other}, "reg.test:5000/team": {"auth": AUTH}})
    assert found(tmp_path) == ANN
    named = tmp_path / "named.json"
    named.write_text(json.dumps({"auths": {"reg.test:5000": {"auth": other}}}))
    assert found(tmp_path, REGISTRY_AUTH_FILE=str(named)) == Credentials(username="bob", password="1")
    assert found(tmp_path, REGISTRY_AUTH_FILE=str(tmp_path / "missing")) is None


def test_podman_auth_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "run/containers").mkdir(parents=True)
    (tmp_path / "run/containers/auth.json").write_text(json.dumps({"auths": {"reg.test:5000": {"auth": AUTH}}}))
    assert found(tmp_path, XDG_RUNTIME_DIR=str(tmp_path / "run")) == ANN


@pytest.mark.parametrize("where", [{"credHelpers": {"reg.test:5000": "vault"}}, {"credsStore": "vault"}])
def test_credential_helper_is_run_on_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: dict[str, object]
) -> None:
    script = 'read k; [ "$1 $k" = "get reg.test:5000" ] && echo \'{"Username":"ann","Secret":"se:cret"}\''
    helper(tmp_path, monkeypatch, script)
    docker(tmp_path, auths={"reg.test:5000": {}}, **where)
    assert found(tmp_path) == ANN


def test_credential_helper_may_return_a_token_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper(tmp_path, monkeypatch, 'read k; [ $k = reg.test:5000 ] && echo \'{"Username":"<token>","Secret":"t"}\'')
    docker(tmp_path, credsStore="vault")
    assert found(tmp_path) == Credentials(identity_token="t")
    assert found(tmp_path, "other.test/app") is None


@pytest.mark.parametrize("name", ["missing", "../../bin/evil", "a b", ""])
def test_missing_or_invalid_helper_is_an_error(tmp_path: Path, name: str) -> None:
    docker(tmp_path, credHelpers={"reg.test:5000": name})
    with pytest.raises(SkerryError):
        found(tmp_path)


def test_damaged_file_is_named(tmp_path: Path) -> None:
    docker(tmp_path)
    (tmp_path / ".docker/config.json").write_text("{")
    with pytest.raises(SkerryError, match=r"config\.json"):
        found(tmp_path)


def test_repr_of_a_login_hides_the_password() -> None:
    assert "secret" not in f"{Credentials(username='u', password='secret')!r}{Credentials(password='secret')}"
