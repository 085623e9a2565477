"""Requests about a sandbox's network. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from skerry.client.transport.requests.files import BYTES
from skerry.client.transport.requests.sandboxes import (
    NDJSON,
    RESPONSE_TIMEOUT,
    Request,
    json_request,
    parameters,
    sandbox_path,
)
from skerry.errors import NotFound
from skerry.types import Approval, HandlerDecision, Network, NetworkChange

_APPROVAL = re.compile(r"q-[a-z2-7]{10}")
_CALL = re.compile(r"h-[a-z2-7]{10}")


@dataclass(frozen=True)
class LogFilter:
    follow: bool = False
    since: int = 0
    denied: bool = False
    limit: int | None = None


def show(ref: str) -> Request:
    return Request("GET", sandbox_path(ref, "network"))


def set_(ref: str, network: Network) -> Request:
    return json_request("PUT", sandbox_path(ref, "network"), network)


def change(ref: str, payload: NetworkChange) -> Request:
    return json_request("PATCH", sandbox_path(ref, "network"), payload)


def log(ref: str, query: LogFilter, since: int) -> Request:
    params = parameters(
        follow=query.follow,
        since=str(since),
        denied=query.denied,
        limit=None if query.limit is None else str(query.limit),
    )
    silence = None if query.follow else RESPONSE_TIMEOUT
    return Request("GET", sandbox_path(ref, "network", "log"), params, accept=NDJSON, read_timeout=silence)


def suggested_policy(ref: str) -> Request:
    return Request("GET", sandbox_path(ref, "network", "suggested-policy"))


def cassette(ref: str) -> Request:
    return Request("GET", sandbox_path(ref, "network", "cassette"), accept=BYTES)


def cassette_info(ref: str) -> Request:
    return Request("GET", sandbox_path(ref, "network", "cassette"))


def load_cassette(ref: str, content: bytes) -> Request:
    return Request("PUT", sandbox_path(ref, "network", "cassette"), (), content, BYTES)


def approvals(ref: str) -> Request:
    return Request("GET", sandbox_path(ref, "network", "approvals"), accept=NDJSON, read_timeout=None)


def answer_approval(ref: str, approval: str, value: Approval) -> Request:
    if not _APPROVAL.fullmatch(approval):
        raise NotFound(f"approval request {approval[:40]!r} not found")
    return json_request("POST", sandbox_path(ref, "network", "approvals", approval), value)


def handler_calls(ref: str, host: str, client: str) -> Request:
    params = parameters(host=host, client=client)
    return Request("GET", sandbox_path(ref, "network", "handlers"), params, accept=NDJSON, read_timeout=None)


def decide_call(ref: str, call: str, decision: HandlerDecision) -> Request:
    if not _CALL.fullmatch(call):
        raise NotFound(f"handler call {call[:40]!r} not found")
    return json_request("POST", sandbox_path(ref, "network", "handlers", call), decision)
