"""The log tells who called what and how it went, and never what must not be told."""

from __future__ import annotations

import json
import logging
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server.listening import Listening

from skerry.server import log as server_log

TELLS = ("ts", "level", "event", "request_id", "method", "path", "status", "ms")


@pytest.fixture
def handlers() -> Iterator[None]:
    """The global switches of logging, as they were."""
    names = ("skerry", "uvicorn.error", "uvicorn.access")
    switches = ("logThreads", "logProcesses", "logMultiprocessing", "raiseExceptions")
    before = {name: getattr(logging, name) for name in switches}
    states = {n: (list(logging.getLogger(n).handlers), logging.getLogger(n).propagate) for n in names}
    yield
    for name, value in before.items():
        setattr(logging, name, value)
    for name, (old, propagate) in states.items():
        logger = logging.getLogger(name)
        for handler in logger.handlers:
            handler.close()
        logger.handlers, logger.propagate, logger.disabled = old, propagate, False
        logger.setLevel(logging.NOTSET)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_request_is_one_line_without_secrets(handlers: None, tmp_path: Path) -> None:
    server_log.configure(tmp_path / "log")
    listening = Listening(tmp_path).start()
    secret = listening.engine.tokens.create("use", "ann", "").secret
    assert secret is not None
    with listening.tcp(secret) as http:
        http.post(
            "/v1/sandboxes/box/processes?wait=true",
            json={"cmd": ["printf", "hidden-argument"], "env": {"KEY": "hidden-value"}, "stdin": "hidden-input"},
        )
        http.post("/v1/sandboxes/box/processes?wait=true", json={"cmd": "echo hidden-line"})
        http.get("/v1/sandboxes", params={"label": "a=hidden-label", "token": "hidden-token"})
        http.get("/hidden-path")
        http.post("/v1/sandboxes/box/processes/p-aaaaaaaaaa/stdin", content=b"hidden-bytes")
        http.get("/v1/sandboxes", headers={"Authorization": "Bearer hidden-bearer"})
    listening.stop()
    text = (tmp_path / "log").read_text()
    assert "hidden" not in text
    assert secret not in text
    requests = [line for line in lines(tmp_path / "log") if line["event"] == "request"]
    assert [line["status"] for line in requests] == [404, 404, 400, 404, 204, 401]
    run = requests[0]
    assert all(name in run for name in TELLS)
    assert (run["owner"], run["sandbox"], run["command"]) == ("ann", "box", "printf")
    assert run["path"] == "/v1/sandboxes/{ref}/processes"
    assert requests[1]["command"] == "(shell)"
    assert "path" not in requests[3]
    assert requests[4]["process_id"] == "p-aaaaaaaaaa"


def test_an_unexpected_error_is_in_the_log_under_its_request(handlers: None, tmp_path: Path) -> None:
    server_log.configure(tmp_path / "log")
    listening = Listening(tmp_path, listen=None).start()
    with listening.unix() as http:
        said = http.post("/v1/sandboxes/box/stop").json()["error"]["details"]["request_id"]
    listening.stop()
    (entry,) = [line for line in lines(tmp_path / "log") if "trace" in line]
    assert entry["request_id"] == said
    assert "ZeroDivisionError" in entry["trace"]


def test_the_file_is_its_owners_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "log"
    handler = server_log.Lines(path, limit=10_000)
    for number in range(1000):
        handler.emit(logging.makeLogRecord({"msg": f"event {number}", "note": "x" * 100}))
    handler.close()
    sizes = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    assert set(sizes) == {"log", "log.1"}
    assert max(sizes.values()) < 10_500
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    kept = [line["event"] for name in ("log.1", "log") for line in lines(tmp_path / name)]
    assert kept == [f"event {number}" for number in range(1000 - len(kept), 1000)]


def test_what_comes_from_outside_can_not_forge_a_line(tmp_path: Path) -> None:
    handler = server_log.Lines(tmp_path / "log")
    handler.emit(logging.makeLogRecord({"msg": 'a\n{"event": "forged"}', "sandbox": "\x1b[2J\n" + "x" * 100_000}))
    handler.close()
    (entry,) = lines(tmp_path / "log")
    assert len(entry["sandbox"]) <= server_log.VALUE_LIMIT


def test_a_log_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        server_log.Lines(tmp_path / "log")
