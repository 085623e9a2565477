"""The client and a server that misbehaves, disconnects or speaks another protocol."""

# ruff: noqa: SIM117  (a server, then what is expected of a client of it)

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.lying_server import SANDBOX, Asked, Said, lying, refused, said

from skerry import AsyncSandbox, Output, Sandbox, ServerUnreachable, SkerryError, run
from skerry.codecs.frames import ERROR, EXIT, MEDIA_TYPE, STARTED, STDERR, STDOUT, encode
from skerry.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded, SandboxUnavailable

Answer = Callable[[Asked], Said]
END = encode(EXIT, json.dumps({"id": "p-1", "exit_code": 0, "duration_s": 0.1}).encode())
BEGIN = encode(STARTED, b'{"id":"p-1","pid":7}')


def with_run(wire: bytes, *, whole: bool = True) -> Answer:
    """Run a server with one sandbox; all its runs return these bytes."""

    def answer(asked: Asked) -> Said:
        if asked.method == "DELETE" or asked.path.endswith(("/signal", "/stdin")):
            return Said(204)
        if asked.path.endswith("/processes"):
            return Said(200, wire, MEDIA_TYPE, whole)
        return said(SANDBOX, 201)

    return answer


def test_result_is_assembled_from_frames(tmp_path: Path) -> None:
    wire = BEGIN + encode(STDOUT, b"a\xff") + encode(STDERR, b"e") + encode(STDOUT, b"b") + END
    seen: list[Output] = []
    with lying(tmp_path, with_run(wire)) as server, Sandbox(server=server.address) as sandbox:
        result = sandbox.run(["x"], on_output=seen.append)
    assert (result.stdout_bytes, result.stderr, result.exit_code) == (b"a\xffb", "e", 0)
    assert [(o.stream, o.data) for o in seen] == [("stdout", b"a\xff"), ("stderr", b"e"), ("stdout", b"b")]
    ask = next(a for a in server.asked if a.path.endswith("/processes"))
    assert ask.query == {"wait": ["true"]}
    assert ask.headers["accept"] == MEDIA_TYPE
    assert json.loads(ask.body) == {"cmd": ["x"], "timeout": 300}
    assert server.asked[-1].method == "DELETE", "an unnamed sandbox is deleted when the block ends"


def test_result_of_a_run_survives_a_failed_deletion(tmp_path: Path) -> None:
    ordinary, warned = with_run(BEGIN + encode(STDOUT, b"x") + END), list[str]()

    def answer(asked: Asked) -> Said:
        return refused(503, "sandbox_unavailable", "busy") if asked.method == "DELETE" else ordinary(asked)

    with lying(tmp_path, answer) as server:
        assert run("x", server=server.address, on_warning=warned.append).stdout == "x"
        assert warned == ["the sandbox could not be deleted: busy"]
        with pytest.raises(ZeroDivisionError) as caught:
            run("x", server=server.address, on_warning=warned.append, on_output=lambda output: 1 / 0)  # type: ignore[arg-type,return-value]
    assert ("could not be deleted" in str(caught.value.__notes__), len(warned)) == (True, 1)


async def test_async_client_awaits_its_callback(tmp_path: Path) -> None:
    seen: list[bytes] = []

    async def on_output(output: Output) -> None:
        seen.append(output.data)

    with lying(tmp_path, with_run(BEGIN + encode(STDOUT, b"x") + END)) as server:
        async with AsyncSandbox(server=server.address) as sandbox:
            assert (await sandbox.run("x", on_output=on_output)).ok
    assert seen == [b"x"]


@pytest.mark.parametrize("wire", [b"", BEGIN, BEGIN + encode(STDOUT, b"half"), BEGIN + END[:-1]])
def test_output_that_ends_before_its_command_is_a_sandbox_error(tmp_path: Path, wire: bytes) -> None:
    with lying(tmp_path, with_run(wire)) as server, Sandbox(server=server.address) as sandbox:
        with pytest.raises(SandboxUnavailable):
            sandbox.run("x")


