"""What is asked of a server about a review. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from skerry.client.requests import NDJSON, Request, json_request, parameters, sandbox_path
from skerry.types import BeginReview, PackRequest

DIFF = "text/x-diff"
PACK = "application/x-git-pack"
PATIENCE = 600.0  # seconds of silence: a large workspace takes its time to be read whole


def begin(ref: str, wish: BeginReview) -> Request:
    return replace(json_request("POST", sandbox_path(ref, "review"), wish), read_timeout=PATIENCE)


def diff(ref: str, paths: Sequence[str]) -> Request:
    return replace(_reading(ref, "diff", paths), accept=DIFF)


def stat(ref: str, paths: Sequence[str]) -> Request:
    return _reading(ref, "diff", paths, stat=True)


def history(ref: str, paths: Sequence[str], since: str | None, patch: bool, limit: int | None) -> Request:
    return _reading(ref, "history", paths, since=since, patch=patch, limit=None if limit is None else str(limit))


def watch(ref: str, since: str | None) -> Request:
    path = sandbox_path(ref, "review", "watch")
    return Request("GET", path, parameters(since=since), accept=NDJSON, read_timeout=None)


def refs(origin: str | None) -> Request:
    return Request("GET", "/v1/reviews", parameters(origin=origin), read_timeout=PATIENCE)


def pack(ref: str, wish: PackRequest) -> Request:
    request = json_request("POST", sandbox_path(ref, "review", "pack"), wish)
    return replace(request, accept=PACK, read_timeout=PATIENCE)


def _reading(ref: str, what: str, paths: Sequence[str], **values: str | bool | None) -> Request:
    params = (*(("paths", path) for path in paths), *parameters(**values))
    return Request("GET", sandbox_path(ref, "review", what), params, read_timeout=PATIENCE)
