"""The values of secrets, and each sandbox's CA: in files that the server alone reads, one for each sandbox with any.

A value is in no row, event, log or answer. What the worker gets comes from here (`brokered`); what goes inside is made
in `furnishing`, from placeholders and certificates only."""

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

from skerry.engine.rows import Row, Spec
from skerry.network import authority
from skerry.network.messages import Authority, Brokered
from skerry.network.rules import parse_rule
from skerry.types import Network, Preset, SecretForm, SecretValue, parse_span

log = logging.getLogger("skerry.engine")
PLACEHOLDER: Final = "skerry-secret-"


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """One sandbox's file. Placeholders come from `seed`, so that a secret that is taken away and given again has the
    same one for the sandbox's whole life."""

    seed: bytes
    secrets: tuple[SecretValue, ...] = ()
    authority: Authority | None = None

    def __repr__(self) -> str:
        return "Kept()"

    def placeholder(self, name: str) -> str:
        mark = hmac.new(self.seed, name.encode(), hashlib.sha256).digest()[:20]
        return f"{PLACEHOLDER}{name}-{base64.b32encode(mark).decode().lower()}"


class Secrets:
    """`directory` is made 0700 with the first file. `ceiling`: the operator's rules, which may look at requests too."""

    def __init__(self, directory: Path, ceiling: Sequence[str] = ()) -> None:
        self._directory = directory
        self._ceiling = tuple(ceiling)
        self._writing = threading.Lock()  # two that find no CA at once must not make two

    def put(self, sandbox: str, values: Sequence[SecretValue]) -> None:
        """All the secrets of a sandbox from now on."""
        with self._writing:
            kept = self._read(sandbox)
            if kept is None and not values:
                return
            self._write(sandbox, msgspec.structs.replace(kept or _new(), secrets=tuple(values)))

    def copy(self, source: str, sandbox: str) -> None:
        """A fork's: the same placeholders too, since files inside may hold them. Its CA is its own."""
        with self._writing:
            kept = self._read(source)
            if kept is not None:
                self._write(sandbox, msgspec.structs.replace(kept, authority=None))

    def forms(self, sandbox: str) -> tuple[SecretForm, ...] | None:
        """What there is without its values; None if there is no file."""
        kept = self._read(sandbox)
        return None if kept is None else tuple(value.form for value in kept.secrets)

    def placeholders(self, row: Row) -> dict[str, str]:
        """The variables that stand inside for the values."""
        kept = self._read(row.id) if row.spec.secrets else None
        return {} if kept is None else {value.name: kept.placeholder(value.name) for value in kept.secrets}

    def brokered(self, row: Row) -> tuple[tuple[Brokered, ...], Authority | None]:
        """What the worker goes by for this sandbox: `Rules.secrets` and `Rules.authority`."""
        ca = self.authority(row)
        kept = self._read(row.id) if row.spec.secrets else None
        if kept is None:
            if row.spec.secrets:
                log.error("its secrets are gone", extra={"sandbox": row.id})
            return (), ca
        return tuple(_brokered(kept, value) for value in kept.secrets), ca

    def authority(self, row: Row) -> Authority | None:
        """The sandbox's CA, if any of its TLS is opened; made at the first need of one. Others cost nothing."""
        if not self.needed(row):
            return None
        with self._writing:
            kept = self._read(row.id) or _new()
            if kept.authority is None:
                kept = self._with_authority(row, kept)
            return kept.authority

    def renew(self, row: Row) -> None:
        """At the beginning of a life, or of another one: a CA that would not outlive it is replaced. Never in between:
        what is inside and what the worker has must be of one CA."""
        if not self.needed(row):
            return
        with self._writing:
            kept = self._read(row.id) or _new()
            if kept.authority is None or not authority.outlives(kept.authority, _life(row.spec)):
                self._with_authority(row, kept)

    def _with_authority(self, row: Row, kept: Kept) -> Kept:
        kept = msgspec.structs.replace(kept, authority=authority.make(row.id, _life(row.spec)))
        self._write(row.id, kept)
        return kept

    def needed(self, row: Row) -> bool:
        return bool(row.spec.secrets) or inspects(row.spec.network, self._ceiling)

    def remove(self, sandbox: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._directory / sandbox)

    def sweep(self, known: Iterable[str]) -> None:
        """Whatever belongs to no sandbox, half-written files too."""
        with contextlib.suppress(FileNotFoundError):
            for name in set(os.listdir(self._directory)) - set(known):
                self.remove(name)

    def _read(self, sandbox: str) -> Kept | None:
        try:
            text = (self._directory / sandbox).read_bytes()
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(text, type=Kept)
        except msgspec.MsgspecError:  # its words may hold some of the text
            log.error("its secrets can't be read", extra={"sandbox": sandbox})
            return None

    def _write(self, sandbox: str, kept: Kept) -> None:
        """Whole or not at all, also if the power goes."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        os.chmod(self._directory, 0o700)
        path = self._directory / sandbox
        draft = self._directory / f"{sandbox}.new"
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(kept))
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, path)


def _new() -> Kept:
    return Kept(seed=secrets.token_bytes(32))


def _brokered(kept: Kept, value: SecretValue) -> Brokered:
    return Brokered(
        name=value.name, hosts=value.hosts, header=value.header, query=value.query, basic=value.basic,
        value=value.value, placeholder=kept.placeholder(value.name),
    )  # fmt: skip


def _life(spec: Spec) -> float | None:
    return parse_span(spec.lifecycle.life) if spec.lifecycle.life is not None else None


def inspects(network: Network, ceiling: Iterable[str] = ()) -> bool:
    """Whether any rule of it has TLS opened. A rule that looks at requests has a space or a slash in it, and most have
    neither: a policy of ten thousand hosts is not parsed for this."""
    if network.inspect:
        return True
    presets = (rule for preset in network.presets if isinstance(preset, Preset) for rule in preset.allow)
    rules = (*network.allow, *network.deny, *presets, *ceiling)
    return any(parse_rule(rule).restricted for rule in rules if " " in rule or "/" in rule)
