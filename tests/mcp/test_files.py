"""Files of a sandbox as tools and as resources."""

from __future__ import annotations

import base64
import struct
import zlib

import pytest
from mcp.shared.exceptions import MCPError
from mcp.types import BlobResourceContents, EmbeddedResource, ImageContent, ResourceLink, TextResourceContents
from support.mcp_clients import Talk

pytestmark = pytest.mark.asyncio(loop_scope="session")


def png(width: int = 2, height: int = 2) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\xff\0\0" * width) * height)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


async def put(talk: Talk, path: str, data: bytes) -> None:
    ran = await talk.call("run", command=["sh", "-c", f"base64 -d > {path}"], stdin=base64.b64encode(data).decode())
    assert ran["ok"], ran


async def test_file_is_written_and_read_by_lines(talk: Talk) -> None:
    text = "".join(f"line {number}\n" for number in range(1, 1001))
    assert (await talk.call("write_file", path="a/long.txt", content=text))["size"] == len(text)
    some = await talk.call("read_file", path="a/long.txt", start_line=10, end_line=12)
    assert (some["text"], some["next_line"], some["more"]) == ("line 10\nline 11\nline 12\n", 13, True)
    found, line = "", 1
    while line:
        page = await talk.call("read_file", path="/workspace/a/long.txt", start_line=line, max_output=4000)
        assert len(page["text"]) <= 4000
        found, line = found + page["text"], page.get("next_line")
    assert found == text
    await talk.call("write_file", path="a/long.txt", content="the end", append=True)
    assert (await talk.call("read_file", path="a/long.txt", start_line=1001))["text"] == "the end\n"


async def test_content_that_looks_like_json_is_unchanged(talk: Talk) -> None:
    await talk.call("write_file", path="data.json", content='{"a": null}')
    assert (await talk.call("run", command="cat data.json"))["stdout"] == '{"a": null}'


async def test_replace_changes_only_the_expected_matches(talk: Talk) -> None:
    await talk.call("write_file", path="r.txt", content="a = 1\nb = 1\n")
    assert "2" in await talk.fails("replace_in_file", path="r.txt", old="1", new="2")
    assert (await talk.call("replace_in_file", path="r.txt", old="b = 1", new="b = 2"))["lines"] == [2]
    assert (await talk.call("replace_in_file", path="r.txt", old=" = ", new="=", count=0))["count"] == 2
    assert (await talk.call("read_file", path="r.txt"))["text"] == "a=1\nb=2\n"


async def test_diff_is_applied_completely_or_not_at_all(talk: Talk) -> None:
    await talk.call("write_file", path="p/x.txt", content="one\ntwo\n")
    change = "--- a/x.txt\n+++ b/x.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n"
    done = await talk.call("patch_files", path="p", diff=f"{change}--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1 @@\n+n\n")
    assert {(file["path"], file["action"]) for file in done["files"]} >= {("p/new.txt", "created")}
    assert "two" in await talk.fails("patch_files", path="p", diff=change)
    assert (await talk.call("read_file", path="p/x.txt"))["text"] == "one\nthree\n"


async def test_files_are_listed_found_and_searched(talk: Talk) -> None:
    for name in ("s/one.py", "s/deep/two.py", "s/.hidden", "s/three.txt"):
        await talk.call("write_file", path=name, content=f"here is {name}\nneedle {name}\n")
    listed = await talk.call("list_files", path="s")
    assert {(one["path"], one["type"]) for one in listed["entries"]} == {
        ("s/.hidden", "file"), ("s/deep", "directory"), ("s/one.py", "file"), ("s/three.txt", "file"),
    }  # fmt: skip
    few = await talk.call("list_files", path="s", depth=3, limit=2)
    assert (len(few["entries"]), few["more"]) == (2, True)
    found = await talk.call("glob_files", path="s", pattern="**/*.py")
    assert sorted(one["path"] for one in found["entries"]) == ["s/deep/two.py", "s/one.py"]
    matches = await talk.call("search_files", path="s", pattern="^needle .*py$", context=1)
    assert {(one["path"], one["line"], one["before"][0]) for one in matches["matches"]} == {
        ("s/deep/two.py", 2, "here is s/deep/two.py"), ("s/one.py", 2, "here is s/one.py"),
    }  # fmt: skip
    assert (await talk.call("search_files", path="s", pattern="needle", limit=1))["more"]