def test_run_is_not_retried_after_a_broken_connection(tmp_path: Path) -> None:
    with lying(tmp_path, with_run(BEGIN, whole=False)) as server, Sandbox(server=server.address) as sandbox:
        with pytest.raises(ServerUnreachable, match="broke"):
            sandbox.run("x")
    assert sum(a.path.endswith("/processes") for a in server.asked) == 1


@pytest.mark.parametrize(
    "wire", [b"<html>no</html>", BEGIN + b"\x01\xff\xff\xff\xff", BEGIN + encode(EXIT, b"{}"), encode(STARTED, b"[]")]
)
def test_invalid_stream_is_rejected(tmp_path: Path, wire: bytes) -> None:
    with lying(tmp_path, with_run(wire)) as server, Sandbox(server=server.address) as sandbox:
        with pytest.raises(SkerryError):
            sandbox.run("x")


def test_error_in_the_stream_is_raised_with_its_type(tmp_path: Path) -> None:
    error = json.dumps({"error": {"code": "sandbox_unavailable", "message": "it died"}}).encode()
    with lying(tmp_path, with_run(BEGIN + encode(ERROR, error))) as server, Sandbox(server=server.address) as sandbox:
        with pytest.raises(SandboxUnavailable, match="it died"):
            sandbox.run("x")


def test_failed_callback_ends_the_command(tmp_path: Path) -> None:
    def on_output(_: Output) -> None:
        raise ZeroDivisionError

    wire = BEGIN + encode(STDOUT, b"x") + END
    with lying(tmp_path, with_run(wire)) as server, Sandbox(server=server.address) as sandbox:
        with pytest.raises(ZeroDivisionError):
            sandbox.run("x", on_output=on_output)
    assert [json.loads(a.body) for a in server.asked if a.path.endswith("/p-1/signal")] == [{"signal": "KILL"}]


def test_create_after_a_broken_connection_is_repeated_with_the_same_key(tmp_path: Path) -> None:
    answers = iter([Said(0), said(SANDBOX, 201)])
    with lying(tmp_path, lambda _: next(answers)) as server:
        assert Sandbox.create(server=server.address).id == SANDBOX["id"]
    keys = [a.headers["idempotency-key"] for a in server.asked]
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_create_is_sent_at_most_twice(tmp_path: Path) -> None:
    with lying(tmp_path, lambda _: Said(0)) as server, pytest.raises(ServerUnreachable):
        Sandbox.create(server=server.address)
    assert len(server.asked) == 2


def test_other_requests_are_sent_once(tmp_path: Path) -> None:
    with lying(tmp_path, lambda _: Said(0)) as server, pytest.raises(ServerUnreachable):
        Sandbox.get("dev", server=server.address)
    assert len(server.asked) == 1


def test_rejected_request_is_not_repeated(tmp_path: Path) -> None:
    with lying(tmp_path, lambda _: refused(429, "quota_exceeded")) as server, pytest.raises(QuotaExceeded):
        Sandbox.create(server=server.address)
    assert len(server.asked) == 1


def test_get_or_create_returns_a_concurrently_created_sandbox(tmp_path: Path) -> None:
    named = {**SANDBOX, "name": "dev"}
    answers = iter([refused(404, "not_found"), refused(409, "conflict"), said(named)])
    with lying(tmp_path, lambda _: next(answers)) as server:
        assert Sandbox.get_or_create("dev", server=server.address).name == "dev"
    assert [a.method for a in server.asked] == ["GET", "POST", "GET"]


def test_named_sandbox_stays_when_the_block_ends(tmp_path: Path) -> None:
    with lying(tmp_path, lambda _: said({**SANDBOX, "name": "dev"}, 201)) as server:
        with Sandbox(name="dev", server=server.address) as sandbox:
            assert repr(sandbox) == "<Sandbox dev running>"
    assert [a.method for a in server.asked] == ["POST"]


