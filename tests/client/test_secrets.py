"""Sources of secret values on the client's host; a value is never shown."""

from __future__ import annotations

import copy
import os
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from skerry.cli.options.secrets import secret_options, secrets_from_options
from skerry.cli.project import find_project_file
from skerry.client.policy_inputs import secret_values
from skerry.client.secret_store import UserSecrets
from skerry.client.secrets import Secret
from skerry.config import load
from skerry.errors import InvalidRequest, NotFound

VALUE = "s3cr3t-value-0123456789"
HOSTS = ["api.example.com"]


def test_secret_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", VALUE)
    monkeypatch.setenv("OTHER", "0th3r-value-0123456789")
    assert Secret("TOKEN", hosts=HOSTS).read().value == VALUE
    assert Secret.from_env("TOKEN", hosts=HOSTS).read().value == VALUE
    assert Secret.from_env("TOKEN", "OTHER", hosts=HOSTS).read().value == "0th3r-value-0123456789"


def test_value_is_read_when_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKEN", raising=False)
    secret = Secret.from_env("TOKEN", hosts=HOSTS)
    with pytest.raises(InvalidRequest, match="TOKEN is not set here"):
        secret.read()
    monkeypatch.setenv("TOKEN", VALUE)
    assert secret.read().value == VALUE


def test_secret_is_read_from_a_file_without_its_final_newline(tmp_path: Path) -> None:
    for text in (VALUE, VALUE + "\n", VALUE + "\r\n"):
        (tmp_path / "token").write_text(text)
        assert Secret.from_file("TOKEN", tmp_path / "token", hosts=HOSTS).read().value == VALUE


@pytest.mark.parametrize(
    "text", ["", "short", f"{VALUE}\n{VALUE}", "é" * 20, "x" * 20_000, "a\0b" * 10, " leading-blank", "trailing-blank "]
)
def test_file_without_a_secret_is_rejected_without_printing_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(InvalidRequest) as refused:
        Secret.from_file("TOKEN", tmp_path / "token", hosts=HOSTS).read()
    assert "value of TOKEN" in str(refused.value)
    assert VALUE not in str(refused.value)


def test_unreadable_file_error_has_the_reason(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="No such file"):
        Secret.from_file("TOKEN", tmp_path / "none", hosts=HOSTS).read()
    with pytest.raises(InvalidRequest, match="Is a directory"):
        Secret.from_file("TOKEN", tmp_path, hosts=HOSTS).read()


