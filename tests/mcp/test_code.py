"""The tools run_code, list_languages and execute_code."""

from __future__ import annotations

import base64
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from mcp.types import ImageContent
from support.lying_server import Asked, Said, lying, refused, said
from support.mcp_clients import MODES, Talk, on_stdio

if TYPE_CHECKING:
    from support.server import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")

DRAW = """
import base64, struct, zlib
def chunk(kind, data): return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
class Picture:
    def __init__(self, data): self.data = data
    def __repr__(self): return "a picture"
    def _repr_png_(self): return self.data
good = (b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 2, 8, 2, 0, 0, 0))
    + chunk(b"IDAT", zlib.compress((b"\\0" + b"\\xff\\0\\0" * 2) * 2)) + chunk(b"IEND", b""))
"""


async def test_run_code_returns_the_value_and_keeps_variables(talk: Talk) -> None:
    first = await talk.call("run_code", code="x = 6\nprint('hi')\nx * 7")
    assert (first["text"], first["stdout"], first["ok"], first["language"]) == ("42", "hi\n", True, "python")
    assert (await talk.call("run_code", code="x"))["text"] == "6"
    assert (await talk.call("run_code", code="x", fresh=True))["error"]["name"] == "NameError"


async def test_error_in_code_is_a_result_with_its_line(talk: Talk) -> None:
    ran = await talk.call("run_code", code="a = 1\nraise ValueError('no\\x1b[31m')")
    assert (ran["ok"], ran["error"]["name"], ran["error"]["line"]) == (False, "ValueError", 2)
    assert ran["error"]["message"] == "no\\x1b[31m"
    assert "ValueError" in ran["error"]["traceback"]


async def test_picture_is_returned_as_an_image(talk: Talk) -> None:
    result = await talk.raw("run_code", {"code": DRAW + "Picture(good)"})
    assert not result.is_error
    assert result.structured_content is not None
    (value,) = result.structured_content["results"]
    assert (value["picture"], value["main"], value["text"]) == (1, True, "a picture")
    image = result.content[1]
    assert isinstance(image, ImageContent)
    assert image.mime_type == "image/png"
    assert base64.b64decode(image.data).endswith(b"IEND\xaeB`\x82")


async def test_invalid_picture_is_left_out_with_a_hint(talk: Talk) -> None:
    for false in ("b'<script>alert(1)</script>'", "good[:-5]"):
        result = await talk.raw("run_code", {"code": f"{DRAW}Picture({false})"})
        assert [block.type for block in result.content] == ["text"]
        assert result.structured_content is not None
    assert "pictures were left out" in result.structured_content["hint"]


async def test_values_are_returned_as_data(talk: Talk) -> None:
    code = "class D:\n    def _repr_json_(self): return {'a': [1, 'x\\x1b'], 'b': float('nan')}\nD()"
    (value,) = (await talk.call("run_code", code=code))["results"]
    assert value["json"]["a"] == [1, "x\\x1b"]


async def test_named_context_is_created_and_separate(talk: Talk) -> None:
    await talk.call("run_code", code="y = 1", context="apart")
    assert (await talk.call("run_code", code="y", context="apart"))["text"] == "1"
    assert not (await talk.call("run_code", code="y"))["ok"]
    assert "is one of python" in await talk.fails("run_code", code="1", context="apart", language="javascript")


async def test_context_is_found_again_by_every_name_of_its_language(talk: Talk) -> None:
    for language in ("js", "JavaScript", "javascript"):
        code = "globalThis.n = (globalThis.n ?? 0) + 1"
        ran = await talk.call("run_code", code=code, context="web", language=language)
    assert ran["text"] == "3"
    assert "3.999" in await talk.fails("run_code", code="1", context="apart", language="python@3.999")


async def test_endless_code_is_interrupted_and_the_context_state_reported(talk: Talk) -> None:
    ran = await talk.call("run_code", code="while True: pass", timeout=0.5)
    assert (ran["timed_out"], ran["ok"], ran["after"]) == (True, False, "kept")


async def test_unknown_language_lists_the_known_ones(talk: Talk) -> None:
    assert "javascript" in await talk.fails("run_code", code="1", language="klingon")
    languages = {one["name"]: one for one in (await talk.call("list_languages"))["languages"]}
    assert languages["python"]["keeps_memory"]
    assert languages["python"]["version"]


async def test_results_are_limited_in_number_and_length(talk: Talk) -> None:
    ran = await talk.call("run_code", code="print('x' * 50_000)\n'y' * 50_000", max_output=1000)
    assert len(ran["stdout"]) < 1100
    assert len(ran["text"]) < 1100
    assert ran["truncated"]
    assert "text/plain" in ran["results"][0]["shortened"]


async def test_execute_code_returns_every_field(talk: Talk) -> None:
    done = await talk.call("execute_code", language="python", code="print(input()); open('made.txt', 'w').write('x')",
                           stdin="given\n", files={"data.txt": "y"})  # fmt: skip
    assert (done["status"], done["stdout"], done["exit_code"]) == ("success", "given\n", 0)
    assert "made.txt" in {file["path"].rpartition("/")[2] for file in done["files"]}
    assert done["resource_usage"].keys() >= {"execution_time_seconds", "cpu_seconds"}
    assert done["limits_applied"]["time_limit_seconds"] == 30
    failed = await talk.call("execute_code", language="python", code="1/0")
    assert (failed["status"], failed["exit_code"]) == ("error", 1)
    assert "ZeroDivisionError" in failed["error_message"]
    unknown = await talk.call("execute_code", language="klingon", code="x")
    assert (unknown["status"], unknown["exit_code"]) == ("setup_error", -1)
    late = await talk.call("execute_code", language="python", code="x", timeout=0)
    named = await talk.call("execute_code", language="python", code="x", session_id="no!")
    assert (late["status"], named["status"]) == ("setup_error", "setup_error")
    assert done.keys() == failed.keys() == unknown.keys() == late.keys() == named.keys()


async def test_execute_code_session_is_kept_by_name(talk: Talk) -> None:
    name = f"session-{len(talk.token or '')}"
    await talk.call("execute_code", language="python", code="x = 5", session_id=name)
    again = await talk.call("execute_code", language="python", code="x", session_id=name, timeout=5)
    assert again["text"] == "5"
    await talk.call("remove_sandbox", sandbox=name)


async def test_execute_code_reports_the_installation_of_a_language(tmp_path: Path) -> None:
    reported = threading.Event()
    step = {"stage": "packages", "message": "golang", "done": 1, "total": 2}
    lost = {"code": "registry_error", "message": "no mirror", "hint": None, "details": {}}

    def finish() -> bytes:
        assert reported.wait(60)
        return json.dumps({"error": lost}).encode() + b"\n"

    def answer(asked: Asked) -> Said:
        if asked.path == "/v1/languages":
            return said({"languages": [{"name": "go", "image": "base-go"}]})
        if asked.path == "/v1/languages/go/install":
            return Said(200, json.dumps({"progress": step}).encode() + b"\n", "application/x-ndjson", later=finish)
        return refused(404, "not_found")

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        if message == "installing: packages 50 % golang":
            reported.set()

    with lying(tmp_path, answer) as scripted:
        async with on_stdio(cast("Server", scripted), MODES[0]) as talk:
            arguments = {"language": "go", "code": "package main"}
            result = await talk.raw("execute_code", arguments, progress_callback=hear)
    assert isinstance(result.structured_content, dict)
    assert (result.structured_content["status"], result.structured_content["error_message"]) == (
        "setup_error", "no mirror",
    )  # fmt: skip