def test_failed_delete_does_not_hide_the_error_of_the_block(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Said:
        return refused(503, "sandbox_unavailable", "stuck") if asked.method == "DELETE" else said(SANDBOX, 201)

    with lying(tmp_path, answer) as server, pytest.raises(ZeroDivisionError) as caught:
        with Sandbox(server=server.address):
            raise ZeroDivisionError
    assert any("stuck" in note for note in caught.value.__notes__)


def test_missing_image_that_can_be_built_is_built_with_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = {"name": "base", "digest": "d", "layers": [], "size": 1, "created_at": 1.0}
    lines = [
        {"progress": {"stage": "fetch", "done": 5, "total": 10}},
        {"progress": {"stage": "pack"}},
        {"image": image},
    ]
    built: list[bool] = []

    def answer(asked: Asked) -> Said:
        if asked.path == "/v1/images":
            built.append(True)
            return Said(200, b"".join(json.dumps(line).encode() + b"\n" for line in lines), "application/x-ndjson")
        missing = refused(404, "not_found", details={"image": "base", "build": True})
        return said(SANDBOX, 201) if built else missing

    with lying(tmp_path, answer) as server:
        Sandbox.create(server=server.address)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "building image base",
        "building image base: fetch 50 %",
        "building image base: pack",
        "building image base: done",
    ]


def test_image_that_cannot_be_built_is_not_found(tmp_path: Path) -> None:
    with lying(tmp_path, lambda _: refused(404, "not_found", details={"image": "x"})) as server:
        with pytest.raises(NotFound):
            Sandbox.create("x", server=server.address)
    assert len(server.asked) == 1


def test_failed_build_raises_its_error(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Said:
        if asked.path == "/v1/images":
            return Said(200, b'{"error":{"code":"conflict","message":"another builds it"}}\n', "application/x-ndjson")
        return refused(404, "not_found", details={"build": True})

    with lying(tmp_path, answer) as server, pytest.raises(Conflict, match="another builds it"):
        Sandbox.create(server=server.address)


def test_use_before_creation_gets_a_hint() -> None:
    with pytest.raises(InvalidRequest, match="has not been created") as caught:
        Sandbox().run("x")
    assert "with Sandbox" in (caught.value.hint or "")


HOSTILE = ["../up", "/abs", "..", ".", "a/b", "", "x\x1b[2J", "new\nline"]


def entry(name: str, kind: str = "file") -> dict[str, object]:
    path = f"/workspace/{name}"
    return {"name": name, "path": path, "type": kind, "size": 1, "mode": 420, "uid": 0, "gid": 0, "mtime": 1.0}


def test_hostile_names_of_a_server_never_write_outside(tmp_path: Path) -> None:
    ran: list[bool] = []

    def answer(asked: Asked) -> Said:
        if asked.path.endswith("/processes"):
            ran.append(True)
            return Said(200, BEGIN + END, MEDIA_TYPE)
        if asked.path.endswith("/files/list"):
            links = [entry("link", "link"), entry("pipe", "fifo")]
            return said({"entries": [*map(entry, HOSTILE), entry("good"), *links] if ran else [], "more": False})
        if asked.path.endswith("/files"):
            return Said(200, b"content", "application/octet-stream")
        return Said(204) if asked.method == "DELETE" else said(SANDBOX, 201)

    told: list[str] = []
    out = tmp_path / "deep" / "out"
    with lying(tmp_path, answer) as server:
        result = run("x", out=out, on_warning=told.append, server=server.address)
    assert [p.name for p in out.rglob("*")] == ["good"]
    assert [info.name for info in result.files] == ["good"]
    assert len(told) == len(HOSTILE) + 2
    assert sorted(p.name for p in tmp_path.rglob("*") if p.name != "l.sock") == ["deep", "good", "out"]
    assert [a.query["path"] for a in server.asked if a.path.endswith("/files")] == [["/workspace/good"]]


def test_endless_directories_are_walked_to_a_bound(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Said:
        if asked.path.endswith("/processes"):
            return Said(200, BEGIN + END, MEDIA_TYPE)
        if asked.path.endswith("/files/list"):
            return said({"entries": [entry("again", "directory")], "more": False})
        return Said(204) if asked.method == "DELETE" else said(SANDBOX, 201)

    with lying(tmp_path, answer) as server:
        run("x", out=tmp_path / "out", server=server.address)
    assert len(server.asked) < 200
