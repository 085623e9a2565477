"""The user's keys for SSH, and the configuration as OpenSSH reads it."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from skerry.client.host.ssh_keys import UserKeys, ssh_options
from skerry.errors import InvalidRequest, PermissionDenied


@pytest.fixture
def keys(tmp_path: Path) -> UserKeys:
    made = UserKeys(tmp_path / "ssh")
    made.prepare()
    return made


def test_keys_are_private_and_stay_the_same(keys: UserKeys) -> None:
    before = {path.name: path.read_bytes() for path in keys.directory.iterdir()}
    keys.prepare()
    assert {path.name: path.read_bytes() for path in keys.directory.iterdir()} == before
    modes = {path.name: path.stat().st_mode & 0o777 for path in keys.directory.iterdir()}
    assert modes == {"id_ed25519": 0o600, "host_ed25519": 0o600, "known_hosts": 0o644}
    assert keys.directory.stat().st_mode & 0o777 == 0o700


def test_openssh_reads_the_keys(keys: UserKeys) -> None:
    def public(path: Path) -> str:
        return subprocess.run(["ssh-keygen", "-y", "-f", path], capture_output=True, text=True, check=True).stdout

    assert public(keys.directory / "host_ed25519").split()[:2] == keys.known_hosts.read_text().split()[1:]
    assert public(keys.identity).startswith("ssh-ed25519 ")


def test_concurrent_first_uses_agree_on_one_pair(tmp_path: Path) -> None:
    def use(_: int) -> tuple[bytes, bytes]:
        keys = UserKeys(tmp_path / "ssh")
        keys.prepare()
        return keys.public_blob(), keys.host_key()

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(use, range(16)))
    assert len(found) == 1
    assert sorted(os.listdir(tmp_path / "ssh")) == ["host_ed25519", "id_ed25519", "known_hosts"]


@pytest.mark.parametrize("name", ["id_ed25519", "host_ed25519"])
def test_key_that_others_could_read_is_not_used(keys: UserKeys, name: str) -> None:
    (keys.directory / name).chmod(0o640)
    with pytest.raises(PermissionDenied, match="other users may read it"):
        keys.prepare()


def test_directory_that_others_can_write_is_not_used(keys: UserKeys) -> None:
    keys.directory.chmod(0o777)
    with pytest.raises(PermissionDenied, match="can write there"):
        keys.public_blob()


def test_link_is_not_followed_to_a_key(keys: UserKeys, tmp_path: Path) -> None:
    keys.identity.rename(tmp_path / "elsewhere")
    keys.identity.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionDenied):
        keys.public_blob()


@pytest.mark.parametrize("content", [b"", b"text", b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END"])
def test_damaged_key_is_reported(keys: UserKeys, content: bytes) -> None:
    keys.identity.write_bytes(content)
    with pytest.raises(InvalidRequest, match="damaged"):
        keys.public_blob()


def test_paths_and_commands_survive_openssh(tmp_path: Path) -> None:
    keys = UserKeys(tmp_path / "with space and 100%h")
    keys.prepare()
    config = tmp_path / "config"
    lines = [f"    {key} {value}" for key, value in ssh_options(keys, "proxy '100%%' -- %h", agent=False)]
    config.write_text("\n".join(["Host *.skerry", *lines]))
    shown = subprocess.run(
        ["ssh", "-G", "-F", config, "dev.skerry"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert f"identityfile {keys.identity}".replace("%", "%%") in [line.replace('"', "") for line in shown]
    assert "proxycommand proxy '100%%' -- %h" in shown
    for line in ("forwardagent no", "stricthostkeychecking true", "hostkeyalias skerry", "user default"):
        assert line in shown


def test_path_with_a_quote_is_refused(tmp_path: Path) -> None:
    keys = UserKeys(tmp_path / 'a"b')
    keys.prepare()
    with pytest.raises(InvalidRequest, match="quotes"):
        list(ssh_options(keys, "proxy", agent=False))
