"""Requests about a sandbox's review: its ledger, its hunks, decisions and applies. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from skerry.client.transport.requests.sandboxes import NDJSON, Body, Request, json_request, parameters, sandbox_path
from skerry.types import WORKSPACE, AppliedRequest, BeginReview, Decisions, HunkState, PackRequest, UndeleteRequest

DIFF = "text/x-diff"
PACK = "application/x-git-pack"
READ_TIMEOUT = 600.0  # seconds of silence: reading a large workspace takes time
BYTES = "application/octet-stream"


def start(ref: str, payload: BeginReview) -> Request:
    return replace(json_request("POST", sandbox_path(ref, "review"), payload), read_timeout=READ_TIMEOUT)


def diff(ref: str, paths: Sequence[str]) -> Request:
    return replace(_get(ref, "diff", paths), accept=DIFF)


def stat(ref: str, paths: Sequence[str]) -> Request:
    return _get(ref, "diff", paths, stat=True)


def history(ref: str, paths: Sequence[str], since: str | None, patch: bool, limit: int | None) -> Request:
    return _get(ref, "history", paths, since=since, patch=patch, limit=None if limit is None else str(limit))


def watch(ref: str, since: str | None) -> Request:
    path = sandbox_path(ref, "review", "watch")
    return Request("GET", path, parameters(since=since), accept=NDJSON, read_timeout=None)


def refs(origin: str | None) -> Request:
    return Request("GET", "/v1/review/git/refs", parameters(origin=origin), read_timeout=READ_TIMEOUT)


def deleted() -> Request:
    return Request("GET", "/v1/review/deleted")


def undelete(ref: str, payload: UndeleteRequest) -> Request:
    request = json_request("POST", sandbox_path(ref), payload)
    path = request.path.replace("/v1/sandboxes/", "/v1/review/deleted/", 1)
    return replace(request, path=path, read_timeout=READ_TIMEOUT)


def pack(ref: str, payload: PackRequest) -> Request:
    request = json_request("POST", sandbox_path(ref, "review", "git", "pack"), payload)
    return replace(request, accept=PACK, read_timeout=READ_TIMEOUT)


def _get(ref: str, what: str, paths: Sequence[str], **values: str | bool | None) -> Request:
    params = (*(("paths", path) for path in paths), *parameters(**values))
    return Request("GET", sandbox_path(ref, "review", what), params, read_timeout=READ_TIMEOUT)


def tree(ref: str, paths: Sequence[str]) -> Request:
    return replace(_get(ref, "tree", paths), accept=NDJSON)


def pull(ref: str, body: Body) -> Request:
    path = sandbox_path(ref, "review", "pulls")
    return Request("POST", path, content=body, content_type=BYTES, read_timeout=READ_TIMEOUT)


def copies(origin: str | None) -> Request:
    return Request("GET", "/v1/review/copies", parameters(origin=origin), read_timeout=READ_TIMEOUT)


def workspace_paths(paths: str | Sequence[str]) -> tuple[str, ...]:
    """Return paths relative to the workspace; a leading /workspace is removed."""
    listed = (paths,) if isinstance(paths, str) else tuple(paths)
    return tuple(
        path[len(WORKSPACE) + 1 :] or "." if f"{path}/".startswith(f"{WORKSPACE}/") else path for path in listed
    )


def show(ref: str, paths: Sequence[str], state: HunkState | None, exclude: Sequence[str] = ()) -> Request:
    params = (*_selected(paths, exclude), *parameters(state=state))
    return Request("GET", sandbox_path(ref, "review"), params, read_timeout=READ_TIMEOUT)


def _selected(paths: Sequence[str], exclude: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return (*(("paths", path) for path in paths), *(("exclude", glob) for glob in exclude))


def hunk(ref: str, name: str) -> Request:
    return Request("GET", sandbox_path(ref, "review", "hunks", name), read_timeout=READ_TIMEOUT)


def origin(ref: str, name: str) -> Request:
    return Request("GET", sandbox_path(ref, "review", "hunks", name, "origin"), read_timeout=READ_TIMEOUT)


def decide(ref: str, payload: Decisions) -> Request:
    return replace(json_request("POST", sandbox_path(ref, "review", "decisions"), payload), read_timeout=READ_TIMEOUT)


def patch_set(ref: str, paths: Sequence[str], exclude: Sequence[str] = (), *, with_open: bool = False) -> Request:
    params = (*_selected(paths, exclude), *parameters(open=with_open or None))
    return Request("GET", sandbox_path(ref, "review", "patch-set"), params, read_timeout=READ_TIMEOUT)


def blob(ref: str, oid: str) -> Request:
    return Request("GET", sandbox_path(ref, "review", "blobs", oid), accept=BYTES, read_timeout=READ_TIMEOUT)


def record_apply(ref: str, apply: AppliedRequest) -> Request:
    return replace(json_request("POST", sandbox_path(ref, "review", "applies"), apply), read_timeout=READ_TIMEOUT)


def record_undo(ref: str, apply: str) -> Request:
    return Request("DELETE", sandbox_path(ref, "review", "applies", apply), read_timeout=READ_TIMEOUT)
