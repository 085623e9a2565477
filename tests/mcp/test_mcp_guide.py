"""Compare the entries of the MCP guide with the installer, and replay its conversation."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from support.cli import shell_environment
from support.mcp_clients import on_stdio
from support.pages import ROOT, plain, texts
from support.server import Server

from skerry.mcp.install.clients import CLIENTS
from skerry.mcp.install.installer import InstallRequest, entry_text
from skerry.mcp.server import build_server

GUIDE = ROOT / "docs/guides/mcp.md"
PAGE = GUIDE.read_text()
STORY = PAGE.partition("## A whole conversation")[2].partition("\n## ")[0]
TOTAL = "def total(prices):\n    result = 0\n    for price in prices[1:]:\n        result += price\n    return result\n"
TEST = """import sys

from total import total

if (got := total([2, 3])) != 5:
    sys.exit(f"total([2, 3]) is {got}, not 5")
print("fine")
"""


def listed(client: str) -> str:
    one = CLIENTS[client]
    where = f"`{one.project}`" if one.project else "-"
    return f"| {one.title} | `skerry mcp install {client}` | `{one.user['linux']}` | {where} |"


def test_mcp_guide_lists_each_client_with_its_files_and_entry() -> None:
    assert [listed(client) for client in CLIENTS] == re.findall(r"^\| .*skerry mcp install .*\|$", PAGE, re.MULTILINE)
    entries = texts(GUIDE, "json") + texts(GUIDE, "toml")
    assert [name for name, one in CLIENTS.items() if entry_text(InstallRequest(one)) not in entries] == []


def test_mcp_guide_lists_each_tool() -> None:
    async def nobody(_: Any) -> Any: ...

    tools = build_server(nobody)._tool_manager.list_tools()
    rows = set(re.findall(r"^\| `(\w+)` \| ([^|]+) \|$", PAGE, re.MULTILINE))
    assert rows >= {(tool.name, tool.title) for tool in tools}


def written(value: dict[str, Any], width: int = 140) -> str:
    """Return JSON in lines that fit a page."""
    lines = ["{"]
    for number, (key, one) in enumerate(value.items()):
        item = f"{json.dumps(key)}: {json.dumps(one, ensure_ascii=False)}" + (", " if number < len(value) - 1 else "}")
        if len(lines[-1]) + len(item) > width and lines[-1] != "{":
            lines.append(" ")
        lines[-1] += item
    return "\n".join(line.rstrip() for line in lines) + "\n"


def same(text: str) -> str:
    """Replace values that differ in each run."""
    text = re.sub(r'"duration_s": [\d.]+', '"duration_s": 0', plain(text))
    text = re.sub(r'"pid": \d+', '"pid": 0', text)
    text = re.sub(r'"version": "[\d.]+"', '"version": "3"', text)
    return re.sub(r'("token": |skerry_token=)"?[\w…-]+"?', r"\1T", text)


async def played(server: Server, project: Path) -> list[tuple[str, str]]:
    """Run each call and each command of the page, and return them with their results."""
    (project / "total.py").write_text(TOTAL)
    (project / "test_total.py").write_text(TEST)
    (project / ".gitignore").write_text("__pycache__/\n")
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *words], cwd=project, check=True)
    came: list[tuple[str, str]] = []
    process = ""
    async with on_stdio(server, "2026-07-28", "--name", "fix-total", "--repo", str(project)) as talk:
        for kind, block in re.findall(r"^```(mcp|console)\n(.*?)^```$", STORY, re.MULTILINE | re.DOTALL):
            for part in re.split(r"^[>$] ", block, flags=re.MULTILINE)[1:]:
                line = part.splitlines()[0]
                if kind == "console":
                    done = subprocess.run(
                        line,
                        shell=True,
                        cwd=project,
                        env=shell_environment(server.address),
                        capture_output=True,
                        text=True,
                        timeout=60,
                    )
                    assert done.returncode == 0, (line, done.stderr)
                    came.append((f"$ {line}", done.stdout))
                    continue
                tool, _, arguments = line.partition(" ")
                result = await talk.call(tool, **json.loads(re.sub(r"p-(…|[a-z2-7]{10})", process, arguments)))
                process = result.get("process", process)
                came.append((f"> {line}", written(result)))
    return came


async def test_mcp_guide_conversation_has_real_results(server: Server, tmp_path: Path) -> None:
    came = await played(server, tmp_path)
    story = "".join(re.findall(r"^```(?:mcp|console)\n(.*?)^```$", STORY, re.MULTILINE | re.DOTALL))
    there = [part for part in re.split(r"^(?=[>$] )", story, flags=re.MULTILINE) if part]
    assert [same(f"{call}\n{result}") for call, result in came] == [same(part) for part in there]
    assert (tmp_path / "total.py").read_text() == "def total(prices):\n    return sum(prices)\n"
