"""The log records caller, request and outcome, and never secrets."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.listening_server import Listening

from skerry.engine.tasks import Tasks
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


def test_request_is_one_line_without_secrets(handlers: None, tmp_path: Path) -> None:
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


def test_unexpected_error_is_logged_with_its_request(handlers: None, tmp_path: Path) -> None:
    server_log.configure(tmp_path / "log")
    listening = Listening(tmp_path, listen=None).start()
    with listening.unix() as http:
        said = http.post("/v1/sandboxes/box/stop").json()["error"]["details"]["request_id"]
    listening.stop()
    (entry,) = [line for line in lines(tmp_path / "log") if "trace" in line]
    assert entry["request_id"] == said
    assert "ZeroDivisionError" in entry["trace"]


def test_log_file_is_private_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "log"
    handler = server_log.LogHandler(path, limit=10_000)
    for number in range(1000):
        handler.emit(logging.makeLogRecord({"msg": f"event {number}", "note": "x" * 100}))
    handler.close()
    sizes = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    assert set(sizes) == {"log", "log.1"}
    assert max(sizes.values()) < 10_500
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    kept = [line["event"] for name in ("log.1", "log") for line in lines(tmp_path / name)]
    assert kept == [f"event {number}" for number in range(1000 - len(kept), 1000)]


def test_old_log_file_is_renamed_and_removed(tmp_path: Path) -> None:
    path, day = tmp_path / "log", 86400.0
    now = time.time()

    def write(event: str, created: float) -> None:
        handler = server_log.LogHandler(path, max_age_s=day)
        record = logging.makeLogRecord({"msg": event})
        record.created = created
        handler.emit(record)
        handler.close()

    write("first", now - 2 * day)
    write("second", now)  # by another server: the age is that of the first line
    assert [line["event"] for line in lines(path)] == ["second"]
    assert [line["event"] for line in lines(tmp_path / "log.1")] == ["first"]
    os.utime(tmp_path / "log.1", (now - 2 * day, now - 2 * day))
    write("third", now)
    assert [line["event"] for line in lines(path)] == ["second", "third"]
    assert not (tmp_path / "log.1").exists()


def test_outside_text_cannot_forge_a_log_line(tmp_path: Path) -> None:
    handler = server_log.LogHandler(tmp_path / "log")
    handler.emit(logging.makeLogRecord({"msg": 'a\n{"event": "forged"}', "sandbox": "\x1b[2J\n" + "x" * 100_000}))
    handler.close()
    (entry,) = lines(tmp_path / "log")
    assert len(entry["sandbox"]) <= server_log.VALUE_LIMIT


def test_log_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        server_log.LogHandler(tmp_path / "log")


async def test_line_in_a_request_has_its_id(handlers: None, tmp_path: Path) -> None:
    server_log.configure(tmp_path / "log")
    log, tasks = logging.getLogger("skerry.engine"), Tasks()

    async def background() -> None:
        log.info("of the background")

    async def request() -> None:
        server_log.REQUEST_ID.set("0123456789abcdef")
        log.info("of the request")
        await tasks.spawn(background())

    await asyncio.create_task(request())
    log.info("of nobody")
    assert [(line["event"], line.get("request_id")) for line in lines(tmp_path / "log")] == [
        ("of the request", "0123456789abcdef"),
        ("of the background", None),
        ("of nobody", None),
    ]


def test_file_that_logrotate_moved_is_made_again(handlers: None, tmp_path: Path) -> None:
    path = tmp_path / "log"
    server_log.configure(path)
    logger = logging.getLogger("skerry.server")
    moments = iter(range(1000, 2000, 10))  # seconds: a move is noticed once in a second

    def write(text: str) -> None:
        record = logger.makeRecord(logger.name, logging.INFO, "", 0, text, (), None)
        record.created = float(next(moments))
        logger.handle(record)

    write("first")
    path.rename(tmp_path / "log.rotated")
    write("second")
    path.unlink()
    write("third")
    assert [line["event"] for line in lines(tmp_path / "log.rotated")] == ["first"]
    assert [line["event"] for line in lines(path)] == ["third"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
