"""What is asked of a server about hunks, and said of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from skerry.client.requests import Request, json_request, parameters, sandbox_path
from skerry.client.review_requests import PATIENCE
from skerry.types import AppliedRequest, DecideRequest, HunkState

BYTES = "application/octet-stream"


def show(ref: str, paths: Sequence[str], state: HunkState | None) -> Request:
    params = (*(("paths", path) for path in paths), *parameters(state=state))
    return Request("GET", sandbox_path(ref, "review"), params, read_timeout=PATIENCE)


def hunk(ref: str, name: str) -> Request:
    return Request("GET", sandbox_path(ref, "review", "hunks", name), read_timeout=PATIENCE)


def why(ref: str, name: str) -> Request:
    return Request("GET", sandbox_path(ref, "review", "why", name), read_timeout=PATIENCE)


def decide(ref: str, wish: DecideRequest) -> Request:
    return replace(json_request("POST", sandbox_path(ref, "review", "decisions"), wish), read_timeout=PATIENCE)


def accepted(ref: str, paths: Sequence[str]) -> Request:
    params = tuple(("paths", path) for path in paths)
    return Request("GET", sandbox_path(ref, "review", "accepted"), params, read_timeout=PATIENCE)


def blob(ref: str, oid: str) -> Request:
    return Request("GET", sandbox_path(ref, "review", "blobs", oid), accept=BYTES, read_timeout=PATIENCE)


def applied(ref: str, told: AppliedRequest) -> Request:
    return replace(json_request("POST", sandbox_path(ref, "review", "applied"), told), read_timeout=PATIENCE)


def unapplied(ref: str, told: AppliedRequest) -> Request:
    return replace(json_request("POST", sandbox_path(ref, "review", "unapplied"), told), read_timeout=PATIENCE)
