"""The signing key of an audit log and its newest checkpoint, in a directory outside of the data directory.

    key.pem        the private key (Ed25519, PKCS 8), readable by root only
    keys/ID.pub    every public key of the log, in base64; rotation keeps the old ones
    checkpoint     the newest seal, as JSON: a log that ends before it was cut, or replaced by an older copy

A process that can write to the data directory but not to this one cannot forge a seal.
"""

from __future__ import annotations

import base64
import contextlib
import os
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from skerry.config import Settings, instance_of
from skerry.engine.records.audit.chain import Checkpoint, key_id
from skerry.engine.records.audit.verification import read_keys
from skerry.errors import HostUnsupported
from skerry.storage import tree
from skerry.types import AuditKey


def key_directory(settings: Settings) -> Path:
    """Return the directory of the keys of a state directory's log."""
    return Path(settings["audit.key_dir"]) / instance_of(settings.state_dir)


_HINT = "set audit.key_dir to a directory that only root can write, outside of the state directory"


def public_keys(directory: Path) -> list[Path]:
    """Return the files of all public keys in a key directory, oldest first."""
    return sorted((directory / "keys").glob("*.pub"), key=lambda file: file.stat().st_mtime_ns)


class KeyStore:
    """The keys of one log. `created`: there was no private key, so this object made one."""

    def __init__(self, directory: Path, state_dir: Path) -> None:
        if directory.resolve().is_relative_to(state_dir.resolve()):
            raise HostUnsupported(f"the audit key would be inside of the state directory: {directory}", hint=_HINT)
        self._directory = directory
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            (directory / "keys").mkdir(mode=0o700, exist_ok=True)
            self.created = not self._private_path.exists()
            if self.created:
                self._store(Ed25519PrivateKey.generate())
            self.private = self._load()
        except (OSError, ValueError) as error:
            raise HostUnsupported(f"the audit key in {directory} cannot be used: {error}", hint=_HINT) from error

    @property
    def _private_path(self) -> Path:
        return self._directory / "key.pem"

    @property
    def public(self) -> bytes:
        return self.private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    @property
    def id(self) -> str:
        return key_id(self.public)

    def _load(self) -> Ed25519PrivateKey:
        fd = os.open(self._private_path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if status.st_mode & 0o077 or status.st_uid != os.geteuid():
                raise ValueError("key.pem must belong to the server's user, with mode 0600")
            private = load_pem_private_key(file.read(), password=None)
        if not isinstance(private, Ed25519PrivateKey):
            raise ValueError("key.pem has no Ed25519 key")
        return private

    def generate(self) -> Ed25519PrivateKey:
        """Return the next key, for a rotation; it counts once it is stored."""
        return Ed25519PrivateKey.generate()

    def replace(self, private: Ed25519PrivateKey) -> None:
        self._store(private)
        self.private = private

    def _store(self, private: Ed25519PrivateKey) -> None:
        """Write the public key first: a seal must never have a key that no file has."""
        public = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        write_file(self._directory / "keys" / f"{key_id(public)}.pub", base64.b64encode(public) + b"\n", 0o644)
        pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_file(self._private_path, pem, 0o600)

    def trusted(self) -> dict[str, bytes]:
        """Return all public keys by ID, oldest first."""
        return read_keys(file.read_bytes() for file in public_keys(self._directory))

    def list(self) -> list[AuditKey]:
        return [
            AuditKey(id=name, public=base64.b64encode(public).decode(), current=name == self.id)
            for name, public in self.trusted().items()
        ]

    def checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint; None if it is missing or not readable."""
        with contextlib.suppress(ValueError):
            return msgspec.json.decode(self.checkpoint_text() or "", type=Checkpoint)
        return None

    def checkpoint_text(self) -> str | None:
        with contextlib.suppress(FileNotFoundError):
            return (self._directory / "checkpoint").read_text().strip()
        return None

    def put_checkpoint(self, point: Checkpoint) -> None:
        """Replace the checkpoint. Not synced: it only has to survive a removal by others, and seals are in the log."""
        write_file(self._directory / "checkpoint", msgspec.json.encode(point) + b"\n", 0o600, sync=False)


def write_file(path: Path, content: bytes, mode: int, *, sync: bool = True) -> None:
    """Replace a file, whole or not at all."""
    draft = path.with_name(f"{path.name}.new")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        file.flush()
        if sync:
            os.fsync(fd)
    os.rename(draft, path)
    if sync:
        tree.sync(path.parent)
