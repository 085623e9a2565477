"""A client of E2B's protocols over plain HTTP: accounts, sandboxes, streams of events."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import httpx2

from skerry.server.wire.e2b.messages import EnvelopeReader, Message, decode, encode, envelope
from support.server import Server

STREAM = "application/connect+json"
SETTINGS = '[server]\nwire = ["e2b"]\nwire_domain = "boxes.example"\n'


class Account:
    """A token, and requests with it."""

    def __init__(self, server: Server, owner: str) -> None:
        with server.http() as http:
            made = http.post("/v1/tokens", json={"scope": "use", "owner": owner}).raise_for_status().json()
        self.server = server
        self.id, self.key, self.http = made["id"], made["secret"], server.http()

    def api(self, method: str, path: str, **more: Any) -> httpx2.Response:
        return self.http.request(method, path, headers={"X-API-Key": self.key}, **more)

    def create(self, **more: Any) -> Box:
        answer = self.api("POST", "/sandboxes", json={"templateID": "base", "timeout": 600, **more})
        assert answer.status_code == 201, answer.text
        return Box(self, answer.json())


class Box:
    """A sandbox, and requests for its ports."""

    def __init__(self, account: Account, made: dict[str, Any]) -> None:
        self.account, self.made = account, made
        self.id, self.token = made["sandboxID"], made["envdAccessToken"]

    def headers(self, port: int = 49983, **more: str) -> dict[str, str]:
        return {"E2b-Sandbox-Id": self.id, "E2b-Sandbox-Port": str(port), "X-Access-Token": self.token, **more}

    def call(self, method: str, message: Any, kind: str = "application/json", **more: str) -> httpx2.Response:
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        headers = self.headers(**{"Content-Type": kind, **more})
        return self.account.http.post(f"/{method}", content=body, headers=headers)

    def run(self, line: str, form: str = "json", **config: Any) -> list[Message]:
        """Run a command and return the events of its stream."""
        message = {"process": {"cmd": "/bin/bash", "args": ["-l", "-c", line], **config}, "stdin": False}
        body = envelope(encode("StartRequest", message, form))
        answer = self.call("process.Process/Start", body, f"application/connect+{form}")
        assert answer.status_code == 200, answer.text
        return events(answer.content, form)

    def execute(self, code: str, **more: Any) -> list[dict[str, Any]]:
        headers = {**self.headers(49999), "E2B-Traffic-Access-Token": self.made["trafficAccessToken"]}
        del headers["X-Access-Token"]
        answer = self.account.http.post("/execute", json={"code": code, **more}, headers=headers)
        assert answer.status_code == 200, answer.text
        return [json.loads(line) for line in answer.text.splitlines()]


def events(body: bytes, form: str = "json") -> list[Message]:
    found = list(EnvelopeReader(1 << 24).feed(body))
    assert found[-1][0] == 2, "the stream has no end"
    ended = json.loads(found[-1][1])
    return [*(decode("EventResponse", data, form)["event"] for _, data in found[:-1]), ended]


def stream_error(answer: httpx2.Response) -> str:
    """Return the code of a stream that ends with an error before its first message."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("application/connect+")
    ((flags, data),) = EnvelopeReader(1 << 24).feed(answer.content)
    assert flags == 2, flags
    error = json.loads(data)["error"]
    assert error["message"], error
    return str(error["code"])


def output(stream: list[Message], name: str = "stdout") -> bytes:
    return b"".join(event["data"][name] for event in stream if name in event.get("data", {}))


def signed(box: Box, path: str, operation: str, expires: int | None = None) -> dict[str, str]:
    words = [path, operation, "", box.token, *([str(expires)] if expires is not None else [])]
    digest = base64.b64encode(hashlib.sha256(":".join(words).encode()).digest()).rstrip(b"=").decode()
    more = {"signature_expiration": str(expires)} if expires is not None else {}
    return {"path": path, "signature": f"v1_{digest}", **more}