async def test_get_file_returns_a_readable_resource(talk: Talk) -> None:
    await talk.call("write_file", path="/workspace/back.txt", content="ä\n")
    for path in ("back.txt", "/workspace/back.txt"):
        result = await talk.raw("get_file", {"path": path})
        block = result.content[1]
        assert isinstance(block, EmbeddedResource)
        assert isinstance(block.resource, TextResourceContents)
        assert (block.resource.text, block.resource.mime_type) == ("ä\n", "text/plain")
        read = (await talk.client.read_resource(block.resource.uri)).contents[0]
        assert isinstance(read, TextResourceContents)
        assert read.text == "ä\n"


async def test_binary_file_is_returned_unchanged(talk: Talk) -> None:
    data = bytes(range(256))
    await put(talk, "raw.bin", data)
    block = (await talk.raw("get_file", {"path": "raw.bin"})).content[1]
    assert isinstance(block, EmbeddedResource)
    assert isinstance(block.resource, BlobResourceContents)
    assert base64.b64decode(block.resource.blob) == data


async def test_get_file_returns_an_image_only_for_valid_pictures(talk: Talk) -> None:
    await put(talk, "a.png", png())
    image = (await talk.raw("get_file", {"path": "a.png"})).content[1]
    assert isinstance(image, ImageContent)
    assert (base64.b64decode(image.data), image.mime_type) == (png(), "image/png")
    for false in (png()[:-5], png(0, 2), b"\x89PNG\r\n\x1a\nno", b"GIF89a", b"<svg onload='x'/>", b"\xff\xd8\xff half"):
        await put(talk, "false.png", false)
        blocks = (await talk.raw("get_file", {"path": "false.png"})).content
        assert not any(isinstance(block, ImageContent) for block in blocks), false


async def test_large_file_is_a_link_and_huge_file_an_error_with_a_hint(talk: Talk) -> None:
    await talk.call("run", command="head -c 600000 /dev/zero > large.bin; truncate -s 5M huge.bin")
    link = (await talk.raw("get_file", {"path": "large.bin"})).content[1]
    assert isinstance(link, ResourceLink)
    blob = (await talk.client.read_resource(link.uri)).contents[0]
    assert isinstance(blob, TextResourceContents | BlobResourceContents)
    huge = (await talk.raw("get_file", {"path": "huge.bin"})).content[1]
    assert isinstance(huge, ResourceLink)
    with pytest.raises(MCPError, match="read_file"):
        await talk.client.read_resource(huge.uri)


async def test_answer_over_http_stays_below_the_clients_limit(talk: Talk) -> None:
    """Clients accept HTTP events up to one MiB."""
    ran = await talk.call(
        "run", command="truncate -s 3M three.bin; yes '' | head -c 520000 > lines; printf '\\1%.0s' $(seq 250000)"
    )
    lines = (await talk.raw("get_file", {"path": "lines"})).content[1]
    assert isinstance(lines, ResourceLink | EmbeddedResource)
    link = (await talk.raw("get_file", {"path": "three.bin"})).content[1]
    assert isinstance(link, ResourceLink)
    try:
        (read,) = (await talk.client.read_resource(link.uri)).contents
        assert isinstance(read, BlobResourceContents)
        assert len(base64.b64decode(read.blob)) == 3 << 20
    except MCPError as error:
        assert "too large for one answer" in str(error)  # noqa: PT017
    uri = f"skerry://sandboxes/{ran['sandbox']}/processes/{ran['process']}/output"
    (printed,) = (await talk.client.read_resource(uri)).contents
    assert isinstance(printed, TextResourceContents)
    assert printed.text.startswith("\\x01" * 1000)


async def test_process_output_is_a_resource(talk: Talk) -> None:
    ran = await talk.call("run", command="echo shown")
    uri = f"skerry://sandboxes/{ran['sandbox']}/processes/{ran['process']}/output"
    read = (await talk.client.read_resource(uri)).contents[0]
    assert isinstance(read, TextResourceContents)
    assert read.text == "shown\n"
    with pytest.raises(MCPError, match="list_processes"):
        await talk.client.read_resource(f"skerry://sandboxes/{ran['sandbox']}/processes/p-aaaaaaaaaa/output")


async def test_resources_are_listed_as_templates(talk: Talk) -> None:
    templates = (await talk.client.list_resource_templates()).resource_templates
    assert {one.name for one in templates} == {"file", "workspace_file", "diff", "output"}
