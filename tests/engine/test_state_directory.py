"""The page about the state directory names everything that a server keeps there."""

from __future__ import annotations

import fnmatch
import os
import re
from pathlib import Path

from support.server import Server

from skerry import Sandbox

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/design/state-directory.md"
NAMED = re.compile(r"\bstate_dir / (?:\"([^\"]+)\"|([A-Z_]+)\b)")


def documented() -> list[str]:
    """The first parts of the paths in the first column, as patterns."""
    cells = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    paths = [path for cell in cells for path in re.findall(r"`([^`]+)`", cell)]
    return [re.sub(r"<[^>]+>", "*", path).split("/")[0] for path in paths]


def undocumented(names: set[str]) -> list[str]:
    patterns = documented()
    return sorted(name for name in names if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))


def named_in(path: Path) -> set[str]:
    """The entries of the state directory that a module names, also by a constant of it."""
    text = path.read_text()
    found = set()
    for literal, constant in NAMED.findall(text):
        if constant:
            value = re.search(rf'^{constant}(?:: Final)? = "([^"]+)"', text, re.MULTILINE)
            found |= {value[1]} if value else set()
        else:
            found.add(literal)
    return found


def test_page_lists_every_path_that_the_code_names() -> None:
    names = {name for path in (ROOT / "src/skerry").rglob("*.py") for name in named_in(path)}
    assert {"usage.db", "traces", "cassettes", "e2b-uploads", "lock", "audit"} <= names  # the pattern still finds them
    assert undocumented(names) == []


def test_page_lists_all_that_a_server_makes(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox:
        sandbox.run("true", check=True)
        assert undocumented(set(os.listdir(server.state_dir))) == []
