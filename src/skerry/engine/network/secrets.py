"""The values of secrets and each sandbox's CA: in files that only the server reads, one per sandbox that has any.

A value is in no record, event, log or response. The worker gets values from here (`brokered`); `guest_files` uses
placeholders and certificates only."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import logging
import os
import secrets
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from skerry.engine.sandboxes.record import SandboxRecord, SandboxSpec
from skerry.network import ca as authority
from skerry.network.messages import CaKeyPair, InjectedSecret
from skerry.network.policy.rules import parse_rule
from skerry.types import Network, Preset, SecretForm, SecretValue, parse_clock, parse_span

log = logging.getLogger("skerry.engine")
PLACEHOLDER: Final = "skerry-secret-"


class SecretFile(msgspec.Struct, frozen=True, kw_only=True):
    """One sandbox's file. Placeholders come from `seed`, so that a secret that is taken away and given again has the
    same one for the sandbox's whole life."""

    seed: bytes
    secrets: tuple[SecretValue, ...] = ()
    authority: CaKeyPair | None = None

    def __repr__(self) -> str:
        return "Kept()"

    def placeholder(self, name: str) -> str:
        mark = hmac.new(self.seed, name.encode(), hashlib.sha256).digest()[:20]
        return f"{PLACEHOLDER}{name}-{base64.b32encode(mark).decode().lower()}"


class SecretStore:
    """`directory` is created with mode 0700 together with the first file. `ceiling`: the operator's rules, which may
    require interception too."""

    def __init__(self, directory: Path, ceiling: Sequence[str] = ()) -> None:
        self._directory = directory
        self._ceiling = tuple(ceiling)
        self._writing = threading.Lock()  # two that find no CA at once must not make two

    def put(self, sandbox_id: str, values: Sequence[SecretValue]) -> None:
        """All the secrets of a sandbox from now on."""
        with self._writing:
            kept = self._read(sandbox_id)
            if kept is None and not values:
                return
            self._write(sandbox_id, msgspec.structs.replace(kept or _new(), secrets=tuple(values)))

    def copy(self, source: str, sandbox_id: str) -> None:
        """A fork's: the same placeholders too, since files inside may hold them. Its CA is its own."""
        with self._writing:
            kept = self._read(source)
            if kept is not None:
                self._write(sandbox_id, msgspec.structs.replace(kept, authority=None))

    def forms(self, sandbox_id: str) -> tuple[SecretForm, ...] | None:
        """Return the secrets without their values; None if the file is missing."""
        kept = self._read(sandbox_id)
        return None if kept is None else tuple(value.form for value in kept.secrets)

    def values(self, record: SandboxRecord) -> tuple[str, ...]:
        """Return the values, to mask them in records."""
        kept = self._read(record.id) if record.spec.secrets else None
        return () if kept is None else tuple(value.value for value in kept.secrets)

    def value(self, record: SandboxRecord, name: str) -> str | None:
        """Return the value of one secret, for the server's use outside of the sandbox."""
        kept = self._read(record.id) if record.spec.secrets else None
        return next((one.value for one in kept.secrets if one.name == name), None) if kept is not None else None

    def placeholders(self, record: SandboxRecord) -> dict[str, str]:
        """The variables that stand inside for the values."""
        kept = self._read(record.id) if record.spec.secrets else None
        return {} if kept is None else {value.name: kept.placeholder(value.name) for value in kept.secrets}

    def brokered(self, record: SandboxRecord) -> tuple[tuple[InjectedSecret, ...], CaKeyPair | None]:
        """Return `Rules.secrets` and `Rules.ca` for the worker."""
        ca = self.authority(record)
        kept = self._read(record.id) if record.spec.secrets else None
        if kept is None:
            if record.spec.secrets:
                log.error("the file of secrets is missing", extra={"sandbox": record.id})
            return (), ca
        return tuple(_brokered(kept, value) for value in kept.secrets), ca

    def authority(self, record: SandboxRecord) -> CaKeyPair | None:
        """Return the sandbox's CA if any of its TLS traffic is intercepted; it is created at first need. Other
        sandboxes cost nothing."""
        if not self.needed(record):
            return None
        with self._writing:
            kept = self._read(record.id) or _new()
            if kept.authority is None:
                kept = self._with_authority(record, kept)
            return kept.authority

    def renew(self, record: SandboxRecord) -> None:
        """Replace a CA that would expire before the lifetime that begins now. Never in between: the sandbox and the
        worker must use the same CA."""
        if not self.needed(record):
            return
        with self._writing:
            kept = self._read(record.id) or _new()
            if kept.authority is None or not authority.outlives(kept.authority, _life(record.spec)):
                self._with_authority(record, kept)

    def _with_authority(self, record: SandboxRecord, kept: SecretFile) -> SecretFile:
        options = record.spec.options
        clock = None if options.clock is None else parse_clock(options.clock)
        kept = msgspec.structs.replace(kept, authority=authority.create_ca(record.id, _life(record.spec), clock))
        self._write(record.id, kept)
        return kept

    def needed(self, record: SandboxRecord) -> bool:
        return bool(record.spec.secrets) or inspects(record.spec.network, self._ceiling)

    def remove(self, sandbox_id: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._directory / sandbox_id)

    def sweep(self, known: Iterable[str]) -> None:
        """Remove files of deleted sandboxes, and half-written files."""
        with contextlib.suppress(FileNotFoundError):
            for name in set(os.listdir(self._directory)) - set(known):
                self.remove(name)

    def _read(self, sandbox_id: str) -> SecretFile | None:
        try:
            text = (self._directory / sandbox_id).read_bytes()
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(text, type=SecretFile)
        except msgspec.MsgspecError:  # its words may hold some of the text
            log.error("failed to read secrets", extra={"sandbox": sandbox_id})
            return None

    def _write(self, sandbox_id: str, kept: SecretFile) -> None:
        """Whole or not at all, also if the power goes."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        os.chmod(self._directory, 0o700)
        path = self._directory / sandbox_id
        draft = self._directory / f"{sandbox_id}.new"
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(kept))
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, path)


def _new() -> SecretFile:
    return SecretFile(seed=secrets.token_bytes(32))


def _brokered(kept: SecretFile, value: SecretValue) -> InjectedSecret:
    return InjectedSecret(
        name=value.name, hosts=value.hosts, header=value.header, query=value.query, basic=value.basic,
        value=value.value, placeholder=kept.placeholder(value.name),
    )  # fmt: skip


def _life(spec: SandboxSpec) -> float | None:
    life = spec.lifecycle.max_lifetime
    return parse_span(life) if life not in (None, "never") else None


def inspects(network: Network, ceiling: Iterable[str] = ()) -> bool:
    """Return whether any rule requires interception. Such a rule contains a space or a slash, and most contain neither:
    a policy of ten thousand hosts is not parsed for this."""
    if network.inspect or network.handlers or network.mirror or network.cassette is not None:
        return True
    presets = (rule for preset in network.presets if isinstance(preset, Preset) for rule in preset.allow)
    rules = (*network.allow, *network.deny, *presets, *ceiling)
    return any(parse_rule(rule).restricted for rule in rules if " " in rule or "/" in rule)
