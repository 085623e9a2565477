"""The chain: the form of a line, its hash, its seal, and the verification of a sequence of lines. No I/O.

The hash of a line is the SHA-256 of its bytes without the newline, exactly as they are stored: nothing is decoded and
encoded again before it is hashed. JSON escapes newlines and control characters, so no value can imitate a line.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from skerry.types import AuditProblem, AuditReport

FORMAT: Final = 1
START: Final = base64.b64encode(bytes(32)).decode().rstrip("=")  # the predecessor's hash of the first line
SEAL, KEY, RESULT, TRIM, GAP = "audit.seal", "audit.key", "result", "audit.trim", "audit.gap"
MAX_LINE: Final = 64 << 10
MAX_PROBLEMS: Final = 20
_CONTEXT: Final = b"skerry audit seal 1\n"  # a signature of this key over other bytes must never be a seal


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One line. `type`: the action or event; for `result`, `of` is the number of its action. `log`, `key`, `sig`: of
    seals and keys. `first`: of a trim, the oldest line that retention kept; of a gap, the first missing line."""

    seq: int
    prev: str
    at: float
    type: str
    owner: str | None = None
    actor: str | None = None
    source: str | None = None
    sandbox: str | None = None
    params: dict[str, Any] | None = None
    of: int | None = None
    status: int | None = None
    code: str | None = None
    log: str | None = None
    key: str | None = None
    sig: str | None = None
    reason: str | None = None
    first: int | None = None


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The newest seal: its number, its hash, and the log that it belongs to. `sig` is the signature of the seal over
    its predecessor's hash `prev`, so a checkpoint can be verified without the log."""

    log: str
    seq: int
    hash: str
    prev: str
    at: float
    key: str
    sig: str


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Line)


def encode(line: Line) -> bytes:
    """Return the stored bytes of a line, with its newline."""
    return _encoder.encode(line) + b"\n"


def decode(data: bytes) -> Line:
    """Return the line in these bytes, without its newline. Raise ValueError if they are none."""
    return _decoder.decode(data)


def digest(data: bytes) -> str:
    """Return the hash of a line's bytes without the newline: base64, 43 characters."""
    return base64.b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def key_id(public: bytes) -> str:
    return hashlib.sha256(public).hexdigest()[:16]


def _statement(log: str, seq: int, prev: str) -> bytes:
    return _CONTEXT + f"{log}\n{seq}\n{prev}\n".encode()


def sign(private: Ed25519PrivateKey, log: str, seq: int, prev: str) -> str:
    """Return the signature of the seal with number `seq` after the line with hash `prev`."""
    return base64.b64encode(private.sign(_statement(log, seq, prev))).decode()


def is_signed(public: bytes, log: str, seq: int, prev: str, sig: str) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(base64.b64decode(sig), _statement(log, seq, prev))
    except (InvalidSignature, ValueError):
        return False
    return True


