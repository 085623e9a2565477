"""Ledgers for tests, and the view of a real git of them."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from skerry.review.ledger.commit_message import CommitInfo
from skerry.review.ledger.ledger import Drop, Ledger, Put


def said(command: str = "make", **more: object) -> CommitInfo:
    return CommitInfo(**{"kind": "command", "at": time.time(), "command": command, **more})  # type: ignore[arg-type]


def put(path: bytes, data: bytes = b"text\n", mode: str = "100644") -> Put:
    return Put(path, mode, data)


def begun(place: Path, *changes: Put | Drop) -> Ledger:
    ledger = Ledger.create(place / "ledger.git")
    ledger.commit(said("", kind="base"), changes)
    return ledger


def git(ledger: Ledger, *arguments: str | bytes) -> bytes:
    done = subprocess.run(["git", "--git-dir", ledger.path, *arguments], capture_output=True, check=True)
    return done.stdout


def sound(ledger: Ledger) -> bool:
    """Says git's own check, at its strictest."""
    git(ledger, "fsck", "--strict", "--full", "--no-dangling")
    return True


def contents(ledger: Ledger, commit: str) -> dict[bytes, tuple[str, bytes]]:
    files = list(ledger.files(commit))
    blobs = dict(ledger.blobs(sorted({oid for _, _, oid in files})))
    return {path: (mode, blobs[oid]) for path, mode, oid in files}