def test_secret_is_read_from_a_command_without_a_shell() -> None:
    odd = "$HOME; `id` && s3cr3t"
    told = Secret.from_command("TOKEN", [sys.executable, "-c", "import sys; print(sys.argv[1])", odd], hosts=HOSTS)
    assert told.read().value == odd


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import sys; sys.exit(3)", "ended with 3"),
        ("import time; time.sleep(60)", "took too long"),
        ("import os, time; os.close(1); time.sleep(60)", "took too long"),
        ("while True: print('x' * 1000)", "printed more"),
        ("import os; os.write(1, b'\\xff' * 20)", "not ASCII"),
    ],
)
def test_command_without_a_secret_is_rejected_in_time(program: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        Secret.from_command("TOKEN", [sys.executable, "-c", program], hosts=HOSTS, timeout=2).read()


def test_missing_command_is_an_error() -> None:
    with pytest.raises(InvalidRequest, match="cannot be run"):
        Secret.from_command("TOKEN", ["/no/such/program"], hosts=HOSTS).read()
    with pytest.raises(InvalidRequest, match="not a list"):
        Secret.from_command("TOKEN", "pass show token", hosts=HOSTS)


@pytest.mark.parametrize("wrong", [Secret("TOKEN", hosts=HOSTS), {"TOKEN": VALUE}, VALUE, [VALUE]])
def test_invalid_list_of_secrets_gets_a_hint(wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match="is not a") as refused:
        secret_values(wrong)
    assert "secrets=[Secret.from_env(" in str(refused.value.hint)
    assert VALUE not in str(refused.value)


def test_secret_value_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", VALUE)
    for secret in (Secret("TOKEN", hosts=HOSTS, value=VALUE), Secret.from_env("TOKEN", hosts=HOSTS)):
        shown = f"{secret} {secret!r} {copy.copy(secret)!r} {secret.read()!r} {secret.read()}"
        assert VALUE not in shown
        assert "api.example.com" in shown


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "a b"},
        {"hosts": []},
        {"hosts": "api.example.com"},
        {"header": "Authorization: Bearer"},
        {"header": "A: {}\r\nB: x"},
        {"header": "A: {}", "query": "x"},
        {"basic": "a:b"},
        {"header": "Host: {}"},
        {"header": "content-length: {}"},
        {"header": "Transfer-Encoding: {}"},
    ],
)
def test_invalid_secret_is_rejected_at_construction(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        Secret(**({"name": "TOKEN", "hosts": HOSTS, "value": VALUE} | wrong))


# -- the command line -------------------------------------------------------------------------------------------------


@click.command()
@secret_options
def command(**given: Any) -> None:
    for secret in secrets_from_options(given, load(project=find_project_file())):
        form = secret.read().form
        click.echo(f"{form.name} {','.join(form.hosts)} {form.header} {form.query} {form.basic}")


def call(*args: str) -> str:
    done = CliRunner().invoke(command, args)
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_flags_set_hosts_and_forms(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKEN", VALUE)
    (tmp_path / "a@b").write_text(VALUE)
    assert call("--secret", "TOKEN=a.example,*.b.example:8443") == "TOKEN a.example,*.b.example:8443 None None None\n"
    told = call("--secret", "TOKEN=a.example", "--secret-header", "TOKEN=Authorization: Bearer {}")
    assert told == "TOKEN a.example Authorization: Bearer {} None None\n"
    told = call("--secret-file", f"KEY={tmp_path}/a@b@c.example", "--secret-basic", "KEY=me")
    assert told == "KEY c.example None None me\n"


def test_flags_name_the_source_of_a_value(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("MINE", VALUE)
    UserSecrets().set("anthropic", VALUE, place="file")
    assert call("--secret", "@anthropic") == "ANTHROPIC_API_KEY api.anthropic.com None None None\n"
    told = call("--secret", "KEY=@anthropic:a.example,b.example:8443", "--secret-header", "KEY=x-api-key: {}")
    assert told == "KEY a.example,b.example:8443 x-api-key: {} None None\n"
    assert call("--secret-env", "KEY=MINE@a.example") == "KEY a.example None None None\n"
    assert call("--secret-command", "KEY=printenv MINE@a.example") == "KEY a.example None None None\n"
    with pytest.raises(NotFound, match="openai is not in the store"):
        call("--secret", "KEY=@openai")
    with pytest.raises(InvalidRequest, match="KEY is given twice"):
        call("--secret", "KEY=a.example", "--secret-env", "KEY=MINE@a.example")


@pytest.mark.parametrize(
    "args",
    [
        ("--secret", "TOKEN=@s3cr3t"),
        ("--secret", "@s3cr3t"),
        ("--secret", "TOKEN=@S3cr3t/s3cr3t:a.example"),
        ("--secret-env", "TOKEN=s3cr3t-value@a.example"),
        ("--secret-env", "TOKEN=s3cr3t"),
        ("--secret-command", "TOKEN=s3cr3t"),
        ("--secret-command", "TOKEN='s3cr3t@a.example"),
        ("--secret", "TOKEN=ghp_s3cr3t_value"),
        ("--secret", "ghp_s3cr3t_value"),
        ("--secret", "TOKEN=a.example,s3cr3t value"),
        ("--secret", "TOKEN=0123456789-abcdef-s3cr3t"),
        ("--secret", "TOKEN=https://user:s3cr3t@a.example"),
        ("--secret-header", "TOKEN=Authorization: s3cr3t"),
        ("--secret-file", "TOKEN=s3cr3t"),
        ("--secret", "TOKEN=a.example", "--secret-header", "TOKEN=Authorization: Bearer s3cr3t"),
    ],
)
def test_value_on_the_command_line_is_rejected_and_not_printed(args: tuple[str, ...]) -> None:
    os.environ.pop("TOKEN", None)
    with pytest.raises(InvalidRequest) as refused:
        call(*args)
    assert "s3cr3t" not in f"{refused.value} {refused.value.hint}"


def test_value_that_looks_like_a_host_is_recognised_by_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "abcdefgh")
    with pytest.raises(InvalidRequest, match="not a list of hosts"):
        call("--secret", "TOKEN=abcdefgh")
    assert call("--secret", "TOKEN=gitlab,artifactory-of-the-house") == (
        "TOKEN gitlab,artifactory-of-the-house None None None\n"
    )


def test_web_address_is_distinguished_from_a_value() -> None:
    with pytest.raises(InvalidRequest, match="not a host") as refused:
        call("--secret", "TOKEN=https://api.example.com/v1")
    assert "without https://" in str(refused.value.hint)


def test_project_file_names_the_hosts_of_a_secret_and_the_user_its_value(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKEN", VALUE)
    (tmp_path / "skerry.toml").write_text('[secrets.TOKEN]\nhosts = ["a.example"]\nheader = "X-Key: {}"\n')
    assert call() == "", "not unless it is named"
    assert call("--secret", "TOKEN") == "TOKEN a.example X-Key: {} None None\n"
    with pytest.raises(InvalidRequest, match="no hosts given"):
        call("--secret", "OTHER")


@pytest.mark.parametrize(
    "text",
    [
        '[secrets.TOKEN]\nhosts = ["a.example"]\nfile = "/etc/shadow"\n',
        '[secrets.TOKEN]\nhosts = ["a.example"]\nenv = "AWS_SECRET_ACCESS_KEY"\n',
        '[secrets.TOKEN]\nhosts = ["a.example"]\ncommand = ["cat", "/etc/shadow"]\n',
        '[secrets.TOKEN]\nhosts = ["a.example"]\nvalue = "s3cr3t-value"\n',
        "[secrets.TOKEN]\n",
        '[secrets.TOKEN]\nhosts = ["a.example"]\nheader = 5\n',
        '[secrets."a b"]\nhosts = ["a.example"]\n',
        'secrets = "TOKEN"\n',
    ],
)
def test_project_file_cannot_name_a_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "skerry.toml").write_text(text)
    with pytest.raises(InvalidRequest):
        call()


def test_unset_variable_is_named() -> None:
    os.environ.pop("TOKEN", None)
    with pytest.raises(InvalidRequest, match="TOKEN is not set here") as refused:
        call("--secret", "TOKEN=a.example")
    assert "--secret-file" in str(refused.value.hint)