@dataclass
class Verifier:
    """Verify lines in order. `keys`: trusted public keys by ID; a key that a trusted key has sealed becomes trusted.
    `checkpoints`: seals that the lines must contain."""

    keys: dict[str, bytes]
    checkpoints: Sequence[Checkpoint] = ()
    problems: list[AuditProblem] = field(default_factory=list)
    records: int = 0
    first: int | None = None
    seq: int = 0
    sealed: int = 0
    log: str | None = None
    _hash: str | None = None
    _trimmed: int = 1
    _new_key: bytes | None = None
    _previous_hash: str | None = None
    _damaged: bool = False

    def feed(self, lines: Iterable[bytes], place: str) -> None:
        """Verify lines without their newlines. `place` names the file in problems."""
        wanted = {point.seq: point for point in self.checkpoints}
        for number, data in enumerate(lines, 1):
            try:
                line = decode(data)
            except (ValueError, RecursionError):
                self._report(self.seq + 1, f"{place}, line {number}", "is not a record: it was edited or damaged")
                self._damaged = True
                continue
            self._check(line, data, f"{place}, line {number}")
            if line.seq in wanted:
                self._compare(wanted.pop(line.seq), place)
        self.checkpoints = tuple(wanted.values())

    def _check(self, line: Line, data: bytes, place: str) -> None:
        if self._hash is None:
            self._begin(line, place)
        elif line.seq != self.seq + 1:
            self._report_order(line, place)
        elif line.prev != self._hash and not self._damaged:
            self._report(self.seq, place, f"record {self.seq} was edited: record {line.seq} has the hash of another")
        self._damaged = False
        self.seq, self._previous_hash, self._hash = line.seq, self._hash, digest(data)
        self.records += 1
        match line.type:
            case "audit.seal":
                self._check_seal(line, place)
            case "audit.key":
                self._new_key = _public(line.key)
                self.log = self.log or line.log
            case "audit.trim":
                self._trimmed = max(self._trimmed, line.first or 1)
        if line.type != KEY:  # only the seal directly after a key introduces it: a rotation writes both at once
            self._new_key = None

    def _begin(self, line: Line, place: str) -> None:
        self.first = line.seq
        if line.seq == 1 and line.prev != START:
            self._report(1, place, "the first record has a predecessor")

    def _report_order(self, line: Line, place: str) -> None:
        if line.seq > self.seq + 1:
            self._report(
                self.seq + 1, place, f"records {self.seq + 1} to {line.seq - 1} are missing: they were removed or lost"
            )
        else:
            self._report(line.seq, place, f"record {line.seq} follows record {self.seq}: they were reordered or copied")

    def _check_seal(self, line: Line, place: str) -> None:
        if self.log is None:
            self.log = line.log
        if line.log != self.log:
            self._report(line.seq, place, f"the seal belongs to another log: {(line.log or '')[:40]!r}")
        public = self.keys.get(line.key or "")
        if public is None:
            self._report(
                line.seq,
                place,
                f"the seal's key {(line.key or '')[:16]} is unknown, and no known key has introduced it",
            )
        elif not is_signed(public, line.log or "", line.seq, line.prev, line.sig or ""):
            self._report(line.seq, place, "the signature of the seal is wrong")
        else:
            self.sealed = line.seq
            if self._new_key is not None:
                self.keys[key_id(self._new_key)] = self._new_key

    def _compare(self, point: Checkpoint, place: str) -> None:
        if point.hash != self._hash:
            self._report(point.seq, place, f"record {point.seq} differs from the checkpoint: the log was replaced")

    def _report(self, seq: int, place: str, problem: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(AuditProblem(seq=seq, place=place, problem=problem))

    def finish(self, *, complete: bool) -> AuditReport:
        """Return the report. `complete`: the lines must end with a seal, as an export does."""
        if self.first is not None and self.first > self._trimmed:
            self._report(
                self._trimmed, "start", f"records {self._trimmed} to {self.first - 1} are missing, and not by retention"
            )
        for point in self.checkpoints:
            if point.log == self.log and point.seq >= (self.first or 1):
                self._report(
                    self.seq + 1, "end",
                    f"records {self.seq + 1} to {point.seq} are missing: the checkpoint has record {point.seq}",
                )  # fmt: skip
            elif point.log != self.log:
                self._report(1, "start", f"the checkpoint belongs to another log: {point.log[:40]!r}")
        if complete and not self.records:
            self._report(1, "start", "the log is empty: all records were removed")
        elif complete and self.sealed != self.seq:
            self._report(self.seq, "end", "no seal at the end: the newest records were cut off")
        return AuditReport(
            ok=not self.problems, records=self.records, first=self.first, last=self.seq or None,
            sealed=self.sealed or None, log=self.log, problems=tuple(self.problems),
        )  # fmt: skip


def _public(text: str | None) -> bytes | None:
    try:
        data = base64.b64decode(text or "", validate=True)
    except ValueError:
        return None
    return data if len(data) == 32 else None
