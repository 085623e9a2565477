"""What is asked of a server about a sandbox's network. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from skerry.client.requests import ANSWER_WITHIN, NDJSON, Request, json_request, parameters, sandbox_path
from skerry.errors import NotFound
from skerry.types import Network, NetworkChange, Reply

_QUESTION = re.compile(r"q-[a-z2-7]{10}")


@dataclass(frozen=True)
class LogWish:
    follow: bool = False
    since: int = 0
    denied: bool = False
    limit: int | None = None


def show(ref: str) -> Request:
    return Request("GET", sandbox_path(ref, "network"))


def set_(ref: str, network: Network) -> Request:
    return json_request("PUT", sandbox_path(ref, "network"), network)


def change(ref: str, wish: NetworkChange) -> Request:
    return json_request("PATCH", sandbox_path(ref, "network"), wish)


def log(ref: str, wish: LogWish, since: int) -> Request:
    params = parameters(
        follow=wish.follow, since=str(since), denied=wish.denied, limit=None if wish.limit is None else str(wish.limit)
    )
    silence = None if wish.follow else ANSWER_WITHIN
    return Request("GET", sandbox_path(ref, "network", "log"), params, accept=NDJSON, read_timeout=silence)


def learn(ref: str) -> Request:
    return Request("GET", sandbox_path(ref, "network", "learn"))


def questions(ref: str) -> Request:
    return Request("GET", sandbox_path(ref, "network", "questions"), accept=NDJSON, read_timeout=None)


def reply(ref: str, question: str, value: Reply) -> Request:
    if not _QUESTION.fullmatch(question):
        raise NotFound(f"there is no question {question[:40]!r}")
    return json_request("POST", sandbox_path(ref, "network", "questions", question), value)
