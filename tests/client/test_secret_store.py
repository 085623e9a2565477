"""The user's store of secrets on the client's host: private, complete, and silent about its values."""

from __future__ import annotations

import json
import os
import pty
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keyring
import keyring.backend
import keyring.backends.fail
import pytest
from support.cli import SKERRY, environment, skerry
from support.kills import killed_at_call

from skerry.client.secret_store import SERVICES, UserSecrets, has_keyring
from skerry.client.secrets import Secret
from skerry.errors import InvalidRequest, NotFound, PermissionDenied
from skerry.types import SecretForm

VALUE = "s3cr3t-value-0123456789"
OTHER = "0th3r-value-0123456789"


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's directory of settings, on a machine without a keyring. (The library would find the one below.)"""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    before = keyring.get_keyring()
    keyring.set_keyring(keyring.backends.fail.Keyring())
    yield tmp_path / "skerry"
    keyring.set_keyring(before)


class HeldKeyring(keyring.backend.KeyringBackend):
    """A backend of the real library, in memory."""

    priority = -2  # below `fail`: the library finds every subclass, and must not choose this one in other tests

    def __init__(self, broken: bool = False) -> None:
        super().__init__()
        self.held: dict[tuple[str, str], str] = {}
        self.broken = broken

    def get_password(self, service: str, username: str) -> str | None:
        return self.held.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        if self.broken:
            raise RuntimeError(f"cannot store {password}")
        self.held[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self.held[service, username]


@pytest.fixture
def held(settings: Path) -> HeldKeyring:
    keyring.set_keyring(backend := HeldKeyring())
    return backend


def test_stored_secret_is_private_and_read_when_needed(settings: Path) -> None:
    store = UserSecrets()
    secret = Secret.from_store("KEY", "anthropic")
    with pytest.raises(NotFound, match="anthropic is not in the store") as missing:
        secret.read()
    assert missing.value.hint == "skerry secret set anthropic"
    store.set("anthropic", VALUE)
    store.set("corp", OTHER, ("api.corp.example:8443",))
    assert (secret.read().value, secret.read().hosts) == (VALUE, ("api.anthropic.com",))
    assert Secret.from_store("CORP", "corp").read().hosts == ("api.corp.example:8443",)
    assert Secret.from_store("CORP", "corp", hosts=["other.example"], basic="me").read().form.basic == "me"
    assert VALUE not in f"{secret!r} {store.services()!r} {store.get('anthropic')}"
    store.set("corp", VALUE)
    assert (store.value("corp"), store.hosts("corp")) == (VALUE, ("api.corp.example:8443",)), "the hosts stay"
    assert stat.S_IMODE(settings.stat().st_mode) == 0o700
    assert stat.S_IMODE((settings / "secrets.json").stat().st_mode) == 0o600
    store.remove("anthropic")
    assert list(store.services()) == ["corp"]
    with pytest.raises(NotFound):
        store.remove("anthropic")
    assert sorted(path.name for path in settings.iterdir()) == ["secrets.json", "secrets.json.lock"]


def test_known_services_are_valid() -> None:
    for name, service in SERVICES.items():
        SecretForm(name=service.variable, hosts=service.hosts, header=service.header)
        assert Secret.from_store(service.variable, name).name == service.variable


@pytest.mark.parametrize("value", ["", "short", f"{VALUE}\n{VALUE}", "é" * 20, "x" * 20_000, " blank-at-the-start"])
def test_unusable_value_is_not_stored(value: str) -> None:
    with pytest.raises(InvalidRequest, match="value of VALUE can't be used"):
        UserSecrets().set("anthropic", value)
    assert UserSecrets().services() == {}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_attack_store_that_others_may_read_or_write_is_refused(settings: Path, mode: int) -> None:
    UserSecrets().set("anthropic", VALUE)
    (settings / "secrets.json").chmod(mode)
    for call in (lambda: UserSecrets().value("anthropic"), lambda: UserSecrets().set("openai", OTHER)):
        with pytest.raises(PermissionDenied, match=f"mode {mode:04o}"):
            call()


def test_attack_store_of_another_user_is_refused(settings: Path) -> None:
    UserSecrets().set("anthropic", VALUE)
    file = settings / "secrets.json"
    os.chown(file, 1234, 0)
    with pytest.raises(PermissionDenied, match="another user"):
        UserSecrets().value("anthropic")
    os.chown(file, 0, 0)
    for owner, mode in ((1234, 0o700), (0, 0o770), (0, 0o702)):
        os.chown(settings, owner, 0)
        settings.chmod(mode)
        with pytest.raises(PermissionDenied, match="can write there"):
            UserSecrets().value("anthropic")
        with pytest.raises(PermissionDenied, match="can write there"):
            UserSecrets().set("openai", OTHER)
    os.chown(settings, 0, 0)
    settings.chmod(0o700)
    assert UserSecrets().value("anthropic") == VALUE


def test_attack_link_or_fifo_in_place_of_the_store_is_refused(settings: Path, tmp_path: Path) -> None:
    UserSecrets().set("anthropic", VALUE)
    (settings / "secrets.json").rename(tmp_path / "elsewhere")
    (settings / "secrets.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionDenied, match="symbolic link"):
        UserSecrets().value("anthropic")
    (settings / "secrets.json").unlink()
    os.mkfifo(settings / "secrets.json", 0o600)
    with pytest.raises(PermissionDenied, match="not a regular file"):
        UserSecrets().value("anthropic")


@pytest.mark.parametrize("text", [b"", b"{", b'{"version":2,"services":{}}', b'{"services":{"a":{"value":"s3cr3t"}}}'])
def test_damaged_store_is_an_error_that_quotes_nothing(settings: Path, text: bytes) -> None:
    UserSecrets().set("anthropic", VALUE)
    (settings / "secrets.json").write_bytes(text)
    with pytest.raises(InvalidRequest, match="is damaged") as caught:
        UserSecrets().set("openai", OTHER)
    assert "s3cr3t" not in str(caught.value)
    assert (settings / "secrets.json").read_bytes() == text, "nothing is overwritten"


def test_concurrent_changes_are_all_kept() -> None:
    names = [f"s{number}" for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: UserSecrets().set(name, f"{VALUE}-{name}", ("a.example",)), names))
    assert {name: UserSecrets().value(name) for name in names} == {name: f"{VALUE}-{name}" for name in names}


def test_kill_at_any_moment_of_a_change_keeps_the_store_complete(settings: Path) -> None:
    UserSecrets().set("anthropic", VALUE)
    number = 1
    while killed_at_call(number, lambda: UserSecrets().set("anthropic", OTHER)):
        assert UserSecrets().value("anthropic") in (VALUE, OTHER)
        UserSecrets().set("anthropic", VALUE)
        assert sorted(path.name for path in settings.iterdir()) == ["secrets.json", "secrets.json.lock"]
        number += 1
    assert number > 10
    assert UserSecrets().value("anthropic") == OTHER


def test_keyring_keeps_the_value_if_one_is_configured(settings: Path, held: HeldKeyring) -> None:
    store = UserSecrets()
    assert has_keyring()
    assert store.set("anthropic", VALUE).place == "keyring"
    assert held.held == {("skerry", "anthropic"): VALUE}
    assert VALUE not in (settings / "secrets.json").read_text()
    assert Secret.from_store("KEY", "anthropic").read().value == VALUE
    store.set("anthropic", OTHER, place="file")
    assert (held.held, store.value("anthropic")) == ({}, OTHER), "the keyring keeps no earlier value"
    store.set("anthropic", VALUE)
    held.held.clear()
    with pytest.raises(NotFound, match="the keyring has no value for anthropic"):
        store.value("anthropic")
    store.remove("anthropic")
    held.broken = True
    with pytest.raises(InvalidRequest, match=r"the keyring failed for openai \(RuntimeError\)") as caught:
        store.set("openai", VALUE)
    assert VALUE not in str(caught.value)
    assert store.services() == {}


# -- the command line -------------------------------------------------------------------------------------------------


def test_secret_commands_read_values_from_stdin_a_variable_or_a_program_and_never_print_them(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{VALUE}\n")
    done = [
        skerry("secret", "set", "anthropic", stdin=f"{VALUE}\n".encode()),
        skerry("secret", "set", "openai", "--from-env", "MY_KEY", MY_KEY=VALUE),
        skerry("secret", "set", "corp", "--host", "a.example", "--from-command", f"cat '{tmp_path}/token'"),
        skerry("secret", "ls"),
        skerry("secret", "ls", "--json"),
        skerry("secret", "ls", "--known"),
    ]
    assert [one.returncode for one in done] == [0] * 6, done
    assert VALUE not in str([(one.stdout, one.stderr) for one in done])
    assert [line.split()[0] for line in done[3].stdout.decode().splitlines()[1:]] == ["anthropic", "corp", "openai"]
    listed = json.loads(done[4].stdout)
    assert [(one["service"], one["place"], one["hosts"]) for one in listed] == [
        ("anthropic", "file", ["api.anthropic.com"]), ("corp", "file", ["a.example"]),
        ("openai", "file", ["api.openai.com"]),
    ]  # fmt: skip
    assert {UserSecrets().value(name) for name in ("anthropic", "openai", "corp")} == {VALUE}
    assert skerry("secret", "rm", "anthropic", "corp").returncode == 0
    assert list(UserSecrets().services()) == ["openai"]
    assert b"not in the store" in skerry("secret", "rm", "anthropic").stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("anthropic", VALUE), "the value is not an argument"),
        ((VALUE,), "the service is not known"),
        (("S3CR3T-value",), "not the name of a service"),
        (("unknown",), "the service is not known"),
        (("anthropic", "--from-command", "cat 's3cr3t"), "No closing quotation"),
        (("anthropic", "--from-env", "UNSET_VARIABLE"), "UNSET_VARIABLE is not set"),
    ],
)
def test_secret_on_the_command_line_is_refused_and_not_printed(words: tuple[str, ...], why: str) -> None:
    done = skerry("secret", "set", *words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert why in done.stderr.decode()
    assert b"s3cr3t" not in done.stderr.lower()
    assert UserSecrets().services() == {}


def test_secret_prompt_does_not_echo() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [*SKERRY, "secret", "set", "anthropic"], environment())
    seen = b""
    while b"Value of anthropic" not in seen:
        seen += os.read(terminal, 1024)
    os.write(terminal, f"{VALUE}\n".encode())
    with open(terminal, "rb", buffering=0) as rest:
        try:
            while more := rest.read(1024):
                seen += more
        except OSError:
            pass  # the program has ended
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, seen
    assert b"s3cr3t" not in seen
    assert UserSecrets().value("anthropic") == VALUE


def test_value_is_in_no_argument_of_a_running_program(tmp_path: Path) -> None:
    """While `secret set` waits for a program, other users of the machine see the words of both."""
    shown = tmp_path / "shown"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\nps -eo args >{shown}\necho {VALUE}\n")
    program.chmod(0o755)
    subprocess.run(
        [*SKERRY, "secret", "set", "anthropic", "--from-command", str(program)], env=environment(), check=True
    )
    assert "secret set anthropic" in shown.read_text()
    assert VALUE not in shown.read_text()
