"""The keys of one user on this machine: the key that logs in, and the host key that answers for every sandbox.

Both belong to the user and not to a sandbox. A rollback, a fork or a new sandbox with an old name therefore never
changes a host key, and no key is inside a sandbox, where another program could read it. The SSH server that presents
the host key is the ProxyCommand on this machine; the connection to the Skerry server has its own protection.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from skerry.client.host.posix import NEW_FILE, require_posix
from skerry.client.host.private_files import check_directory, create_private, read_private, user_directory
from skerry.errors import InvalidRequest

DEFAULT_USER: Final = "default"  # the SSH name of the image's user
ALIAS: Final = "skerry"  # HostKeyAlias of all sandboxes
_KIND: Final = "ssh-ed25519"
_MAX_KEY: Final = 16 << 10


class UserKeys:
    """The keys in `directory`; by default `skerry/ssh` in the user's directory of settings. They are generated on
    first use; concurrent first uses agree on one pair."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or user_directory() / "ssh"
        self.identity = self.directory / "id_ed25519"
        self.known_hosts = self.directory / "known_hosts"
        self._host = self.directory / "host_ed25519"

    def prepare(self) -> None:
        """Generate the missing keys and write the files that OpenSSH reads."""
        require_posix("skerry ssh")
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_directory(self.directory)
        self._private(self.identity)
        key = base64.b64encode(_public(self._private(self._host))).decode()
        self._replace(self.known_hosts, f"{ALIAS},*.skerry {_KIND} {key}\n".encode())

    def host_key(self) -> bytes:
        """Return the private host key in OpenSSH's format."""
        return self._existing(self._host)

    def public_blob(self) -> bytes:
        """Return the public key that may log in, in its wire format."""
        return _public(self._existing(self.identity))

    def _existing(self, path: Path) -> bytes:
        found = read_private(path, "keys", _MAX_KEY)
        if found is None:
            raise InvalidRequest(f"{path} does not exist", hint="`skerry ssh-config` generates the keys")
        return found

    def _private(self, path: Path) -> bytes:
        """Return a private key, generated if it does not exist."""
        if read_private(path, "keys", _MAX_KEY) is None:
            create_private(path, _generate())
        return self._existing(path)

    @staticmethod
    def _replace(path: Path, data: bytes) -> None:
        """Write a public file, complete or not at all."""
        try:
            if path.read_bytes() == data:
                return
        except FileNotFoundError:
            pass
        draft = path.with_name(f"{path.name}.{secrets.token_hex(6)}.new")
        fd = os.open(draft, NEW_FILE, 0o644)
        with open(fd, "wb") as target:
            target.write(data)
        draft.rename(path)


def _generate() -> bytes:
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    return key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.OpenSSH, forms.NoEncryption())


def _public(private: bytes) -> bytes:
    """Return the public blob in a private key's file, which has it in front of the encrypted part."""
    lines = private.decode("ascii", "replace").strip().splitlines()
    try:
        if lines[0] != "-----BEGIN OPENSSH PRIVATE KEY-----":
            raise ValueError
        blob = base64.b64decode("".join(lines[1:-1]), validate=True)
        fields = blob.removeprefix(b"openssh-key-v1\0")
        for _ in range(3):  # cipher, key derivation, its options
            _, fields = _field(fields)
        key, _ = _field(fields[4:])
        kind, _ = _field(key)
        if kind != _KIND.encode():
            raise ValueError
    except (ValueError, IndexError, binascii.Error):
        raise InvalidRequest("a key of skerry ssh is damaged", hint="move the directory of keys away") from None
    return key


def _field(data: bytes) -> tuple[bytes, bytes]:
    size = int.from_bytes(data[:4], "big")
    if len(data) < 4 + size:
        raise ValueError
    return data[4 : 4 + size], data[4 + size :]


def ssh_options(keys: UserKeys, proxy: str, *, agent: bool) -> Iterable[tuple[str, str]]:
    """Yield OpenSSH's options for a sandbox, in the form of its configuration file. `proxy`: the ProxyCommand."""
    yield "ProxyCommand", proxy
    yield "User", DEFAULT_USER
    yield "IdentityFile", _quoted(keys.identity)
    yield "IdentitiesOnly", "yes"
    yield "PreferredAuthentications", "publickey"
    yield "UserKnownHostsFile", _quoted(keys.known_hosts)
    yield "GlobalKnownHostsFile", "/dev/null"
    yield "HostKeyAlias", ALIAS
    yield "HostKeyAlgorithms", _KIND
    yield "StrictHostKeyChecking", "yes"
    yield "UpdateHostKeys", "no"
    yield "Ciphers", "aes128-gcm@openssh.com"  # the data stays on this machine: the fastest cipher
    yield "Compression", "no"
    yield "ForwardAgent", "yes" if agent else "no"
    yield "ForwardX11", "no"


def _quoted(path: Path) -> str:
    """Return a path as OpenSSH reads it: `%` and quotes have a meaning there."""
    text = str(path)
    if any(character in text for character in '"\n\r'):
        raise InvalidRequest(f"OpenSSH cannot read a path with quotes: {text!r}", hint="set XDG_CONFIG_HOME")
    return '"' + text.replace("\\", "\\\\").replace("%", "%%") + '"'
